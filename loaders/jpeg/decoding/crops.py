"""JPEGs, baseline or progressive -> the pixels that a model gets, several in one compiled call, without the GIL.

    frame: the header -> region: the touched tiles -> columns: those of RGB or luma
        -> filters: the window of the resized picture

Untiled JPEGs are decoded two at a time, progressive ones one by one (`scans`). The result equals decoding the whole
picture, cutting out the box, resizing it and cutting out the window, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CenterCrop, CropRule, Window, reaches_out, shape_of
from fastimg.loaders.jpeg.exif import compiled_turn_of
from fastimg.loaders.jpeg.plain_header import plain_glance
from fastimg.loaders.jpeg.windows import compiled_rule, find_window
from fastimg.loaders.runtime import compiled as machine_code
from fastimg.loaders.runtime.compiled import compiled, held, is_kept, may_call, uint64
from fastimg.loaders.runtime.compiling_nothing import compiles_nothing, compiles_tiled
from fastimg.loaders.runtime.scratch import MOST, Encoded, Scratch

from .colour import to_columns
from .columns import (
    DONE,
    MAX_DECODED,
    OTHER,
    decode_columns,
    size_of_columns,
    size_of_planes,
    size_of_sums,
)
from .entropy.scan import STREAM, advance, advance_alone
from .entropy.symbols import NATURAL
from .frame import JPEG_HEADER, MAX_SIDE, SCANS, TILED, UNTILED, kind_of, new_header, parse_header, view_of
from .memory import byte_at, bytes_at, view_at
from .region import REGION, WINDOW, find_region, hold_luma
from .scans import MAX_SCANS_BYTES, begin_scan, decode_progressive, end_row, size_of_scan, size_of_scans
from .turning import resize_upright, size_of_resize

KINDS = (TILED, UNTILED, SCANS)
_WORTH = 10_000  # crops
_LARGE = 1 << 25  # bytes: untiled JPEGs that take more of scratch are decoded one at a time

_JOB = np.dtype(
    [
        ("address", np.int64),  # of the encoded bytes
        ("nbytes", np.int64),
        ("row", np.int64),  # of the batch
        ("kind", np.int64),  # of `frame.kind_of`
        ("status", np.int64),  # 0 while it waits
        *WINDOW,
    ]
)


class CropQueue:
    """Up to MOST JPEGs that are decoded in one call. It belongs to one thread, which reuses it."""

    def __init__(self) -> None:
        self._headers = np.zeros(MOST, JPEG_HEADER)
        self._jobs = np.zeros(MOST, _JOB)
        self._places = [self._headers[i : i + 1] for i in range(MOST)]
        self._regions = np.zeros(MOST, REGION)
        self._streams = np.zeros(2, STREAM)
        self._queued: dict[int, bytes | memoryview] = {}  # encoded JPEGs by the number of their job
        self._group: Encoded | None = None  # others, at their places
        self._count = 0  # of jobs
        self._kinds = 0  # what there is among them: bit n for kind n

    def add(
        self,
        data: bytes | memoryview,
        crop: CropRule,
        draws: Sequence[float],
        max_pixels: int,
        row: int,
        patient: bool = True,
    ) -> bool:
        """Queue the crop of a JPEG for a row; False if this decoder cannot decode it.

        After `add_group` the row is one of the group's. `data` must not change until `run`. Not to be `patient` is to
        leave a JPEG without tiles to libjpeg-turbo, which decodes it to the same bits, where its decoder would have to
        be compiled first.
        """
        if data[:2] != b"\xff\xd8":  # before anything is compiled
            return False
        if not may_peek(data):
            return False
        view = view_of(data)
        number = len(self._queued) if self._group is None else row
        width, height, address, kind = peek(view, self._places[number])
        if kind == 0 or width * height > max_pixels:
            return False
        if not may_decode(kind, patient):
            machine_code.miss(_decoder_of(kind))
            return False
        window = crop.window(width, height, draws)
        box, size, at = window
        if size[0] * size[1] > max_pixels or is_mirrored(window, crop):
            return False
        self._jobs[number] = (address, view.size, row, kind, 0, *box, *size, *at)
        self._queued[number] = data
        self._count = max(self._count, number + 1)
        self._kinds |= 1 << kind
        return True

    def add_group(
        self, encoded: Encoded, crop: CropRule, draws: npt.NDArray[np.float64], max_pixels: int, patient: bool = True
    ) -> list[int] | None:
        """Queue the crops of a group, which must not change until `run`, for the rows of the same places.

        Returns the places that this decoder cannot decode; None, and queues nothing, if it does not know the crop's
        rule. What it is to be `patient` is said in `add`.
        """
        known = compiled_rule(crop)
        if known is None or not may_call(have_jpegs):
            return None
        if not have_jpegs(encoded.spans):  # before anything else is compiled
            return list(range(len(encoded.spans)))
        if not may_call(plan):
            return None
        kinds = sum(may_decode(kind, patient) << kind for kind in KINDS)
        numbers = np.ascontiguousarray(draws, np.float64)
        self._kinds, left, others = plan(self._headers, self._jobs, encoded.spans, numbers, known, max_pixels, kinds)
        for kind in KINDS if others else ():
            if others >> kind & 1:
                machine_code.miss(_decoder_of(kind))
        self._group = encoded
        self._count = len(encoded.spans)
        places: list[int] = np.flatnonzero(self._jobs["status"][: self._count] == DONE).tolist() if left else []
        return places

    def clear(self) -> None:
        """Forget what is queued."""
        self._queued.clear()
        self._group = None
        self._count = 0
        self._kinds = 0

    def run(
        self, crop: CropRule, scaling: int, scratch: Scratch, out: npt.NDArray[np.uint8]
    ) -> list[tuple[int, bytes | memoryview]]:
        """Decode the queue into rows of `out` [k, H, W, C]; return (row, data) of those that could not be decoded.

        C is 3 for RGB, and 1 for luma.
        """
        if not self._kinds:
            return []
        jobs = self._jobs[: self._count]
        bicubic = crop.interpolation == "bicubic"
        headers, regions = self._headers, self._regions
        try:
            if self._kinds & 1 << TILED:
                while needed := _crop_tiled(headers, jobs, regions, bicubic, scaling, scratch.work(0), out):
                    scratch.work(needed)
            if self._kinds & 1 << UNTILED:
                while needed := _crop_untiled(headers, jobs, regions, self._streams, bicubic, scratch.work(0), out):
                    scratch.work(needed)
            if self._kinds & 1 << SCANS:
                while needed := _crop_progressive(headers, jobs, regions, bicubic, scratch.work(0), out):
                    scratch.work(needed)
        except MemoryError:  # of one of them; those that wait are decoded one by one, which names it
            jobs["status"][jobs["status"] == 0] = OTHER
        statuses = jobs["status"].tolist()
        undecoded = []
        if OTHER in statuses:
            for place in [place for place, status in enumerate(statuses) if status == OTHER]:
                data = self._queued.get(place)
                if data is None:
                    assert self._group is not None
                    data = self._group[place]
                assert data is not None
                undecoded.append((int(jobs["row"][place]), data))
        self.clear()
        return undecoded


def is_mirrored(window: Window, crop: CropRule) -> bool:
    """Whether some pixels of the crop are mirrored, which the compiled decoder does not do."""
    if window.at == (0, 0):  # what most crops are
        return False
    tall, wide = shape_of(crop)
    return reaches_out(window, wide, tall)


def _decoder_of(kind: int) -> Callable[..., Any]:
    """The compiled function that decodes JPEGs of a kind."""
    decoders: dict[int, Callable[..., Any]] = {TILED: _crop_tiled, UNTILED: _crop_untiled, SCANS: _crop_progressive}
    return decoders[kind]


def is_ready(kind: int) -> bool:
    """Whether JPEGs of this kind can be decoded without compiling their decoder first."""
    return machine_code.is_ready(_decoder_of(kind))


def may_peek(data: bytes | memoryview) -> bool:
    """Whether to look for the kind of a JPEG: that can be done at once, or its pixels may depend on it."""
    return may_call(peek) or (compiles_tiled() and plain_glance(data).interval > 0)


def may_decode(kind: int, patient: bool) -> bool:
    """Whether to decode JPEGs of this kind; what it is to be `patient` is said in `CropQueue.add`."""
    return is_ready(kind) or may_compile(kind, patient)


def may_compile(kind: int, patient: bool) -> bool:
    """Whether to compile the decoder of JPEGs of this kind here and now."""
    return compiles_tiled() if kind == TILED else patient and not compiles_nothing()


def is_worth_compiling(crops: int) -> bool:
    """Whether so many crops of JPEGs without tiles justify compiling their decoder, once per machine.

    On one slow core that takes 17 s, and saves 0.7 ms for each crop of a photograph of 500 x 375 pixels, or more if it
    is progressive.
    """
    return crops >= _WORTH


def missing_decoder(data: bytes | memoryview) -> Literal["", "tiled", "untiled", "progressive"]:
    """The kind of JPEGs whose decoder this image needs, and this machine has not compiled yet; "" for none."""
    if data[:2] != b"\xff\xd8":  # before anything is compiled
        return ""
    kind = peek(view_of(data), new_header())[3]
    if kind == 0 or is_kept(_decoder_of(kind)):
        return ""
    return "tiled" if kind == TILED else "untiled" if kind == UNTILED else "progressive"


def compile_for(data: bytes | memoryview) -> None:
    """Compile the decoder that this image needs, by decoding it."""
    queue, crop = CropQueue(), CenterCrop(size=8, resize=8)
    if queue.add(data, crop, (), MAX_SIDE**2, 0):
        queue.run(crop, 0, Scratch(), np.empty((1, 8, 8, 3), np.uint8))


@held
def have_jpegs(spans: Any) -> bool:
    """Whether one of the files at `spans` [k, 2], addresses and sizes, begins as a JPEG does."""
    for i in range(spans.shape[0]):
        at = uint64(spans[i, 0])
        if spans[i, 1] >= 2 and byte_at(at) == uint64(0xFF) and byte_at(at + uint64(1)) == uint64(0xD8):
            return True
    return False


@held
def plan(
    headers: Any, jobs: Any, spans: Any, draws: Any, rule: Any, max_pixels: int, kinds: int
) -> tuple[int, int, int]:
    """Fill the jobs of up to MOST JPEGs at `spans` [k, 2], addresses and sizes, with the windows of a rule's crops.

    `draws` [k, d] are the rule's numbers; see `windows`. Returns the kinds among the jobs, as bits, how many places are
    left to others, whose jobs are done, and the other kinds than `kinds` among these, as bits. Left are these, larger
    JPEGs, and what is no JPEG.
    """
    found, left, others = 0, 0, 0
    for i in range(spans.shape[0]):
        job = jobs[i]
        job.row, job.address, job.nbytes, job.status = i, spans[i, 0], spans[i, 1], DONE
        kind, width, height = look(spans[i, 0], spans[i, 1], headers[i : i + 1], max_pixels, kinds)
        if kind > 0 and find_window(width, height, draws[i], rule, jobs[i : i + 1], max_pixels):
            job.kind, job.status = kind, 0
            found |= 1 << kind
        else:
            left += 1
            if kind < 0:
                others |= 1 << -kind
    return found, left, others


@compiled
def look(address: int, nbytes: int, headers: Any, max_pixels: int, kinds: int) -> tuple[int, int, int]:
    """Fill the header of a JPEG at an address; return its kind, width and height, upright.

    The kind is 0 for one that has more than `max_pixels`, and for what is no JPEG. It is negative for one that is not
    of the `kinds`, as bits.
    """
    if nbytes < 2 or not parse_header(view_at(address, nbytes), headers):
        return 0, 0, 0
    header = headers[0]
    kind, width, height = kind_of(headers), header.width, header.height
    if kind == 0 or width * height > max_pixels:
        return 0, 0, 0
    if not kinds >> kind & 1:
        return -kind, 0, 0
    if compiled_turn_of(header.orientation)[0]:
        return kind, height, width
    return kind, width, height


@held
def peek(data: Any, headers: Any) -> tuple[int, int, int, int]:
    """Fill the header; return width, height, the data's address and its kind, as `frame.kind_of` names it.

    Width and height are of the upright picture. All are zeros if it is not decodable here.
    """
    if parse_header(data, headers):
        kind = kind_of(headers)
        if kind:
            header = headers[0]
            if compiled_turn_of(header.orientation)[0]:
                return header.height, header.width, data.ctypes.data, kind
            return header.width, header.height, data.ctypes.data, kind
    return 0, 0, 0, 0


@compiled
def _crop_tiled(headers: Any, jobs: Any, regions: Any, bicubic: bool, scaling: int, scratch: Any, out: Any) -> int:
    """Decode the tiled of the jobs. Returns 0 when they are done, or the bytes of scratch that the next needs."""
    for i in range(jobs.shape[0]):
        job = jobs[i]
        if job.status or job.kind != TILED:
            continue
        window = out[job.row]
        header, region = headers[i : i + 1], regions[i : i + 1]
        if not _find_region(header, jobs[i : i + 1], window, bicubic, scaling, region):
            job.status = OTHER  # the other decoder reports an invalid crop
            continue
        status = crop_tiled(bytes_at(job.address, job.nbytes), header, region, bicubic, scratch, window)
        if status > 0:
            return int(status)
        job.status = status
    return 0


@compiled
def _find_region(headers: Any, jobs: Any, window: Any, bicubic: bool, scaling: int, regions: Any) -> bool:
    """Fill the region of a job. False if it is not inside the picture, or too large for this decoder."""
    job = jobs[0]
    box = (job.x, job.y, job.width, job.height)
    size = (job.resized_width, job.resized_height)
    at = (job.at_x, job.at_y)
    if not find_region(headers, box, size, at, (window.shape[1], window.shape[0]), bicubic, scaling, regions):
        return False
    regions[0].planes = window.shape[2]
    return bool(regions[0].width * regions[0].height <= MAX_DECODED)


@compiled
def _crop_untiled(headers: Any, jobs: Any, regions: Any, streams: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Decode the untiled of the jobs, two at a time. Returns 0, or the bytes of scratch that this needs."""
    across = out.shape[2]
    each, columns, passes = 0, 0, 0
    for i in range(jobs.shape[0]):
        if jobs[i].status or jobs[i].kind != UNTILED:
            continue
        header, region = headers[i : i + 1], regions[i : i + 1]
        if not _find_region(header, jobs[i : i + 1], out[jobs[i].row], bicubic, 0, region):
            jobs[i].status = OTHER
        else:
            size = size_of_planes(region) + size_of_scan(header, region, jobs[i].nbytes)
            each, columns = max(each, size), max(columns, size_of_columns(region))
            passes = max(passes, size_of_resize(region, across), size_of_sums(region))
    lanes = 2 if each <= _LARGE else 1
    needed = columns + passes + lanes * each
    if scratch.size < needed:
        return int(needed)
    work = scratch[columns : columns + passes]
    following = 0
    streams[0].image, streams[1].image = -1, -1
    while True:
        for lane in range(lanes):
            begin = columns + passes + lane * each
            while streams[lane].image < 0 and following < jobs.shape[0]:
                i = following
                following += 1
                if jobs[i].status or jobs[i].kind != UNTILED:
                    continue
                data = bytes_at(jobs[i].address, jobs[i].nbytes)
                memory = scratch[begin + size_of_planes(regions[i : i + 1]) : begin + each]
                if begin_scan(data, headers[i : i + 1], regions[i : i + 1], memory, streams, lane):
                    streams[lane].image = i
                else:
                    jobs[i].status = OTHER
        if streams[0].image >= 0 and streams[1].image >= 0:
            advance(streams, NATURAL)
        elif streams[0].image >= 0:
            advance_alone(streams, 0, NATURAL)
        elif streams[1].image >= 0:
            advance_alone(streams, 1, NATURAL)
        else:
            return 0
        for lane in range(lanes):
            i = streams[lane].image
            if i < 0 or streams[lane].status == 0:
                continue
            begin = columns + passes + lane * each
            header, region = headers[i : i + 1], regions[i : i + 1]
            size = size_of_planes(region)
            planes = scratch[begin : begin + size]
            ended = end_row(header, region, scratch[begin + size : begin + each], streams, lane, planes)
            if ended == 0:
                continue
            streams[lane].image = -1
            jobs[i].status = DONE if ended > 0 else OTHER
            if ended > 0:
                _resize_planes(header, region, bicubic, planes, scratch[:columns], work, out[jobs[i].row])


@compiled
def _crop_progressive(headers: Any, jobs: Any, regions: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Decode the progressive of the jobs. Returns 0, or the bytes of scratch that the next needs."""
    for i in range(jobs.shape[0]):
        job = jobs[i]
        if job.status or job.kind != SCANS:
            continue
        header, region, window = headers[i : i + 1], regions[i : i + 1], out[job.row]
        job.status = OTHER
        if not _find_region(header, jobs[i : i + 1], window, bicubic, 0, region):
            continue
        scans = size_of_scans(header, region, job.nbytes)
        if scans > MAX_SCANS_BYTES:
            continue
        columns = size_of_columns(region)
        samples = columns + size_of_planes(region)
        needed = samples + max(scans, size_of_resize(region, window.shape[1]), size_of_sums(region))
        if scratch.size < needed:
            job.status = 0
            return int(needed)
        planes, work = scratch[columns:samples], scratch[samples:]
        if decode_progressive(bytes_at(job.address, job.nbytes), header, region, work, planes):
            _resize_planes(header, region, bicubic, planes, scratch[:columns], work, window)
            job.status = DONE
    return 0


@compiled
def _resize_planes(headers: Any, regions: Any, bicubic: bool, planes: Any, columns: Any, work: Any, out: Any) -> None:
    """Make a region's planes columns, and write its window of the resized picture to `out` [H, W, C]."""
    if regions[0].planes == 1:
        hold_luma(regions, regions)
        resize_upright(planes, regions, bicubic, work, out)
    else:
        to_columns(planes, headers, regions, work[: size_of_sums(regions)].view(np.uint16), columns)
        resize_upright(columns, regions, bicubic, work, out)


@compiled
def crop_tiled(data: Any, headers: Any, regions: Any, bicubic: bool, scratch: Any, out: Any) -> int:
    """Decode the region of a JPEG that `find_region` filled, and write its window to `out` [H, W, C].

    C is 3 for RGB, and 1 for luma.

    Returns as `decode_columns` does.
    """
    regions[0].planes = out.shape[2]
    status = decode_columns(data, headers, regions, size_of_resize(regions, out.shape[1]), scratch)
    if status == DONE:
        if regions[0].planes == 1:
            hold_luma(regions, regions)
        resize_upright(scratch, regions, bicubic, scratch[size_of_columns(regions) :], out)
    return int(status)
