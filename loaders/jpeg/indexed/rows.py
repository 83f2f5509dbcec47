"""How the rows of an index are stored, see `packing`. Opening a dataset needs no more, so nothing is compiled here."""

import numpy as np

ROW = np.dtype([("data", "<u4"), ("lengths", "<u4"), ("check", "<u8")])
FACTOR = 0x9E3779B97F4A7C15  # odd: a check is the sum of its lengths in powers of it, modulo 2 ** 64
