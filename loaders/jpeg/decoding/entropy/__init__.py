"""Huffman codes -> coefficients: of tiles (`tiles`), and of a whole scan (`scan`).

In: bits without stuffing, and tables (`lookups`). Out: int16, in blocks. Must not know: pixels, windows.
"""
