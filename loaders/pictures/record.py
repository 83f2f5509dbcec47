"""What is known of an encoded picture before its pixels are made, as a record."""

import numpy as np
import numpy.typing as npt

GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6  # colour types of PNG
BGR = 32  # of BMP: pixels and colours of a palette have their blue first
LOW_FIRST = 64  # of TIFF: samples of 16 bits have their lower byte first

DEFLATED, STORED, WEBP = 0, 1, 2  # formats

PICTURE = np.dtype(
    [
        ("format", np.int64),
        ("width", np.int64),
        ("height", np.int64),
        ("depth", np.int64),  # bits of a sample
        ("colour", np.int64),
        ("step", np.int64),  # bytes from a pixel to the next, at least 1
        ("length", np.int64),  # bytes of a row, without its filter's
        ("palette", np.int64),  # where its colours begin
        ("colours", np.int64),
        ("colour_step", np.int64),  # bytes from a colour to the next
        ("colour_apart", np.int64),  # bytes from a colour's red to its green, and from that to its blue
        # Of what is stored as it is: where the first row begins, and the bytes to the next, which may come before it.
        ("first", np.int64),
        ("pitch", np.int64),
        # Of PNG and WebP: where the first chunk of pixels begins, of WebP its content; and bytes of pixels as they are.
        ("body", np.int64),
        ("nbytes", np.int64),
        # Of PNG:
        ("profile", np.int64),  # where the deflated ICC profile begins, and its bytes
        ("profile_bytes", np.int64),
        ("parts", np.int64),  # chunks of pixels
        ("group", np.int64),  # rows of a group that each of these chunks is, but perhaps the last; 0 for none
        # Of WebP:
        ("lossless", np.int64),
    ]
)


def new_picture() -> npt.NDArray[np.void]:
    """A record for a parser to fill."""
    return np.zeros(1, PICTURE)
