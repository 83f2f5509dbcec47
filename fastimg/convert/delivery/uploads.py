"""Shards on their way to the store, a few at once, while the next ones are made."""

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fastimg.loaders.remote.writable import WritableFolder

from .shard_delivery import DeliveredFile, deliver

AT_ONCE = 2  # shards that are being uploaded
STAGED = 4  # finished shards that are on this machine; then the conversion waits


class Ledger:
    """The files that are in the store, a line of JSON for each: on disk before the file is deleted here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def add(self, files: list[DeliveredFile]) -> None:
        """Remember files that were delivered together."""
        with self._lock, self._path.open("ab") as out:
            out.write("".join(json.dumps(list(each)) + "\n" for each in files).encode())
            out.flush()
            os.fsync(out.fileno())

    def read(self) -> dict[str, DeliveredFile]:
        """The files by name; without a last line that a kill cut off."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        except FileNotFoundError:
            return {}
        files = (DeliveredFile(*json.loads(line)) for line in lines if line.endswith("\n"))
        return {each.name: each for each in files}

    def clear(self) -> None:
        """Forget everything."""
        self._path.unlink(missing_ok=True)


class ShardUploads:
    """Uploads groups of files, and deletes them here. An error ends it: it is raised by the next call."""

    def __init__(self, store: WritableFolder, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._pool = ThreadPoolExecutor(AT_ONCE, "fastimg-upload")
        self._room = threading.BoundedSemaphore(STAGED)
        self._futures: list[Future[None]] = []

    def add(self, files: list[Path], first: Callable[[], None]) -> None:
        """Upload files after `first`; wait if there are too many already. Raises DataError of earlier ones."""
        self._room.acquire()
        self._raise_early()
        self._futures.append(self._pool.submit(self._work, files, first))

    def _work(self, files: list[Path], first: Callable[[], None]) -> None:
        try:
            first()
            self._ledger.add([deliver(file, self._store) for file in files])
            for file in files:
                file.unlink()
        finally:
            self._room.release()

    def _raise_early(self) -> None:
        done = [each for each in self._futures if each.done()]
        self._futures = [each for each in self._futures if not each.done()]
        for each in done:
            each.result()

    def finish(self) -> None:
        """Wait until everything is uploaded. Raises DataError."""
        for each in self._futures:
            each.result()
        self._futures = []

    def close(self) -> None:
        """End the threads; what has not begun is not uploaded."""
        self._pool.shutdown(wait=True, cancel_futures=True)
