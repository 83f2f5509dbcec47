"""Where the time goes: every stage alone, training end to end, the verdict, advice that was tried, tuning.

In: a dataset and a training configuration. Out: tables and records. Must not know: the demo, the command line.
"""
