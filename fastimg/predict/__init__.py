"""Using a checkpoint: evaluation, prediction, embeddings, and export with its check.

In: a checkpoint and samples. Out: tables, files and pictures. Must not know: benchmarks, how a run is resumed.
"""
