"""The header of a JPEG (ITU T.81 annex B): one parser in compiled code, one record with named fields.

`parse_header` reads up to the first scan; `parse_segment` reads one segment at a time, also between the scans of a
progressive file. Decoding tiles, splicing, rewriting and reading an image's size all use this record. It is passed as
an array of one element, which makes a call from Python four times as cheap as a NumPy scalar would.

The parser continues if it can, and stores the first irregularity as the record's `fault`. Code that only needs the size
may ignore the fault; code that copies or decodes tiles must not.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.jpeg.exif import read_orientation
from fastimg.loaders.runtime.compiled import compiled, held, inlined, int64

SOI, EOI, SOS, DQT, DHT, DRI = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD
BASELINE, EXTENDED, PROGRESSIVE = 0xC0, 0xC1, 0xC2
JFIF, EXIF, ADOBE = 0xE0, 0xE1, 0xEE  # the application segments that contain them

# Faults of a header.
SOUND, DAMAGED, UNUSUAL, PRECISION, LARGE, LOSSLESS, ARITHMETIC, HIERARCHICAL = range(8)

MAX_SIDE = 65500  # libjpeg's limit, across and down
TILED, UNTILED, SCANS = 1, 2, 3  # kinds of JPEGs that the compiled decoder decodes; SCANS are progressive

MAX_BLOCKS = 6 * 64  # of a tile, at most, for the compiled decoder

MAX_SCAN_BLOCKS = 10  # of an MCU with several components (B.2.3)

# A scan without bits takes a few bytes of the file, and the time of all its blocks: so scans times pixels are limited.
MOST_SCANNED = 20 * 89_478_485
FEW_SCANS = 20  # are always decoded; a real progressive JPEG has about ten, one of CMYK 18

JPEG_HEADER = np.dtype(
    [
        ("offset", np.int64),  # behind the last segment; behind SOS the entropy-coded data begins
        ("body", np.int64),  # where the last segment's body begins: what follows its length
        ("fault", np.int64),  # the first one; SOUND where there is none
        # The frame.
        ("sof", np.int64),  # its marker, 0 before it
        ("sof_body", np.int64),  # where its body begins
        ("precision", np.int64),  # bits of a sample
        ("width", np.int64),
        ("height", np.int64),
        ("components", np.int64),
        ("id", np.int64, 4),  # of each component
        ("h", np.int64, 4),  # its blocks across an MCU, and down; 1 and 1 of a single component (A.2.2)
        ("v", np.int64, 4),
        ("quantiser", np.int64, 4),  # number of its quantisation table
        ("mcu_width", np.int64),  # pixels
        ("mcu_height", np.int64),
        # Tables and what else holds for the scans that follow.
        ("quantisers", np.int64, 4),  # where the values of each table begin, 0 where there is none
        ("wide", np.int64, 4),  # whether its values have 16 bits
        ("dc_codes", np.int64, 4),  # where the 16 counts of each Huffman table begin, 0 where there is none
        ("ac_codes", np.int64, 4),
        ("interval", np.int64),  # MCUs between restarts, 0 for none
        ("orientation", np.int64),  # of EXIF, 1 to 8
        ("jfif", np.int64),  # whether there is a JFIF segment
        ("adobe", np.int64),  # the colour transform of an Adobe segment, -1 without one
        # The last scan.
        ("scans", np.int64),  # how many began
        ("scan_components", np.int64),
        ("chosen", np.int64, 4),  # of each component of the scan: its place in the frame, -1 where it is not there
        ("dc", np.int64, 4),  # number of its Huffman table for DC
        ("ac", np.int64, 4),
        ("first", np.int64),  # coefficient of the zigzag order
        ("last", np.int64),
        ("high", np.int64),  # bits that were sent before: successive approximation
        ("low", np.int64),
    ]
)

_EMPTY = np.zeros(1, JPEG_HEADER)
_EMPTY["orientation"] = 1
_EMPTY["adobe"] = -1
_EMPTY_BYTES = _EMPTY.tobytes()

Header = npt.NDArray[np.void]  # [1] JPEG_HEADER


def new_header() -> Header:
    """A record for `parse_header` to fill."""
    return np.ndarray(1, JPEG_HEADER, bytearray(_EMPTY_BYTES))  # 0.2 us; NumPy takes 3 us to make an empty one


def view_of(jpeg: bytes | bytearray | memoryview) -> npt.NDArray[np.uint8]:
    """Bytes as a read-only array, so that numba compiles for one type, whether the bytes are writable or not."""
    data = np.frombuffer(jpeg, np.uint8)
    data.flags.writeable = False
    return data


@held
def parse_header(data: Any, headers: Any) -> bool:
    """Fill `headers[0]` from the front up to the first scan. False if the markers end or are invalid before it."""
    headers[0] = _EMPTY[0]
    if data.size < 2 or data[0] != 0xFF or data[1] != SOI:
        return False
    header = headers[0]
    header.offset = 2
    while True:
        marker = parse_segment(data, headers)
        if marker in (0, EOI, SOS):
            return bool(marker == SOS)


@held
def glance(data: Any, headers: Any) -> tuple[int, int, int, int, int, int, int]:
    """Fill `headers[0]`, and return what a decoder is chosen by.

    That is SOF's marker (0 without a frame), width, height, orientation, restart interval, precision, and the factors
    of luma, `h << 4 | v`, over chroma of 1 x 1 (0x11 of one component, 0 of others).
    """
    parse_header(data, headers)
    header = headers[0]
    luma = 0x11 if header.components == 1 else 0
    if header.components == 3 and header.h[1] == header.h[2] == 1 and header.v[1] == header.v[2] == 1:
        luma = header.h[0] << 4 | header.v[0]
    return header.sof, header.width, header.height, header.orientation, header.interval, header.precision, luma


@held
def parse_segment(data: Any, headers: Any) -> int:
    """Read the segment at the record's `offset` into it. Returns its marker, 0 if the structure is invalid."""
    header = headers[0]
    marker, body, end = next_segment(data, header.offset)
    header.body = body
    header.offset = end
    size = end - body
    if marker == 0:
        _note(header, DAMAGED)
    elif marker == DQT:
        _take_quantisers(data, header, body, end)
    elif marker == DHT:
        _take_codes(data, header, body, end)
    elif marker == DRI:
        if size == 2:
            header.interval = int64(data[body]) << 8 | int64(data[body + 1])
        else:
            _note(header, DAMAGED)
    elif marker == SOS:
        _take_scan(data, header, body, end)
    elif marker == 0xC8 or marker == 0xCC:  # an extension, conditioning of arithmetic coding
        _note(header, UNUSUAL)
    elif 0xC0 <= marker <= 0xCF:
        _take_frame(data, header, marker, body, end)
    elif marker == 0xDE or marker == 0xDF:
        _note(header, HIERARCHICAL)
    elif marker == JFIF:
        if is_jfif(data, body, end):
            header.jfif = 1
            if data[body + 5] != 1:  # a revision that libjpeg warns about
                _note(header, UNUSUAL)
    elif marker == EXIF:
        if header.orientation == 1:
            header.orientation = read_orientation(data, body, end)
    elif marker == ADOBE:
        if is_adobe(data, body, end):
            header.adobe = int64(data[body + 11])
    elif marker != EOI and marker != 0xFE and not 0xE0 <= marker <= 0xEF:  # DNL, reserved codes
        _note(header, UNUSUAL)
    return marker


@held
def parse_segments(data: Any, headers: Any, found: Any) -> int:
    """Read segments as `parse_segment` does, up to a scan, the end or a fault, as many as `found` [n, 3] has rows.

    Of each it takes the marker, and the begin and end of the body. Returns their number.
    """
    for count in range(len(found)):
        marker = parse_segment(data, headers)
        found[count, 0], found[count, 1], found[count, 2] = marker, headers[0].body, headers[0].offset
        if headers[0].fault or marker in (SOS, EOI):
            return count + 1
    return len(found)


@inlined
def most_scans(pixels: int) -> int:
    """The scans that a JPEG of so many pixels may have."""
    return int(max(FEW_SCANS, MOST_SCANNED // max(pixels, 1)))


@held
def has_too_many_scans(data: Any, pixels: int) -> bool:
    """Whether a JPEG of so many pixels has more scans than it may have, as far as libjpeg would follow its markers."""
    most = most_scans(pixels)
    scans = 0
    at = 2
    while at + 4 <= data.size:
        marker = int64(data[at + 1])
        if data[at] != 0xFF or marker == 0xFF:  # coded data, bytes that do not belong there, fill bytes
            at += 1
        elif marker <= 1 or 0xD0 <= marker <= SOI:  # a byte 0xFF, a restart: nothing follows
            at += 2
        elif marker == EOI:
            return False
        else:
            if marker == SOS:
                scans += 1
                if scans > most:
                    return True
            at += 2 + max(2, int64(data[at + 2]) << 8 | int64(data[at + 3]))
    return False


@compiled
def next_segment(data: Any, at: int) -> tuple[int, int, int]:
    """The marker at `at`, and the begin and end of its body. The marker is 0 if there is none or it is cut short."""
    size = data.size
    while at + 2 <= size and data[at] == 0xFF and data[at + 1] == 0xFF:  # fill bytes
        at += 1
    if at + 2 > size or data[at] != 0xFF:
        return 0, at, at
    marker = int64(data[at + 1])
    if marker == EOI:
        return marker, at + 2, at + 2
    if marker < 0xC0 or 0xD0 <= marker <= SOI or at + 4 > size:
        return 0, at, at
    end = at + 2 + (int64(data[at + 2]) << 8 | int64(data[at + 3]))
    if end < at + 4 or end > size:
        return 0, at, at
    return marker, at + 4, end


@inlined
def is_jfif(data: Any, body: int, end: int) -> bool:
    """Whether libjpeg would recognise an APP0 segment as JFIF's."""
    return bool(
        end - body >= 14
        and data[body] == 0x4A
        and data[body + 1] == 0x46
        and data[body + 2] == 0x49
        and data[body + 3] == 0x46
        and data[body + 4] == 0
    )


@inlined
def is_adobe(data: Any, body: int, end: int) -> bool:
    """Whether an APP14 segment is Adobe's, which contains the colour transform."""
    return bool(
        end - body >= 12
        and data[body] == 0x41
        and data[body + 1] == 0x64
        and data[body + 2] == 0x6F
        and data[body + 3] == 0x62
        and data[body + 4] == 0x65
    )


@compiled
def is_sequential(headers: Any) -> bool:
    """Whether a sound header begins one sequential scan of all components."""
    header = headers[0]
    if header.fault or header.scans != 1 or not (header.sof == BASELINE or header.sof == EXTENDED):
        return False
    if header.scan_components != header.components:
        return False
    return bool(header.first == 0 and header.last == 63 and header.high == 0 and header.low == 0)


@compiled
def is_tiled(headers: Any) -> bool:
    """Whether restarts cut every row of MCUs of a sound header into tiles, in one sequential scan, as `tile` does."""
    header = headers[0]
    if not is_sequential(headers) or header.interval == 0:
        return False
    return bool(-(-header.width // header.mcu_width) % header.interval == 0)


@compiled
def is_decodable(headers: Any) -> bool:
    """Whether the compiled decoder decodes its tiles alone: plain, and tiled by tiles that are not too large."""
    header = headers[0]
    return bool(is_tiled(headers) and is_plain(headers) and mcu_blocks(headers) * header.interval <= MAX_BLOCKS)


@compiled
def is_untiled(headers: Any) -> bool:
    """Whether the compiled decoder decodes it from its beginning: plain, in one sequential scan, not as tiles."""
    return bool(is_sequential(headers) and is_plain(headers) and not is_decodable(headers))


@compiled
def is_progressive(headers: Any) -> bool:
    """Whether the compiled decoder decodes its scans: a sound progressive picture, plain, and without restarts."""
    header = headers[0]
    return bool(header.sof == PROGRESSIVE and not header.fault and header.interval == 0 and _is_usual(headers))


@compiled
def kind_of(headers: Any) -> int:
    """TILED, UNTILED or SCANS if the compiled decoder decodes it, otherwise 0."""
    if is_decodable(headers):
        return TILED
    if is_untiled(headers):
        return UNTILED
    return SCANS if is_progressive(headers) else 0


@compiled
def is_plain(headers: Any) -> bool:
    """Whether it has the tables that its scan names, and is of a usual kind."""
    header = headers[0]
    for i in range(header.components):
        if header.dc[i] > 3 or header.ac[i] > 3:
            return False
        if header.dc_codes[header.dc[i]] == 0 or header.ac_codes[header.ac[i]] == 0:
            return False
    return bool(_is_usual(headers))


@compiled
def _is_usual(headers: Any) -> bool:
    """Whether it is gray or YCbCr in 4:4:4, 4:2:2 or 4:2:0, with quantisers of 8 bits."""
    header = headers[0]
    for i in range(header.components):
        if header.wide[header.quantiser[i]]:
            return False
    if header.components == 1:
        return True
    if header.components != 3:
        return False
    ids = header.id[0] == 1 and header.id[1] == 2 and header.id[2] == 3
    if not (header.jfif or header.adobe == 1 or (header.adobe < 0 and ids)):  # pixels may be RGB
        return False
    if header.h[1] != 1 or header.h[2] != 1 or header.v[1] != 1 or header.v[2] != 1:
        return False
    luma = header.h[0] << 4 | header.v[0]
    return bool(luma == 0x11 or luma == 0x21 or luma == 0x22)


@inlined
def mcu_blocks(headers: Any) -> Any:
    """Blocks of an MCU of a decodable picture."""
    header = headers[0]
    return header.h[0] * header.v[0] + header.components - 1


@inlined
def _note(header: Any, fault: int) -> None:
    if header.fault == SOUND:
        header.fault = fault


@compiled
def _take_frame(data: Any, header: Any, marker: int, body: int, end: int) -> None:
    if marker == 0xC3 or marker == 0xC7 or marker == 0xCB or marker == 0xCF:
        _note(header, LOSSLESS)
    elif marker == 0xC9 or marker == 0xCA or marker == 0xCD or marker == 0xCE:
        _note(header, ARITHMETIC)
    elif marker == 0xC5 or marker == 0xC6:
        _note(header, HIERARCHICAL)
    if header.sof:
        _note(header, UNUSUAL)
        return
    if end - body < 6 or end - body != 6 + 3 * int64(data[body + 5]):
        _note(header, DAMAGED)
        return
    precision = int64(data[body])
    count = int64(data[body + 5])
    height, width = int64(data[body + 1]) << 8 | data[body + 2], int64(data[body + 3]) << 8 | data[body + 4]
    if precision != 8:
        _note(header, PRECISION)
    if width == 0 or height == 0 or count < 1 or count > 4:  # height 0: a DNL marker tells it later
        _note(header, UNUSUAL)
        return
    if width > MAX_SIDE or height > MAX_SIDE:
        _note(header, LARGE)
    header.sof = marker
    header.sof_body = body
    header.precision = precision
    header.width = width
    header.height = height
    header.components = count
    across, down = 1, 1
    for i in range(count):
        at = body + 6 + 3 * i
        header.id[i], header.quantiser[i] = data[at], data[at + 2]
        header.h[i], header.v[i] = int64(data[at + 1]) >> 4, int64(data[at + 1]) & 15
        if not (1 <= header.h[i] <= 4 and 1 <= header.v[i] <= 4):
            _note(header, DAMAGED)
        across, down = max(across, header.h[i]), max(down, header.v[i])
        for other in range(i):
            if header.id[other] == header.id[i]:
                _note(header, DAMAGED)
    if count == 1:
        header.h[0], header.v[0] = 1, 1
        across, down = 1, 1
    header.mcu_width, header.mcu_height = 8 * across, 8 * down


@compiled
def _take_quantisers(data: Any, header: Any, body: int, end: int) -> None:
    if header.scans:  # decoders disagree about when it takes effect
        _note(header, UNUSUAL)
        return
    while body < end:
        wide = int64(data[body]) >> 4
        number = int64(data[body]) & 15
        if wide > 1 or number > 3 or body + 65 + 64 * wide > end:
            _note(header, DAMAGED)
            return
        header.quantisers[number], header.wide[number] = body + 1, wide
        body += 65 + 64 * wide


@compiled
def _take_codes(data: Any, header: Any, body: int, end: int) -> None:
    while body < end:
        kind = int64(data[body]) >> 4
        number = int64(data[body]) & 15
        if kind > 1 or number > 3 or body + 17 > end:
            _note(header, DAMAGED)
            return
        count, space = 0, 0
        for i in range(16):
            codes = int64(data[body + 1 + i])
            count += codes
            space += codes << (15 - i)
        # More codes than fit (Kraft), or one of all ones: it is reserved (C.2), and libjpeg refuses it.
        if count > 256 or body + 17 + count > end or space >= 1 << 16:
            _note(header, DAMAGED)
            return
        if kind:
            header.ac_codes[number] = body + 1
        else:
            header.dc_codes[number] = body + 1
            for i in range(count):
                if data[body + 17 + i] > 15:
                    _note(header, DAMAGED)
        body += 17 + count


@compiled
def _take_scan(data: Any, header: Any, body: int, end: int) -> None:
    count = int64(data[body]) if body < end else 0
    if header.sof == 0 or not 1 <= count <= 4 or end - body != 4 + 2 * count:
        _note(header, DAMAGED)
        return
    if header.scans == 0:
        _judge(header)
    header.scans += 1
    header.scan_components = count
    before = -1
    blocks = 0
    for i in range(count):
        chosen = -1
        for c in range(header.components):
            if header.id[c] == data[body + 1 + 2 * i]:
                chosen = c
        tables = int64(data[body + 2 + 2 * i])
        header.chosen[i], header.dc[i], header.ac[i] = chosen, tables >> 4, tables & 15
        if chosen < 0:
            _note(header, DAMAGED)
            return
        if chosen <= before:
            _note(header, UNUSUAL)
        before = chosen
        blocks += header.h[chosen] * header.v[chosen]
    if count > 1 and blocks > MAX_SCAN_BLOCKS:
        _note(header, DAMAGED)
    header.first = data[end - 3]
    header.last = data[end - 2]
    header.high = int64(data[end - 1]) >> 4
    header.low = int64(data[end - 1]) & 15


@compiled
def _judge(header: Any) -> None:
    """Note what a decoder would refuse or warn about, once everything before the first scan is known."""
    count = header.components
    for i in range(count):
        if header.quantiser[i] > 3 or header.quantisers[header.quantiser[i]] == 0:
            _note(header, DAMAGED)
    transform = header.adobe
    if transform >= 0 and count > 1:
        known = transform <= 1 if count == 3 else count == 4 and (transform == 0 or transform == 2)
        if not known:
            _note(header, UNUSUAL)
