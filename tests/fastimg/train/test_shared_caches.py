"""Ranks of a run, and two runs at once, on one cache that holds a part of the data: what is fetched, and weights."""

import os
import subprocess
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert

from ...loaders.remote.object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")
pytestmark = pytest.mark.slow

URL = "s3://bucket/D"
EPOCHS = 3
MODEL = ("--arch", "test_resnet", "--img-size", 32, "--no-amp", "--no-aug", "--device", "cpu", "--workers", 1)
RUN = (*MODEL, "-b", 8, "--epochs", EPOCHS, "--order", "quasi-random", "--order-window", 32, "--log-interval", 1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 images, of which a shard holds two, and no validation."""
    folder = tmp_path_factory.mktemp("store")
    for number in range(320):
        path = folder / "images" / ("light", "dark")[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8) // (1 + number % 2)
        Image.fromarray(pixels).save(path)
    made = folder / "D"
    convert(Convert(src=folder / "images", dst=made, val_fraction=0, shard_size="12KB"), Console(quiet=True))
    return made


class Counting(NamedTuple):
    """A store, and how often each shard was asked for as a whole: not a few of its samples, to recognise the data."""

    server: ObjectServer
    counts: Counter[str]


@pytest.fixture
def counting(named_server: ObjectServer, shards: Path) -> Counting:
    (named_server.folder / "D").symlink_to(shards)
    counts = Counter({path.name: 0 for path in shards.glob("train-*.tar")})
    whole = {name: f"bytes=0-{(shards / name).stat().st_size - 1}" for name in counts}
    answer = named_server.answer

    def count(request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[2]
        if name in counts and request.headers.get("Range") == whole[name]:
            counts[name] += 1
        answer(request)

    named_server.answer = count  # type: ignore[method-assign]
    return Counting(named_server, counts)


def command(python: str, data: object, name: str, *more: object) -> list[str]:
    return [python, "-m", "fastimg", "train", *map(str, (data, *RUN, "--name", name, *more))]


def run(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(arguments, cwd=folder, env=environment, text=True, **pipes)


def ended(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "runs" / name / "last" / "model.safetensors")


def limit(shards: Path, share: float) -> int:
    """Bytes of a cache that holds so much of the shards, and what lies beside them."""
    sizes = [path.stat().st_size for path in shards.glob("train-*.tar")]
    return int(share * sum(sizes)) + 100_000


@pytest.fixture(scope="module")
def expected(python: str, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, torch.Tensor]]:
    """The weights of runs on the folder, by seed."""
    folder = tmp_path_factory.mktemp("expected")
    cache = ("--cache-dir", folder / "all")
    ended(*[run(command(python, shards.as_uri(), f"{seed}", "--seed", seed, *cache), folder) for seed in (1, 2)])
    return {seed: weights(folder, f"{seed}") for seed in (1, 2)}


def test_two_ranks_fetch_each_shard_once_an_epoch(
    python: str, counting: Counting, shards: Path, tmp_path: Path
) -> None:
    """A cache of two thirds: an epoch fetches at most what the one before has not left there."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fastimg"]
    for data, name, more in (
        (shards.as_uri(), "here", ("--cache-dir", tmp_path / "all")),
        (URL, "there", ("--cache-dir", tmp_path / "cache", "--cache-limit", limit(shards, 2 / 3))),
    ):
        arguments = map(str, ("train", data, *RUN, "-b", 4, "--name", name, *more))
        ended(run([*launcher, *arguments], tmp_path))
    ours, theirs = weights(tmp_path, "there"), weights(tmp_path, "here")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    counts = sorted(counting.counts.values())
    before = [count for count in counts if count > EPOCHS]  # fetched to look at the data, and given up until its turn
    assert len(counts) > 40 and counts[0] >= 1 and counts[-1] <= EPOCHS + 1 and len(before) < 10
    assert sum(counts) < 0.9 * EPOCHS * len(counts)


def test_two_trainings_at_once_on_one_cache(
    python: str, counting: Counting, shards: Path, tmp_path: Path, expected: dict[int, dict[str, torch.Tensor]]
) -> None:
    cache = ("--cache-dir", tmp_path / "cache", "--cache-limit", limit(shards, 0.8))
    ended(*[run(command(python, URL, f"there-{seed}", "--seed", seed, *cache), tmp_path) for seed in (1, 2)])
    for seed in (1, 2):
        ours, theirs = weights(tmp_path, f"there-{seed}"), expected[seed]
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    counts = counting.counts.values()
    assert min(counts) >= 1 and sum(counts) < 2 * EPOCHS * len(counts)  # at least some served both
    held = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*.tar"))
    assert held <= limit(shards, 0.8)


def test_a_slow_store_is_what_the_summary_names(cli, counting, shards, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    counting.server.latency = 1.5  # more than steps take on a machine with much else to do
    cache = ("--cache-dir", tmp_path / "cache", "--cache-limit", limit(shards, 1 / 2))
    ran = cli("train", URL, *RUN, "--epochs", 1, "--name", "slow", *cache)
    assert ran.code == 0, ran.err
    assert "network-bound" in ran.out, ran.out


def test_a_disk_that_is_smaller_than_the_cache_may_be(
    python: str, counting: Counting, shards: Path, tmp_path: Path, expected: dict[int, dict[str, torch.Tensor]]
) -> None:
    """Shards that were read make room on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = limit(shards, 0.6)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a file system can be mounted by root alone: {made.stderr.strip()}")
    try:
        cache = ("--cache-dir", disk / "cache", "--cache-limit", "1GB")
        ended(run(command(python, URL, "there", "--seed", 1, *cache), tmp_path))
        assert not list(disk.rglob("*.part"))
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    ours, theirs = weights(tmp_path, "there"), expected[1]
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert max(counting.counts.values()) > 1  # it did not hold them all
