"""JPEG: lossless rewriting into tiles, and decoding of the tiles that a crop touches.

In: a file's bytes. Out: other bytes with the same pixels, or the pixels themselves. Must not know: containers, batches.
"""
