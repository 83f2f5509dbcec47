"""Files that several processes or threads write at once: each reader sees one of the contents, whole."""

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastimg.loaders.containers import atomic
from fastimg.loaders.containers.atomic import EarlySync, replace_file, replace_output, temporary, whole
from fastimg.loaders.errors import not_written

CONTENTS = [bytes([number]) * (1 << 16) for number in range(8)]


def test_writers_at_once_leave_one_of_their_contents(tmp_path: Path):
    path = tmp_path / "file"
    replace_file(path, CONTENTS[0])
    over = threading.Event()
    seen: set[bytes] = set()

    def look() -> None:
        while not over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=look)
    reader.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: replace_file(path, CONTENTS[number % 8]), range(200)))
    finally:
        over.set()
        reader.join()
    assert seen <= set(CONTENTS)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path):
    temporary(tmp_path / "file").write_bytes(b"a longer content than that of the next one")
    replace_file(tmp_path / "file", b"next")
    assert (tmp_path / "file").read_bytes() == b"next"


def test_one_that_never_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(atomic, "_PATIENCE", 0.05)
    part = temporary(tmp_path / "file")
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process is writing it"):
            replace_file(tmp_path / "file", b"x")
        assert part.exists()
    replace_file(tmp_path / "file", b"x")


@pytest.mark.usefixtures("shared_locks")
def test_a_forked_process_keeps_no_lock(tmp_path: Path):
    path = tmp_path / "file"
    replace_file(path, b"x")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_error_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "file"
    replace_file(path, b"before")
    with pytest.raises(ZeroDivisionError), whole(path) as file:
        file.write(b"after")
        raise ZeroDivisionError
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]


class TestOutputs:
    """Files that users name: `--csv FILE`, `--plot FILE`."""

    def test_what_does_not_fit_leaves_what_was_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        path = tmp_path / "out.csv"
        replace_output(path, b"before")

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(atomic.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            replace_output(path, b"after")
        assert path.read_bytes() == b"before" and [file.name for file in tmp_path.iterdir()] == ["out.csv"]

    def test_links_and_modes_stay(self, tmp_path: Path):
        file, link = tmp_path / "file", tmp_path / "link"
        file.write_bytes(b"before")
        file.chmod(0o600)
        link.symlink_to("file")
        replace_output(link, b"after")
        assert link.is_symlink() and file.read_bytes() == b"after" and file.stat().st_mode & 0o777 == 0o600

    def test_a_pipe_is_written_to(self, tmp_path: Path):
        os.mkfifo(tmp_path / "pipe")
        with ThreadPoolExecutor(1) as pool:
            read = pool.submit((tmp_path / "pipe").read_bytes)
            replace_output(tmp_path / "pipe", b"rows")
            assert read.result() == b"rows"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "x"), "no space left on the disk; free some space"),
        (OSError(errno.EDQUOT, "x"), "no space left on the disk; free some space"),
        (OSError(errno.EFBIG, "x"), "larger than this process may write (9,000 bytes); raise that limit, as with"),
        (RuntimeError("IoError(Os): x (os error 28)"), "no space left on the disk; free some space"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied; choose another file"),
    ],
)
def test_why_a_file_was_not_written(error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fastimg.loaders.errors.resource.getrlimit", lambda _: (9000, 9000))
    assert not_written(error, "choose another file").startswith(sentence)


class TestEarlySync:
    """Syncs of a file while more is written to it."""

    @pytest.fixture
    def synced(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The files that are synced, in order."""
        monkeypatch.setattr(atomic, "_EARLY", 100)
        files: list[int] = []
        monkeypatch.setattr(os, "fsync", files.append)
        return files

    def test_only_after_enough_was_written_and_one_at_a_time(self, synced: list[int]):
        early = EarlySync(7)
        for size in (50, 99):
            early.reached(size)
        early.close()
        assert synced == []
        early = EarlySync(7)
        early.reached(100)
        early.close()
        assert synced == [7]

    def test_an_error_is_told_once(self, monkeypatch: pytest.MonkeyPatch):
        def fail(file: int) -> None:
            raise OSError(errno.EIO, "an error of the disk")

        monkeypatch.setattr(atomic, "_EARLY", 100)
        monkeypatch.setattr(os, "fsync", fail)
        early = EarlySync(7)
        early.reached(100)
        with pytest.raises(OSError, match="an error of the disk"):
            early.close()
        early.close()
