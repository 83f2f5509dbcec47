"""Listings by ranges of names, or by folders, side by side: every file once, and few requests more."""

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from fastimg.loaders.errors import DataError
from fastimg.loaders.remote import stores
from fastimg.loaders.remote.client import key_ranges
from fastimg.loaders.remote.trees import StoredFiles

from .azure_server import AzureServer
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


def listed(server: ObjectServer, scheme: str = "s3") -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    server.requests.clear()
    StoredFiles(f"{scheme}://bucket/p", server.options).list_all(lambda name, size, _: found.append((name, size)))
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


class ContainerServer(AzureServer):
    """Answers requests for the names in folders called c..., if `together` is set, as many at a time as it says.

    `delimited` counts requests with a delimiter; those that contain `refused` are refused.
    """

    together: threading.Barrier | None = None
    delimited = 0
    refused = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.delimited += "delimiter" in request.path
        if self.together is not None and "%2Fc" in request.path:
            self.together.wait()
        if self.refused and self.refused in request.path:
            self._send(request, 403, b"<Error><Code>AuthorizationFailure</Code></Error>", {})
            return
        super().answer(request)


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A container of Azure's; what fills 100 names is many, and 12 files of a folder are."""
    monkeypatch.setattr(key_ranges, "AZURE_PAGE", 100)
    monkeypatch.setattr(key_ranges, "_LARGE", 100 // 8)
    monkeypatch.setattr(AzureServer, "page", 100)
    (tmp_path / "bucket/p").mkdir(parents=True)
    server = ContainerServer(tmp_path / "bucket")
    yield server
    server.close()


class TestAzure:
    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_file_is_listed_once(self, azure, shape):
        names = SHAPES[shape]
        fill(azure, names)
        assert listed(azure, "az") == sorted((name, len(name) % 3) for name in names)

    def test_large_folders_are_listed_side_by_side(self, azure):
        names = [f"{split}/c{c}/{i:03d}.jpg" for split in ("train", "val") for c in range(10) for i in range(30)]
        fill(azure, [*names, "train/readme.txt", "zzz.txt"])
        azure.together = threading.Barrier(4, timeout=60)
        assert len(listed(azure, "az")) == 602
        assert len(azure.requests) == 2 + 2 * 2 + 20  # each folder's first page, and what is in the three divided ones
        assert azure.delimited == 3

    @pytest.mark.parametrize("most", [10_000, 3])
    def test_small_folders_are_listed_together(self, azure, monkeypatch, most):
        """Those that a first page shows to be small, and those that are too many."""
        monkeypatch.setattr(key_ranges, "_MOST", most)
        files = 6 if most > 3 else 50
        names = [f"c{c:02d}/{i:03d}.jpg" for c in range(300 // files) for i in range(files)]
        fill(azure, names)
        assert len(listed(azure, "az")) == 300
        assert len(azure.requests) == 3 + (most == 3)

    def test_few_files_cost_one_request(self, azure):
        fill(azure, [f"c{c}/{i}.jpg" for c in range(5) for i in range(10)])
        assert len(listed(azure, "az")) == 50 and len(azure.requests) == 1

    def test_a_folder_that_fails_fails_the_listing(self, azure, monkeypatch):
        monkeypatch.setattr(stores, "PAUSE", 0.0)
        fill(azure, [f"c{c}/{i:03d}.jpg" for c in range(4) for i in range(40)])
        azure.refused = "prefix=p%2Fc2"
        with pytest.raises(DataError, match="access denied"):
            listed(azure, "az")
