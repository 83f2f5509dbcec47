"""A JPEG becomes another one without loss: markers, Huffman codes, coefficients, restarts, tiles.

In: a file's bytes. Out: a tiled, spliced or turned file with the same coefficients. Must not know: crops' randomness.
"""
