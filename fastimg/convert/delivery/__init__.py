"""Conversion into an object store: finished files go from a staging folder to a URL, dataset.json last.

In: finished shards in a folder. Out: objects in a store. Must not know: sources, preparation.
"""
