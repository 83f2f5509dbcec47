"""`convert --recompress` killed with SIGKILL in the middle of a shard: `--resume` gives the undisturbed bytes."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert

from .field_samples import FORMATS

KILLED_AT = 8  # the sample of 12 at whose writing the process dies, inside the third shard or later
SCRIPT = """
import os, signal, sys
from fastimg import cli
from fastimg.convert import writers

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
store = {"tar": writers.TarStore, "beton": writers.BetonStore}[sys.argv[1]]
add, added = store.add, []

def add_or_die(*arguments):
    added.append(1)
    if len(added) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return add(*arguments)

store.add = add_or_die
sys.exit(cli.run(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve PNG and BMP files of two classes: gray, of few colours and of many."""
    top = tmp_path_factory.mktemp("drawings") / "images"
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256 if number % 3 else 4, (40, 56, 3), dtype=np.uint8)
        image = Image.fromarray(pixels if number % 3 != 1 else pixels.repeat(2, axis=0).repeat(2, axis=1))
        file = top / "ab"[number % 2] / f"{number:02d}.{'bmp' if number % 4 == 3 else 'png'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
    return top


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@FORMATS
@pytest.mark.parametrize("value", ["lossless", "jpeg:95"])
def test_kill_9_and_resume_give_the_same_bytes(
    value: str, container: Any, drawings: Path, python: str, tmp_path: Path
) -> None:
    quiet = Console(quiet=True)
    flags: dict[str, Any] = {"recompress": value, "format": container, "shard_size": "40KB", "workers": "1"}
    convert(Convert(src=drawings, dst=tmp_path / "whole", **flags), quiet)
    script = tmp_path / "dies.py"
    script.write_text(SCRIPT)
    words = ["--recompress", value, "--format", container, "--shard-size", "40KB", "--workers", "1"]
    command = [python, script, container, str(KILLED_AT), "convert", drawings, tmp_path / "D", *words]
    died = subprocess.run(command, capture_output=True, timeout=300)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert not (tmp_path / "D/dataset.json").exists()
    finished = (tmp_path / "D/convert.json").read_text().splitlines()[1:]
    assert finished and all(json.loads(line) for line in finished)
    convert(Convert(src=drawings, dst=tmp_path / "D", resume=True, **flags), quiet)
    assert contents(tmp_path / "D") == contents(tmp_path / "whole")
