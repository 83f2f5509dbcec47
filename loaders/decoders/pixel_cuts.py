"""Stored pixels -> the rows of a batch, all that a thread is given in few compiled calls, without the GIL.

    PIXELS -> jpeg.windows: the window of the crop -> the rows of the image that it shows, read
        -> the batch: what keeps its size | resize_queue: the window of the resized picture

What keeps its width and its size is read into the batch itself, samples that lie side by side at once. The result
equals cutting out the box, resizing it and cutting out the window, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.jpeg.decoding.memory import copy_bytes
from fastimg.loaders.jpeg.decoding.region import new_region, region_of_pixels
from fastimg.loaders.jpeg.windows import compiled_rule, is_inside, is_small, place_window
from fastimg.loaders.runtime.compiled import compiled, inlined, may_call
from fastimg.loaders.runtime.file_reads import read_up_to
from fastimg.loaders.runtime.scratch import Scratch

from .resize_queue import JOB, resize_rows

_ROOM = 1 << 22  # bytes of what is read to be cut; images that need more are left to others
_ENOUGH = 1 << 20  # bytes that are read before they are resized: the CPU's cache holds them
_MOST = 64  # images


class PixelCuts:
    """Cuts crops out of stored pixels. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._jobs = np.zeros(_MOST, JOB)
        self._region = new_region()

    def cut(
        self,
        reader: SampleReader,
        ids: Sequence[int],
        crop: CropRule,
        draws: npt.NDArray[np.float64],
        max_pixels: int,
        scratch: Scratch,
        out: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.bool_] | None:
        """Fill rows of `out` [k, H, W, C] with crops of the samples `ids` [k]; which rows are filled [k].

        None if none are: of other rules, and of data that has no stored pixels. What keeps a sample from being filled,
        others tell. Raises Cancelled, and DataError if the data has changed.
        """
        rule = compiled_rule(crop, padded=True)
        if rule is None or not may_call(_read):
            return None
        pixels = reader.stored_pixels(ids)
        if pixels is None:
            return None
        numbers = np.ascontiguousarray(draws, np.float64)
        room = np.frombuffer(scratch.pixels(_ROOM), np.uint8)
        filled = np.zeros(len(ids), np.bool_)
        bicubic = crop.interpolation == "bicubic"
        begin = 0
        while begin < len(ids):
            begin, count = reader.timed(
                _read, pixels, numbers, rule, max_pixels, bicubic, begin, room, self._jobs, self._region, filled, out
            )
            jobs = self._jobs[:count]
            if not count:
                continue
            if may_call(resize_rows):
                while needed := resize_rows(jobs, self._region, bicubic, scratch.work(0), out):
                    scratch.work(needed)
            else:
                filled[jobs["row"]] = False
        return filled


def has_compiled_windows(crop: CropRule) -> bool:
    """Whether compiled code finds the windows of a crop, which is how stored pixels are cut in it."""
    return compiled_rule(crop, padded=True) is not None


@compiled
def _read(
    pixels: Any,
    draws: Any,
    rule: Any,
    max_pixels: int,
    bicubic: bool,
    begin: int,
    room: Any,
    jobs: Any,
    regions: Any,
    filled: Any,
    out: Any,
) -> tuple[int, int]:
    """Read what the crops of PIXELS [k] show, from the sample `begin` on: into rows of `out`, or for jobs to resize.

    Returns the sample to go on with, and the number of jobs, whose rows count as `filled`, too.
    """
    region = regions[0]
    tall, wide, channels = out.shape[1], out.shape[2], out.shape[3]
    row = tall * wide * channels  # bytes
    count, used, number = 0, 0, begin
    first, run = 0, 0  # samples that lie side by side: the first, how many, and where they begin
    file, start = -1, 0
    while number < pixels.shape[0] and count < jobs.shape[0] and used < _ENOUGH:
        i, job, stored = number, jobs[count], pixels[number]
        number += 1
        if stored.width == 0 or stored.channels != channels or stored.width * stored.height > max_pixels:
            continue
        place_window(stored.width, stored.height, draws[i], rule, jobs[count : count + 1])
        if not is_small(jobs[count : count + 1], max_pixels):
            continue
        kept = job.resized_width == job.width and job.resized_height == job.height
        inside = is_inside(jobs[count : count + 1], wide, tall)
        if kept and inside and job.x + job.at_x == 0 and wide * channels == stored.pitch:
            skipped = (job.y + job.at_y) * stored.pitch
            if stored.address:
                copy_bytes(stored.address + skipped, out[i].ctypes.data, row)
                filled[i] = True
                continue
            offset = stored.offset + skipped
            if run and (i != first + run or stored.file != file or offset != start + run * row):
                _read_run(file, start, first, run, filled, out)
                run = 0
            if run == 0:
                first, file, start = i, stored.file, offset
            run += 1
            continue
        if not inside and not (kept and _is_mirrored_once(job, wide, tall)):
            continue
        top, bottom = job.y, job.y + job.height
        if kept and inside:
            top += job.at_y
            bottom = top + tall
        elif not kept:
            region_of_pixels(
                (stored.width, stored.height),
                (job.x, job.y, job.width, job.height),
                (job.resized_width, job.resized_height),
                (job.at_x, job.at_y),
                out[i],
                bicubic,
                regions,
            )
            top, bottom = region.y, region.y + region.height
        nbytes = (bottom - top - 1) * stored.pitch + stored.width * channels
        address, begin_of = stored.address, stored.offset + top * stored.pitch
        if not address:
            if used + nbytes > room.size:
                if used == 0:
                    continue
                number = i
                break
            if read_up_to(stored.file, room.ctypes.data + used, nbytes, begin_of) != nbytes:
                continue
            address = room.ctypes.data + used - top * stored.pitch  # where the image's first row would be
        filled[i] = True
        if kept:
            _copy(address + job.y * stored.pitch + job.x * channels, stored.pitch, job, out[i])
            continue
        job.address, job.nbytes, job.pitch = address, top * stored.pitch + nbytes, stored.pitch
        job.row, job.done = i, 0
        job.picture_width, job.picture_height = stored.width, stored.height
        used += nbytes
        count += 1
    if run:
        _read_run(file, start, first, run, filled, out)
    return number, count


@compiled
def _read_run(file: int, start: int, first: int, run: int, filled: Any, out: Any) -> None:
    """Read the rows [first, first + run) of `out` from a file."""
    nbytes = run * out[0].size
    if read_up_to(file, out[first].ctypes.data, nbytes, start) == nbytes:
        for i in range(first, first + run):
            filled[i] = True


@inlined
def _is_mirrored_once(job: Any, wide: int, tall: int) -> bool:
    """Whether a window shows some of a box, and reaches beyond it by less than what can be mirrored there."""
    across = max(-wide, -job.width) < job.at_x < job.width and job.at_x + wide < 2 * job.width
    down = max(-tall, -job.height) < job.at_y < job.height and job.at_y + tall < 2 * job.height
    return bool(across and down)


@inlined
def _mirrored(place: int, count: int) -> int:
    return count - 1 - abs(count - 1 - abs(place))


@compiled
def _copy(address: int, pitch: int, job: Any, out: Any) -> None:
    """Copy the window of a box that keeps its size, and begins at an address, to `out` [H, W, C]."""
    tall, wide, channels = out.shape
    begin, end = max(-job.at_x, 0), min(wide, job.width - job.at_x)  # what is not mirrored
    for y in range(tall):
        line = address + _mirrored(job.at_y + y, job.height) * pitch
        to = out.ctypes.data + y * wide * channels
        copy_bytes(line + (job.at_x + begin) * channels, to + begin * channels, (end - begin) * channels)
        for i in range(wide - (end - begin)):
            x = i if i < begin else i + end - begin
            copy_bytes(line + _mirrored(job.at_x + x, job.width) * channels, to + x * channels, channels)
