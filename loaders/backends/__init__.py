"""Whose decoder fills the batches: ours, torch's DataLoader, DALI, FFCV, random pixels, or the GPU's.

In: a dataset, a crop, settings. Out: the same batches in the same order. Must not know: training.
"""
