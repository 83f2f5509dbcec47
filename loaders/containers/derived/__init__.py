"""What is derived from shards so that they open quickly, and kept beside them.

In: shards. Out: a record per sample, columns of targets and fields. Must not know: where a path leads, batches.
"""
