"""Files that several processes or threads write at once: each reader sees one of the contents, whole."""

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastimg.loaders.containers import atomic
from fastimg.loaders.containers.atomic import replace_file, temporary, whole

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
