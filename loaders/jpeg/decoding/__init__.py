"""Decoding JPEGs to pixels in compiled calls: frame, entropy, baseline or scans, colour, filters.

In: bytes and windows. Out: rows of uint8. Must not know: containers, threads.
"""
