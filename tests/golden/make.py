"""Make the golden files anew: `python tests/golden/make.py`.

Their bytes are what earlier versions wrote. A difference in them is a change of format, which belongs in CHANGELOG.md,
and which readers must go on understanding.
"""

import gzip
import shutil
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.cli import run

HERE = Path(__file__).parent
SAMPLES = {"ebb/0.jpg": 0, "ebb/1.png": 1, "flow/2.jpg": 2, "flow/3.jpg": 3}


def make_images(folder: Path) -> None:
    """Two classes, three JPEGs and a PNG. JPEGs differ between encoders, so the files are kept, too."""
    for name, number in SAMPLES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(file, quality=90)


def pixels(number: int) -> npt.NDArray[np.uint8]:
    """Ramps [40, 56, 3]; `number` shifts them."""
    y, x = np.mgrid[0:40, 0:56]
    planes = (x * 4 + number * 20, y * 6 + number * 40, (x + y) * 3 + number * 9)
    return np.stack([plane % 256 for plane in planes], axis=-1).astype(np.uint8)


def convert(images: Path, shards: Path, betons: Path) -> None:
    """The same images in both containers."""
    for target, container in ((shards, "tar"), (betons, "beton")):
        assert run(["convert", str(images), str(target), "--format", container]) == 0


def make_all(scratch: Path) -> None:
    """Write all golden files."""
    make_images(HERE / "images")
    shutil.rmtree(HERE / "shards", ignore_errors=True)
    convert(HERE / "images", HERE / "shards", scratch / "betons")
    packed = gzip.compress((scratch / "betons" / "train.beton").read_bytes(), mtime=0)  # mostly zeros: FFCV's pages
    (HERE / "train.beton.gz").write_bytes(packed)


if __name__ == "__main__":
    make_all(Path(sys.argv[1] if len(sys.argv) > 1 else "build/golden"))
