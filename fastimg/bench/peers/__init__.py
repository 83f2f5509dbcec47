"""Compares loaders on the same images and crops: a process each, a parity check first, then epochs in turn.

In: a dataset. Out: records that compare loaders. Must not know: models, training.
"""
