"""The cache of shards: its bound, what is deleted for it, and what never is."""

import errno
import fcntl
import hashlib
import os
import threading
from pathlib import Path

import pytest

from fastimg.loaders.errors import DataError
from fastimg.loaders.remote.cache import eviction, file_locks, shard_cache, signs_of_life, wanted_files
from fastimg.loaders.remote.cache.shard_cache import ShardCache
from fastimg.loaders.remote.cache.sizes import parse_size
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.runtime.file_locks import try_lock

SIZE = 1000
OVERHEAD = 10  # more than the mark of a folder


def content(name):
    return (name * SIZE).encode()[:SIZE]


def wanted(name):
    return WantedFile(name, SIZE, hashlib.sha256(content(name)).hexdigest())


@pytest.fixture
def cache(tmp_path):
    """Room for two files."""
    return ShardCache(tmp_path / "cache", 2 * SIZE + OVERHEAD)


def read(cache, name, folder="data"):
    """The file's content, with nobody left reading it."""
    file = cache.open(cache.root / folder / name, wanted(name), lambda file: os.pwrite(file, content(name), 0))
    try:
        return os.pread(file, SIZE, 0)
    finally:
        os.close(file)


def held(cache):
    return sorted(path.name for path in cache.root.glob("*/[!.]*.tar"))


def used(cache, name, when):
    """Say that a file was used at this time."""
    path = cache.root / "data" / name
    os.utime(path, ns=(when, path.stat().st_mtime_ns))


def test_what_was_not_used_for_the_longest_time_is_deleted(cache):
    for name in ("a.tar", "b.tar"):
        assert read(cache, name) == content(name)
    used(cache, "a.tar", 2)
    used(cache, "b.tar", 1)
    assert read(cache, "c.tar") == content("c.tar")
    assert held(cache) == ["a.tar", "c.tar"]
    assert (cache.spent.files, cache.spent.bytes, cache.spent.again) == (3, 3 * SIZE, 0)
    read(cache, "b.tar")
    assert cache.spent.again == 1


@pytest.fixture
def restarted(monkeypatch):
    """`restarted("2")`: the system has been started again; "" where it does not say."""

    def start(word):
        monkeypatch.setattr(wanted_files, "_start_of_system", lambda: word)

    start("1")
    return start


def test_a_file_of_before_a_restart_is_verified_and_not_fetched_again(cache, restarted, monkeypatch):
    read(cache, "a.tar")
    restarted("2")
    assert read(cache, "a.tar") == content("a.tar") and cache.spent.files == 1
    monkeypatch.setattr(wanted_files.hashlib, "file_digest", None)
    assert read(cache, "a.tar") == content("a.tar")  # verified once


@pytest.mark.parametrize("lost", [b"", b"?" * SIZE, content("a.tar")[:-1]])
def test_a_file_that_a_crash_of_the_system_damaged_is_fetched_again(cache, restarted, lost):
    read(cache, "a.tar")
    path = cache.root / "data" / "a.tar"
    status = path.stat()
    path.write_bytes(lost)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    restarted("2")
    assert read(cache, "a.tar") == content("a.tar") and cache.spent.files == 2


@pytest.mark.parametrize("word", ["1", ""])
def test_files_are_flushed_where_nothing_tells_of_a_restart(cache, restarted, monkeypatch, word):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    restarted(word)
    read(cache, "a.tar")
    assert bool(flushed) == (word == "")


def test_what_is_being_read_stays(cache, monkeypatch):
    paths = [cache.root / "data" / name for name in ("a.tar", "b.tar")]
    files = [
        cache.open(path, wanted(path.name), lambda file, p=path: os.pwrite(file, content(p.name), 0)) for path in paths
    ]
    monkeypatch.setattr(shard_cache, "ROOM", 0.0)
    with pytest.raises(
        DataError, match=r"no room for c.tar \(1.0 KB\): the cache holds 2.0 KB of 2.0 KB, and for 0 s all"
    ):
        read(cache, "c.tar")
    os.close(files[1])
    assert read(cache, "c.tar") == content("c.tar")
    assert held(cache) == ["a.tar", "c.tar"]
    os.close(files[0])
    assert not list(cache.root.glob("*/.*.part"))


@pytest.mark.usefixtures("shared_locks")
class TestForkedProcesses:
    """They share the locks that were held when they were forked, and do not keep what is unlocked afterwards."""

    def test_leave_shards_to_be_fetched_read_and_deleted(self, cache, restarted, monkeypatch):
        for module in (shard_cache, file_locks):
            monkeypatch.setattr(module, "ROOM", 0.0)
        lease = cache.open(cache.root / "data" / "a.tar", wanted("a.tar"), writes("a.tar"))
        for name in ("b.tar", "c.tar"):  # two fit
            cache.bring(cache.root / "data" / name, wanted(name), writes(name))
        restarted("2")
        cache.bring(cache.root / "data" / "c.tar", wanted("c.tar"), None)  # it is verified again
        assert held(cache) == ["a.tar", "c.tar"]
        with (cache.root / "data" / "c.tar").open("rb") as file:
            assert try_lock(file.fileno(), fcntl.LOCK_EX)
        os.close(lease)
        with (cache.root / "data" / "a.tar").open("rb") as file:  # a forked process may read what was leased
            assert not try_lock(file.fileno(), fcntl.LOCK_EX)

    def test_leave_a_shard_that_is_not_taken_for_another(self, cache, monkeypatch):
        path = cache.root / "data" / "a.tar"
        cache.bring(path, wanted("a.tar"), writes("a.tar"))
        with (path.parent / ".b.tar.part").open("wb") as part, monkeypatch.context() as patched:
            patched.setattr(os, "rename", no_rename)
            assert eviction.take_over((str(path), SIZE), Path(part.name), part.fileno(), 0) == 0
        with path.open("rb") as file:
            assert try_lock(file.fileno(), fcntl.LOCK_EX)

    def test_leave_a_folder_whose_shards_are_in_use(self, tmp_path, monkeypatch):
        monkeypatch.setattr(file_locks, "ROOM", 0.0)
        folder = tmp_path / "D"
        folder.mkdir()
        for name in (shard_cache.MARK, "a.tar", "train.fidx"):
            (folder / name).touch()
        assert eviction.free_oldest([], [(0, folder)], lambda shard: 0) == 0
        assert sorted(path.name for path in folder.iterdir()) == ["a.tar", shard_cache.MARK]
        os.close(file_locks.locked_mark(folder / shard_cache.MARK))


def no_rename(*paths):
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def writes(name):
    """What writes a file as it is fetched."""
    return lambda file: os.pwrite(file, content(name), 0)


def test_what_has_no_remote_copy_is_never_deleted(cache):
    mine = cache.root / "mine"
    mine.mkdir()
    (mine / "a.tar").write_bytes(bytes(10 * SIZE))  # the folder has no mark, and does not count
    read(cache, "b.tar")
    derived = cache.root / "data" / "train.fidx"
    derived.write_bytes(bytes(SIZE))
    for name in ("c.tar", "d.tar"):
        read(cache, name)
    assert held(cache) == ["a.tar", "d.tar"] and derived.exists()


def test_a_file_that_does_not_fit_is_refused_with_both_sizes(tmp_path):
    with pytest.raises(
        DataError, match=r"a.tar: 1.0 KB, and the cache .* may hold 999 bytes; give a larger cache_limit="
    ):
        read(ShardCache(tmp_path, SIZE - 1), "a.tar")


def test_a_full_disk_makes_room_first(cache, monkeypatch):
    read(cache, "a.tar")
    allocate = shard_cache._allocate

    def full(file, size):
        if held(cache):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(file, size)

    monkeypatch.setattr(shard_cache, "_allocate", full)
    assert read(cache, "b.tar") == content("b.tar")
    assert held(cache) == ["b.tar"]

    def always(file, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shard_cache, "_allocate", always)
    with pytest.raises(DataError, match=r"c.tar: no space left on the disk; free some space, or give another folder"):
        read(cache, "c.tar")
    assert not list(cache.root.glob("*/.*.part"))


def test_what_a_dead_process_left_is_deleted(cache):
    read(cache, "a.tar")
    left = cache.root / "data" / ".z.tar.part"
    left.write_bytes(bytes(SIZE))
    read(cache, "b.tar")
    assert not left.exists() and held(cache) == ["a.tar", "b.tar"]


def test_a_process_that_hangs_while_it_fetches_is_named(cache, monkeypatch):
    monkeypatch.setattr(shard_cache, "STALLED", 0.0)
    path = cache.root / "data" / "a.tar"

    def another(file):
        with pytest.raises(
            DataError, match=r"another process has been fetching it, and has given no sign of life for 0 s"
        ):
            read(cache, "a.tar")
        os.pwrite(file, content("a.tar"), 0)

    os.close(cache.open(path, wanted("a.tar"), another))


def test_one_that_fetches_from_a_silent_store_is_waited_for(cache, monkeypatch):
    monkeypatch.setattr(signs_of_life, "BEAT", 0.0)
    path = cache.root / "data" / "a.tar"
    sign = threading.Event()
    utime = os.utime

    def counted(*arguments, **times):
        utime(*arguments, **times)
        if not times:  # not what marks a finished file
            sign.set()

    monkeypatch.setattr(os, "utime", counted)

    def silent(file):
        os.utime(file, ns=(1, 1))
        for _ in range(2):  # the first may be of a call from before
            sign.clear()
            assert sign.wait(30)
        assert os.fstat(file).st_mtime_ns > 1
        os.pwrite(file, content("a.tar"), 0)

    os.close(cache.open(path, wanted("a.tar"), silent))
    assert not any(thread.name == "fastimg-fetching" for thread in threading.enumerate())


def test_the_unfinished_file_of_another_is_not_taken_for_the_own_one(cache):
    path = cache.root / "data" / "a.tar"
    part = path.parent / ".a.tar.part"
    calls = []

    def fetch(file):
        calls.append(path.exists())
        if len(calls) == 1:  # the cache is deleted, and another begins to fetch the same shard
            part.unlink()
            part.write_bytes(b"unfinished")
        os.pwrite(file, content("a.tar"), 0)

    file = cache.open(path, wanted("a.tar"), fetch)
    assert os.pread(file, SIZE, 0) == content("a.tar") and calls == [False, False]
    os.close(file)


def test_what_lies_beside_the_shards_of_datasets_that_nobody_has_open_makes_room(tmp_path):
    for version in range(4):
        earlier = ShardCache(tmp_path / "cache", 2 * SIZE + OVERHEAD)
        read(earlier, "a.tar", f"D-{version}")
        for name in ("dataset.json", "train.fidx", "train.ftil", ".train.fdci.part"):
            (earlier.root / f"D-{version}" / name).write_bytes(bytes(SIZE // 8))
        (earlier.root / f"D-{version}" / "mine.txt").touch()
        earlier.close()
    cache = ShardCache(tmp_path / "cache", 2 * SIZE + OVERHEAD)
    for name in ("b.tar", "c.tar"):
        assert read(cache, name) == content(name)
    left = {str(path.relative_to(cache.root)) for path in cache.root.glob("*/*") if path.name != shard_cache.MARK}
    assert left == {"data/b.tar", "data/c.tar", *(f"D-{version}/mine.txt" for version in range(4))}


def test_what_lies_beside_shards_stays_while_somebody_has_the_dataset_open(cache, tmp_path, monkeypatch):
    read(cache, "a.tar")
    beside = cache.root / "data" / "train.fidx"
    beside.write_bytes(bytes(SIZE))
    other = ShardCache(cache.root, 2 * SIZE + OVERHEAD)
    monkeypatch.setattr(shard_cache, "ROOM", 0.0)
    read(other, "b.tar", "other")
    assert beside.exists() and held(cache) == ["b.tar"]
    with pytest.raises(DataError, match=r"no room for c\.tar"):
        other.bring(other.root / "other/c.tar", wanted("c.tar")._replace(size=2 * SIZE), lambda file: None)
    assert beside.exists()
    cache.close()
    read(other, "c.tar", "other")
    read(other, "d.tar", "other")
    assert not beside.exists() and held(cache) == ["c.tar", "d.tar"]


def test_a_file_that_is_lost_at_once_each_time_is_an_error(cache):
    path = cache.root / "data" / "a.tar"
    with pytest.raises(DataError, match="gone or altered each of the 5 times that it was fetched"):
        cache.open(path, wanted("a.tar")._replace(size=SIZE), lambda file: os.ftruncate(file, 1))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/cache: Not a directory; give another folder with cache_dir="):
        ShardCache(tmp_path / "file" / "cache")


def test_the_default_limit_is_what_is_held_and_half_of_what_is_free(cache):
    read(cache, "a.tar")
    free = os.statvfs(cache.root)
    found = ShardCache(cache.root).limit
    assert found == pytest.approx(SIZE + free.f_bavail * free.f_frsize / 2, rel=0.05)


@pytest.mark.parametrize(
    ("text", "size"), [("200GB", 200 * 10**9), ("1.5 tb", 15 * 10**11), ("64GiB", 64 << 30), ("12", 12), ("3k", 3000)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "5iB", "1 2"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="is not a size; give bytes, or a number with KB, MB, GB or TB, as in 200GB"):
        parse_size(text)


def test_the_default_limit_of_a_cache_in_which_others_work(cache, monkeypatch):
    """Between the listing of a folder and the look at a file in it, the file may get another name, or be deleted."""
    path = cache.root / "data" / "a.tar"
    cache.mark(path.parent)
    path.write_bytes(bytes(5000))
    (path.parent / ".b.tar.part").symlink_to("not there any more")
    free = os.statvfs(cache.root)
    monkeypatch.setattr(shard_cache.os, "statvfs", lambda _: free)
    assert ShardCache(cache.root).limit == 5000 + int(free.f_bavail * free.f_frsize * shard_cache._SHARE)
