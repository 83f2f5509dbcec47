"""Whose decoder fills the batches: ours, torch's DataLoader, DALI, FFCV, random pixels, the GPU's, or nobody's
any more.

In: a dataset, a crop, settings. Out: the same batches in the same order. Must not know: training.
"""
