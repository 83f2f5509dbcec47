"""What a loaded model says about samples, wherever they are: files, datasets, or images and texts in memory.

In: a loaded model and samples. Out: an answer for each of them. Must not know: flags, tables, how a run is resumed.
"""
