"""PNG, BMP and PPM files -> pixels, in compiled code without the GIL."""
