"""Training: setup, the loop, one step; optimisers, metrics, checkpoints and reports.

In: a configuration. Out: a run directory. Must not know: prediction, export or benchmarks of what it trains.
"""
