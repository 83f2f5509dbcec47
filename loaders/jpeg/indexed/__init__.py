"""Crops of large tiled JPEGs by an index of their blocks, which is kept beside them.

In: some bytes of a JPEG, its index, a window. Out: a row of uint8. Must not know: containers, threads.
"""
