"""Digests of samples: 16 bytes of BLAKE2b over a sample's bytes, as they are stored.

Reading a whole dataset takes time, so digests are saved, together with a stamp of the sizes and modification times of
the dataset's files. If the stamp has changed, everything is read again.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.errors import printable
from fastimg.loaders import Dataset, ImageError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.runtime.scratch import Scratch

BYTES = 16
DIGEST = np.dtype(f"V{BYTES}")
NONE = bytes(BYTES)  # for samples that cannot be read

Elsewhere = Callable[[list[npt.NDArray[np.int64]]], Iterable[bytes]]

_HEADER = b"fastimg digests 1\n"
_CHUNK = 256  # samples per task of a thread


def of(data: bytes | memoryview, more: bytes = b"") -> bytes:
    """The digest of a sample's bytes."""
    return hashlib.blake2b(data, digest_size=BYTES, key=more).digest()


def digests_of(dataset: Dataset, ids: npt.NDArray[np.int64]) -> bytes:
    """The digests of these samples, one after the other."""
    scratch = Scratch()
    dataset.will_need(ids)
    found = []
    for index in ids.tolist():
        try:
            found.append(of(dataset.read(index, scratch)))
        except ImageError:
            found.append(NONE)
    return b"".join(found)


def sample_digests(
    dataset: Dataset,
    stamp: str,
    file: Path,
    workers: int,
    say: Callable[[str], object] = lambda text: None,
    tick: Callable[[int], object] = lambda count: None,
    elsewhere: Elsewhere | None = None,
) -> npt.NDArray[np.void]:
    """The digests of all samples, [N] of DIGEST: from `file` if it has this stamp, else by reading all samples.

    Samples that cannot be read have the digest NONE and are tried again next time. `tick` is called with the number of
    samples read since the last call, `say` with a message if the digests could not be saved. `elsewhere` reads for each
    of several [N] what `digests_of` does here. Raises DataError.
    """
    header = _HEADER + stamp.encode() + b"\n"
    try:
        saved = file.read_bytes()
    except OSError:
        saved = b""
    body = saved[len(header) : -BYTES]
    digests = np.zeros(len(dataset), DIGEST)
    if saved.startswith(header) and len(body) == BYTES * len(dataset) and saved[-BYTES:] == of(body):
        digests = np.frombuffer(body, DIGEST).copy()
    unknown = np.flatnonzero(digests == np.void(NONE))
    tick(len(dataset) - len(unknown))
    if not len(unknown):
        return digests

    parts = [unknown[start : start + _CHUNK] for start in range(0, len(unknown), _CHUNK)]
    with ThreadPoolExecutor(workers, "digests") as pool:
        read = pool.map(partial(digests_of, dataset), parts) if elsewhere is None else elsewhere(parts)
        for ids, made in zip(parts, read, strict=True):
            digests[ids] = np.frombuffer(made, DIGEST)
            tick(len(ids))
    if digests.tobytes() != body:
        body = digests.tobytes()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, header + body + of(body))
        except OSError as error:
            say(f"{file}: cannot be written ({error.strerror or error}); the next run will read all samples again")
    return digests


def stamp_of(dataset: Dataset) -> str:
    """A stamp that changes with the samples, and with the sizes and modification times of their files."""
    digest = hashlib.sha256(dataset.fingerprint.encode())
    for file in dataset.files():
        name = printable(os.path.abspath(file))
        try:
            status = os.stat(file)
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{name} is not there\n".encode())
    return digest.hexdigest()
