"""Decoding a tiled JPEG to pixels in one compiled call: frame, entropy, baseline, colour, filters.

In: bytes and windows. Out: rows of uint8. Must not know: containers, threads.
"""
