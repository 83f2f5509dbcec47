"""Prepares images for storage in a shard, on threads that run a bounded distance ahead of the writer.

A JPEG is tiled without loss. Tiling walks all of its entropy-coded data, so a file that libjpeg could not decode is not
rewritten (tests/loaders/jpeg/test_tiles_fuzz.py); everything that is not tiled is decoded once as a check. A PNG gets
its rows in groups, without loss, too, and what is written is read again. Images are re-encoded or recompressed only on
request, or, for a .beton, to apply an EXIF orientation.
"""

import hashlib
import io
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from fastimg.convert.annotations.shrinking import shrunk_fields
from fastimg.convert.recompression.choice import Recompression
from fastimg.convert.recompression.facts import Recompressed, psnr
from fastimg.convert.recompression.limits import JPEGS, lost_as_jpeg, obstacle
from fastimg.convert.recompression.lossless import losslessly
from fastimg.convert.sources.samples import Original, Source, SourceEntry
from fastimg.loaders.containers.betons.kinds import jpeg_fault
from fastimg.loaders.crop import Window
from fastimg.loaders.decode import Header, Pixels, decode, read_header
from fastimg.loaders.errors import DataError, ImageError
from fastimg.loaders.folders.formats import image_extensions
from fastimg.loaders.jpeg.rewriting.markers import Reason
from fastimg.loaders.jpeg.rewriting.orient import upright_jpeg
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.pictures.grouped_png import Kept, group_rows
from fastimg.loaders.runtime.in_order import in_order
from fastimg.loaders.runtime.scratch import Scratch

AHEAD = 64  # images per thread that may be read but not yet written
ROOM = 64 << 20  # limit of their total bytes, apart from one image per thread
SWELLS = 8  # estimated size of an image's pixels, as a multiple of its file size
TILED, REENCODED, RECOMPRESSED, KEPT = "tiled", "re-encoded", "recompressed", "kept"
KINDS = (TILED, REENCODED, RECOMPRESSED, KEPT)

# What Pillow's plugins raise on damaged files besides what decode() handles, such as AVIF's RuntimeError.
DECODERS_OWN = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, zlib.error)
_WALKED = (None, Reason.TILED, Reason.COSTLY)  # results that imply that the whole scan was walked
_SIDE = 65_535  # pixels, of a JPEG and of an image in a .beton


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """How images are converted. Everything except `compare` affects the output bytes."""

    container: Literal["tar", "beton"] = "tar"
    max_pixels: int
    max_size: int | None = None  # of the longer side, in pixels
    quality: int = 95
    reencode: bool = False
    recompress: Recompression | None = None  # of images that are no JPEGs
    tile_px: int | None = None
    compare: bool = False
    raw_fraction: float = 0.0
    raw_below: int = 0  # bytes
    originals: Literal["keep", "drop", "refuse"] = "keep"
    seed: int = 0

    def encodes(self, header: Header) -> str:
        """Why an image is re-encoded; empty if it is not."""
        if self.max_size is not None and max(header.size) > self.max_size:
            return f"larger than {self.max_size} pixels"
        return "asked for" if self.reencode else ""

    def stored_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of an image of this size once it is encoded: shrunk to --max-size, and to what JPEGs hold."""
        longest = max(size)
        side = min(self.max_size or longest, _SIDE)
        if longest <= side:
            return size
        return max(1, round(size[0] * side / longest)), max(1, round(size[1] * side / longest))

    def recompresses(self, header: Header, path: str) -> bool:
        """Whether --recompress applies to an image; `obstacle` may still stand in the way."""
        asked = self.recompress is not None and header.format not in JPEGS
        return asked and not (self.container == "beton" and self.is_raw(path, header.size))

    def becomes_jpeg(self, data: bytes, header: Header, path: str) -> bool:
        """Whether an image is stored as a JPEG, as --max-size, --jpeg or --recompress ask for it."""
        if self.encodes(header):
            return True
        asked = self.recompress is not None and self.recompress.quality is not None
        return asked and self.recompresses(header, path) and not obstacle(data, header, lossless=False)

    def is_raw(self, path: str, size: tuple[int, int]) -> bool:
        """Whether --raw-fraction or --raw-below selects this sample, an image of `size` (width, height)."""
        width, height = self.stored_size(size)
        if 3 * width * height <= self.raw_below:
            return True
        if self.raw_fraction <= 0:
            return False
        key = f"{self.seed} {path}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.sha256(key).digest()[:8]) < self.raw_fraction * 2**64


class Prepared(NamedTuple):
    """A sample that is ready to be stored."""

    image: bytes | Pixels  # pixels only for a .beton; or a text
    extension: str
    source_bytes: int
    outcome: str  # one of KINDS, followed by the reason if there is one
    note: bytes
    fields: dict[str, bytes]
    original: bytes = b""  # what the image field of a .beton cannot hold
    recompressed: Recompressed | None = None


class Prepare:
    """Reads a sample and prepares its image, on any thread. Returns Prepared, or why it cannot be used."""

    def __init__(self, source: Source, treatment: Treatment) -> None:
        self._source = source
        self._treatment = treatment
        self._extensions = image_extensions()
        self._thread = threading.local()

    def __call__(self, entry: SourceEntry) -> Prepared | str:
        if reason := self._source.problem(entry):
            return reason
        try:
            return self._prepared(entry, self._source.read(entry))
        except ImageError as error:
            return re.sub(r" at 0x[0-9a-f]+", "", str(error))  # addresses differ from run to run
        except OSError as error:
            return error.strerror or str(error)
        except DECODERS_OWN as error:
            return f"the decoder failed ({type(error).__name__}: {error})"

    def _prepared(self, entry: SourceEntry, original: Original) -> Prepared:
        if isinstance(original.image, bytes):
            prepared = self._encoded(entry, original, original.image)
        else:
            prepared = self._from_pixels(entry, original, original.image)
        if self._treatment.container == "tar":
            return prepared
        return self._for_beton(entry, prepared)

    def _encoded(self, entry: SourceEntry, original: Original, data: bytes) -> Prepared:
        header = read_header(data, self._treatment.max_pixels)
        treatment, size = self._treatment, len(data)
        if reason := treatment.encodes(header):
            original = self._shrunk(original, header.size)
            shown = decode(data, header, self._scratch())
            if treatment.is_raw(entry.path, header.size):
                return self._as_raw(shown, size, reason, original)
            made = self._jpeg(shown, _subsampling(data, header))
            return Prepared(made, _renamed(original.suffix, "jpg"), size, _outcome(REENCODED, reason), *original[2:])
        if treatment.recompresses(header, entry.path):
            return self._recompressed(original, data, header)
        extension = self._extension(header, original.suffix)
        outcome, pixels = _outcome(KEPT, "" if treatment.tile_px is None else header.format), None
        if treatment.tile_px is not None and header.format in ("jpeg", "mpo"):
            tiled = tile(data, treatment.tile_px, treatment.max_pixels)
            kept = tiled.kept or ("bytes behind its end" if tiled.left_out else "")
            if not header.turbo or tiled.recoded or tiled.kept not in _WALKED or treatment.compare:
                pixels = decode(data, header, self._scratch())
                if not kept and not np.array_equal(self._again(tiled.jpeg), pixels):
                    kept = "its tiles would decode to other pixels"
            if not kept:
                return Prepared(
                    tiled.jpeg,
                    extension,
                    size,
                    _outcome(TILED, "made sequential" if tiled.recoded else ""),
                    *original[2:],
                )
            outcome = _outcome(TILED, "already") if kept == Reason.TILED else _outcome(KEPT, kept)
            if pixels is not None or tiled.kept in _WALKED:
                return Prepared(data, extension, size, outcome, *original[2:])
        decode(data, header, self._scratch())
        data, outcome = self._grouped(data, header, outcome)
        return Prepared(data, extension, size, outcome, *original[2:])

    @property
    def _groups_rows(self) -> bool:
        """Whether PNGs get their rows in groups."""
        return self._treatment.tile_px is not None and self._treatment.container == "tar"

    def _grouped(self, data: bytes, header: Header, outcome: str) -> tuple[bytes, str]:
        """A PNG in groups of rows, if that is wanted, and what to say of it; `outcome` of all others."""
        if not self._groups_rows or header.format != "png":
            return data, outcome
        grouped = group_rows(data)
        if grouped.kept == Kept.GROUPED:
            outcome = _outcome(TILED, "png, already")
        elif grouped.kept is None:
            outcome = _outcome(TILED, "png, in groups of rows")
        elif grouped.kept != Kept.SMALL:
            outcome = _outcome(KEPT, f"png, {grouped.kept}")
        return grouped.png, outcome

    def _recompressed(self, original: Original, data: bytes, header: Header) -> Prepared:
        """An image that is no JPEG, recompressed; or as it is, with the reason."""
        asked = self._treatment.recompress
        assert asked is not None
        pixels = decode(data, header, self._scratch())
        extension = self._extension(header, original.suffix)
        if reason := obstacle(data, header, lossless=asked.quality is None):
            kept, outcome = self._grouped(data, header, _outcome(KEPT, f"{header.format}, {reason}"))
            return Prepared(kept, extension, len(data), outcome, *original[2:])
        if asked.quality is not None:
            made, ratio = self._jpeg_of(pixels, asked.quality)
            facts = Recompressed(header.format, len(data), len(made), ratio, lost_as_jpeg(data, header))
            return _changed(original, made, "jpg", facts)
        smaller = losslessly(data, header, pixels, self._groups_rows)
        if isinstance(smaller, str):
            kept, outcome = self._grouped(data, header, _outcome(KEPT, f"{header.format}, {smaller}"))
            return Prepared(kept, extension, len(data), outcome, *original[2:])
        facts = Recompressed(header.format, len(data), len(smaller.image), None, smaller.lost)
        return _changed(original, smaller.image, "png", facts)

    def _jpeg_of(self, pixels: Pixels, quality: int) -> tuple[bytes, float | None]:
        """A JPEG with all of its chroma, which text and thin lines need, or a gray one; and its PSNR."""
        gray = (pixels == pixels[:, :, :1]).all()
        made = self._jpeg(pixels, "Gray" if gray else "444", quality)
        return made, psnr(pixels, self._again(made))

    def _from_pixels(self, entry: SourceEntry, original: Original, pixels: Pixels) -> Prepared:
        height, width, _ = pixels.shape
        header = Header("raw", width, height, 1, turbo=False)
        if reason := self._treatment.encodes(header):
            original = self._shrunk(original, header.size)
            if self._treatment.is_raw(entry.path, header.size):
                return self._as_raw(pixels, pixels.nbytes, reason, original)
            made = self._jpeg(pixels, "420")
            return Prepared(made, "jpg", pixels.nbytes, _outcome(REENCODED, reason), *original[2:])
        asked = self._treatment.recompress
        if asked is not None and asked.quality is not None and self._treatment.recompresses(header, entry.path):
            made, ratio = self._jpeg_of(pixels, asked.quality)
            return _changed(original, made, "jpg", Recompressed("raw", pixels.nbytes, len(made), ratio, ()))
        if self._treatment.container == "beton":
            return Prepared(pixels, "raw", pixels.nbytes, _outcome(KEPT, "raw pixels"), *original[2:])
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        png = buffer.getvalue()
        header = read_header(png, self._treatment.max_pixels)
        smaller = losslessly(png, header, pixels, self._groups_rows) if asked is not None else ""
        if not isinstance(smaller, str):
            facts = Recompressed("raw", pixels.nbytes, len(smaller.image), None, ())
            return _changed(original, smaller.image, "png", facts)
        outcome = _outcome(KEPT, "raw pixels, without loss as png")
        return Prepared(png, "png", pixels.nbytes, outcome, *original[2:])

    def _for_beton(self, entry: SourceEntry, prepared: Prepared) -> Prepared:
        """Turn an image into what an image field can hold: a JPEG that FFCV decodes correctly, or pixels."""
        data = prepared.image
        if not isinstance(data, bytes):
            return prepared
        header = read_header(data, self._treatment.max_pixels)
        if self._treatment.is_raw(entry.path, header.size):
            return prepared._replace(image=self._pixels(data, header), outcome=_outcome(KEPT, "as raw pixels, chosen"))
        if not jpeg_fault(data):
            return prepared
        original = data if self._treatment.originals == "keep" else b""
        if header.turbo and header.orientation != 1:
            if self._treatment.originals == "refuse":
                raise ImageError("it has an EXIF orientation, which FFCV ignores, and --originals refuse")
            turned = upright_jpeg(data, self._treatment.tile_px or _SIDE, self._treatment.max_pixels)
            if turned is not None:
                return prepared._replace(image=turned, outcome=_outcome(TILED, "turned upright"), original=original)
            made = self._jpeg(decode(data, header, self._scratch()), _subsampling(data, header))
            outcome = _outcome(REENCODED, "turned upright, its edge cuts through blocks")
            return prepared._replace(image=made, outcome=outcome, original=original)
        if self._treatment.originals == "refuse":
            raise ImageError(f"{header.format} that a .beton cannot hold, and --originals refuse")
        return prepared._replace(
            image=self._pixels(data, header),
            outcome=_outcome(KEPT, f"as raw pixels: {header.format}"),
            original=original,
        )

    def _again(self, made: bytes) -> Pixels:
        """The pixels of what was made of an image."""
        return decode(made, read_header(made, self._treatment.max_pixels))

    def _pixels(self, data: bytes, header: Header) -> Pixels:
        if max(header.size) > _SIDE:
            raise ImageError(f"a side of more than {_SIDE} pixels, which a .beton cannot hold")
        return decode(data, header, self._scratch()).copy()

    def _jpeg(self, pixels: Pixels, subsampling: str, quality: int | None = None) -> bytes:
        """`pixels` as a JPEG of `quality`, or of --quality, shrunk to --max-size and tiled."""
        treatment = self._treatment
        quality = quality or treatment.quality
        pixels = np.ascontiguousarray(self._resized(pixels))
        if subsampling == "Gray":
            jpeg = simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), quality, "GRAY", "Gray")
        else:
            jpeg = simplejpeg.encode_jpeg(pixels, quality, "RGB", subsampling)
        return tile(jpeg, treatment.tile_px).jpeg if treatment.tile_px else jpeg

    def _as_raw(self, pixels: Pixels, source_bytes: int, reason: str, original: Original) -> Prepared:
        """A sample with raw pixels, shrunk to --max-size, of an image that would be encoded for a `reason`."""
        made = self._resized(pixels)
        kept = _outcome(KEPT, "as raw pixels, chosen")
        outcome = kept if made.shape == pixels.shape else _outcome(REENCODED, f"{reason}, as raw pixels")
        return Prepared(made.copy(), "raw", source_bytes, outcome, *original[2:])

    def _resized(self, pixels: Pixels) -> Pixels:
        """Pixels [h, w, 3] shrunk to --max-size."""
        height, width, _ = pixels.shape
        size = self._treatment.stored_size((width, height))
        if size == (width, height):
            return pixels
        from fastimg.loaders.resample import resample  # brings torch, which takes seconds

        out = np.empty((size[1], size[0], 3), np.uint8)
        resample(pixels, Window((0, 0, width, height), size, (0, 0)), "bicubic", out)
        return out

    def _shrunk(self, original: Original, size: tuple[int, int]) -> Original:
        """The sample with its fields in the pixels of the image that it becomes, whose size may be smaller."""
        smaller = self._treatment.stored_size(size)
        schemas = self._source.stored_fields
        if smaller == size or not any(schema.geometry for schema in schemas):
            return original
        if (bands := next((each.name for each in schemas if each.geometry == "bands"), None)) is not None:
            raise DataError(
                f"the field {bands!r} holds bands, which --max-size does not shrink with their images; leave it out"
            )
        return original._replace(fields=shrunk_fields(original.fields, schemas, size, smaller))

    def _extension(self, header: Header, suffix: str) -> str:
        """The usual extension for the content, or else the file's own extension."""
        for extension in (header.extension, suffix.lower().rpartition(".")[2]):
            if f".{extension}" in self._extensions:
                return _renamed(suffix, extension)
        raise ImageError(f"images of the format {header.format} have no file extension that readers know")

    def _scratch(self) -> Scratch:
        if not hasattr(self._thread, "scratch"):
            self._thread.scratch = Scratch()
        scratch: Scratch = self._thread.scratch
        return scratch


def prepared_in_order(
    pool: ThreadPoolExecutor,
    prepare: Callable[[SourceEntry], Prepared | str],
    entries: Iterator[SourceEntry],
    workers: int,
    container: str,
) -> Iterator[Prepared | str]:
    """Prepare `entries` in order, a bounded distance ahead of the consumer.

    The distance keeps threads busy while a shard is synced to disk. It is shorter for a .beton, where pixels may be in
    memory; their size is estimated from the sizes of the files.
    """
    swells = SWELLS if container == "beton" else 1
    return in_order(pool, prepare, entries, workers * AHEAD, workers, ROOM, lambda entry: swells * max(entry.size, 0))


def _outcome(kind: str, reason: str) -> str:
    return f"{kind}: {reason}" if reason else kind


def _changed(original: Original, image: bytes, extension: str, facts: Recompressed) -> Prepared:
    """A recompressed image."""
    outcome = _outcome(RECOMPRESSED, facts.format)
    extension = _renamed(original.suffix, extension)
    return Prepared(image, extension, facts.before, outcome, *original[2:], recompressed=facts)


def _renamed(suffix: str, extension: str) -> str:
    """`left.jpeg` -> `left.jpg`: the part that distinguishes several images of a sample stays."""
    prefix, dot, _ = suffix.rpartition(".")
    return f"{prefix}{dot}{extension}"


def _subsampling(data: bytes, header: Header) -> str:
    """The chroma subsampling to encode with: that of the JPEG if it is a common one."""
    if not header.turbo:
        return "420"
    _, _, space, sampling = simplejpeg.decode_jpeg_header(data)
    if space == "Gray":
        return "Gray"
    return sampling if sampling in ("444", "422", "420") else "420"
