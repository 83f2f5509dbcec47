"""Every image is read and decoded once before it is stored, by threads a bounded distance ahead of the writer."""

import re
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np

from fastimg.loaders.decode import Pixels, decode, read_header
from fastimg.loaders.errors import ImageError
from fastimg.loaders.folder import image_extensions
from fastimg.loaders.scratch import Scratch
from fastimg.loaders.tiles import tile
from fastimg.sources import Entry, Source

TILED = "tiled"
AHEAD = 8  # images per thread that may be read and not yet written

# What Pillow's plugins raise on damaged files beside what decode() names: AVIF a RuntimeError, others others.
_DECODERS_OWN = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, zlib.error)


class Checked(NamedTuple):
    """An image that decodes."""

    data: bytes  # what is stored
    extension: str
    source_bytes: int
    tiling: str = ""  # tiled, or why it is stored as it is; empty where nobody asked


class Check:
    """Reads an image and decodes it once, in any thread: Checked, or the reason why it cannot be used."""

    def __init__(self, source: Source, max_pixels: int, tile_px: int | None) -> None:
        self._source = source
        self._tile_px = tile_px
        self._max_pixels = max_pixels
        self._extensions = image_extensions()
        self._thread = threading.local()

    def __call__(self, entry: Entry) -> Checked | str:
        if reason := self._source.problem(entry):
            return reason
        file = self._source.file(entry)
        try:
            data = file.read_bytes()
            if len(data) != entry.size:
                return "changed after the source was listed"
            header = read_header(data, self._max_pixels)
            pixels = decode(data, header, self._scratch())
        except ImageError as error:
            return re.sub(r" at 0x[0-9a-f]+", "", str(error))  # an address would differ from run to run
        except OSError as error:
            return error.strerror or str(error)
        except _DECODERS_OWN as error:
            return f"the decoder fails on it ({type(error).__name__}: {error})"
        for extension in (header.extension, file.suffix[1:].lower()):  # ours, else its own where ours is not usual
            if f".{extension}" in self._extensions:
                return self._stored(data, pixels, extension)
        return f"images of the format {header.format} have no file extension that readers know"

    def _stored(self, data: bytes, pixels: Pixels, extension: str) -> Checked:
        if self._tile_px is None:
            return Checked(data, extension, len(data))
        tiled = tile(data, self._tile_px, self._max_pixels)
        kept = tiled.kept.value if tiled.kept else "bytes behind its end" if tiled.left_out else ""
        if not kept and not np.array_equal(decode(tiled.jpeg), pixels):
            kept = "its tiles would decode to other pixels"
        if kept:
            return Checked(data, extension, len(data), f"stored as it is: {kept}")
        return Checked(tiled.jpeg, extension, len(data), TILED)

    def _scratch(self) -> Scratch:
        if not hasattr(self._thread, "scratch"):
            self._thread.scratch = Scratch()
        scratch: Scratch = self._thread.scratch
        return scratch


def in_order(pool: ThreadPoolExecutor, check: Check, entries: Iterator[Entry], ahead: int) -> Iterator[Checked | str]:
    """Results in the order of `entries`, at most `ahead` of them in memory."""
    window: deque[Future[Checked | str]] = deque(pool.submit(check, entry) for entry in islice(entries, ahead))
    while window:
        result = window.popleft().result()
        window.extend(pool.submit(check, entry) for entry in islice(entries, 1))
        yield result
