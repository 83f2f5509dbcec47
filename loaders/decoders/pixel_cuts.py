"""Stored pixels -> the rows of a batch, all that a thread is given in few compiled calls, without the GIL.

    PIXELS -> jpeg.windows: the window of the crop -> the rows of the image that it shows, read
        -> pictures.pixels: gray, where the batch is
        -> the batch: what keeps its size | resize_queue: the window of the resized picture

What keeps its width, its size and its channels is read into the batch itself, or copied from memory, samples that lie
side by side at once. The result equals cutting out the box, resizing it and cutting out the window, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CropRule
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.jpeg.decoding.memory import copy_bytes, fetch_line
from fastimg.loaders.jpeg.decoding.region import new_region
from fastimg.loaders.jpeg.windows import compiled_rule, is_small, place_window
from fastimg.loaders.pictures.pixels import fill_rows
from fastimg.loaders.pictures.record import RGB, new_picture
from fastimg.loaders.runtime.compiled import compiled, inlined, int64, may_call
from fastimg.loaders.runtime.file_reads import read_up_to
from fastimg.loaders.runtime.scratch import Scratch

from .resize_queue import JOB, resize_rows
from .shown import copy_shown, find_shown

_ROOM = 1 << 22  # bytes of what is read to be cut; images that need more are left to others
_ENOUGH = 1 << 20  # bytes that are read before they are resized: the CPU's cache holds them
_MOST = 64  # images
_LINE = 64  # bytes that the processor fetches at once
_FETCHED = 1 << 12  # bytes at the start of the next image, which are fetched while one is copied
_AHEAD = 8  # samples, whose entries in the table are fetched before their pixels can be
_MEMORY = -1  # instead of a file, where pixels are in memory


class PixelCuts:
    """Cuts crops out of stored pixels. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._jobs = np.zeros(_MOST, JOB)
        self._region = new_region()
        self._picture = new_picture()
        self._picture["depth"], self._picture["colour"], self._picture["step"] = 8, RGB, 3

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
        pixels = None if rule is None else reader.stored_pixels(ids)
        if rule is None or pixels is None or not may_call(_read):
            return None
        numbers = np.ascontiguousarray(draws, np.float64)
        room = np.frombuffer(scratch.pixels(_ROOM), np.uint8)
        filled = np.zeros(len(ids), np.bool_)
        bicubic = crop.interpolation == "bicubic"
        state = self._picture, self._jobs, self._region, filled
        begin = 0
        while begin < len(ids):
            begin, count = reader.timed(_read, *pixels, numbers, rule, max_pixels, bicubic, begin, room, *state, out)
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
    table: Any,
    places: Any,
    draws: Any,
    rule: Any,
    max_pixels: int,
    bicubic: bool,
    begin: int,
    room: Any,
    pictures: Any,
    jobs: Any,
    regions: Any,
    filled: Any,
    out: Any,
) -> tuple[int, int]:
    """Read what the crops of samples [k] show, from the sample `begin` on: into rows of `out`, or for jobs to resize.

    They lie where `table`, of PIXELS, says at their `places` [k], and `pictures[0]` says what pixels of three channels
    are. Returns the sample to go on with, and the number of jobs, whose rows count as `filled`, too.
    """
    tall, wide, channels = out.shape[1], out.shape[2], out.shape[3]
    row = tall * wide * channels  # bytes
    count, used, number = 0, 0, begin
    memory = int64(room.ctypes.data)
    first, run = 0, 0  # samples that lie side by side: the first, how many, and where they begin
    file, start, to = _MEMORY, 0, memory
    placed, width, height = -1, 0, 0  # the job whose window was placed last, and the size of its image
    while number < places.size and count < jobs.shape[0] and used < _ENOUGH:
        i, job, stored = number, jobs[count], table[places[number]]
        number += 1
        if number + _AHEAD < places.size:
            fetch_line(int64(table.ctypes.data) + table.itemsize * places[number + _AHEAD])
        if number < places.size:
            _fetch_start(table[places[number]], stored.address + stored.pitch * stored.height)
        if stored.width == 0 or stored.channels not in (3, channels) or stored.width * stored.height > max_pixels:
            continue
        if draws.shape[1] or count != placed or stored.width != width or stored.height != height:
            place_window(stored.width, stored.height, draws[i], rule, jobs[count : count + 1])
            placed, width, height = count, stored.width, stored.height
        if not is_small(jobs[count : count + 1], max_pixels):
            continue
        same = stored.channels == channels
        if same and _fills_rows(job, stored.pitch, tall, wide, channels):
            holder = _MEMORY if stored.address else stored.file
            offset = (stored.address or stored.offset) + (job.y + job.at_y) * stored.pitch
            if run and (i != first + run or holder != file or offset != start + run * row):
                if not _read_run(file, start, to, run * row):
                    filled[first : first + run] = False
                run = 0
            if run == 0:
                first, file, start, to = i, holder, offset, int64(out[i].ctypes.data)
            run += 1
            filled[i] = True
            continue
        top, bottom, kept = find_shown(stored.width, stored.height, jobs[count : count + 1], out[i], bicubic, regions)
        if bottom == 0:
            continue
        left, shown = (job.x, job.width) if kept else (regions[0].x, regions[0].width)  # the columns that are shown
        made = 0 if same else (bottom - top) * shown * channels  # bytes of other channels
        nbytes = (bottom - top - 1) * stored.pitch + stored.width * stored.channels
        address, begin_of = stored.address, stored.offset + top * stored.pitch
        if used + made + (0 if address else nbytes) > room.size:
            if used == 0:
                continue
            number = i
            break
        if not address:
            if read_up_to(stored.file, memory + used + made, nbytes, begin_of) != nbytes:
                continue
            address = memory + used + made - top * stored.pitch  # where the image's first row would be
        pitch = stored.pitch
        if not same:
            fill_rows(pictures[0], address, pitch, 0, (top, bottom), (left, shown), channels, memory + used)
            pitch = shown * channels
            address = memory + used - top * pitch - left * channels
        filled[i] = True
        if kept:
            copy_shown(address + job.y * pitch + job.x * channels, pitch, job, out[i])
            continue
        job.address, job.nbytes, job.pitch = address, (bottom - 1) * pitch + stored.width * channels, pitch
        job.row, job.done = i, 0
        job.picture_width, job.picture_height = stored.width, stored.height
        used += nbytes if same else made
        count += 1
    if run and not _read_run(file, start, to, run * row):
        filled[first : first + run] = False
    return number, count


@inlined
def _read_run(file: int, start: int, to: int, nbytes: int) -> bool:
    """Read what adjoins from a file, or copy it from memory, to the address `to`. Whether all of it is there."""
    if file == _MEMORY:
        copy_bytes(start, to, nbytes)
        return True
    return bool(read_up_to(file, to, nbytes, start) == nbytes)


@inlined
def _fetch_start(stored: Any, end: int) -> None:
    """Have the processor fetch the start of an image in memory, unless it begins at `end`, where the last one ends.

    Without it each image of a random order waits for memory anew: the processor itself foresees only what adjoins.
    """
    if stored.address and stored.address != end:
        for begin in range(0, min(stored.pitch * stored.height, _FETCHED), _LINE):
            fetch_line(stored.address + begin)


@inlined
def _fills_rows(job: Any, pitch: int, tall: int, wide: int, channels: int) -> bool:
    """Whether a window shows whole rows of a picture, which keep their size."""
    kept = job.resized_width == job.width and job.resized_height == job.height and wide * channels == pitch
    return bool(kept and job.x + job.at_x == 0 and job.at_y >= 0 and job.at_y + tall <= job.resized_height)
