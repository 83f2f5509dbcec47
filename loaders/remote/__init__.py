"""Datasets in an object store.

In: the URL of a folder of shards, or of files. Out: verified files in a bounded cache. Must not know: what is in a
shard, batches.
"""
