"""PNG, WebP, BMP, PPM and TIFF files -> the rows of a batch, several in one compiled call, without the GIL.

    pictures.png, webp, bmp, ppm, tiff: the header -> jpeg.windows: the window of the crop -> the rows that it shows
        -> of PNG, pictures.png_rows: these are inflated, with all above them, and their filters undone
        -> of WebP, pictures.libwebp: its box is decoded by the library that Pillow uses
        -> pictures.pixels: RGB or gray
        -> the batch: what keeps its size | resize_queue: the window of the resized picture

The result equals what Pillow and torch make of it, bit for bit. Interlaced, unusual and damaged files are left to them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.jpeg.decoding.columns import size_of_columns, size_of_passes
from fastimg.loaders.jpeg.decoding.memory import view_at
from fastimg.loaders.jpeg.decoding.region import new_region
from fastimg.loaders.jpeg.windows import compiled_rule, is_small, place_window
from fastimg.loaders.pictures.bmp import parse_bmp
from fastimg.loaders.pictures.huffman import new_tables
from fastimg.loaders.pictures.libwebp import CONFIG, around, decode_part, webp_decoder
from fastimg.loaders.pictures.pixels import as_stored, fill_rows
from fastimg.loaders.pictures.png import parse_png
from fastimg.loaders.pictures.png_rows import DAMAGED, decode_rows, decode_two, size_of_rows
from fastimg.loaders.pictures.ppm import parse_ppm
from fastimg.loaders.pictures.record import DEFLATED, PICTURE, WEBP
from fastimg.loaders.pictures.tiff import parse_tiff
from fastimg.loaders.pictures.webp import parse_webp
from fastimg.loaders.runtime.compiled import compiled, held, int64, is_ready, may_call_all
from fastimg.loaders.runtime.scratch import MOST, Encoded, Scratch, address_of

from .resize_queue import JOB, resize_rows
from .shown import copy_shown, find_shown

MOST_SCRATCH = 1 << 26  # bytes of scratch that an image may take; larger ones are left to Pillow
_WAITS, _DONE, _OTHER = 0, 1, 2


class PictureQueue:
    """Up to MOST files that are decoded in one call. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._pictures = np.zeros(MOST, PICTURE)
        self._jobs = np.zeros(MOST, JOB)
        self._status = np.zeros(MOST, np.int64)
        self._region = new_region()
        self._tables = new_tables()
        self._configs = np.zeros(1, CONFIG)
        self._webp_decoder = webp_decoder()
        self._count = 0
        self._files: Encoded | Sequence[bytes | memoryview] = ()

    def clear(self) -> None:
        """Forget what is queued."""
        self._count, self._files = 0, ()

    def add(
        self,
        data: bytes | memoryview,
        crop: CropRule,
        draws: Sequence[float],
        max_pixels: int,
    ) -> bool:
        """Queue the crop of a file, which must not change until `run`, for the only row; False if it is not decoded.

        Where machine code is not ready it is not.
        """
        self.clear()
        known = compiled_rule(crop, padded=True)
        if known is None or data[:2] == b"\xff\xd8" or not (is_ready(_plan) and is_ready(_decode)):
            return False
        content = np.frombuffer(data, np.uint8)
        spans = np.array([[address_of(content), content.size]])
        self._status[0] = _WAITS
        if self._plan_jobs(spans, np.array([draws], np.float64), known, max_pixels):
            return False
        self._count, self._files = 1, [data]
        return True

    def add_group(
        self,
        encoded: Encoded,
        places: Sequence[int],
        crop: CropRule,
        draws: npt.NDArray[np.float64],
        max_pixels: int,
    ) -> Sequence[int]:
        """Queue the crops of these places of a group, which must not change until `run`, for the rows of these places.

        Returns the places that this decoder cannot decode: what is none of these, or unusual; all of them, if it does
        not know the crop's rule.
        """
        self.clear()
        known = compiled_rule(crop, padded=True)
        if known is None or not places or not may_call_all(_plan, _decode):
            return places
        count = len(encoded.spans)
        self._status[:count] = _WAITS if len(places) == count else _DONE
        if len(places) < count:
            self._status[places] = _WAITS
        numbers = np.ascontiguousarray(draws, np.float64)
        left = self._plan_jobs(encoded.spans, numbers, known, max_pixels)
        if left == len(places):
            return places
        self._count, self._files = count, encoded
        return [place for place in places if self._status[place] == _DONE] if left else ()

    def run(self, crop: CropRule, scratch: Scratch, out: npt.NDArray[np.uint8]) -> list[tuple[int, bytes | memoryview]]:
        """Decode the queue into rows of `out` [k, H, W, C]; return (row, data) of those that could not be decoded."""
        if not self._count:
            return []
        jobs, status = self._jobs[: self._count], self._status[: self._count]
        bicubic = crop.interpolation == "bicubic"
        known = self._pictures, jobs, status, self._region, self._tables, self._webp_decoder, self._configs, bicubic
        try:
            while needed := _decode(*known, scratch.work(0), out):
                scratch.work(needed)
        except MemoryError:  # of one of them; those that wait are decoded one by one, which names it
            status[status == _WAITS] = _OTHER
        undecoded: list[tuple[int, bytes | memoryview]] = []
        if (status == _OTHER).any():
            for place in np.flatnonzero(status == _OTHER).tolist():
                data = self._files[place]
                assert data is not None
                undecoded.append((place, data))
        self.clear()
        return undecoded

    def _plan_jobs(
        self,
        spans: npt.NDArray[np.int64],
        draws: npt.NDArray[np.float64],
        rule: npt.NDArray[np.float64],
        max_pixels: int,
    ) -> int:
        """See `_plan`."""
        queued = self._pictures, self._jobs, self._status
        return _plan(*queued, spans, draws, rule, max_pixels, self._webp_decoder != 0)


@held
def _plan(
    pictures: Any,
    jobs: Any,
    status: Any,
    spans: Any,
    draws: Any,
    rule: Any,
    max_pixels: int,
    decodes_webp: bool,
) -> int:
    """Fill the jobs of those files at `spans` [k, 2] that wait.

    Returns how many of them are left to others, which wait no longer.
    """
    left = 0
    for i in range(spans.shape[0]):
        if status[i] != _WAITS:
            continue
        status[i] = _DONE
        left += 1
        if spans[i, 1] == 0:
            continue
        job, picture = jobs[i], pictures[i]
        if not parse_picture(view_at(spans[i, 0], spans[i, 1]), pictures[i : i + 1]):
            continue
        if picture.width * picture.height > max_pixels or (picture.format == WEBP and not decodes_webp):
            continue
        place_window(picture.width, picture.height, draws[i], rule, jobs[i : i + 1])
        if not is_small(jobs[i : i + 1], max_pixels):
            continue
        job.address, job.nbytes, job.row, job.done = spans[i, 0], spans[i, 1], i, 0
        job.picture_width, job.picture_height = picture.width, picture.height
        status[i] = _WAITS
        left -= 1
    return left


@held
def find_sizes(spans: Any, pictures: Any, max_pixels: int, sizes: Any) -> None:
    """Fill width and height [k, 2] of the files at `spans` [k, 2]: 0 of what this decoder does not take."""
    picture = pictures[0]
    for i in range(spans.shape[0]):
        known = spans[i, 1] > 0 and parse_picture(view_at(spans[i, 0], spans[i, 1]), pictures)
        known = known and picture.width * picture.height <= max_pixels
        sizes[i, 0] = picture.width if known else 0
        sizes[i, 1] = picture.height if known else 0


@compiled
def parse_picture(data: Any, pictures: Any) -> bool:
    """Fill `pictures[0]` with what the header of a file says; False for what this decoder does not know."""
    if parse_png(data, pictures) or parse_webp(data, pictures) or parse_bmp(data, pictures):
        return True
    return bool(parse_ppm(data, pictures) or parse_tiff(data, pictures))


@compiled
def _decode(
    pictures: Any,
    jobs: Any,
    status: Any,
    regions: Any,
    tables: Any,
    webp_decoder: int,
    configs: Any,
    bicubic: bool,
    scratch: Any,
    out: Any,
) -> int:
    """Decode what waits. Returns 0 when all is done, otherwise the bytes of scratch that the next ones need.

    PNGs are inflated in twos.
    """
    for i in range(jobs.shape[0]):
        if status[i] != _WAITS:
            continue
        rows, rest = _size(i, pictures, jobs, regions, bicubic, out)
        if rest < 0 or rows + rest > MOST_SCRATCH:
            status[i] = _OTHER
            continue
        picture, job = pictures[i], jobs[i]
        following, behind = _following(pictures, status, i), 0
        if following >= 0:
            behind, more = _size(following, pictures, jobs, regions, bicubic, out)
            rest = max(rest, more)
            if more < 0 or rows + behind + rest > MOST_SCRATCH:
                following, behind = -1, 0
        if scratch.size < rows + behind + rest:
            return int(rows + behind + rest)
        room = scratch[rows + behind :]
        if following >= 0:
            other, png = jobs[following], pictures[following]
            below, below_2, second = job.y + job.height, other.y + other.height, scratch[rows:]
            first, first_2 = decode_two(
                job.address, picture, job.y, below, scratch, other.address, png, other.y, below_2, second, tables
            )
            status[following] = _fill(following, pictures, jobs, regions, bicubic, first_2, room, out)
        elif picture.format == DEFLATED:
            first = decode_rows(job.address, picture, job.y, job.y + job.height, tables, scratch)
        elif picture.format == WEBP:
            first = _decode_webp(picture, job, webp_decoder, configs, scratch)
        else:
            first = job.address + picture.first
        status[i] = _fill(i, pictures, jobs, regions, bicubic, first, room, out)
    return 0


@compiled
def _decode_webp(picture: Any, job: Any, webp_decoder: int, configs: Any, scratch: Any) -> int:
    """Decode the box of a WebP to `scratch`. Returns the address of the picture's first row, or DAMAGED."""
    part = around(picture.width, picture.height, job.x, job.y, job.width, job.height)
    to = int64(scratch.ctypes.data)
    if not decode_part(webp_decoder, job.address + picture.body, picture.nbytes, part, configs, to):
        return DAMAGED
    picture.pitch = part[2] * picture.step
    return int(to - part[1] * picture.pitch - part[0] * picture.step)


@compiled
def _following(pictures: Any, status: Any, i: int) -> int:
    """The next picture that waits and can be inflated with picture `i`; -1 if there is none."""
    if pictures[i].format != DEFLATED or pictures[i].group:
        return -1
    for j in range(i + 1, status.size):
        if status[j] == _WAITS and pictures[j].format == DEFLATED and not pictures[j].group:
            return j
    return -1


@compiled
def _size(i: int, pictures: Any, jobs: Any, regions: Any, bicubic: bool, out: Any) -> tuple[int, int]:
    """The bytes of scratch that the rows of picture `i` take, and those that all further steps take.

    The latter are negative for what is left to others.
    """
    picture, job, window = pictures[i], jobs[i], out[i]
    top, bottom, kept = find_shown(picture.width, picture.height, jobs[i : i + 1], window, bicubic, regions)
    if bottom == 0:
        return 0, -1
    rows = 0
    if picture.format == DEFLATED:
        top, bottom = job.y, job.y + job.height  # all of the box, so that everywhere the same crops are refused
        rows = size_of_rows(picture, top, bottom)
        if rows == 0:
            return 0, -1
    elif picture.format == WEBP:  # all of the box, for the same reason
        part = around(picture.width, picture.height, job.x, job.y, job.width, job.height)
        rows = part[2] * part[3] * picture.step
        if (
            rows + 4 * picture.width * picture.height * picture.lossless > MOST_SCRATCH
        ):  # libwebp's, until it has decoded
            return 0, -1
    rest = size_of_pixels(picture, top, bottom, job.width if kept else regions[0].width, window.shape[2])
    if not kept:
        rest += size_of_columns(regions) + size_of_passes(regions, window.shape[1])
    return rows, rest


@compiled
def _fill(i: int, pictures: Any, jobs: Any, regions: Any, bicubic: bool, first: int, room: Any, out: Any) -> int:
    """Fill row `i` of a batch from a picture whose first row is at the address `first`. Returns its status."""
    if first == DAMAGED:
        return _OTHER
    picture, job, window = pictures[i], jobs[i], out[i]
    channels = window.shape[2]
    top, bottom, kept = find_shown(picture.width, picture.height, jobs[i : i + 1], window, bicubic, regions)
    pitch = picture.pitch
    if picture.format == DEFLATED:
        top, bottom, pitch = job.y, job.y + job.height, picture.length + 1
    left, wide = (job.x, job.width) if kept else (regions[0].x, regions[0].width)  # the columns that are shown
    used = size_of_pixels(picture, top, bottom, wide, channels)
    first, pitch = to_pixels(picture, job.address, first, pitch, top, bottom, left, wide, channels, room)
    if first == DAMAGED:
        return _OTHER
    show(jobs[i : i + 1], first, pitch, bottom, kept, regions, bicubic, room[used:], out)
    return _DONE


@compiled
def size_of_pixels(picture: Any, top: int, bottom: int, wide: int, channels: int) -> int:
    """The bytes of scratch that `to_pixels` takes: 0 where rows are pixels already."""
    return 0 if as_stored(picture, channels) else int((bottom - top) * wide * channels)


@compiled
def to_pixels(
    picture: Any,
    address: int,
    first: int,
    pitch: int,
    top: int,
    bottom: int,
    left: int,
    wide: int,
    channels: int,
    room: Any,
) -> tuple[int, int]:
    """Make pixels of rows [top, bottom) of an image, and of `wide` columns from `left` on.

    Its first row is at `first`, its next ones `pitch` bytes apart, and its file at an address. Returns the same of the
    pixels; DAMAGED if they cannot be made here.
    """
    if as_stored(picture, channels):
        return first, pitch
    begin, packed, palette = int64(room.ctypes.data), wide * channels, address + picture.palette
    if not fill_rows(picture, first, pitch, palette, (top, bottom), (left, wide), channels, begin):
        return DAMAGED, 0
    return begin - top * packed - left * channels, packed


@compiled
def show(
    jobs: Any, first: int, pitch: int, bottom: int, kept: bool, regions: Any, bicubic: bool, scratch: Any, out: Any
) -> None:
    """Write the window of `jobs[0]` to its row of `out`, from the pixels above `bottom` that `to_pixels` gives."""
    job = jobs[0]
    channels = out.shape[3]
    if kept:
        copy_shown(first + job.y * pitch + job.x * channels, pitch, job, out[job.row])
        return
    job.address, job.nbytes, job.pitch = first, (bottom - 1) * pitch + job.picture_width * channels, pitch
    resize_rows(jobs, regions, bicubic, scratch, out)
