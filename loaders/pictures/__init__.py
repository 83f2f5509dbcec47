"""Pictures of other formats than JPEG in compiled code: PNG, WebP, BMP, PPM and TIFF.

In: the bytes of a file. Out: a record of what its header says, and rows of pixels in memory. Must not know: crops,
batches, datasets.
"""
