"""Run the commands of docs/tutorial.md, and keep the pictures that they draw in docs/tutorial.

    uv run scripts/tutorial.py          # minutes on two cores

Photographs become JPEG files and drawings PNG files of 48 colours, each below 120 kB.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

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


def keep(drawn: Path, kept: Path) -> None:
    """Store a picture as the page shows it."""
    picture = Image.open(drawn).convert("RGB")
    picture.thumbnail((WIDTH, 4 * WIDTH))
    if kept.suffix == ".jpg":
        picture.save(kept, quality=75, optimize=True)
    else:
        picture.quantize(48, dither=Image.Dither.NONE).save(kept, optimize=True)
    print(f"{kept.relative_to(ROOT)}: {kept.stat().st_size // 1000} kB")


def keep_all(folder: Path) -> None:
    """Keep the pictures of a folder in which the page has run."""
    for drawn, kept in PICTURES.items():
        (found,) = folder.glob(drawn)
        keep(found, KEPT / kept)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run_page(ROOT / "docs/tutorial.md", Path(place))
        keep_all(Path(place))
