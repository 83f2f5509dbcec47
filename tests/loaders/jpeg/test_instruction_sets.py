"""Crops decoded by machine code for other processors: the same bits.

python tests/loaders/jpeg/test_instruction_sets.py        the digest of the crops, on this machine
"""

import hashlib
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import simplejpeg

from fastimg.loaders import RandomResizedCrop
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

SETS = {"plain": ("generic", ""), "AVX2": ("haswell", "+avx,+avx2,+bmi,+bmi2,+fma,+lzcnt,+movbe,+popcnt")}


def digest():
    """Of crops of tiled JPEGs of each sampling."""
    rng = np.random.default_rng(0)
    queue, scratch, crop = CropQueue(), Scratch(), RandomResizedCrop(size=72)
    out = np.empty((1, 72, 72, 3), np.uint8)
    digest = hashlib.sha256()
    for sampling in ("444", "422", "420"):
        coarse = rng.integers(0, 256, (23, 31, 3)).repeat(9, axis=0).repeat(8, axis=1)
        pixels = np.clip(coarse + rng.normal(0, 20, coarse.shape), 0, 255).astype(np.uint8)
        jpeg = tile(simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)).jpeg
        for _ in range(8):
            assert queue.add(jpeg, crop, rng.random(crop.draws).tolist(), 1 << 20, 0)
            assert not queue.run(crop, 0, scratch, out)
            digest.update(out.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", SETS)
def test_crops_of_other_processors_code(name, tmp_path):
    if name == "AVX2" and platform.machine() != "x86_64":
        pytest.skip("for x86-64")
    cpu, features = SETS[name]
    environ = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features}
    environ |= {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "1"}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest()


if __name__ == "__main__":
    print(digest())
