"""Crops of PNG files in compiled calls: the rows that Pillow and torch make of them, for a third of the time."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from fastimg.loaders import CenterCrop, RandomResizedCrop
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.crop import RandomCrop
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.decoders.picture_queue import PictureQueue
from fastimg.loaders.pictures.tiff import is_plain_tiff
from fastimg.loaders.runtime import compiled
from fastimg.loaders.runtime.scratch import Scratch

from .picture_files import KINDS, SIGNATURE, bmp, chunk, filtered, png, ppm, tiff

ALL = CenterCrop(size=16, resize=16)


def filled(decoder, dataset, epoch=0):
    """The rows, what failed, and how many images Pillow decoded."""
    count = len(dataset)
    rows = {field.name: np.full((count, *field.shape), 77, field.dtype) for field in decoder.fields}
    others = []
    with pytest.MonkeyPatch.context() as patch:
        own = ImageDecoder._decode_to_queue
        patch.setattr(ImageDecoder, "_decode_to_queue", lambda *args: (others.append(args[1]), own(*args))[1])
        lone = ImageDecoder._decode
        patch.setattr(ImageDecoder, "_decode", lambda *args: (others.append(args[1]), lone(*args))[1])
        draws = decoder.draw(1, epoch, np.arange(count))
        failures = decoder.fill(SampleReader(dataset), list(range(count)), draws, rows, Scratch())
    return rows["inputs"], sorted((place, str(error)) for place, error in failures), len(others)


def assert_as_pillow(decoder, dataset, epoch=0):
    """The rows of both paths are the same; returns what failed, and what was left to Pillow."""
    rows, failures, others = filled(decoder, dataset, epoch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PictureQueue, "add_group", lambda self, encoded, places, *_: places)
        expected, told, _ = filled(decoder, dataset, epoch)
    assert failures == told
    kept = np.setdiff1d(np.arange(len(dataset)), [place for place, _ in failures])
    assert torch.equal(torch.from_numpy(rows[kept]), torch.from_numpy(expected[kept]))
    return failures, others


@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_every_kind_of_pixels(colour, depth, folder):
    rng = np.random.default_rng(colour * 100 + depth)
    sizes = [*((w, h) for w in (1, 2, 3, 15, 16, 17) for h in (1, 4, 5, 9)), *rng.integers(1, 70, (30, 2)).tolist()]
    files = [png(rng, w, h, colour, depth, smooth=i % 2 == 0, parts=1 + i % 3) for i, (w, h) in enumerate(sizes)]
    files += [png(rng, 40, 30, colour, depth, [kind] * 30) for kind in range(5)]
    dataset = folder(files)
    crops = [
        *(RandomResizedCrop(size=size, interpolation=how) for size in (7, (24, 10)) for how in ("bilinear", "bicubic")),
        CenterCrop(size=16, resize=16),
    ]
    for channels in (3, 1):
        for crop in crops:
            assert assert_as_pillow(ImageDecoder(crop, channels=channels), dataset) == ([], 0)
        mirrored = RandomCrop(size=16, padding=4)
        assert assert_as_pillow(ImageDecoder(mirrored, channels=channels), dataset)[0] == []


def test_what_keeps_its_size(folder):
    rng = np.random.default_rng(1)
    dataset = folder([png(rng, 28, 28, colour, depth) for colour, depth in KINDS for _ in range(3)])
    for crop in (CenterCrop(size=28, resize=28), CenterCrop(size=(20, 28), resize=28), RandomCrop(size=28, padding=3)):
        for channels in (3, 1):
            assert assert_as_pillow(ImageDecoder(crop, channels=channels), dataset) == ([], 0)


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize(
    "strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_FIXED, zlib.Z_RLE]
)
def test_every_way_to_deflate(level, strategy, folder):
    rng = np.random.default_rng(level)
    sizes = [(9, 9), (130, 120), (200, 64)]
    files = [
        png(rng, w, h, level=level, strategy=strategy, smooth=smooth) for w, h in sizes for smooth in (True, False)
    ]
    files += [png(rng, 90, 90, 0, 1, [0] * 90, level=level, strategy=strategy, scanlines=bytes(90 * 13))]
    assert assert_as_pillow(ImageDecoder(RandomResizedCrop(size=32)), folder(files)) == ([], 0)


def test_photographs_by_pillow(folder):
    rng = np.random.default_rng(2)
    files = []
    for i, mode in enumerate(("RGB", "L", "P", "1", "LA", "RGBA", "I;16")):
        small = Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).resize(
            (300, 200), Image.Resampling.BICUBIC
        )
        image = small.convert("L" if mode == "I;16" else mode)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image).astype(np.uint16) * 200)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=i, dpi=(72, 72))
        files.append(buffer.getvalue())
    dataset = folder(files)
    for channels in (3, 1):
        assert assert_as_pillow(ImageDecoder(RandomResizedCrop(size=64), channels=channels), dataset) == ([], 0)


def assert_all_are_taken(dataset):
    """No picture is left to Pillow, but where a window reaches beyond it."""
    crops = (RandomResizedCrop(size=9), RandomResizedCrop(size=(8, 30), interpolation="bicubic"), ALL)
    for channels in (3, 1):
        for crop in (*crops, CenterCrop(size=32, resize=32)):
            assert assert_as_pillow(ImageDecoder(crop, channels=channels), dataset) == ([], 0)
        assert assert_as_pillow(ImageDecoder(RandomCrop(size=16, padding=4), channels=channels), dataset)[0] == []


def test_bmp_and_ppm(folder):
    rng = np.random.default_rng(8)
    sizes = [*((w, h) for w in (1, 2, 3, 5, 32) for h in (1, 4, 9)), *rng.integers(1, 70, (20, 2)).tolist()]
    files = []
    for w, h in sizes:
        files += [bmp(rng, w, h), bmp(rng, w, h, 32, down=True), bmp(rng, w, h, 8), bmp(rng, w, h, 24, 124, True)]
        files += [bmp(rng, w, h, 8, 108, colours=7, gap=3), bmp(rng, w, h, 8, gray=True)]
        files += [ppm(rng, w, h), ppm(rng, w, h, True), ppm(rng, w, h, head=b"P6 %d\t%d\r255 " % (w, h))]
    dataset = folder(files)
    assert_all_are_taken(dataset)


def test_odd_bmp_and_ppm_are_as_pillow_has_them(folder):
    rng = np.random.default_rng(9)
    whole, palette, gray = bmp(rng, 20, 30), bmp(rng, 20, 30, 8, colours=9), bmp(rng, 20, 30, 8, colours=20, gray=True)
    high, beyond = bytearray(palette), bytearray(gray)
    high[-1], beyond[-1] = 200, 200

    def changed(data, at, form, value):
        out = bytearray(data)
        struct.pack_into(form, out, at, value)
        return bytes(out)

    files = [
        *(
            whole,
            palette,
            gray,
            bytes(high),
            bytes(beyond),
            whole[:-1],
            whole[:-61],
            whole[:40],
            b"BM",
            whole + b"more",
        ),
        *(changed(whole, 18, "<i", value) for value in (0, -1, 21, 1 << 30, -(1 << 31))),
        *(changed(whole, 22, "<i", value) for value in (0, -1, 31, 1 << 30, -(1 << 31), -(1 << 24) - 1)),
        *(changed(whole, 28, "<H", value) for value in (0, 1, 4, 8, 16, 32, 64)),
        *(changed(palette, 30, "<I", value) for value in (1, 2, 3, 4, 5, 6)),
        *(changed(palette, 46, "<I", value) for value in (0, 1, 2, 3, 256, 257, 1 << 20, 1 << 31)),
        *(changed(palette, 10, "<I", value) for value in (0, 14, 54, 60, 1 << 20, 1 << 31)),
        *(changed(whole, 14, "<I", value) for value in (0, 12, 52, 56, 64, 108, 124, 1 << 30)),
        *(ppm(rng, 20, 30)[:-1], ppm(rng, 20, 30, head=b"P6 20 30 255"), ppm(rng, 20, 30, head=b"P6#a\n20 30 255\n")),
        *(
            ppm(rng, 20, 30, head=b"P6 %s 255\n" % size)
            for size in (b"+20 30", b"20 -3", b"2_0 30", b"0 30", b"9" * 12)
        ),
        *(ppm(rng, 20, 30, head=b"P6 20 30 %s\n" % most) for most in (b"0", b"254", b"256", b"65535", b"65536", b"x")),
        *(ppm(rng, 20, 30, head=b"P%s 20 30 255\n" % kind) for kind in (b"1", b"2", b"3", b"4", b"f", b"7", b"")),
        *(b"P6", b"P6\n", b"P6 20 30 255", b"P5 1 1 255\n", b"P6 20 30 255\n"),
        ppm(rng, 20, 30, head=b"P6 99999999 99999999 255\n"),
    ]
    dataset = folder(files)
    for crop in (ALL, RandomResizedCrop(size=8)):
        failures, others = assert_as_pillow(ImageDecoder(crop), dataset)
        assert len(failures) > 30 and len(files) - others >= 5


def test_tiff(folder):
    rng = np.random.default_rng(10)
    sizes = [*((w, h) for w in (1, 2, 5, 32) for h in (1, 4, 9)), *rng.integers(1, 70, (12, 2)).tolist()]
    kinds = ("L", "LA", "P", "RGB", "RGBA", "RGBX")
    files = []
    for number, (w, h) in enumerate(sizes):
        for kind in kinds:
            files += [tiff(rng, w, h, kind, high_first=number % 2 == 0, rows=rows) for rows in (None, 1, 4)]
            files.append(tiff(rng, w, h, kind, number % 2 == 1, long=False, tags={278: None, 339: (3, [1] * 3)}))
    files.append(tiff(rng, 20, 30, rows=30, tags={278: (4, [(1 << 32) - 1])}))
    files.append(tiff(rng, 20, 30, tags={317: (3, [1]), 318: (5, [(1, 3)] * 2), 319: (5, [(1, 3)] * 6)}))
    dataset = folder(files)
    assert_all_are_taken(dataset)


def test_tiffs_of_pillow_are_taken(folder):
    rng = np.random.default_rng(11)
    files = []
    for mode in ("RGB", "L", "P", "RGBA", "LA"):
        for size in ((40, 30), (300, 400)):
            buffer = io.BytesIO()
            pixels = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).convert(mode)
            pixels.save(buffer, "TIFF", dpi=(72, 72), description="of one page", icc_profile=b"profile")
            files.append(buffer.getvalue())
    dataset = folder(files)
    for channels in (3, 1):
        decoder = ImageDecoder(RandomResizedCrop(size=16), channels=channels)
        assert assert_as_pillow(decoder, dataset) == ([], 0)


def test_odd_tiffs_are_as_pillow_has_them(folder):
    rng = np.random.default_rng(12)
    short, long = 3, 4
    numbers = (0, 1, 2, 3, 4, 7, 8, 16, 255, 65535)
    strips = ([9, 909], [909, 9], [9, 9], [9, 9, 9])
    sizes = ((1 << 31, 1), (1, 1 << 31), ((1 << 32) - 1, (1 << 32) - 1), (1 << 16, 99))
    one = (254, 256, 257, 258, 259, 262, 266, 274, 277, 278, 284, 296, 317, 338, 339)
    files = [tiff(rng, 20, 30, tags={tag: (short, [value])}) for tag in one for value in numbers]
    files += [tiff(rng, 20, 30, kind, tags={tag: None}) for kind in ("P", "RGBA") for tag in (*one, 273, 279, 320)]
    files += [tiff(rng, 20, 30, tags={tag: (kind, [1])}) for tag in (*one, 273) for kind in (1, long, 7)]
    files += [tiff(rng, 20, 30, tags={tag: (short, [8, 8, 8])}) for tag in one]
    files += [
        *(tiff(rng, 20, 30, rows=7, gap=gap) for gap in (1, 2, 100)),
        *(tiff(rng, 20, 30, rows=rows, tags={278: (short, [7])}) for rows in (6, 8, 15)),
        *(tiff(rng, 20, 30, tags={273: (long, [at])}) for at in (0, 7, 200, 5000, (1 << 32) - 1)),
        *(tiff(rng, 20, 30, tags={278: (short, [15]), 273: (long, at)}) for at in strips),
        *(tiff(rng, 20, 30, tags={256: (long, [w]), 257: (long, [h])}) for w, h in sizes),
        tiff(rng, 20, 30, tags={700: (1, b'<x tiff:Orientation="3"/>')}),
        tiff(rng, 20, 30, tags={322: (short, [16]), 323: (short, [16]), 324: (long, [8] * 4)}),
        tiff(rng, 20, 30, tags={34665: (long, [8])}),
        tiff(rng, 20, 30, tags={282: (short, [1]), 283: (2, b"x\0"), 296: (short, [3])}),
        tiff(rng, 20, 30, "P", tags={320: (short, [7] * 767)}),
        tiff(rng, 20, 30, "P", tags={320: (short, [7] * 3)}),
    ]
    whole = tiff(rng, 20, 30, "RGBA", rows=8)
    entries = struct.unpack_from("<H", whole, 8)[0]
    files += [whole[:size] for size in (*range(0, 220, 3), len(whole) - 1, len(whole) - 80)]
    files += [whole + b"more", whole[: 10 + 12 * entries] + b"\x08\0\0\0" + whole[14 + 12 * entries :]]
    swapped = whole[:10] + whole[22:34] + whole[10:22] + whole[34:]
    files += [swapped, whole[:8] + b"\xff\xff" + whole[10:], whole[:4] + b"\xff\xff\xff\x7f" + whole[8:]]
    files += [b"IM" + whole[2:], b"II+\0" + whole[4:], b"MM\0+" + whole[4:]]
    dataset = folder(files)
    for crop in (ALL, RandomResizedCrop(size=8)):
        failures, others = assert_as_pillow(ImageDecoder(crop), dataset)
        assert len(failures) > 100 and len(files) - others >= 20


class OneByOne(ImageDecoder):
    """A subclass with rows of its own."""

    def fill_row(self, data, draws, row, scratch):
        super().fill_row(data, draws, row, scratch)


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """The machine code that a group of files needs."""
    place = tmp_path_factory.mktemp("ready") / "a"
    place.mkdir()
    (place / "0.png").write_bytes(png(np.random.default_rng(0), 5, 5))
    for crop in (ALL, RandomResizedCrop(size=8, interpolation="bicubic")):
        filled(ImageDecoder(crop), open_dataset(place.parent))


def test_single_files_are_those_of_groups(folder, ready):
    rng = np.random.default_rng(13)
    files = [png(rng, 30, 20, colour, depth) for colour, depth in KINDS]
    files += [bmp(rng, 20, 30), ppm(rng, 21, 9), tiff(rng, 21, 9, rows=4)]
    files += [files[0][:-30], files[-1][:-30], b"no image", b""]
    dataset = folder(files)
    for crop in (ALL, RandomResizedCrop(size=8, interpolation="bicubic"), RandomCrop(size=16, padding=4)):
        for channels in (3, 1):
            rows, failures, _ = filled(ImageDecoder(crop, channels=channels), dataset)
            single, told, others = filled(OneByOne(crop, channels=channels), dataset)
            assert told == failures and len(failures) >= 3
            kept = np.setdiff1d(np.arange(len(dataset)), [place for place, _ in failures])
            assert torch.equal(torch.from_numpy(single[kept]), torch.from_numpy(rows[kept]))
            assert others <= 4 or crop.draws == 2  # what is resized and mirrored is left to Pillow


def test_a_single_file_compiles_nothing(folder, monkeypatch):
    monkeypatch.setattr("fastimg.loaders.decoders.picture_queue.is_ready", lambda function: False)
    rows, _, others = filled(OneByOne(ALL), dataset := folder([png(np.random.default_rng(1), 16, 16)]))
    assert others == 1
    assert torch.equal(torch.from_numpy(rows), torch.from_numpy(filled(ImageDecoder(ALL), dataset)[0]))


def rest(data, at=33):
    """The chunks from a place on."""
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + 12 + size]
        at += 12 + size


def with_header(data, **values):
    """The same with another header, whose checksum is right."""
    names = ("width", "height", "depth", "colour", "compression", "filters", "interlaced")
    header = dict(zip(names, struct.unpack(">IIBBBBB", data[16:29]), strict=True)) | values
    return SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", *header.values())) + data[33:]


def with_stream(data, stream, parts=1):
    """The same with other pixels, deflated."""
    chunks = [part for part in rest(data) if part[4:8] not in (b"IDAT", b"IEND")]
    size = -(-len(stream) // parts)
    pixels = [chunk(b"IDAT", stream[i : i + size]) for i in range(0, max(len(stream), 1), max(size, 1))]
    return b"".join([data[:33], *chunks, *pixels, chunk(b"IEND", b"")])


def stream_of(data):
    return b"".join(part[8:-4] for part in rest(data) if part[4:8] == b"IDAT")


def odd_files():
    """Files that are unusual or damaged, by name."""
    rng = np.random.default_rng(3)
    whole = png(rng, 20, 30, smooth=True)
    stream = stream_of(whole)
    raw = zlib.decompress(stream)
    palette = png(rng, 20, 30, 3, 4, colours=9)
    exif = Image.Exif()
    exif[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="3"/>')
    texts = io.BytesIO()
    Image.open(io.BytesIO(whole)).save(texts, "PNG", pnginfo=text)
    turned = io.BytesIO()
    Image.open(io.BytesIO(whole)).save(turned, "PNG", exif=exif)
    many = png(rng, 400, 300, smooth=True, parts=7)
    profile = chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(200)))
    bomb = chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(2 << 20)))
    head, end = whole[:33], chunk(b"IEND", b"")
    bits = bytearray(whole)
    bits[33 + 8 + 40] ^= 4
    late = bytearray(many)
    late[-40] ^= 1
    return {
        "whole": whole,
        "palette too short for its pixels": palette,
        "no palette": b"".join(part for part in (palette[:33], *rest(palette)) if part[4:8] != b"PLTE"),
        "two palettes": palette[:33] + chunk(b"PLTE", bytes(48)) + palette[33:],
        "palette of 5 bytes": palette[:33] + chunk(b"PLTE", bytes(5)) + stripped(palette),
        "palette of 257 colours": palette[:33] + chunk(b"PLTE", bytes(771)) + stripped(palette),
        "turned by EXIF": turned.getvalue(),
        "turned by EXIF behind the pixels": whole[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + end,
        "turned by XMP": texts.getvalue(),
        "text": head + chunk(b"tEXt", b"Software\0fastimg") + whole[33:],
        "text called exif": head + chunk(b"tEXt", b"exif\0Exif\0\0MM") + whole[33:],
        "Raw profile type exif": head + chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 4\n00000000") + whole[33:],
        "date": head + chunk(b"tEXt", b"date:create\0now") + whole[33:],
        "text behind the pixels": whole[:-12] + chunk(b"tEXt", b"Software\0fastimg") + end,
        "unknown chunk": head + chunk(b"abCd", b"1234") + whole[33:],
        "unknown critical chunk": head + chunk(b"ABCD", b"1234") + whole[33:],
        "an animation": head + chunk(b"acTL", struct.pack(">II", 1, 0)) + whole[33:],
        "profile": head + profile + whole[33:],
        "profile that inflates to 2 MiB": head + bomb + whole[33:],
        "gamma of 3 bytes": head + chunk(b"gAMA", b"123") + whole[33:],
        "transparent colour": head + chunk(b"tRNS", bytes(6)) + whole[33:],
        "transparent colour of 3 bytes": head + chunk(b"tRNS", bytes(3)) + whole[33:],
        "wrong checksum of the header": whole[:29] + b"1234" + whole[33:],
        "wrong checksum of the palette": palette[:41] + b"!" + palette[42:],
        "wrong checksum of the pixels": with_stream(whole, stream)[:-16] + b"1234" + end,
        "wrong Adler-32": with_stream(whole, stream[:-1] + bytes([stream[-1] ^ 1])),
        "altered pixels": bytes(bits),
        "altered pixels at the end": bytes(late),
        "many chunks": many,
        "empty chunks": with_stream(whole, stream).replace(end, chunk(b"IDAT", b"") + end),
        "no end": whole[:-12],
        "cut short": whole[:-30],
        "cut short in the last of many": many[:-30],
        "cut short in the first of many": many[:100],
        "bytes behind the end": whole + b"more",
        "a chunk of 2^31 bytes": head + struct.pack(">I", 1 << 31) + b"tEXt" + whole[33:],
        "pixels of 2^31 bytes": head + struct.pack(">I", 1 << 31) + b"IDAT" + whole[41:],
        "a stream that ends early": with_stream(whole, zlib.compress(raw[:-100])),
        "a stream without its end": with_stream(whole, stream[:-20]),
        "a stream that goes on": with_stream(whole, zlib.compress(raw + bytes(100_000))),
        "bytes behind the stream": with_stream(whole, stream + b"more"),
        "another stream behind it": with_stream(whole, stream + stream),
        "filter 5": with_stream(whole, zlib.compress(b"\5" + raw[1:])),
        "filter 255 in the last row": with_stream(whole, zlib.compress(raw[:-61] + b"\xff" + raw[-60:])),
        "no deflate": with_stream(whole, b"\x77" + stream[1:]),
        "a dictionary": with_stream(whole, b"\x78\xbb" + stream[2:]),
        "a small window": with_stream(whole, small_window(raw)),
        "an empty stream": with_stream(whole, b""),
        "interlaced": interlaced(rng),
        "interlaced 2": with_header(whole, interlaced=2),
        "filter method 1": with_header(whole, filters=1),
        "compression 1": with_header(whole, compression=1),
        "depth 5": with_header(whole, depth=5),
        "depth 4 of colours": with_header(whole, depth=4),
        "colour type 5": with_header(whole, colour=5),
        "no width": with_header(whole, width=0),
        "no height": with_header(whole, height=0),
        "wider": with_header(whole, width=21),
        "higher": with_header(whole, height=31),
        "lower": with_header(whole, height=29),
        "a bomb": with_header(png(rng, 8, 8, 0, 1), width=9000, height=9000),
        "a bomb that is whole": png(rng, 8000, 8000, 0, 1, [0] * 8000, scanlines=bytes(8000 * 1001), level=9),
        "larger than allowed": with_header(whole, width=1 << 30, height=1 << 30),
        "a header of 12 bytes": SIGNATURE + chunk(b"IHDR", whole[16:28]) + whole[33:],
        "only a header": head,
        "no pixels": head + end,
        "half a signature": whole[:6],
        "a JPEG's start": b"\xff\xd8" + whole[2:],
    }


def stripped(data):
    return b"".join(part for part in rest(data) if part[4:8] != b"PLTE")


def small_window(raw):
    packer = zlib.compressobj(9, zlib.DEFLATED, 9)
    return packer.compress(raw) + packer.flush()


def interlaced(rng):
    """One of 1 x 1 pixel, whose first pass is all of it."""
    return with_header(png(rng, 1, 1, filters=[0]), interlaced=1)


TAKEN = {
    *("whole", "text", "date", "text behind the pixels", "profile", "transparent colour", "many chunks"),
    *("empty chunks", "bytes behind the end", "bytes behind the stream", "another stream behind it"),
    "a small window",
}


@pytest.mark.parametrize("crop", [RandomResizedCrop(size=8, scale=(0.1, 0.3)), ALL])
def test_odd_files_are_as_pillow_has_them(crop, folder):
    files = odd_files()
    dataset = folder(files.values())
    order = {name: place for place, name in enumerate(files)}
    decoder = ImageDecoder(crop)
    for epoch in range(4 if crop is not ALL else 1):
        failures, others = assert_as_pillow(decoder, dataset, epoch)
        failed = {place for place, _ in failures}
        if crop is ALL:
            refused = {name for name, place in order.items() if place in failed}
            assert not refused & TAKEN
            assert {"cut short", "altered pixels", "filter 5", "a chunk of 2^31 bytes", "wrong Adler-32"} <= refused
            assert others >= len(files) - len(TAKEN)


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_usual_files_are_not_left_to_pillow(name, folder):
    assert assert_as_pillow(ImageDecoder(ALL), folder([odd_files()[name]])) == ([], 0)


def test_damage_below_the_crop_is_not_looked_for(folder):
    rng = np.random.default_rng(5)
    whole = png(rng, 300, 300, smooth=True, parts=9)
    damaged = bytearray(whole)
    damaged[-60] ^= 64
    dataset = folder([whole, bytes(damaged)] * 8)
    crop = RandomResizedCrop(size=8, scale=(0.02, 0.05))
    decoder = ImageDecoder(crop)
    failed, left = set(), 0
    for epoch in range(6):
        failures, others = assert_as_pillow(decoder, dataset, epoch)
        left += others
        failed |= {place % 2 for place, _ in failures}
        windows = [crop.window(300, 300, row) for row in decoder.draw(1, epoch, np.arange(16)).tolist()]
        touched = {place for place, _ in failures}
        for place in range(1, 16, 2):
            box = windows[place].box
            assert place in touched or box[1] + box[3] < 300
    assert failed == {1} and left < 6 * 8


def test_a_stream_that_ends_with_the_crop_has_no_checksum_of_all_rows(folder):
    rng = np.random.default_rng(10)
    whole = png(rng, 9, 40, 0, 16, [0] * 40)
    raw = zlib.decompress(stream_of(whole))
    ends = [with_stream(whole, zlib.compress(raw[: 19 * rows])[:-1] + b"!") for rows in range(1, 40)]
    dataset = folder([with_stream(whole, zlib.compress(raw)[:-1] + b"!"), *ends])
    for epoch in range(4):
        failures, _ = assert_as_pillow(ImageDecoder(RandomResizedCrop(size=8)), dataset, epoch)
        assert 0 < len(failures) < 40


def test_damage_is_named_without_machine_code_in_the_same_crops(folder, build, monkeypatch):
    rng = np.random.default_rng(6)
    damaged = bytearray(png(rng, 200, 200, smooth=True, parts=9))
    damaged[len(damaged) * 5 // 8] ^= 64
    dataset = folder([bytes(damaged)] * 20)

    def weights():
        with build(dataset, ImageDecoder(RandomResizedCrop(size=8, scale=(0.02, 0.4))), seed=1) as loader:
            return [(batch.inputs.clone(), batch.weight.clone()) for batch in loader]

    with_code = weights()
    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    without = weights()
    for (inputs, weight), (others, other) in zip(with_code, without, strict=True):
        assert torch.equal(weight, other) and torch.equal(inputs, others)
    total = torch.cat([weight for _, weight in with_code])
    assert 0 < total.sum() < len(total)


def test_filters_of_many_neighbours(folder):
    rng = np.random.default_rng(7)
    rows = rng.integers(0, 256, (600, 3 * 900), np.uint8)
    rows[::7] = rng.choice(np.array([0, 1, 127, 128, 254, 255], np.uint8), rows[::7].shape)
    files = [png(rng, 900, 600, scanlines=filtered(rows, 3, [kind] * 600)) for kind in (3, 4)]
    out, failures, others = filled(ImageDecoder(CenterCrop(size=(600, 900), resize=(600, 900))), folder(files))
    assert not failures and not others
    assert (out.reshape(2, *rows.shape) == rows).all()


def test_a_tiff_with_lengths_of_more_strips_than_it_has_is_left_to_pillow():
    rng = np.random.default_rng(0)
    assert is_plain_tiff(tiff(rng, 21, 17, "P", high_first=True))
    assert not is_plain_tiff(tiff(rng, 21, 17, "P", high_first=True, tags={279: (4, [357] * 184)}))
