"""The folder of a search: its files and its lock, and the store that it is uploaded to.

In: a path, or the URL of a folder in an object store.
Out: a folder on this machine, which one search at a time has.
Must not know: how trials are chosen and run.
"""
