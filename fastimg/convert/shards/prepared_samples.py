"""Prepared samples in a file, on their way from a node of a cluster to the process that writes a .beton.

A record is the length of its head (uint32), the head, and the bytes that it states the sizes of. The head is JSON: why
the sample cannot be used, or what is not bytes in `Prepared`.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastimg.convert.image_preparation import Prepared
from fastimg.convert.recompression.facts import Recompressed
from fastimg.loaders.decode import Pixels
from fastimg.loaders.errors import DataError

_LENGTH = struct.Struct("<I")


def write_prepared(file: BinaryIO, prepared: Prepared | str) -> None:
    """Append a sample, or why it cannot be used."""
    if isinstance(prepared, str):
        _write(file, prepared)
        return
    image, shape = (prepared.image, ()) if isinstance(prepared.image, bytes) else _flat(prepared.image)
    parts = (image, prepared.note, prepared.original, *prepared.fields.values())
    head = {
        "shape": shape,
        "extension": prepared.extension,
        "source_bytes": prepared.source_bytes,
        "outcome": prepared.outcome,
        "recompressed": prepared.recompressed,
        "fields": list(prepared.fields),
        "sizes": [len(part) for part in parts],
    }
    _write(file, head, *parts)


def _flat(pixels: Pixels) -> tuple[memoryview, tuple[int, ...]]:
    return np.ascontiguousarray(pixels).reshape(-1).data, pixels.shape


def _write(file: BinaryIO, head: object, *parts: bytes | memoryview) -> None:
    encoded = json.dumps(head).encode()
    for part in (_LENGTH.pack(len(encoded)), encoded, *parts):
        file.write(part)


def read_prepared(path: Path) -> Iterator[Prepared | str]:
    """The samples of a file, in order. Raises DataError where it ends within one."""
    with path.open("rb") as file:
        while length := file.read(_LENGTH.size):
            head = json.loads(_read(file, path, *_LENGTH.unpack(length)))
            if isinstance(head, str):
                yield head
                continue
            image, note, original, *fields = (_read(file, path, size) for size in head["sizes"])
            yield Prepared(
                np.frombuffer(image, np.uint8).reshape(head["shape"]) if head["shape"] else image,
                head["extension"],
                head["source_bytes"],
                head["outcome"],
                note,
                dict(zip(head["fields"], fields, strict=True)),
                original,
                _recompressed(head["recompressed"]),
            )


def _recompressed(facts: list[Any] | None) -> Recompressed | None:
    if facts is None:
        return None
    name, before, after, psnr, changes = facts
    return Recompressed(name, before, after, psnr, tuple(changes))


def _read(file: BinaryIO, path: Path, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise DataError(f"{path}: was cut short while it was in use; convert again with --resume")
    return content
