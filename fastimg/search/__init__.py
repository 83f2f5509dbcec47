"""The best settings for some data: what is tried, in which trials, and which of them did best.

In: parameters of `train`, or a time.
Out: a folder with a study, a run directory per trial, a leaderboard.
Must not know: benchmarks and inspection.
"""
