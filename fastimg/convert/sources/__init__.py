"""Sources of samples: folders, manifests, Parquet files, named sets, and shards from any writer.

In: what SRC names. Out: entries, then samples one by one. Must not know: what is written.
"""
