"""The embedded real data: scikit-learn's 1,797 handwritten digits (UCI optical recognition), as image files."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from fastimg.loaders.runtime.cache import cache_folder

NAME = "digits"
COUNT = 1797


def write_digits(folder: Path) -> None:
    """Write `folder`/<digit>/<number>.png, 8 x 8 gray: all of them, or, where one fails, nothing.

    Of several processes that write them at once, each finds those of the first. Raises OSError.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        part = Path(name) / folder.name  # with the usual mode, which the folder around it does not have
        for digit in range(10):
            (part / str(digit)).mkdir(parents=True)
        for number, (pixels, label) in enumerate(zip(images.reshape(-1, 8, 8), labels, strict=True)):
            gray = np.round(pixels * (255 / 16)).astype(np.uint8)
            Image.fromarray(gray).save(part / str(label) / f"{number:04d}.png")
        try:
            part.replace(folder)
        except OSError:
            if not (folder / "0/0000.png").exists():  # else another process was faster, and wrote the same
                raise


def is_embedded(folder: Path) -> bool:
    """Whether a folder is that of `digits_folder`."""
    return folder == cache_folder() / NAME


def digits_folder() -> Path:
    """The digits in the user's cache directory, written there the first time."""
    cache = cache_folder()
    folder = cache / NAME
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        write_digits(folder)
    return folder
