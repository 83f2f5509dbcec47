"""Cached embeddings, for encoders that are frozen: the array store, and datasets on top of it.

In: a dataset and an encoder. Out: a dataset of embeddings or tokens. Must not know: the training that reads them.
"""
