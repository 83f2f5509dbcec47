"""Make the tutorial's photographs: four kinds of leaves in front of the two photographs that scikit-learn brings.

    python docs/tutorial/leaves.py photos
    python docs/tutorial/leaves.py new --new --per-class 3

Writes birch, maple, oak and willow with JPEG files of 160 x 120 pixels, the same ones each time. Like folders that
people sort, this one has faults: a picture in two classes, one that is saved twice, and three in a wrong class.
With --new they are other photographs, without faults.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from sklearn.datasets import load_sample_images

CLASSES = ("birch", "maple", "oak", "willow")
SIZE = (160, 120)
_GREENS = ((86, 132, 48), (120, 140, 40), (150, 120, 40), (170, 90, 40), (60, 110, 60))


def outline(kind: str, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edge of a leaf that points right, in units of its length: x and y for angles from -pi to pi."""
    x, half = np.cos(angles), np.sin(angles)
    if kind == "willow":
        return x, 0.2 * half
    if kind == "birch":  # widest near the stem, with small teeth
        return x, 0.55 * half * (1 - 0.3 * x) * (1 + 0.05 * np.sin(40 * angles))
    if kind == "oak":  # round lobes
        return x, 0.45 * half * (1 + 0.28 * np.cos(11 * angles))
    lobes = 0.55 + 0.4 * np.abs(np.cos(2.5 * angles)) ** 1.5 + 0.04 * np.cos(30 * angles)  # five points
    return lobes * x, lobes * half


def photograph(kind: str, random: np.random.Generator, backgrounds: list[Image.Image]) -> Image.Image:
    """A leaf of one kind, turned, seen from the side, lit and out of focus by chance."""
    background = backgrounds[random.integers(len(backgrounds))]
    left, top = (int(random.integers(side - 2 * part)) for side, part in zip(background.size, SIZE, strict=True))
    picture = background.crop((left, top, left + 2 * SIZE[0], top + 2 * SIZE[1]))  # drawn at twice its size
    picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0, 4)))
    x, y = outline(kind, np.linspace(-np.pi, np.pi, 361))
    length, turn, tilt = random.uniform(55, 105), random.uniform(0, 2 * np.pi), random.uniform(0.6, 1)
    at = np.array(SIZE) + random.uniform(-40, 40, 2)
    points = length * np.stack([x, tilt * y])
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    colour = np.clip(_GREENS[random.integers(len(_GREENS))] + random.normal(0, 14, 3), 0, 255).astype(int)
    draw = ImageDraw.Draw(picture)
    draw.polygon([tuple(point) for point in (rotation @ points).T + at], fill=tuple(colour))
    vein = tuple((colour * 0.7).astype(int))
    ends = (rotation @ (length * np.array([[-1.2, 0.85], [0, 0]]))).T + at
    draw.line([tuple(end) for end in ends], fill=vein, width=3)
    picture = picture.resize(SIZE, Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2)))
    picture = ImageEnhance.Brightness(picture).enhance(random.uniform(0.6, 1.3))
    grain = random.normal(0, random.uniform(2, 12), (SIZE[1], SIZE[0], 3))
    return Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype("uint8"))


def make(folder: Path, per_class: int = 120, new: bool = False) -> None:
    """Write the folder of photographs, with its faults unless they are new ones."""
    backgrounds = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for number, kind in enumerate(CLASSES):
        (folder / kind).mkdir(parents=True)
        random = np.random.default_rng([number, new])
        for at in range(per_class):
            photograph(kind, random, backgrounds).save(folder / kind / f"{at:04d}.jpg", quality=88)
    if new:
        return
    for at in range(3):
        shutil.move(folder / f"oak/{at:04d}.jpg", folder / f"maple/oak-{at}.jpg")
    shutil.copy(folder / "birch/0005.jpg", folder / "willow/0005-copy.jpg")
    shutil.copy(folder / "maple/0006.jpg", folder / "maple/0006-copy.jpg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-class", type=int, default=120)
    parser.add_argument("--new", action="store_true")
    given = parser.parse_args()
    make(given.folder, given.per_class, given.new)
    print(
        f"{given.folder}: {sum(1 for _ in given.folder.rglob('*.jpg'))} photographs of {len(CLASSES)} kinds of leaves"
    )
