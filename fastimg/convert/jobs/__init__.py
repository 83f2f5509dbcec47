"""A conversion that is ready to run: its shards are written, and dataset.json last.

In: a source, a plan, a destination. Out: a dataset, or one that can be resumed. Must not know: the command line.
"""
