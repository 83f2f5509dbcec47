"""What the nodes of a cluster and a conversion exchange, without a cluster."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastimg.convert.delivery.temporary_objects import TemporaryObjects
from fastimg.convert.hub import ranges
from fastimg.convert.image_preparation import Prepared
from fastimg.convert.journal import is_made, is_temporary
from fastimg.convert.plan import Shard
from fastimg.convert.recompression.facts import Recompressed
from fastimg.convert.shards.prepared_samples import read_prepared, write_prepared
from fastimg.convert.shards.spools import upload_spools
from fastimg.convert.sources.samples import Entries, Original, Source, SourceEntry, WrappingReader
from fastimg.convert.sources.spools import Spool, SpoolReader
from fastimg.convert.stored import spools
from fastimg.convert.stored.losses import SourceLostError
from fastimg.convert.survey import Requirements
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.errors import DataError


class Bare:
    """A reader without a temporary file."""

    def read(self, entry):
        return Original(entry.path.encode(), "", b"{}", {})


class Wrapped(WrappingReader):
    """A reader that changes nothing of what another one reads."""

    def read(self, entry):
        return self.reader.read(entry)


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Samples of two temporary files, one of which has two readers, and of another reader, in turn. Small blocks."""
    monkeypatch.setattr(ranges, "BLOCK_BYTES", 100)
    monkeypatch.setattr(spools, "BLOCK_BYTES", 100)
    first, second = Spool(tmp_path), Spool(tmp_path)
    named = [SpoolReader(first, "a"), SpoolReader(second, "b"), SpoolReader(first, "c")]
    entries = Entries()
    for number in range(90):
        at = number % 4
        entry = SourceEntry(f"{number}.jpg", number % 2, 5, reader=at)
        image = b"" if number == 40 else bytes([number]) * (1 + number * 7 % 300)
        entries.append(entry if at == 3 else named[at].add(entry, image, {"n": number}, {"txt": b"t" * number}))
    first.flush()
    second.flush()
    readers = (named[0], Wrapped(Wrapped(named[1])), named[2], Bare())
    yield Source(Path("src"), "parquet", ("x", "y"), {"train": entries}, readers)
    first.close()
    second.close()


def objects(server, folder):
    folder.mkdir(exist_ok=True)
    return TemporaryObjects("s3://bucket/D", server.options, folder, "go on")


def test_records_lie_in_the_order_of_the_plan(source, server, tmp_path):
    entries = source.splits["train"]
    plan = [
        Shard("train", number, 0, entries.select(rows))
        for number, rows in enumerate(np.split(np.random.default_rng(0).permutation(90), 6))
    ][1:]  # the first one is done
    readable = [entry for shard in plan for entry in shard.entries if entry.size >= 0]
    expected = {entry.path: source.read(entry) for entry in readable}
    staging, said = tmp_path / "staging", []
    placed = upload_spools(source, plan, objects(server, staging), said.append)
    assert list(staging.iterdir()) == [] and len(said) == 2
    stored = {path.name: path.stat().st_size for path in (server.folder / "D").iterdir()}
    assert stored.keys() == {"source-0.spool", "source-1.spool"}
    readers = [pickle.loads(pickle.dumps(reader)) for reader in source.readers[:3]]
    there = replace(source, splits={}, readers=(*readers, Bare()))
    moved = [entry for shard in plan for entry in placed(shard).entries]
    before = [entry for shard in plan for entry in shard.entries]
    assert [entry._replace(place=0) for entry in moved] == [entry._replace(place=0) for entry in before]
    server.faults = [("D/source-0.spool", "flip"), ("D/source-1.spool", "busy")]
    with ThreadPoolExecutor(4) as pool:
        found = dict(pool.map(lambda entry: (entry.path, there.read(entry)), (e for e in moved if e.size >= 0)))
    assert found == expected and server.faults == []
    of_first = [entry.place for entry in moved if entry.reader in (0, 2) and entry.size >= 0]
    assert of_first == sorted(of_first)
    blocks = [-(-size // 100) for size in stored.values()]
    assert len(server.requests) < 3 * sum(blocks)
    server.before = lambda name: "flip"
    readers[0].close()
    with pytest.raises(SourceLostError, match=r"source-0\.spool: fetched 3 times, and was damaged each time"):
        there.read(next(entry for entry in moved if entry.reader == 0))


def test_what_is_left_of_a_killed_conversion_is_deleted(server, tmp_path):
    for folder in (server.folder / "D", tmp_path / "staging"):
        folder.mkdir()
        for name in ("source-0.spool", f"train-00001-{'0a' * 8}.prepared", "train-00001.tar", "convert.json"):
            (folder / name).touch()
            assert is_made(name) and is_temporary(name) == name.endswith(("spool", "prepared"))
    objects(server, tmp_path / "staging").clear()
    for folder in (server.folder / "D", tmp_path / "staging"):
        assert {path.name for path in folder.iterdir()} == {"train-00001.tar", "convert.json"}


def test_prepared_samples_come_back_as_they_were(tmp_path):
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    samples = [
        Prepared(b"jpeg", "jpg", 17, "tiled: made sequential", b'{"path": "x"}', {}),
        "not an image: \udc80.jpg",
        Prepared(pixels[:, ::-1], "raw", 60, "kept: raw pixels", b"{}", {"txt": b"", "mask.png": b"mask"}, b"original"),
        Prepared(b"", "png", 3, "x", b"", {"\udc80": b"y"}, b"", Recompressed("png", 9, 4, 31.25, ("alpha", "dpi"))),
        Prepared(b"p", "png", 3, "x", b"", {}, b"", Recompressed("png", 9, 4, None, ())),
    ]
    path = tmp_path / "train-00000.prepared"
    with path.open("wb") as file:
        for sample in samples:
            write_prepared(file, sample)
    found = list(read_prepared(path))
    assert np.array_equal(found[2].image, samples[2].image)
    found[2], samples[2] = (each[2]._replace(image=b"") for each in (found, samples))
    assert found == samples
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="cut short"):
        list(read_prepared(path))


def test_requirements_are_the_same_in_any_order():
    number, array = BetonField("int"), BetonField("ndarray", np.dtype("u1"), (3,))
    parts = [
        Requirements(5, False, {"a.npy": number, "b.npy": array}),
        Requirements(9, True, {"a.npy": array}),
        Requirements(1, False, {"a.npy": number}),
    ]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        every = Requirements()
        for at in order:
            every.join(parts[at])
        assert every == Requirements(9, True, {"a.npy": BetonField("bytes"), "b.npy": array})
