"""Loaders side by side: the same images and crops, a process each, epochs in turn, after parity.

In: a dataset. Out: records that compare loaders. Must not know: models, training.
"""
