"""Where the texts beside images are in their shards, and which inputs each sample has: 16 bytes per sample.

A text is the sample's `.txt` in a tar, and its bytes field `txt` in a .beton, which is empty where there is none. A
sample without an image has a blank one, so that every reader can read the shard, and says so in its note:
`"missing": ["image"]`. Positions are derived from the shards once, and kept beside the data, or in the user's cache if
that is read-only.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.extents import are_flags, are_inside
from fastimg.loaders.containers.tars.shards import index_path, parse_index
from fastimg.loaders.errors import ShardError
from fastimg.loaders.runtime.cache import cache_folder

POSITION = np.dtype([("offset", "<u8"), ("size", "<u4"), ("shard", "<u2"), ("image", "?"), ("text", "?")])

FIELD = "txt"  # a tar's member, or a .beton's field
MISSING = "missing"  # key in a note: the inputs that the sample lacks

_MAGIC = b"FIMGCAP1"
_HEAD = struct.Struct("<8sQI")  # magic, records, checksum of the records


def positions(shards: Iterable[Path]) -> npt.NDArray[np.void]:
    """The positions [N] of POSITION in shards that fastimg wrote, read from their indexes and notes.

    Raises ShardError.
    """
    parts = [_of_beton(shard) if shard.suffix == ".beton" else _of_tar(n, shard) for n, shard in enumerate(shards)]
    return np.concatenate(parts) if parts else np.zeros(0, POSITION)


def kept_positions(
    folder: Path, fingerprint: str, shards: Iterable[Path], lengths: npt.NDArray[np.uint64]
) -> npt.NDArray[np.void]:
    """`positions` of the dataset with this fingerprint, from where they were kept, if they were.

    `lengths`: the bytes of each shard, in which they must be.
    """
    key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    name = Path("captions") / f"{fingerprint[:32]}.bin"
    places = (folder / ".fastimg" / name, cache_folder() / key / name)
    for path in places:
        if (kept := _read(path)) is not None and _are_of(kept, lengths):
            return kept
    made = positions(shards)
    body = made.tobytes()
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, _HEAD.pack(_MAGIC, len(made), zlib.crc32(body)) + body)
            break
        except OSError:  # data and home are read-only: derived again next time
            continue
    return made


def missing_counts(found: npt.NDArray[np.void]) -> dict[str, int]:
    """How many samples lack each input."""
    return {name: int((~found[name]).sum()) for name in ("image", "text")}


def _read(path: Path) -> npt.NDArray[np.void] | None:
    try:
        content = path.read_bytes()
        magic, count, checksum = _HEAD.unpack_from(content)
    except (OSError, struct.error):
        return None
    body = content[_HEAD.size :]
    if magic != _MAGIC or len(body) != count * POSITION.itemsize or zlib.crc32(body) != checksum:
        return None
    return np.frombuffer(body, POSITION)


def _are_of(kept: npt.NDArray[np.void], lengths: npt.NDArray[np.uint64]) -> bool:
    """Whether positions [N] can be those of texts in shards of these lengths."""
    texts = kept[kept["text"]]
    flags = kept.view(np.uint8).reshape(len(kept), POSITION.itemsize)[:, -2:]
    return are_flags(flags) and are_inside(texts["shard"], texts["offset"], texts["size"], lengths)


def _of_tar(number: int, shard: Path) -> npt.NDArray[np.void]:
    samples = parse_index(index_path(shard), shard.stat().st_size)
    found = np.zeros(len(samples), POSITION)
    found["shard"] = number
    found["image"] = True
    file = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for record, sample in zip(found, samples, strict=True):
            for member in sample:
                if member.ext == FIELD:
                    record["offset"], record["size"], record["text"] = member.offset, member.size, member.size > 0
                elif member.ext == "json":
                    note = os.pread(file, member.size, member.offset)
                    record["image"] = _has_image(f"{shard}: {member.name}", note)
    finally:
        os.close(file)
    return found


def _of_beton(shard: Path) -> npt.NDArray[np.void]:
    with BetonFile(shard) as reader:
        found = np.zeros(len(reader), POSITION)
        found["image"] = True
        if FIELD in reader.fields:
            found["offset"], found["size"] = reader.extents(FIELD)
            found["text"] = found["size"] > 0
        for index in range(len(reader) if "json" in reader.fields else 0):
            note = reader.raw("json", index).removesuffix(b"\0")
            found[index]["image"] = _has_image(f"{shard}: sample {index}", note)
    return found


def _has_image(name: str, note: bytes) -> bool:
    if b'"missing"' not in note:
        return True
    try:
        said: Any = json.loads(note)
        return "image" not in (said.get(MISSING) or ())
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ShardError(f"{name}: its note cannot be read ({error}); convert again") from error
