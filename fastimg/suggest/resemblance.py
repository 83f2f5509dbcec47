"""Samples that are nearly the same without having the same bytes: pictures saved anew, texts written anew."""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastimg.errors import printable
from fastimg.loaders import DataError, Dataset
from fastimg.loaders.errors import image_faults
from fastimg.loaders.opening import open_image
from fastimg.loaders.runtime.scratch import Scratch

SIDE = 32  # pixels of the grey thumbnails that are compared
ALIKE = 0.96  # correlation of two thumbnails from which two pictures count as nearly the same
SMALLEST = 64  # pixels: smaller pictures, such as digits, resemble each other without being copies
_ROUGH = 0.92  # of thumbnails of half the side, which are compared first
_FLAT = 6.0  # levels: a thumbnail of less contrast resembles any other one
_BLOCK = 512  # rows compared at a time
_NAMED = 2  # pairs that are named

Thumbnails = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class NearCopies:
    """Samples that resemble an earlier one, without being the same file.

    within: of training, another one of training; across: of validation, one of training.
    examples: some pairs of those across, else of those within, by name. why_not: why nothing was compared.
    """

    within: int = 0
    across: int = 0
    examples: tuple[tuple[str, str], ...] = ()
    why_not: str = ""


def of_images(train: Dataset, val: Dataset | None, workers: int) -> NearCopies:
    """Pictures whose thumbnails correlate by ALIKE at least: saved anew, resized, recoloured, with other borders."""
    first = thumbnails(train, workers)
    within = pairs(first)
    across = [] if val is None else pairs(thumbnails(val, workers), first)
    return _counted(train, val, within, across)


def of_texts(train: Dataset, val: Dataset | None) -> NearCopies:
    """Texts of the same words in the same order, whatever their case, punctuation and white space."""
    first = _wordings(train)
    seen: dict[bytes, int] = {}
    within, across = [], []
    for index, (words, exact) in enumerate(first):
        if words in seen and first[seen[words]][1] != exact:
            within.append((index, seen[words]))
        seen.setdefault(words, index)
    for index, (words, exact) in enumerate([] if val is None else _wordings(val)):
        if words in seen and first[seen[words]][1] != exact:
            across.append((index, seen[words]))
    return _counted(train, val, within, across)


def thumbnails(dataset: Dataset, workers: int) -> Thumbnails:
    """Grey thumbnails [N, SIDE * SIDE] of mean 0 and length 1; zeros for what is flat or cannot be read."""
    found = np.zeros((len(dataset), SIDE * SIDE), np.float32)

    def make(chunk: range) -> None:
        scratch = Scratch()
        for index in chunk:
            levels = _levels(dataset, index, scratch)
            if levels is not None and levels.std() >= _FLAT:
                centred = levels - levels.mean()
                found[index] = centred / np.linalg.norm(centred)

    chunks = [range(at, min(at + 64, len(dataset))) for at in range(0, len(dataset), 64)]
    with ThreadPoolExecutor(workers, "thumbnails") as pool:
        list(pool.map(make, chunks))
    return found


def pairs(rows: Thumbnails, earlier: Thumbnails | None = None) -> list[tuple[int, int]]:
    """(row, the row of `earlier` that resembles it most) for each row that resembles one; by default one before it.

    Two files with the same bytes correlate by 1, too: those are left out by whoever counts them.
    """
    others = rows if earlier is None else earlier
    small, small_others = _smaller(rows), _smaller(others)
    found = []
    for start in range(0, len(rows), _BLOCK):
        rough = small[start : start + _BLOCK] @ small_others.T  # [block, others]
        for row, other in _best(rough, rows[start : start + _BLOCK], others, start if earlier is None else None):
            found.append((start + row, other))
    return found


def _best(rough: Thumbnails, rows: Thumbnails, others: Thumbnails, start: int | None) -> Iterator[tuple[int, int]]:
    for row in np.flatnonzero((rough >= _ROUGH).any(axis=1)).tolist():
        candidates = np.flatnonzero(rough[row] >= _ROUGH)
        if start is not None:
            candidates = candidates[candidates < start + row]
        if not len(candidates):
            continue
        exact = others[candidates] @ rows[row]
        if exact.max() >= ALIKE:
            yield row, int(candidates[exact.argmax()])


def _smaller(rows: Thumbnails) -> Thumbnails:
    """Thumbnails of half the side, again of length 1."""
    side = SIDE // 2
    halved = rows.reshape(-1, side, 2, side, 2).mean(axis=(2, 4)).reshape(-1, side * side)
    lengths = np.linalg.norm(halved, axis=1, keepdims=True)
    smaller: Thumbnails = halved / np.where(lengths > 0, lengths, 1.0)
    return smaller


def _levels(dataset: Dataset, index: int, scratch: Scratch) -> npt.NDArray[np.float32] | None:
    """The grey thumbnail of an image [SIDE * SIDE]; None for one that cannot be read."""
    try:
        data = dataset.read(index, scratch)
        with image_faults(), open_image(data) as image:
            image.draft("L", (2 * SIDE, 2 * SIDE))
            grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    except DataError:  # the survey names what cannot be read
        return None
    return np.asarray(grey, np.float32).reshape(-1)


def _wordings(dataset: Dataset) -> list[tuple[bytes, bytes]]:
    """For each text a hash of its words, and one of its bytes; a text that cannot be read equals only itself."""
    scratch = Scratch()
    found = []
    for index in range(len(dataset)):
        try:
            data = bytes(dataset.read(index, scratch))
        except DataError:
            data = b"%d cannot be read" % index
        words = " ".join(re.findall(r"\w+", data.decode("utf-8", "replace").lower()))
        found.append((_hash(words.encode()), _hash(data)))
    return found


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _counted(
    train: Dataset, val: Dataset | None, within: list[tuple[int, int]], across: list[tuple[int, int]]
) -> NearCopies:
    """What was found, without pairs of files with the same bytes, which are counted as copies."""
    within = [pair for pair in within if not _same(train, train, pair)]
    across = [] if val is None else [pair for pair in across if not _same(val, train, pair)]
    source, found = (val, across) if val is not None and across else (train, within)
    named = [(printable(source.sample_name(a)), printable(train.sample_name(b))) for a, b in found[:_NAMED]]
    return NearCopies(within=len(within), across=len(across), examples=tuple(named))


def _same(one: Dataset, other: Dataset, pair: tuple[int, int]) -> bool:
    return bytes(one.read(pair[0], Scratch())) == bytes(other.read(pair[1], Scratch()))
