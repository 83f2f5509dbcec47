"""The loader benchmark: what it reads from crops and from the interpreter's lock, and a small complete run."""

import importlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastimg.bench.peers import parity
from fastimg.bench.peers.data import read_boxes, write_gradients

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_boxes_are_read_back_from_crops(tmp_path: Path) -> None:
    files = write_gradients(tmp_path / "gradients")
    crops, expected = [], []
    rng = np.random.default_rng(0)
    for number in range(60):
        with Image.open(files[number % 3]) as image:
            width, height = image.size
            w, h = (int(rng.integers(side // 4, side)) for side in (width, height))
            x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
            pixels = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h)))
        mirrored = number % 2
        crops.append(pixels[:, ::-1] if mirrored else pixels)
        area, aspect = w * h / (width * height), w / h
        expected.append((area, aspect, (x + w / 2) / width, (y + h / 2) / height, mirrored))
    found = read_boxes(np.stack(crops))
    assert np.abs(found / np.maximum(expected, 1e-9) - 1)[:, :2].max() < 0.02
    assert np.abs(found - expected)[:, 2:].max() < 0.005


def test_the_distance_of_distributions() -> None:
    distance = parity._distance
    rng = np.random.default_rng(0)
    a, b = rng.random(2000), rng.random(2000)
    assert distance(a, a) == 0 and distance(a, b) < 1.95 * (2 / 2000) ** 0.5
    assert distance(a, 0.9 * b) > 0.08 and distance(a, b + 1) == 1


def test_the_lock_is_sampled(module: Any) -> None:
    sampler = module("gil").Sampler()  # raises an error if its calibration fails
    free, held = range(2)

    def both() -> None:
        while sampler._counts[held] < 20:
            pass
        while sampler._counts[free] < 20:
            time.sleep(0.001)

    share, looks, seconds = sampler.share(both)
    assert looks >= 40 and seconds > 0
    assert 20 / looks <= share <= 1 - 20 / looks


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-W", "ignore", str(BENCHMARKS / "loaders.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_whole_run(make_image_folder: Any, python: str, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    common = ["--data", str(make_image_folder(8)), "--images", "48", "--batch-size", "16", "--size", "32"]
    common += ["--repeats", "2", "--out", str(out)]
    done = run(python, *common, "--peers", "torch", "ffcv", "dali")
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["loader"]: record for record in map(json.loads, out.read_text().splitlines())}
    for name in ("ffcv", "dali"):
        assert name in records or f"{name}: " in done.stdout  # measured, or the install command is printed
    assert {"fastimg, tiled", "torch"} <= set(records)
    for record in records.values():
        assert record["n"] == 2 and record["images"] == 48 and record["images_per_second"] > 0
        assert record["base"] == "fastimg, tiled" and record["cpu_microseconds"] >= 0
        assert str(tmp_path) not in json.dumps(record)
    ours, theirs = (records[name]["parity"] for name in ("fastimg, tiled", "torch"))
    assert ours["worst_image"] == 0 and theirs["mean_difference"] < 0.2
    assert theirs["ks_area"] < 0.5 and ours["boxes"] == theirs["boxes"] == 48

    done = run(python, *common, "--stages", "--gil", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    stages, gil = map(json.loads, out.read_text().splitlines()[-2:])
    assert stages["benchmark"] == "loader stages" and stages["sum"] > 0 and stages["samples"] == 36  # the JPEGs
    assert {(floor["threads"], floor["n"]) for floor in stages["floors"]} == {(1, 2)}
    assert gil["benchmark"] == "loader gil" and gil["n"] == 2
    share = gil["gil_microseconds"] * gil["images_per_second"] / 1e6  # of the time; one thread holds the lock
    assert share > 0  # above 1 on a busy machine, as the two are not measured at the same moment
