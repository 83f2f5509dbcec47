"""Checksums of PNG in compiled code, against zlib's."""

import os
import subprocess
import sys
import zlib

import numpy as np

from fastimg.loaders.pictures.checksums import adler32, crc32

SIZES = [*range(600), 4095, 4096, 4097, 65_536, 199_990]

CHECK = """
import zlib, numpy as np
from fastimg.loaders.pictures.checksums import adler32, crc32
data = np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8)
for size in (0, 1, 255, 256, 257, 320, 1999):
    assert crc32(data.ctypes.data, size) == zlib.crc32(data[:size]), size
    assert adler32(data.ctypes.data, size) == zlib.adler32(data[:size]), size
"""


def test_checksums_equal_those_of_zlib():
    data = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
    for size in SIZES:
        for begin in (0, 3):
            part = data[begin : begin + size]
            assert crc32(data.ctypes.data + begin, size) == zlib.crc32(part), size
            assert adler32(data.ctypes.data + begin, size) == zlib.adler32(part), size


def test_checksums_of_the_largest_bytes():
    data = np.full(200_000, 255, np.uint8)
    for size in SIZES:
        assert adler32(data.ctypes.data, size) == zlib.adler32(data[:size]), size


def test_checksums_without_the_processor_s_products(tmp_path):
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CHECK], env=os.environ | plain, check=True, timeout=300)
