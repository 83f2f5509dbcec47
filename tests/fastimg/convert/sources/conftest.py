"""Parquet files, named datasets and manifests as sources that are closed after the test."""

import pytest

from fastimg.convert.sources.columns import Columns
from fastimg.convert.sources.resolve import find_parquets
from fastimg.convert.sources.streams import read_named, read_parquets

from .manifests import ROWS


@pytest.fixture
def read(tmp_path):
    """`read(src, path=..., label=..., split=...)`: a source that is closed when the test ends."""
    opened = []

    def call(src, **columns):
        named = Columns(**columns)
        files = find_parquets(src) if src.is_dir() else {"train": [src]}
        opened.append(read_parquets(src, files, named, tmp_path))
        return opened[-1]

    yield call
    for source in opened:
        source.close()


@pytest.fixture
def named(tmp_path, monkeypatch):
    """`named(text)`: a named dataset, with the test's own cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened = []

    def call(text, **more):
        opened.append(read_named(text, tmp_path, **more))
        return opened[-1]

    yield call
    for source in opened:
        source.close()


@pytest.fixture
def jpegs(encode):
    """Three different images."""
    return [encode(seed=i) for i in range(3)]


@pytest.fixture
def files(tmp_path, encode):
    """A folder with the files that ROWS name."""
    for i, row in enumerate(ROWS):
        file = tmp_path / row["path"]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encode(seed=i))
    return tmp_path
