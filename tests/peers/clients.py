"""The clients of benchmarks/clients, run as their users would, on images that are known by their colours."""

import json
import math
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLIENTS = Path(__file__).resolve().parents[2] / "benchmarks" / "clients"
BASES = {"blue": (60, 60, 200), "green": (60, 200, 60), "red": (200, 60, 60)}  # a class each
TRAIN, VAL = 45, 23  # images; neither is divided by two ranks


def write_coloured(root: Path) -> Path:
    """`root/train|val/<class>/<number>.jpg` and .png: each image of one plain colour, which no other has.

    Flips and crops keep it, so it says which image was seen.
    """
    for split, count, blue in (("train", TRAIN, 0), ("val", VAL, 25)):
        for number in range(count):
            name = list(BASES)[number % 3]
            colour = np.add(BASES[name], (10 * (number // 3 % 4) - 20, 10 * (number // 12) - 20, blue))
            suffix = "png" if number % 4 == 0 else "jpg"
            (root / split / name).mkdir(parents=True, exist_ok=True)
            image = Image.new("RGB", (70 + number, 90 - number), tuple(int(level) for level in colour))
            image.save(root / split / name / f"{number:03d}.{suffix}", quality=95)
    return root


def run(
    python: str, client: str, data: Path, out: Path, *options: object, ranks: int = 1, files: int | None = None
) -> list[dict[str, Any]]:
    """Run a client, with torchrun for several ranks. Returns what each rank wrote, of which the client itself may have
    started several: `files`."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    words = [python, *launcher, CLIENTS / f"{client}.py", data, "--out", out, *options]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    written = files or ranks
    parts = [out] if written == 1 else [out.with_name(f"{out.name}.{rank}") for rank in range(written)]
    return [json.loads(part.read_text()) for part in parts]


def images_of(colours: list[list[int]], folder: Path) -> Counter[str]:
    """How often each image of a folder was seen, by its nearest colour, which has to be near."""
    paths = sorted(path for path in folder.rglob("*.*") if path.is_file())
    own = np.array([Image.open(path).convert("RGB").getpixel((5, 5)) for path in paths])
    seen: Counter[str] = Counter()
    for colour in colours:
        distances = np.abs(own - np.array(colour)).max(1)
        assert distances.min() <= 3, f"no image has the colour {colour}"
        seen[paths[int(distances.argmin())].stem] += 1
    return seen


def seen_in(ranks: list[dict[str, Any]], epoch: int, data: Path) -> Counter[str]:
    """How often each training image was seen in an epoch, on all ranks together."""
    return images_of([colour for rank in ranks for colour in rank["seen"][epoch]], data / "train")


def evaluated_in(ranks: list[dict[str, Any]], data: Path) -> Counter[str]:
    """How often each image of val was evaluated, on all ranks together."""
    return images_of([colour for rank in ranks for colour in rank["evaluated"]], data / "val")


def apart(first: list[list[float]], second: list[list[float]]) -> float:
    """How far the means of two heads' losses [seed][step] lie apart, in standard deviations between seeds."""
    a, b = np.array(first), np.array(second)
    spread = math.sqrt(float(a.var(0, ddof=1).mean() + b.var(0, ddof=1).mean()) / 2)
    return float(np.abs(a.mean(0) - b.mean(0)).mean()) / spread
