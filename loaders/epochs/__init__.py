"""Epochs: which samples come, in which order, and how far a loader is.

In: a dataset's length and what it says of itself, settings. Out: plans of batches, and positions to go on from.
Must not know: decoders, threads, a device's memory.
"""
