"""Files and their parts, several in one compiled call."""

import os

import pytest

from fastimg.loaders.runtime import file_reads
from fastimg.loaders.runtime.file_reads import fill_parts, read_files
from fastimg.loaders.runtime.scratch import Scratch


def written(folder, name, size):
    path = folder / name
    path.write_bytes(os.urandom(size))
    return path


def test_contents_of_any_size(tmp_path):
    """Empty, as large as the buffer, larger, and after a larger one; names that are not ASCII."""
    sizes = [0, 1, 5000, file_reads._LEAST - 1, file_reads._LEAST, file_reads._LEAST + 1, 3 * file_reads._LEAST]
    files = [written(tmp_path, f"ä {number} b.jpg", size) for number, size in enumerate(sizes)]
    scratches = [Scratch() for _ in files]
    for _ in range(2):
        found = read_files(list(map(str, files)), scratches)
        assert [bytes(data) for data in found] == [path.read_bytes() for path in files]
        files.reverse()


def test_files_that_cannot_be_read(tmp_path):
    good = written(tmp_path, "a", 100)
    paths = [tmp_path / "missing", good, tmp_path, good]
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    found = read_files(list(map(str, paths)), [Scratch() for _ in paths])
    assert found[0] is None and found[2] is None
    assert bytes(found[1]) == bytes(found[3]) == good.read_bytes()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_vanishes_between_the_reads(tmp_path, monkeypatch):
    large = written(tmp_path, "large", 2 * file_reads._LEAST)
    read = file_reads._read

    def then_gone(jobs, flags):
        read(jobs, flags)
        large.unlink()

    monkeypatch.setattr(file_reads, "_read", then_gone)
    assert read_files([str(large)], [Scratch()]) == [None]


def test_parts(tmp_path):
    path = written(tmp_path, "a", 1000)
    file = os.open(path, os.O_RDONLY)
    views = [memoryview(bytearray(size)) for size in (10, 990, 20, 5)]
    try:
        filled = fill_parts([file, file, file, -1], views, [0, 10, 990, 0])
    finally:
        os.close(file)
    content = path.read_bytes()
    assert filled == [True, True, False, False]  # the third ends too early, the last is no open file
    assert bytes(views[0]) + bytes(views[1]) == content and bytes(views[2][:10]) == content[990:]


@pytest.mark.parametrize("count", [1, 8])
def test_one_and_several(tmp_path, count):
    files = [str(written(tmp_path, str(number), 100 * number)) for number in range(count)]
    assert [len(data) for data in read_files(files, [Scratch() for _ in files])] == [100 * n for n in range(count)]
