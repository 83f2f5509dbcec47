"""Measuring reads and copies: real files, with a simulated clock."""

import errno
import itertools
import mmap
import os
import tempfile

import numpy as np
import pytest

from fastimg.errors import UserError
from fastimg.system import disks
from fastimg.system.disks import PIECE, drop, filesystem, measure_disk, memory_bandwidth, sequential_read

MIB = 1 << 20


class Clock:
    """A clock that advances by a second, or by a given time, at every reading."""

    def __init__(self, tick=1.0):
        self.now, self.tick = 0.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def files(tmp_path):
    """Three files of 20, 3 and 9 MiB."""
    paths = []
    for number, size in enumerate((20, 3, 9)):
        paths.append(tmp_path / f"{number}.bin")
        paths[-1].write_bytes(os.urandom(size * MIB))
    return paths


@pytest.fixture
def cannot_drop(monkeypatch):
    """A file system that keeps all files in memory."""
    monkeypatch.setattr(disks, "drop", lambda file, checked=True: "it stays in memory")
    monkeypatch.setattr(disks, "filesystem", lambda folder: "ext4")


def test_pieces_are_counted_and_timed(files):
    """One clock reading before, and one after each read."""
    found = sequential_read(files, cold=False, clock=Clock(0.25))
    assert (found.bytes, found.reads) == (32 * MIB, 3 + 1 + 2)
    assert found.seconds == 6 * 0.25
    assert found.bytes_per_second == 32 * MIB / 1.5 and found.reads_per_second == 4
    assert not found.cold and found.why == "it was not asked for"


def test_the_limit_holds_over_all_files(files):
    found = sequential_read(files, cold=False, limit=21 * MIB + 5, clock=Clock(0.001))
    assert (found.bytes, found.reads) == (21 * MIB + 5, 3 + 1)


def test_a_slow_disk_is_measured_briefly(files):
    found = sequential_read(files, cold=False, most_seconds=2, clock=Clock())
    assert (found.reads, found.seconds) == (2, 2)


def test_nothing_to_read(tmp_path):
    (tmp_path / "empty").touch()
    found = sequential_read([tmp_path / "empty"], cold=True)
    assert (found.bytes, found.bytes_per_second, found.reads_per_second) == (0, 0, 0)
    assert not found.cold and found.why == "nothing was read"


def test_cold_reads_follow_dropping_from_memory(files):
    with files[0].open("rb") as file:
        why = drop(file.fileno())
    readings = []
    while not readings or (len(readings) < 20 and not why and not readings[-1].cold):
        readings.append(sequential_read(files, cold=True))
        assert readings[-1].bytes == 32 * MIB and readings[-1].cold == (not readings[-1].why)
    if (
        not why
    ):  # if this file system supports it; at times the system still holds a page: it says so, and is asked again
        assert readings[-1].cold


def test_a_file_that_stays_in_memory_is_not_cold(files, cannot_drop):
    found = sequential_read(files, cold=True)
    assert not found.cold and found.why == "it stays in memory" and found.bytes == 32 * MIB


def test_what_another_program_has_mapped_is_not_cold(files):
    """As Linux reports for any file system."""
    with files[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) > 0
        assert drop(file.fileno())
        assert not sequential_read(files[:1], cold=True).cold


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (BlockingIOError(errno.EAGAIN, "try again"), ""),
        (4096, "keeps the file in memory"),
        (OSError(errno.EOPNOTSUPP, "Operation not supported"), "does not say what is in memory (Operation not"),
    ],
)
def test_the_systems_report_on_the_page_cache(files, monkeypatch, answer, expected):
    asked = []

    def preadv(file, buffers, offset, flags):
        asked.append((offset, flags))
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(disks.os, "preadv", preadv)
    with files[0].open("rb") as file:
        why = drop(file.fileno())
        assert drop(file.fileno(), checked=False) == ""
    assert expected in why and bool(why) == bool(expected)
    assert all(flags == os.RWF_NOWAIT for _, flags in asked)
    if not expected:
        assert {offset for offset, _ in asked} == {0, 10 * MIB, 20 * MIB - 4096}


def test_a_system_without_such_calls(files, monkeypatch):
    monkeypatch.delattr(disks.os, "posix_fadvise")
    assert "no call that drops files" in sequential_read(files, cold=True).why


def test_the_disk_below_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(disks, "drop", lambda file, checked=True: "")
    monkeypatch.setattr(disks, "filesystem", lambda folder: "ext4")
    found = measure_disk(tmp_path, 16 * MIB, Clock(0.125))
    assert found.measured_on == "a temporary file of 16 MiB" and found.why == ""
    assert found.cold is not None and found.scattered is not None
    assert (found.cold.bytes, found.cold.reads, found.cold.seconds) == (16 * MIB, 2, 0.25)
    assert (found.scattered.bytes, found.scattered.reads) == (10 * MIB, 80)  # ten seconds are enough
    assert (found.warm.bytes, found.warm.cold) == (16 * MIB, False)
    assert found.cold.cold and found.scattered.cold
    assert found.free > 0 and found.folder == str(tmp_path.resolve())
    assert list(tmp_path.iterdir()) == []


def test_scattered_reads_are_all_different(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(32 * MIB))
    seen = []
    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(disks.os, "preadv", lambda file, buffers, at: seen.append(at) or len(buffers[0]))
        sizes = list(disks._at_random(file.fileno(), memoryview(bytearray(PIECE)), 32 * MIB))
    assert sizes == [128 << 10] * 128 and len(set(seen)) == 128
    assert max(seen) + (128 << 10) <= 32 * MIB and seen != sorted(seen)


def test_memory_only(tmp_path, cannot_drop):
    found = measure_disk(tmp_path, 16 * MIB)
    assert found.cold is None and found.scattered is None and found.why == "it stays in memory"
    assert found.warm.bytes == 16 * MIB and found.warm.bytes_per_second > 0


def test_a_file_system_without_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(disks, "filesystem", lambda folder: "tmpfs")
    found = measure_disk(tmp_path, 16 * MIB)
    assert found.cold is None and found.why == "tmpfs is in memory and has no disk" and found.filesystem == "tmpfs"


def test_writing_is_ended_on_a_slow_disk(tmp_path):
    """Ten seconds of measurements are enough."""
    found = measure_disk(tmp_path, 256 * MIB, Clock(4.0))
    assert found.measured_on == "a temporary file of 32 MiB"


def test_the_file_is_removed_on_interruption(tmp_path, monkeypatch):
    def interrupt(file, checked=True):
        raise KeyboardInterrupt

    monkeypatch.setattr(disks, "drop", interrupt)
    monkeypatch.setattr(disks, "filesystem", lambda folder: "ext4")
    with pytest.raises(KeyboardInterrupt):
        measure_disk(tmp_path, 16 * MIB)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def read_only(monkeypatch):
    """Folders in which no file can be made."""

    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(disks.tempfile, "TemporaryFile", refuse)


def test_a_read_only_folder_with_a_file_to_read(tmp_path, read_only):
    (tmp_path / "small").write_bytes(bytes(MIB))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "large.tar").write_bytes(bytes(17 * MIB))
    found = measure_disk(tmp_path, 256 * MIB)
    assert found.measured_on == f"large.tar: no temporary file can be written to {tmp_path} (Permission denied)"
    assert found.warm.bytes == 17 * MIB


def test_a_read_only_folder_without_files(tmp_path, read_only):
    (tmp_path / "small").write_bytes(bytes(MIB))
    with pytest.raises(UserError, match=r"Permission denied\), and it holds no file of at least 16 MiB"):
        measure_disk(tmp_path)


def test_a_full_disk(tmp_path, monkeypatch):
    real = disks.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disks.shutil, "disk_usage", lambda folder: real._replace(free=31 * MIB))
    with pytest.raises(UserError, match="less than 32 MiB are free"):
        measure_disk(tmp_path)


def test_a_disk_that_fills_up_during_measurement(tmp_path, monkeypatch):
    opened = []

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def remembered(**options):
        opened.append(real(**options))
        return opened[-1]

    real = tempfile.TemporaryFile
    monkeypatch.setattr(disks.tempfile, "TemporaryFile", remembered)
    monkeypatch.setattr(disks.os, "pwrite", full)
    with pytest.raises(UserError, match="No space left on device"):
        measure_disk(tmp_path)
    assert opened[0].closed


def test_memory_bandwidth_is_the_median_of_what_counts():
    """The first copy touches the memory, and is not counted."""
    times = itertools.accumulate([0, 100, 0, 4, 0, 1, 0, 2])
    assert memory_bandwidth(1000, clock=lambda: float(next(times))) == 500


@pytest.mark.parametrize("threads", [1, 3])
def test_all_of_the_memory_is_copied(threads, monkeypatch):
    copied = []

    def copy(into, part):
        copied.append((part.size, np.shares_memory(into, part)))

    monkeypatch.setattr(np, "copyto", copy)
    assert memory_bandwidth(1000, threads, repeats=1) > 0
    assert sum(size for size, _ in copied) == 2 * 1000 and len(copied) == 2 * threads
    assert not any(shared for _, shared in copied)


def test_the_kind_of_file_system(tmp_path):
    info = tmp_path / "proc/self/mountinfo"
    info.parent.mkdir(parents=True)
    lines = [
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        f"30 22 0:26 / {str(tmp_path).replace(' ', chr(92) + '040')} rw - overlay overlay rw",
        f"31 30 0:27 / {tmp_path}/my\\040data rw - nfs4 server:/data rw",
        f"32 30 0:27 / {tmp_path}/my rw - tmpfs tmpfs rw",
    ]
    info.write_text("\n".join(lines) + "\n")
    (tmp_path / "my data").mkdir()
    assert filesystem(tmp_path / "my data", tmp_path) == "nfs4"
    assert filesystem(tmp_path / "other", tmp_path) == "overlay"
    assert filesystem(tmp_path.parent, tmp_path) == "ext4"
    assert filesystem(tmp_path, tmp_path / "nowhere") is None
