"""Where the time goes: each stage on its own, training end to end, a verdict, advice that was tried, and tuning.

In: a dataset and a training configuration. Out: tables and records. Must not know: the demo, the command line.
"""
