"""obstore's clients: how they are made, what their errors and ETags mean, and how they list.

In: a URL and options. Out: a client, causes in words, names. Must not know: datasets, the cache.
"""
