"""Make the golden files again: `python tests/golden/make.py`.

They contain the bytes that earlier versions wrote. If they differ, the format has changed: describe the change in
CHANGELOG.md, and keep readers able to read the old format.
"""

import gzip
import io
import os
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fastimg.cli import run

HERE = Path(__file__).parent
TARGETS = ("tide", "depth:number", "seen:multilabel")  # columns of targets.csv
SAMPLES = {"ebb/0.jpg": 0, "ebb/1.png": 1, "flow/2.jpg": 2, "flow/3.jpg": 3}


def make_images(folder: Path) -> None:
    """Write two classes with three JPEGs and a PNG. JPEGs differ between encoders, so these files are kept, too."""
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


def convert_targets(shards: Path, betons: Path) -> None:
    """The same images with a class, a number and labels, some of them missing, in both containers."""
    targets = [part for target in TARGETS for part in ("--target", target)]
    for folder, container in ((shards, "tar"), (betons, "beton")):
        assert run(["convert", str(HERE / "targets.csv"), str(folder), "--format", container, *targets]) == 0


def train(data: Path, output: Path, *flags: str) -> int:
    """A run of four steps, named `run`, that keeps the checkpoint of its first epoch. Returns the exit code."""
    model = ("--arch", "test_convnext", "--img-size", "32", "--no-amp", "--model-ema")
    loading = ("-b", "2", "-j", "1", "--val-fraction", "0", "--checkpoint-hist", "9")
    return run(["train", str(data), *model, *loading, "-o", str(output), "--name", "run", "--epochs", "2", *flags])


def pack_run(folder: Path, packed: Path) -> None:
    """A run's first checkpoint and its config, with all weights and moments zero, so that the archive is small."""
    checkpoint = min((folder / "checkpoints").iterdir())
    weights = checkpoint / "model.safetensors"
    card = metadata_of(weights)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in load_file(weights).items()}
    save_file(zeros, weights, metadata=card)
    config = folder / "config.yaml"
    lines = config.read_text().splitlines()
    config.write_text("".join(f"{line}\n" for line in lines if not line.startswith(("data:", "output:"))))
    torch.save(zeroed(torch.load(checkpoint / "training.pt", weights_only=True)), checkpoint / "training.pt")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in (folder / "config.yaml", *sorted(checkpoint.iterdir())):
            tar.add(file, arcname=str(file.relative_to(folder)), filter=anonymous)
    packed.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def metadata_of(weights: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    with safe_open(weights, framework="pt") as handle:
        return dict(handle.metadata())


def zeroed(value: object) -> object:
    """The same structure with zeros in every tensor that has a dimension."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value) if value.ndim else value
    if isinstance(value, dict):
        return {key: zeroed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(zeroed(each) for each in value)
    return value


def make_all(scratch: Path) -> None:
    """Write all golden files."""
    shutil.rmtree(scratch, ignore_errors=True)
    make_images(HERE / "images")
    shutil.rmtree(HERE / "shards", ignore_errors=True)
    convert(HERE / "images", HERE / "shards", scratch / "betons")
    packed = gzip.compress((scratch / "betons" / "train.beton").read_bytes(), mtime=0)  # mostly zeros: FFCV's pages
    (HERE / "train.beton.gz").write_bytes(packed)
    shutil.rmtree(HERE / "targets", ignore_errors=True)
    convert_targets(HERE / "targets", scratch / "targets")
    packed = gzip.compress((scratch / "targets" / "train.beton").read_bytes(), mtime=0)
    (HERE / "targets.beton.gz").write_bytes(packed)
    shutil.copyfile(scratch / "targets" / "dataset.json", HERE / "targets.beton.json")
    assert train(Path(os.path.relpath(HERE / "shards")), scratch) == 0
    pack_run(scratch / "run", HERE / "run.tar.gz")


if __name__ == "__main__":
    make_all(Path(sys.argv[1] if len(sys.argv) > 1 else "build/golden"))
