"""Listings by ranges of names side by side: every file once, whatever the folders are, and few requests more."""

from pathlib import Path

import pytest

from fastimg.loaders.errors import DataError
from fastimg.loaders.remote import stores
from fastimg.loaders.remote.client import key_ranges
from fastimg.loaders.remote.trees import StoredFiles

from .object_server import ObjectServer


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A bucket; what fills 100 names is many."""
    monkeypatch.setattr(key_ranges, "PAGE", 100)
    (tmp_path / "bucket/p").mkdir(parents=True)
    server = ObjectServer(tmp_path / "bucket")
    yield server
    server.close()


def fill(server: ObjectServer, names: list[str]) -> None:
    for name in names:
        path = server.folder / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (len(name) % 3))


def listed(server: ObjectServer) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    server.requests.clear()
    StoredFiles("s3://bucket/p", server.options).list_all(lambda name, size: found.append((name, size)))
    return sorted(found)


SHAPES = {
    "classes of two splits": [
        f"{split}/c{c:02d}/{i:03d}.jpg" for split in ("train", "val") for c in range(30) for i in range(6)
    ],
    "one folder": [f"{i:05d}.jpg" for i in range(250)],
    "one class": [f"train/a/{i:05d}.jpg" for i in range(250)],
    "names before and behind a slash": [
        f"{c}{end}/{i:03d}" for c in "abcé" for end in ("", "-x", "0", " ") for i in range(15)
    ],
    "files beside folders": [f"{i:05d}.jpg" for i in range(120)]
    + [f"c{c:02d}/{i}.jpg" for c in range(90) for i in range(3)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_file_is_listed_once(served, shape):
    names = SHAPES[shape]
    fill(served, names)
    assert listed(served) == sorted((name, len(name) % 3) for name in names)
    delimited = sum("delimiter" in request for request in served.requests)
    assert len(served.requests) - delimited <= -(-len(names) // 1000) + 1 + 3 * key_ranges.RANGES


def test_ranges_are_asked_for_side_by_side(served):
    fill(served, SHAPES["classes of two splits"])
    listed(served)
    starts = [request for request in served.requests if "start-after=" in request]
    assert len(starts) == key_ranges.RANGES - 1


def test_few_files_cost_one_request(served):
    fill(served, [f"c{c}/{i}.jpg" for c in range(5) for i in range(10)])
    assert len(listed(served)) == 50 and len(served.requests) == 1


def test_a_range_that_fails_fails_the_listing(served, monkeypatch):
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    fill(served, SHAPES["classes of two splits"])
    served.faults = [("start-after=", "denied")]
    with pytest.raises(DataError, match="access denied"):
        listed(served)
