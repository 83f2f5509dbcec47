"""The digests of what derived files hold, as dataset.json states them, by how a file begins.

Of files of large photographs that is what is in memory, the entries; these have sums of the rest.
"""

import hashlib
import struct
from pathlib import Path

import numpy as np

from . import block_index, dc_images, field_columns, records, target_columns
from .kept import HEAD, DerivedPlace

# By suffix: how a file begins, and what it has in memory of each sample; None for all that it holds.
KINDS: dict[str, tuple[bytes, "np.dtype[np.void] | None"]] = {
    records.SUFFIX: (records.MAGIC, None),
    target_columns.SUFFIX: (target_columns.MAGIC, None),
    field_columns.SUFFIX: (field_columns.MAGIC, None),
    block_index.SUFFIX: (block_index.MAGIC, block_index.ENTRY),
    dc_images.SUFFIX: (dc_images.MAGIC, dc_images.ENTRY),
}


def digests_of(folder: Path, split: str) -> dict[str, str]:
    """The SHA-256 of what each derived file of a split holds that is in `folder`."""
    found = {}
    for suffix, (magic, entry) in KINDS.items():
        try:
            with (folder / f"{split}{suffix}").open("rb") as file:
                begins, _, count, _ = HEAD.unpack(file.read(HEAD.size))
                held = file.read(-1 if entry is None else count * entry.itemsize)
        except (OSError, struct.error):
            continue
        if begins == magic:
            found[magic.decode()] = hashlib.sha256(held).hexdigest()
    return found


def differing(folder: Path, place: DerivedPlace) -> list[tuple[Path, str]]:
    """Which files of a split are not what was derived anew into `folder`, and why: files, and sentences.

    A file that is derived of other shards is not used, and not named.
    """
    faults: list[tuple[Path, str]] = []
    for suffix, (magic, _) in KINDS.items():
        anew = folder / f"{place.split}{suffix}"
        if not anew.exists():
            continue
        for path in place.file(suffix, magic).paths:
            if _same_head(path, anew) and not _same_content(path, anew):
                faults.append((path, "not what is derived of its shards; delete it, and it is made again"))
    stated = digests_of(folder, place.split)
    names = {magic.decode(): f"{place.split}{suffix}" for suffix, (magic, _) in KINDS.items()}
    faults += [
        (
            place.folder / "dataset.json",
            f"the digest that it states of {names[magic]} is not that of what is derived of the shards; convert again",
        )
        for magic, digest in stated.items()
        if place.digests.get(magic, digest) != digest
    ]
    return faults


def _same_head(path: Path, anew: Path) -> bool:
    """Whether both were derived of the same shards, and both can be read."""
    known = struct.calcsize("<8s32s")
    try:
        with path.open("rb") as one, anew.open("rb") as other:
            return one.read(known) == other.read(known)
    except OSError:
        return False


def _same_content(path: Path, anew: Path) -> bool:
    with path.open("rb") as one, anew.open("rb") as other:
        while True:
            parts = one.read(1 << 20), other.read(1 << 20)
            if parts[0] != parts[1]:
                return False
            if not parts[0]:
                return True
