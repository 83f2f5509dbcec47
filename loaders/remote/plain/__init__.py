"""Folders of image or text files in an object store, which nobody has converted.

In: a listing. Out: groups of files, fetched and kept as shards are. Must not know: classes, decoding.
"""
