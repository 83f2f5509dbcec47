"""Rewriting a JPEG without loss: markers, Huffman codes, coefficients, restarts, tiles.

In: a file's bytes. Out: a tiled, spliced or turned file, same coefficients. Must not know: how crops are drawn.
"""
