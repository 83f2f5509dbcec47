"""Run the commands of docs/tutorial.md, and keep the pictures that they draw in docs/tutorial.

    uv run scripts/tutorial.py          # minutes on two cores

Photographs become JPEG files and drawings PNG files of 64 colours, each below 150 KB.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fastimg.train.reporting.plots import plot_predictions  # noqa: E402
from tests.docs.pages import run_page  # noqa: E402

KEPT = ROOT / "docs/tutorial"
PICTURES = {
    "look/samples.png": "samples.jpg",
    "runs/leaves/curves.png": "curves.png",
    "runs/leaves/best/confusion*.png": "confusion.png",
    "runs/leaves/best/mistakes*.png": "mistakes.jpg",
    "predictions.png": "predictions.jpg",
}
WIDTH = 900


def draw_predictions(folder: Path) -> None:
    """Draw the new photographs with the answers that the page wrote to answers.csv."""
    with (folder / "answers.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    captions = [f"{row['class1']} ({float(row['probability1']):.0%})" for row in rows]
    right = [row["class1"] == Path(row["file"]).parent.name for row in rows]
    images = [np.asarray(Image.open(folder / row["file"])) for row in rows]
    plot_predictions(images, captions, right, folder / "predictions.png")


def keep(drawn: Path, kept: Path) -> None:
    """Store a picture as the page shows it."""
    picture = Image.open(drawn).convert("RGB")
    picture.thumbnail((WIDTH, 4 * WIDTH))
    if kept.suffix == ".jpg":
        picture.save(kept, quality=75, optimize=True)
    else:
        picture.quantize(48, dither=Image.Dither.NONE).save(kept, optimize=True)
    print(f"{kept.relative_to(ROOT)}: {kept.stat().st_size // 1000} KB")


def keep_all(folder: Path) -> None:
    """Keep the pictures of a folder in which the page has run."""
    draw_predictions(folder)
    for drawn, kept in PICTURES.items():
        (found,) = folder.glob(drawn)
        keep(found, KEPT / kept)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run_page(ROOT / "docs/tutorial.md", Path(place))
        keep_all(Path(place))
