"""Sources of samples: folders, manifests, parquet files, named sets, and shards of any make.

In: what SRC names. Out: entries, then samples one by one. Must not know: what is written.
"""
