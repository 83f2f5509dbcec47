"""What a sample's content is called: 16 bytes of BLAKE2b over its bytes as they are stored.

Reading everything takes as long as a disk does, so what was found is kept, stamped with the sizes and times of the
files that it was found in: another stamp, and everything is read again.
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.errors import printable
from fastimg.loaders import Dataset, ImageError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.runtime.scratch import Scratch

BYTES = 16
DIGEST = np.dtype(f"V{BYTES}")
NONE = bytes(BYTES)  # of a sample that cannot be read

_HEAD = b"fastimg digests 1\n"
_CHUNK = 256  # samples that a thread takes at a time


def of(data: bytes | memoryview, more: bytes = b"") -> bytes:
    """The digest of a sample's bytes."""
    return hashlib.blake2b(data, digest_size=BYTES, key=more).digest()


def sample_digests(
    dataset: Dataset,
    stamp: str,
    keep: Path,
    workers: int,
    say: Callable[[str], object] = lambda text: None,
    tick: Callable[[int], object] = lambda count: None,
) -> npt.NDArray[np.void]:
    """The digest of every sample [N] of DIGEST, from the file `keep` where that has this stamp, else by reading all.

    A sample that cannot be read has NONE; it is tried again each time. `tick` is told how many more were read, `say`
    where they could not be kept. Raises DataError.
    """
    head = _HEAD + stamp.encode() + b"\n"
    try:
        kept = keep.read_bytes()
    except OSError:
        kept = b""
    body = kept[len(head) : -BYTES]
    found = np.zeros(len(dataset), DIGEST)
    if kept.startswith(head) and len(body) == BYTES * len(dataset) and kept[-BYTES:] == of(body):
        found = np.frombuffer(body, DIGEST).copy()
    unknown = np.flatnonzero(found == np.void(NONE))
    tick(len(dataset) - len(unknown))
    if not len(unknown):
        return found

    def read(start: int) -> int:
        scratch, ids = Scratch(), unknown[start : start + _CHUNK]
        dataset.will_need(ids)
        for index in ids.tolist():
            try:
                found[index] = of(dataset.read(index, scratch))
            except ImageError:
                found[index] = NONE
        return len(ids)

    with ThreadPoolExecutor(workers, "digests") as pool:
        for count in pool.map(read, range(0, len(unknown), _CHUNK)):
            tick(count)
    if found.tobytes() != body:
        body = found.tobytes()
        try:
            keep.parent.mkdir(parents=True, exist_ok=True)
            replace_file(keep, head + body + of(body))
        except OSError as error:
            say(f"{keep}: cannot be written ({error.strerror or error}); the next run reads all samples again")
    return found


def stamp_of(dataset: Dataset) -> str:
    """Changes when the samples or the files that hold them do: their sizes, and when they were last written."""
    digest = hashlib.sha256(dataset.fingerprint.encode())
    for file in dataset.files():
        name = printable(os.path.abspath(file))
        try:
            status = os.stat(file)
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{name} is not there\n".encode())
    return digest.hexdigest()
