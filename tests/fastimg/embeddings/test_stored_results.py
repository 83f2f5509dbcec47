"""Embeddings in an object store: what is there stays readable until the new ones are."""

from pathlib import Path

import pytest

from fastimg.embeddings.stored_results import StoredResults
from fastimg.errors import UserError

from ...loaders.remote.object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

MARK, LAST = ".begun", "description.json"


def replace(server: ObjectServer, cache: Path, files: dict[str, bytes]) -> None:
    """Have these files, and a description of them, replace what is there."""
    stored = StoredResults("s3://bucket/E", cache, server.options, 0, (MARK, LAST))
    try:
        for file in stored.folder.iterdir():
            file.unlink()
        (stored.folder / MARK).write_bytes(b"")
        stored.begin(MARK)
        for name, content in files.items():
            (stored.folder / name).write_bytes(content)
        (stored.folder / LAST).write_bytes(repr(files).encode())
        (stored.folder / MARK).unlink()
        stored.finish(MARK, LAST)
    finally:
        stored.close()


def contents(server: ObjectServer) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (server.folder / "E").iterdir()}


def test_what_is_there_stays_until_the_end(server, tmp_path):
    old = {"train.npy": b"1"}
    replace(server, tmp_path, old)
    whole = contents(server)
    assert whole == {**old, LAST: repr(old).encode()}
    new = {"train.parquet": b"2"}
    server.faults = [("PUT E/train.parquet", "denied")]
    with pytest.raises(UserError, match="run the same again"):
        replace(server, tmp_path, new)
    assert contents(server) == {**whole, MARK: b""}
    replace(server, tmp_path, new)
    assert contents(server) == {**new, LAST: repr(new).encode()}


def test_files_of_the_same_names_are_not_described_meanwhile(server, tmp_path):
    replace(server, tmp_path, {"train.npy": b"1", "val.npy": b"1"})
    server.faults = [("PUT E/val.npy", "denied")]
    with pytest.raises(UserError):
        replace(server, tmp_path, {"train.npy": b"2", "val.npy": b"2"})
    assert contents(server) == {"train.npy": b"2", "val.npy": b"1", MARK: b""}
