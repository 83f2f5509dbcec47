"""Sources in an object store: folders and manifests as trees of names, tars and datasets by way of the cache.

In: the URLs in SRC. Out: paths here that stand for them, and their contents. Must not know: classes, plans, writing.
"""
