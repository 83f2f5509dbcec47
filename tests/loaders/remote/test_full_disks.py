"""A cache on a disk that is really full: it makes room, or ends with its sentence, and never serves half a shard."""

import errno
import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

from fastimg.loaders import DataError, open_dataset

from .cache_reader import checksum
from .conftest import PER_SHARD, SAMPLES
from .test_remote_datasets import samples

READER = Path(__file__).with_name("cache_reader.py")


@pytest.fixture
def disk(tmp_path, bucket):
    """A folder on a file system of its own, which holds two of the three shards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    page = resource.getpagesize()
    pages = [-(-path.stat().st_size // page) for path in sorted((bucket / "D").glob("*.tar"))]
    small = 3 * 4  # indexes, dataset.json and what is derived, of a page or two each
    size = (sum(pages[-2:]) + small) * page
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a file system can be mounted by root alone: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def opened_there(server, disk):
    """The dataset, with a cache on that disk that may hold far more."""
    dataset = open_dataset("s3://bucket/D", cache_dir=disk / "cache", cache_limit="1GB", storage_options=server.options)
    yield dataset
    dataset.close()


def held(disk):
    return sorted(path.name for path in disk.rglob("*.tar"))


def fill(disk):
    """Write a file that takes all that is left."""
    with (disk / "other").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_shards_that_were_read_make_room(opened_there, disk, images):
    assert samples(opened_there) == images
    assert samples(opened_there, reversed(range(SAMPLES))) == images[::-1]
    assert 0 < len(held(disk)) < 3 and not list(disk.rglob("*.part"))


def test_what_others_have_written_is_told_of(opened_there, disk, images):
    read = samples(opened_there, range(PER_SHARD))
    fill(disk)
    last = range(2 * PER_SHARD, SAMPLES)  # of the largest shard
    for path in disk.rglob("*.tar"):
        path.unlink()
    fill(disk)
    for _ in range(2):
        with pytest.raises(DataError, match=r"train-00002\.tar: no space left on the disk; free some space, or give"):
            samples(opened_there, last)
    assert held(disk) == [] and not list(disk.rglob("*.part"))
    (disk / "other").unlink()
    assert read + samples(opened_there, last) == images[:PER_SHARD] + images[2 * PER_SHARD :]


def test_a_disk_that_cannot_promise_room_is_told_of_while_a_shard_is_written(opened_there, disk, images, monkeypatch):
    """As NFS does: the room is missed in the middle of the shard."""

    def unsupported(file, start, size):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    for path in disk.rglob("*.tar"):
        path.unlink()
    fill(disk)
    os.truncate(disk / "other", (disk / "other").stat().st_size - 4096)
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    with pytest.raises(DataError, match=r"train-00002\.tar: no space left on the disk; free some space, or give"):
        samples(opened_there, [SAMPLES - 1])
    assert held(disk) == [] and not list(disk.rglob("*.part"))
    (disk / "other").unlink()
    assert samples(opened_there, [SAMPLES - 1]) == images[-1:]


def test_a_limit_of_the_process_is_told_of(python, server, bucket, cache_dir, images):
    """No file may be longer than a part of a shard: what `ulimit -f` does, and quotas do alike."""
    asked = {"url": "s3://bucket/D", "cache_dir": str(cache_dir), "cache_limit": None, "options": server.options}
    limit = min(path.stat().st_size for path in (bucket / "D").glob("*.tar")) // 2

    def read(**more):
        settings = json.dumps(asked | {"orders": [list(range(SAMPLES))]} | more)
        return subprocess.run([python, str(READER), settings], input="\n", capture_output=True, text=True)

    ran = read(file_limit=limit)
    assert ran.returncode == 1
    assert "UnavailableError: " in ran.stderr
    assert ".tar: larger than this process may write (" in ran.stderr
    assert "`ulimit -f unlimited`, or give another folder with cache_dir=" in ran.stderr
    assert held(cache_dir) == [] and not list(cache_dir.rglob("*.part"))
    assert read().stdout.split() == ["ready", checksum(images)]
