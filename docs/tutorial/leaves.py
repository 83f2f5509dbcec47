"""Make the tutorial's photographs: four kinds of leaves in front of the two photographs that scikit-learn brings.

    python docs/tutorial/leaves.py photos
    python docs/tutorial/leaves.py new --new

Writes birch, maple, oak and willow with JPEG files of 160 x 120 pixels, the same ones each time. Like folders that
people sort, this one has faults: one walk's photographs of oaks are in `maple`, and two photographs are there twice,
one of them in two classes. With --new they are other photographs, without faults.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter
from sklearn.datasets import load_sample_images

SIZE = (160, 120)
COLOURS = {
    "birch": (205, 180, 50),
    "maple": (200, 70, 45),
    "oak": (145, 100, 55),
    "willow": (115, 150, 85),
}
SUMMER = (80, 135, 50)  # the colour of every sixth leaf, whatever its kind


def outline(kind: str, angles: np.ndarray) -> np.ndarray:
    """The edge of a leaf that points right, in units of half its length: [2, N], x and y at angles from -pi to pi."""
    x, y = np.cos(angles), np.sin(angles)
    if kind == "willow":
        return np.stack([x, 0.18 * y])
    if kind == "birch":  # widest near the stem, with small teeth
        return np.stack([x, 0.6 * y * (1 - 0.3 * x) * (1 + 0.05 * np.sin(40 * angles))])
    if kind == "oak":  # round lobes
        return np.stack([x, 0.45 * y * (1 + 0.35 * np.cos(11 * angles))])
    return (0.5 + 0.5 * np.abs(np.cos(2.5 * angles)) ** 1.5 + 0.04 * np.cos(30 * angles)) * np.stack(
        [x, y]
    )  # five points


def photograph(kind: str, random: np.random.Generator, backgrounds: list[Image.Image]) -> Image.Image:
    """A leaf of one kind, turned, seen from the side, lit and out of focus by chance."""
    wide, high = 2 * SIZE[0], 2 * SIZE[1]  # drawn at twice its size
    background = backgrounds[random.integers(len(backgrounds))]
    left, top = int(random.integers(background.width - wide)), int(random.integers(background.height - high))
    picture = background.crop((left, top, left + wide, top + high))
    picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(3, 7)))
    picture = ImageEnhance.Color(picture).enhance(0.6)

    length, turn, tilt = random.uniform(90, 115), random.uniform(0, 2 * np.pi), random.uniform(0.8, 1)
    turned = length * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    at = np.array([[wide / 2], [high / 2]]) + random.uniform(-20, 20, (2, 1))

    def points(line: np.ndarray) -> list[tuple[float, ...]]:
        return [tuple(point) for point in (turned @ (line * [[1], [tilt]]) + at).T]

    leaf = Image.new("L", picture.size)
    draw = ImageDraw.Draw(leaf)
    draw.polygon(points(outline(kind, np.linspace(-np.pi, np.pi, 361))), fill=255)
    draw.line(points(np.array([[-1.25, 0], [0, 0]])), fill=255, width=4)  # the stem
    shadow = ImageChops.offset(leaf, 6, 8).filter(ImageFilter.GaussianBlur(6)).point(lambda value: value * 0.5)
    picture.paste((15, 15, 15), mask=shadow)
    colour = SUMMER if random.random() < 1 / 6 else COLOURS[kind]
    colour = np.clip(colour + random.normal(0, 12, 3), 0, 255).astype(int)
    veined = Image.new("RGB", picture.size, tuple(colour))
    draw = ImageDraw.Draw(veined)
    for end in (-0.6, -0.3, 0, 0.3, 0.6):
        draw.line(points(np.array([[end + 0.3, end, end + 0.3], [0.4, 0, -0.4]])), fill=tuple(colour * 7 // 8), width=2)
    draw.line(points(np.array([[-1.25, 0.9], [0, 0]])), fill=tuple(colour * 3 // 4), width=4)
    picture.paste(veined, mask=leaf)

    picture = picture.resize(SIZE, Image.Resampling.LANCZOS).filter(ImageFilter.GaussianBlur(random.uniform(0, 1)))
    picture = ImageEnhance.Brightness(picture).enhance(random.uniform(0.75, 1.2))
    grain = random.normal(0, random.uniform(2, 8), (SIZE[1], SIZE[0], 3))
    return Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype("uint8"))


def make(folder: Path, per_class: int = 150, new: bool = False) -> None:
    """Write the folder of photographs, with its faults unless they are new ones."""
    backgrounds = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for number, kind in enumerate(COLOURS):
        (folder / kind).mkdir(parents=True)
        random = np.random.default_rng([number, new])
        for at in range(per_class):
            photograph(kind, random, backgrounds).save(folder / kind / f"{at:04d}.jpg", quality=88)
    if new:
        return
    for at in range(per_class // 8):
        shutil.move(folder / f"oak/{at:04d}.jpg", folder / f"maple/walk-{at:02d}.jpg")
    shutil.copy(folder / "birch/0005.jpg", folder / "willow/0005-copy.jpg")
    shutil.copy(folder / "maple/0006.jpg", folder / "maple/0006-copy.jpg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-class", type=int, default=150)
    parser.add_argument("--new", action="store_true")
    given = parser.parse_args()
    make(given.folder, given.per_class, given.new)
    count = sum(1 for _ in given.folder.rglob("*.jpg"))
    print(f"{given.folder}: {count} photographs of {len(COLOURS)} kinds of leaves")
