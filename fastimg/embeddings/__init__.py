"""A frozen encoder runs once: digests of samples, the store of arrays, and the datasets made of them.

In: a dataset and an encoder. Out: a dataset of embeddings or tokens. Must not know: the training that reads them.
"""
