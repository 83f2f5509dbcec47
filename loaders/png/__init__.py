"""PNG files -> pixels, in compiled code without the GIL."""
