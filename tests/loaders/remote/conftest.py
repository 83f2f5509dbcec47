"""A dataset of three shards, a store that serves it, and a cache."""

import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders.containers import quick_sums
from fastimg.loaders.containers.description import FORMAT, FORMAT_VERSION, IDENTITY, QUICK_SUM, SHARD_KEYS
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.remote import stores

from .object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

SAMPLES, PER_SHARD = 24, 8


@pytest.fixture(scope="session")
def images() -> list[bytes]:
    return [encoded(i) for i in range(SAMPLES)]


def encoded(seed: int) -> bytes:
    """A JPEG of its own size and content. (That of tests/conftest.py comes with torch, which few tests here need.)"""
    pixels = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40 + seed, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def write_shards(folder: Path, images: list[bytes], split: str = "train") -> None:
    """Shards of `images` in turn, labels 0 and 1, and their dataset.json."""
    folder.mkdir(exist_ok=True)
    described = []
    for number, start in enumerate(range(0, len(images), PER_SHARD)):
        name = f"{split}-{number:05d}.tar"
        with ShardWriter(folder / name) as shard:
            for i in range(start, min(start + PER_SHARD, len(images))):
                note = json.dumps({"path": f"{i}.jpg"}).encode()
                shard.add(f"{i:09d}", {"jpg": images[i], "cls": str(i % 2).encode(), "json": note})
        written: dict[str, Any] = vars(shard) | {"name": name, "samples": shard.count}
        described.append({key: written[key] for key in (*SHARD_KEYS, QUICK_SUM, IDENTITY)})
    description = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "container": "tar",
        "classes": ["even", "odd"],
        "splits": {split: {"samples": len(images), "shards": described}},
    }
    (folder / "dataset.json").write_text(json.dumps(description))


@pytest.fixture
def bucket(tmp_path: Path, images: list[bytes]) -> Path:
    """The folder that the store serves: a dataset called D."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    write_shards(folder / "D", images)
    return folder


@pytest.fixture
def server(bucket: Path) -> Iterator[ObjectServer]:
    served = ObjectServer(bucket)
    yield served
    served.close()


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No pauses between attempts, nothing in the user's cache folder, and quick sums of several blocks."""
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(quick_sums, "BLOCK", 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def opened(server: ObjectServer, cache_dir: Path) -> Iterator[Callable[..., Any]]:
    """`opened(limit)`: the split `train` of s3://bucket/D through the cache."""
    from fastimg.loaders import open_dataset

    datasets = []

    def open_(cache_limit: int | str | None = None) -> Any:
        datasets.append(
            open_dataset("s3://bucket/D", cache_dir=cache_dir, cache_limit=cache_limit, storage_options=server.options)
        )
        return datasets[-1]

    yield open_
    for each in datasets:
        each.close()


class TooSmall(NamedTuple):
    """A dataset whose cache does not hold all of its shards, and its samples."""

    dataset: Any
    expected: list[bytes]

    def read_by_four_threads(self, read: Callable[[int], None]) -> None:
        """Call `read` with the index that it begins at, on four threads; the cache has to fetch shards again."""
        threads = [threading.Thread(target=read, args=(5 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.dataset.shard_files.mirror.cache.spent.again > 0


@pytest.fixture
def too_small(opened: Callable[..., Any]) -> TooSmall:
    from fastimg.loaders.runtime.scratch import Scratch

    whole = opened()
    scratch = Scratch()
    expected = [bytes(whole.read(index, scratch)) for index in range(len(whole.labels))]
    folder = whole.shard_files.mirror.folder
    files = [path.stat().st_size for path in folder.iterdir()]
    limit = sum(files) - min(path.stat().st_size for path in folder.glob("*.tar")) // 2
    whole.close()
    shutil.rmtree(folder)
    return TooSmall(opened(cache_limit=limit), expected)
