"""How the rows of an index are stored, see `packing`. Opening a dataset needs no more, so nothing is compiled here."""

import numpy as np

ROW = np.dtype([("data", "<u4"), ("lengths", "<u4"), ("check", "<u4")])
