"""Files and their parts, several in one compiled call."""

import ctypes
import mmap
import os
import time

import numpy as np
import pytest

from fastimg.loaders.runtime import file_reads
from fastimg.loaders.runtime.file_reads import fill_parts, read_files
from fastimg.loaders.runtime.scratch import FEW, GROUP, Encoded, Scratch


def written(folder, name, size):
    path = folder / name
    path.write_bytes(os.urandom(size))
    return path


def contents(encoded):
    return [None if data is None else bytes(data) for data in map(encoded.__getitem__, range(len(encoded.spans)))]


def read(paths, encoded=None, prefix=""):
    encoded = encoded or Encoded()
    encoded.begin(len(paths))
    read_files(prefix, list(map(str, paths)), encoded)
    return contents(encoded)


def test_contents_of_any_size(tmp_path):
    """Empty, as large as the buffer, larger, and after a larger one; names that are not ASCII."""
    sizes = [0, 1, 5000, file_reads._LEAST - 1, file_reads._LEAST, file_reads._LEAST + 1, 3 * file_reads._LEAST]
    files = [written(tmp_path, f"ä {number} b.jpg", size) for number, size in enumerate(sizes)]
    encoded = Encoded()
    for _ in range(3):
        assert read(files, encoded) == [path.read_bytes() or None for path in files]
        assert read([path.name for path in files], encoded, str(tmp_path)) == [
            path.read_bytes() or None for path in files
        ]
        files.reverse()


def test_names_are_joined_as_by_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = written(tmp_path, "a", 10)
    (tmp_path / "folder").mkdir()
    below = written(tmp_path / "folder", "a", 20)
    for prefix, names in (("folder", ["a", str(here)]), ("folder/", ["a", str(here)]), ("", ["folder/a", "a"])):
        assert read(names, prefix=prefix) == [below.read_bytes(), here.read_bytes()]
    assert read(["", "a"], prefix="folder") == [None, below.read_bytes()]  # a folder
    assert read(["a\0b", "a"]) == [None, None]  # what no file is called is left to Python's functions
    assert read(["a"], prefix="folder\0s") == [None]


def test_files_that_cannot_be_read(tmp_path):
    good = written(tmp_path, "a", 100)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    assert read([tmp_path / "missing", good, tmp_path, good]) == [None, good.read_bytes(), None, good.read_bytes()]
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_vanishes_between_the_reads(tmp_path, monkeypatch):
    large = written(tmp_path, "large", 2 * file_reads._LEAST)
    read_some = file_reads._read

    def then_gone(*given):
        more = read_some(*given)
        large.unlink()
        return more

    monkeypatch.setattr(file_reads, "_read", then_gone)
    assert read([large]) == [None]


def test_parts(tmp_path):
    path = written(tmp_path, "a", 1000)
    file = os.open(path, os.O_RDONLY)
    encoded = Encoded()
    encoded.begin(4)
    sizes = np.array([10, 990, 20, 5])
    try:
        filled = fill_parts([file, file, file, -1], encoded, sizes, np.array([0, 10, 990, 0]))
    finally:
        os.close(file)
    content = path.read_bytes()
    assert filled.tolist() == [True, True, False, False]  # the third ends too early, the last is no open file
    assert bytes(encoded.buffer(0)[:10]) + bytes(encoded.buffer(1)[:990]) == content
    assert bytes(encoded.buffer(2)[:10]) == content[990:]


def resident(path):
    """Whether each page of a file is in memory."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        view = np.frombuffer(mapped, np.uint8)
        looked = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(pages.ctypes.data)
        )
        del view
    assert looked == 0
    return (pages & 1).astype(bool)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_parts_are_read_ahead(tmp_path):
    """Those that were asked for come into memory, where the file system lets go of what is there."""
    path = written(tmp_path, "a", 400 * mmap.PAGESIZE)
    page = mmap.PAGESIZE
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if resident(path).any():
            pytest.skip("the file stays in memory")
        parts = np.array([10 * page, 300 * page]), np.array([8 * page, 1])
        assert file_reads.advise(np.full(2, file.fileno()), *parts)
        for _ in range(1000):
            if resident(path)[[*range(10, 18), 300]].all():
                break
            time.sleep(0.01)
        else:
            raise AssertionError("what was asked for is not read")
        assert not resident(path)[100:200].any()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system has no posix_fadvise")
def test_a_closed_file_is_not_read_ahead():
    """The error is Python's."""
    assert file_reads.advise(*np.zeros((3, 0), np.int64))
    with pytest.raises(OSError, match="Bad file descriptor") as compiled_way:
        file_reads.advise(np.array([-1]), np.array([0]), np.array([100]))
    with pytest.raises(OSError, match="Bad file descriptor") as plain_way:
        os.posix_fadvise(-1, 0, 100, os.POSIX_FADV_WILLNEED)
    assert compiled_way.value.errno == plain_way.value.errno


@pytest.mark.parametrize("count", [1, 8])
def test_one_and_several(tmp_path, count):
    files = [written(tmp_path, str(number), 100 * number + 1) for number in range(count)]
    assert [len(data) for data in read(files)] == [100 * n + 1 for n in range(count)]


def test_groups_are_small_where_samples_are_large(tmp_path):
    """The memory of those that are left out is given back."""
    scratch = Scratch()
    assert [group.stop - group.start for group in scratch.groups(2 * GROUP + 1)] == [GROUP, GROUP, 1]
    large = written(tmp_path, "large", 5 << 20)
    sizes = []
    for group in scratch.groups(2 * GROUP):
        sizes.append(group.stop - group.start)
        assert read([large] * sizes[-1], scratch.group(sizes[-1])) == [large.read_bytes()] * sizes[-1]
    assert sizes == [GROUP] + [FEW] * (GROUP // FEW) and scratch.nbytes < (FEW + 1) * (6 << 20)
