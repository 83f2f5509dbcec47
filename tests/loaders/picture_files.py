"""PNG files of every kind, with filters and chunks at choice (PNG, 3rd edition); BMP and PPM; WebP by Pillow."""

import io
import itertools
import struct
import zlib

import numpy as np
from PIL import Image

from fastimg.loaders.pictures.damaged_png import chunk

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
KINDS = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8)]
KINDS += [(4, 8), (4, 16), (6, 8), (6, 16)]  # colour types and depths


def filtered(rows, step, kinds):
    """The rows [H, bytes] with the filters `kinds` [H]."""
    height, length = rows.shape
    out = bytearray()
    for y in range(height):
        row = rows[y].astype(int)
        above = rows[y - 1].astype(int) if y else np.zeros(length, int)
        left = np.concatenate([np.zeros(step, int), row])[:length]
        corner = np.concatenate([np.zeros(step, int), above])[:length]
        guess = left + above - corner
        a, b, c = abs(guess - left), abs(guess - above), abs(guess - corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, above, corner))
        expected = (np.zeros(length, int), left, above, (left + above) // 2, paeth)[kinds[y] if kinds[y] < 5 else 0]
        out += bytes([kinds[y]]) + ((row - expected) % 256).astype(np.uint8).tobytes()
    return bytes(out)


def png(
    rng,
    width,
    height,
    colour=2,
    depth=8,
    filters=None,
    before=(),
    behind=(),
    colours=None,
    parts=1,
    level=6,
    strategy=0,
    smooth=False,
    interlaced=0,
    scanlines=None,
):
    """A PNG with random samples; `filters` are the rows', `before` and `behind` chunks around those of pixels."""
    samples = SAMPLES[colour]
    length = (width * samples * depth + 7) // 8
    if smooth:
        ramp = np.add.outer(np.arange(height) * 3, np.arange(length) // samples * 2) + rng.integers(
            0, 4, (height, length)
        )
        rows = (ramp % 256).astype(np.uint8)
    else:
        rows = rng.integers(0, 256, (height, length), np.uint8)
    most = 1 << depth
    extra = []
    if colour == 3:
        colours = most if colours is None else colours
        extra.append(chunk(b"PLTE", rng.integers(0, 256, 3 * colours, np.uint8).tobytes()))
    filters = rng.integers(0, 5, height).tolist() if filters is None else filters
    raw = filtered(rows, max(1, samples * depth // 8), filters) if scanlines is None else scanlines
    packer = zlib.compressobj(level, zlib.DEFLATED, 15, 9, strategy)
    stream = packer.compress(raw) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    cuts = np.linspace(0, len(stream), parts + 1).astype(int)
    pixels = [chunk(b"IDAT", stream[a:b]) for a, b in itertools.pairwise(cuts)]
    return b"".join([SIGNATURE, chunk(b"IHDR", header), *before, *extra, *pixels, *behind, chunk(b"IEND", b"")])


def bmp(rng, width, height, bits=24, header=40, down=False, colours=0, gap=0, gray=False):
    """A BMP with random pixels."""
    pitch = (width * bits + 31) // 32 * 4
    count = (colours or 256) if bits == 8 else 0
    palette = rng.integers(0, 256, (count, 4), np.uint8)
    if gray:
        palette[:] = np.arange(count, dtype=np.uint8)[:, None]
    begin = 14 + header + palette.size + gap
    rows = rng.integers(0, count or 256, (height, pitch), np.uint8)
    start = struct.pack("<2sIHHI", b"BM", begin + rows.size, 0, 0, begin)
    about = struct.pack("<IiiHHIIiiII", header, width, -height if down else height, 1, bits, 0, 0, 0, 0, colours, 0)
    return start + about + bytes(header - 40) + palette.tobytes() + bytes(gap) + rows.tobytes()


def ppm(rng, width, height, gray=False, head=None, depth=8):
    """A PPM or PGM with random pixels."""
    pixels = rng.integers(0, 256, (height, width, (1 if gray else 3) * depth // 8), np.uint8).tobytes()
    return (head or b"P%d\n%d %d\n%d\n" % (5 if gray else 6, width, height, (1 << depth) - 1)) + pixels


def tiff(rng, width, height, kind="RGB", high_first=False, rows=None, gap=0, long=True, tags=None, depth=8):
    """A TIFF with random pixels of samples of `depth` bits in strips of `rows`, `gap` bytes apart.

    `kind` is L, LA, P, RGB, RGBA or RGBX. `tags` are further ones, (type, values) by number; None leaves one out.
    """
    samples = {"L": 1, "LA": 2, "P": 1, "RGB": 3, "RGBA": 4, "RGBX": 4}[kind]
    photometric = {"L": 1, "P": 3, "R": 2}[kind.replace("LA", "L")[0]]
    rows = rows or height
    pixels = rng.integers(0, 256, (height, width * samples * depth // 8), np.uint8)
    strips = [pixels[y : y + rows].tobytes() for y in range(0, height, rows)]
    order = ">" if high_first else "<"
    number = 4 if long else 3
    entries = {
        256: (number, [width]),
        257: (number, [height]),
        258: (3, [depth] * samples),
        259: (3, [1]),
        262: (3, [photometric]),
        273: (number, [0] * len(strips)),
        277: (3, [samples]),
        278: (number, [rows]),
        279: (4, [len(strip) for strip in strips]),
        282: (5, [(72, 1)]),
        305: (2, b"fastimg\0"),
    }
    if kind == "P":
        entries[320] = 3, rng.integers(0, 65536, 768).tolist()
    if samples in (2, 4):
        entries[338] = 3, [0 if kind == "RGBX" else 2]
    entries = {tag: entry for tag, entry in sorted((entries | (tags or {})).items()) if entry is not None}
    behind = 8 + 2 + 12 * len(entries) + 4

    def stored(type_, values):
        if type_ == 5:
            return b"".join(struct.pack(f"{order}II", *value) for value in values)
        return bytes(values) if type_ in (1, 2, 7) else struct.pack(f"{order}{len(values)}{'HI'[type_ == 4]}", *values)

    at = behind + sum(len(stored(*entry)) for entry in entries.values() if len(stored(*entry)) > 4)
    begins = [at + gap + sum(map(len, strips[:i])) + gap * i for i in range(len(strips))]
    if 273 in entries and not (tags and 273 in tags):
        entries[273] = number, begins
    head, values = struct.pack(f"{order}H", len(entries)), b""
    for tag, (type_, given) in entries.items():
        data = stored(type_, given)
        place = data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(f"{order}I", behind + len(values))
        values += data if len(data) > 4 else b""
        head += struct.pack(f"{order}HHI", tag, type_, len(given)) + place
    start = (b"MM\0*" if high_first else b"II*\0") + struct.pack(f"{order}I", 8)
    return start + head + bytes(4) + values + b"".join(bytes(gap) + strip for strip in strips)


def webp(rng, width, height, alpha=False, orientation=None, **options):
    """A WebP with random pixels around a slope of colours; `options` are Pillow's."""
    slope = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)[:, :, None] * np.array([1, 2, 3, 1])
    pixels = (slope + rng.integers(0, 40, (height, width, 4))).astype(np.uint8)
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    buffer = io.BytesIO()
    Image.fromarray(pixels if alpha else np.ascontiguousarray(pixels[:, :, :3])).save(buffer, "WEBP", **options)
    return buffer.getvalue()


def webps(rng, sizes):
    """WebPs of every kind whose pixels are not turned, of these sizes (width, height)."""
    kinds = (
        {"quality": 80},
        {"quality": 10, "method": 0},
        {"lossless": True},
        {"lossless": True, "alpha": True, "exact": True},
        {"quality": 90, "alpha": True},
        {"quality": 60, "alpha": True, "alpha_quality": 20, "icc_profile": b"profile"},
        {"quality": 70, "icc_profile": b"a profile", "orientation": 1},
        {"lossless": True, "orientation": 1, "xmp": b"<x:xmpmeta/>"},
    )
    return [webp(rng, *size, **kinds[number % len(kinds)]) for number, size in enumerate(sizes)]
