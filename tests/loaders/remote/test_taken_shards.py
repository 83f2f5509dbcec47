"""A shard that is written over the file of another one: whoever has that open never takes the one for the other."""

import errno
import fcntl
import hashlib
import mmap
import os
from pathlib import Path

import pytest

from fastimg.loaders import DataError
from fastimg.loaders.remote import fetched_files
from fastimg.loaders.remote.cache import eviction
from fastimg.loaders.remote.cache.file_locks import lock_soon
from fastimg.loaders.remote.cache.shard_cache import ShardCache
from fastimg.loaders.remote.cache.wanted_files import WantedFile, stamp
from fastimg.loaders.runtime.file_locks import try_lock
from fastimg.loaders.runtime.scratch import Scratch

from .conftest import PER_SHARD

SIZES = {"a.tar": 4000, "b.tar": 4000, "c.tar": 4000, "long.tar": 6000, "short.tar": 1000}
LIMIT = 8500


def content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() * (SIZES[name] // 32 + 1)


def wanted(name: str) -> WantedFile:
    return WantedFile(name, SIZES[name], hashlib.sha256(name.encode()).hexdigest())


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache", LIMIT)


def path_of(cache: ShardCache, name: str) -> Path:
    return cache.root / "data" / name


def opened(cache: ShardCache, name: str, during=lambda: None, locked: bool = False) -> int:
    """A descriptor; `during` is called when half of the file has arrived."""

    def fetch(file: int) -> None:
        half = SIZES[name] // 2
        os.pwrite(file, content(name)[:half], 0)
        during()
        os.pwrite(file, content(name)[half : SIZES[name]], half)

    return cache.open(path_of(cache, name), wanted(name), fetch, locked)


def bring(cache: ShardCache, name: str) -> int:
    """The inode of a file that is there now, and right."""
    file = opened(cache, name)
    try:
        assert os.pread(file, 10_000, 0) == content(name)[: SIZES[name]]
        return os.fstat(file).st_ino
    finally:
        os.close(file)


@pytest.mark.parametrize("name", ["c.tar", "short.tar", "long.tar"])
def test_the_oldest_file_is_written_over(cache: ShardCache, name: str) -> None:
    first = bring(cache, "a.tar")
    bring(cache, "b.tar")
    cache.limit = 4000 + SIZES[name] + 100
    assert bring(cache, name) == first
    assert {file.name for file in cache.root.glob("data/*.tar")} == {"b.tar", name}
    assert path_of(cache, name).stat().st_size == SIZES[name]


def test_who_has_it_open_sees_that_it_is_another_one(cache: ShardCache) -> None:
    bring(cache, "a.tar")
    old = opened(cache, "a.tar")
    held = fetched_files.HeldShard(old, stamp(wanted("a.tar")))
    assert held.looked() == (True, True)
    states = []

    def during() -> None:
        cache.count_use(old, wanted("a.tar"))  # of a reader that had looked a moment before
        held_now = fetched_files.HeldShard(os.dup(old), stamp(wanted("a.tar")))
        states.append((held_now.looked()[0], os.pread(old, 10, 0)))
        os.close(held_now.file)

    bring(cache, "b.tar")
    os.utime(path_of(cache, "b.tar"), ns=(2**62, stamp(wanted("b.tar"))))  # used last
    os.close(opened(cache, "c.tar", during))
    assert states == [(False, content("c.tar")[:10])]
    assert not held.looked()[0]
    os.close(old)


def test_a_reader_with_a_lock_keeps_it(cache: ShardCache) -> None:
    lock = opened(cache, "a.tar", locked=True)
    bring(cache, "b.tar")
    bring(cache, "c.tar")
    assert os.pread(lock, 10_000, 0) == content("a.tar")[:4000]
    os.close(lock)


def test_who_waits_for_the_lock_of_a_file_that_is_taken_stops_waiting(cache: ShardCache) -> None:
    bring(cache, "a.tar")
    reader, taker = (os.open(path_of(cache, "a.tar"), os.O_RDWR) for _ in range(2))
    assert try_lock(taker, fcntl.LOCK_EX)
    looks = iter([True, True, False])
    assert not lock_soon(reader, fcntl.LOCK_SH, lambda: next(looks))
    assert next(looks, None) is None
    os.close(taker)
    assert lock_soon(reader, fcntl.LOCK_SH, lambda: False)  # nobody has it
    os.close(reader)


def test_a_file_with_a_second_name_is_left_to_it(cache: ShardCache, tmp_path: Path) -> None:
    first = bring(cache, "a.tar")
    os.link(path_of(cache, "a.tar"), tmp_path / "mine.tar")
    bring(cache, "b.tar")
    assert bring(cache, "c.tar") != first
    assert (tmp_path / "mine.tar").read_bytes() == content("a.tar")[:4000]
    assert not path_of(cache, "a.tar").exists()


def test_a_file_that_others_map_into_memory_is_deleted(cache: ShardCache, monkeypatch) -> None:
    monkeypatch.setitem(SIZES, "a.beton", 4000)
    first = bring(cache, "a.beton")
    with path_of(cache, "a.beton").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        bring(cache, "b.tar")
        assert bring(cache, "c.tar") != first
        assert mapped[:] == content("a.beton")[:4000]


def test_one_on_another_disk_is_deleted(cache: ShardCache, monkeypatch) -> None:
    def fail(path: str, part: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    first = bring(cache, "a.tar")
    bring(cache, "b.tar")
    monkeypatch.setattr(eviction.os, "rename", fail)
    assert bring(cache, "c.tar") != first
    assert not path_of(cache, "a.tar").exists()


def test_one_whose_time_would_not_change_is_deleted(cache: ShardCache) -> None:
    first = bring(cache, "a.tar")
    bring(cache, "b.tar")
    os.utime(path_of(cache, "a.tar"), ns=(1, stamp(wanted("c.tar"))))
    assert bring(cache, "c.tar") != first


def test_a_name_that_is_another_file_by_now(cache: ShardCache, monkeypatch) -> None:
    bring(cache, "a.tar")
    bring(cache, "b.tar")
    rename, renamed = os.rename, []

    def late(path: str, part: Path) -> None:
        if not renamed:
            new = Path(path).with_name("new")
            new.write_bytes(b"somebody else has fetched it again")
            new.replace(path)
        renamed.append(path)
        rename(path, part)

    monkeypatch.setattr(eviction.os, "rename", late)
    bring(cache, "c.tar")
    assert renamed and not list(cache.root.glob("*/.*.part"))


def test_a_process_that_dies_meanwhile_leaves_nothing_that_looks_whole(cache: ShardCache) -> None:
    bring(cache, "a.tar")
    bring(cache, "b.tar")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        opened(cache, "c.tar", lambda: os._exit(0))
        os._exit(1)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    os.close(read)
    assert not path_of(cache, "a.tar").exists() and not path_of(cache, "c.tar").exists()
    for name in ("a.tar", "c.tar", "b.tar"):
        bring(cache, name)


def test_a_sample_whose_shard_is_taken_while_it_is_read_is_read_again(opened, monkeypatch) -> None:
    dataset = opened()
    scratch = Scratch()
    expected = [bytes(dataset.read(index, scratch)) for index in range(PER_SHARD)]
    folder = dataset.shard_files.mirror.folder
    fill, taken = fetched_files.fill, []

    def taken_meanwhile(file: int, view: memoryview, offset: int) -> None:
        if not taken:
            taken.append(file)
            path = folder / "train-00000.tar"
            os.pwrite(os.open(path, os.O_WRONLY), bytes(path.stat().st_size), 0)
            path.unlink()
        fill(file, view, offset)

    monkeypatch.setattr(fetched_files, "fill", taken_meanwhile)
    assert [bytes(dataset.read(index, scratch)) for index in range(PER_SHARD)] == expected
    monkeypatch.setattr(
        fetched_files, "fill", lambda file, view, offset: (taken.clear(), taken_meanwhile(file, view, offset))
    )
    with pytest.raises(DataError, match=r"train-00000.tar: altered each of the 5 times that it was read"):
        dataset.read(0, scratch)


def test_readers_of_a_cache_that_is_too_small_for_all_of_them(too_small) -> None:
    """Threads read everywhere at once, so that files are taken from under them; every byte is right."""
    wrong: list[int] = []

    def read(first: int) -> None:
        mine = Scratch()
        for step in range(60):
            index = (first + 7 * step) % len(too_small.expected)
            if bytes(too_small.dataset.read(index, mine)) != too_small.expected[index]:
                wrong.append(index)

    too_small.read_by_four_threads(read)
    assert not wrong
