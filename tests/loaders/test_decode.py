"""Decoding, compared with Pillow: ImageOps.exif_transpose, then convert("RGB")."""

import contextlib
import io
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from fastimg.loaders.crop import CenterCrop, RandomResizedCrop
from fastimg.loaders.decode import decode, decode_mask, read_header, upright
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.errors import ImageError
from fastimg.loaders.jpeg.decoding.frame import MOST_SCANNED
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.opening import open_image
from fastimg.loaders.runtime.scratch import Scratch

WIDTH, HEIGHT = 45, 27


def photograph(width=WIDTH, height=HEIGHT, seed=0):
    """Smooth colours with some noise: no symmetry that could hide a wrong orientation."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([128 + 100 * np.sin(x / 7 + y / 11 + c) for c in range(3)], axis=2)
    noise = np.random.default_rng(seed).normal(0, 8, waves.shape)
    return Image.fromarray(np.clip(waves + noise, 0, 255).astype(np.uint8))


def save(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation):
    block = Image.Exif()
    block[0x0112] = orientation
    return block


def by_pillow(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for a palette's transparency
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def same(data):
    pixels, expected = decode(data), by_pillow(data)
    assert pixels.dtype == np.uint8 and pixels.shape == expected.shape
    np.testing.assert_array_equal(pixels, expected)
    return pixels


def alpha(image):
    image = image.convert("RGBA")
    image.putalpha(image.getchannel("R"))
    return image


JPEGS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "progressive": {"progressive": True},
    "optimised": {"optimize": True, "quality": 30},
    "restart markers": {"restart_marker_blocks": 2},
    "restart rows": {"restart_marker_rows": 1, "subsampling": 0},
}


@pytest.mark.parametrize("options", JPEGS.values(), ids=JPEGS)
def test_jpegs_that_libjpeg_turbo_decodes(options):
    data = save(photograph(), "JPEG", **options)
    header = read_header(data)
    assert (header.format, header.width, header.height, header.orientation) == ("jpeg", WIDTH, HEIGHT, 1)
    assert header.turbo and header.size == (WIDTH, HEIGHT) and header.extension == "jpg"
    same(data)


@pytest.mark.parametrize("sampling", ["440", "411"])
def test_rarer_samplings(sampling):
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(photograph()), colorsubsampling=sampling)
    assert read_header(data).turbo
    same(data)


def test_a_gray_jpeg():
    data = save(photograph().convert("L"), "JPEG")
    assert read_header(data).turbo
    pixels = same(data)
    assert (pixels == pixels[:, :, :1]).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (7, 9), (8, 8), (17, 16)])
def test_small_and_odd_sizes(size):
    for kind in ("JPEG", "PNG"):
        same(save(photograph(*size), kind))


def test_a_cmyk_jpeg_is_decoded_by_pillow():
    data = save(photograph().convert("CMYK"), "JPEG")
    assert not read_header(data).turbo
    same(data)


def test_pillow_decides_about_jpegs_with_libjpeg_warnings():
    whole = save(photograph(), "JPEG")
    odd = whole[:2] + b"\xff\xe4\x00\x02" + b"\0\0\0" + whole[2:]  # extraneous bytes between markers
    for data in (whole + b"trailing", whole[:-2] + b"\0\0" + whole[-2:], odd):
        same(data)


def palette(**options):
    return save(photograph().quantize(16), "PNG", **options)


OTHERS = {
    "png": lambda: save(photograph(), "PNG"),
    "png gray": lambda: save(photograph().convert("L"), "PNG"),
    "png bilevel": lambda: save(photograph().convert("1"), "PNG"),
    "png palette": palette,
    "png palette and alpha": lambda: palette(transparency=bytes(range(0, 256, 16))),
    "png palette and a transparent colour": lambda: palette(transparency=3),
    "png gray and a transparent level": lambda: save(photograph().convert("L"), "PNG", transparency=100),
    "png rgba": lambda: save(alpha(photograph()), "PNG"),
    "png la": lambda: save(alpha(photograph()).convert("LA"), "PNG"),
    "webp": lambda: save(photograph(), "WEBP"),
    "webp rgba": lambda: save(alpha(photograph()), "WEBP", lossless=True),
    "bmp": lambda: save(photograph(), "BMP"),
    "tiff": lambda: save(photograph(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": lambda: save(photograph().convert("CMYK"), "TIFF"),
    "gif": lambda: save(photograph().quantize(64), "GIF", transparency=5),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_other_formats(make, request):
    data = make()
    header = read_header(data)
    assert header.format == request.node.callspec.id.split()[0]
    assert header.size == (WIDTH, HEIGHT) and header.orientation == 1 and not header.turbo
    assert header.extension == {"tiff": "tif"}.get(header.format, header.format)
    same(data)


def test_sixteen_bits_keep_their_high_byte():
    levels = np.arange(WIDTH * HEIGHT, dtype=np.uint16).reshape(HEIGHT, WIDTH) * 53
    for data in (save(Image.fromarray(levels), "PNG"), save(Image.fromarray(levels), "TIFF")):
        pixels = decode(data)
        np.testing.assert_array_equal(pixels, np.repeat((levels >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_the_first_frame_counts():
    first, second = photograph(seed=1).quantize(32), photograph(seed=2).rotate(180).quantize(32)
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        data = save(first, kind, save_all=True, append_images=[second])
        with Image.open(io.BytesIO(data)) as image:
            assert image.n_frames == 2
        same(data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_is_undone(kind, orientation):
    data = save(photograph(), kind, exif=exif(orientation))
    assert read_header(data).size == ((HEIGHT, WIDTH) if orientation >= 5 else (WIDTH, HEIGHT))
    pixels = same(data)
    plain = decode(save(photograph(), kind))
    assert (pixels.shape == plain.shape and (pixels == plain).all()) == (orientation == 1)


def test_the_header_of_a_png_is_read_without_decoding(monkeypatch):
    plain, turned = save(photograph(), "PNG"), save(photograph(), "PNG", exif=exif(6))
    at = turned.index(b"eXIf") - 4
    chunk = turned[at : at + 12 + int.from_bytes(turned[at : at + 4], "big")]
    late = turned.replace(chunk, b"")
    late = late[:-12] + chunk + late[-12:]  # before IEND
    assert read_header(late).orientation == 6
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", None)
    assert (read_header(plain).orientation, read_header(turned).orientation) == (1, 6)
    with pytest.raises(ImageError, match="more than max_pixels=10"):
        read_header(late, max_pixels=10)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_progressive_or_cmyk_jpeg_is_turned_once(orientation):
    for image, options in ((photograph(), {"progressive": True}), (photograph().convert("CMYK"), {})):
        data = save(image, "JPEG", exif=exif(orientation), **options)
        assert read_header(data).orientation == orientation
        same(data)


def test_upright_is_a_view():
    stored = np.ascontiguousarray(photograph())
    for orientation in range(1, 9):
        assert np.shares_memory(upright(stored, orientation), stored)


def tiff_block(order, kind, orientation, thumbnail=b""):
    """An EXIF block: IFD0 with an orientation of type `kind`, and IFD1 with a thumbnail."""
    value = struct.pack(order + ("I" if kind == 4 else "HH"), *([orientation] if kind == 4 else [orientation, 0]))
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    first = struct.pack(order + "HHHI", 1, 0x0112, kind, 1) + value + struct.pack(order + "I", 26 if thumbnail else 0)
    if not thumbnail:
        return head + first
    entries = ((0x0112, 3, 1, 8 << (16 if order == ">" else 0)), (0x0201, 4, 1, 68), (0x0202, 4, 1, len(thumbnail)))
    second = struct.pack(order + "H", 3) + b"".join(struct.pack(order + "HHII", *entry) for entry in entries) + bytes(4)
    return head + first + second + thumbnail


@pytest.mark.parametrize("kind", [3, 4], ids=["SHORT", "LONG"])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_exif_of_either_byte_order_with_a_thumbnail(order, kind):
    thumbnail = save(photograph(8, 16), "JPEG", exif=exif(3))
    block = tiff_block(order, kind, 6, thumbnail)
    assert block[68:70] == b"\xff\xd8"
    data = save(photograph(), "JPEG", exif=b"Exif\0\0" + block)
    header = read_header(data)
    assert (header.width, header.height, header.orientation) == (WIDTH, HEIGHT, 6)
    same(data)


@pytest.mark.parametrize(
    "block",
    [
        *(b"", b"XX*\0\x08\0\0\0", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"MM\0*\0\0\0\x08\0"),
        *(tiff_block("<", 3, orientation) for orientation in (0, 9, 65535)),
    ],
)
def test_an_image_with_broken_exif_is_kept(block):
    plain = save(photograph(), "JPEG")
    app1 = b"Exif\0\0" + block
    data = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(app1) + 2) + app1 + plain[2:]
    assert read_header(data).orientation == 1
    np.testing.assert_array_equal(decode(data), decode(plain))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")  # TIFF warns before it fails
def test_truncated_images_are_refused(kind, share):
    data = save(photograph(), kind)
    with pytest.raises(ImageError):
        decode(data[: max(3, int(len(data) * share))])


def test_a_progressive_jpeg_without_its_last_scans_is_refused():
    data = save(photograph(), "JPEG", progressive=True)
    with pytest.raises(ImageError, match="truncated"):
        decode(data[: len(data) * 2 // 3])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"<html>not found</html>\n", "not an image in a format that Pillow knows"),
        (b"\xff\xd8", "not an image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "not an image|Truncated|truncated|cannot"),
    ],
)
def test_files_that_are_not_images(data, message):
    for read in (read_header, decode):
        with pytest.raises(ImageError, match=message):
            read(data)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_a_range_are_refused(mode):
    data = save(photograph().convert("L").convert(mode), "TIFF")
    with pytest.raises(ImageError, match=f"mode {mode} have no defined range"):
        decode(data)


def claim(kind, side):
    """A small file whose header claims `side` x `side`."""
    if kind == "JPEG":
        data = bytearray(save(photograph(), "JPEG"))
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", side, side)
        return bytes(data)

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("side", [10_000, 60_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_from_its_header(kind, side):
    data = claim(kind, side)
    row = {"inputs": np.zeros((8, 8, 3), np.uint8)}
    decoder = ImageDecoder(CenterCrop(size=8, resize=8))
    decoder.fill_row(memoryview(save(photograph(), kind)), (), row, Scratch())  # imports are not counted
    tracemalloc.start()
    try:
        for refuse in (lambda: read_header(data), lambda: decoder.fill_row(memoryview(data), (), row, Scratch())):
            with pytest.raises(ImageError, match=r"more (pixels )?than"):
                refuse()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def with_scans(side, count):
    """A progressive JPEG, gray and flat, whose last scan comes again, until there are `count`."""
    data = save(Image.new("L", (side, side), 99), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + data[-2:]


def test_the_scans_of_a_jpeg_have_a_budget():
    """A scan of a flat image takes some bytes, and the time of all its blocks: 800 KB would take 40 s."""
    side = 1000
    most = MOST_SCANNED // side**2
    assert read_header(with_scans(side, most)).size == (side, side)
    data = with_scans(side, most + 1)
    odd = data[:20] + b"\0\0" + data[20:]  # behind JFIF's segment: Pillow decides about its header
    row = {"inputs": np.zeros((8, 8, 3), np.uint8)}

    def fill(jpeg, compiled):
        ImageDecoder(CenterCrop(size=8, resize=8), compiled=compiled).fill_row(memoryview(jpeg), (), row, Scratch())

    for refused in (data, odd):
        calls = ((read_header,), (decode,), (fill, True), (fill, False), (open_image,), (decode_mask, (side, side)))
        for call, *others in calls:
            with pytest.raises(ImageError, match=r"1000 x 1000 pixels in more than 1,789 scans"):
                call(refused, *others)
    assert tile(data).jpeg == data
    same(with_scans(side, 12))
    assert read_header(save(photograph(), "JPEG", progressive=True) + b"\xff\xda" * 10**6).turbo  # behind its end


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_user_chooses_max_pixels(kind):
    data = save(photograph(), kind)
    assert read_header(data, WIDTH * HEIGHT).size == (WIDTH, HEIGHT)
    with pytest.raises(ImageError, match=f"{WIDTH} x {HEIGHT} pixels are more than max_pixels={WIDTH * HEIGHT - 1}"):
        read_header(data, WIDTH * HEIGHT - 1)


@pytest.mark.parametrize("size", [(1, 30_000), (30_000, 1)])
def test_a_strip_that_would_be_resized_to_gigabytes_is_refused(size):
    data = save(Image.new("RGB", size), "PNG")
    row = {"inputs": np.zeros((224, 224, 3), np.uint8)}
    with pytest.raises(ImageError, match="too long and thin"):
        ImageDecoder(CenterCrop(size=224, resize=256)).fill_row(memoryview(data), (), row, Scratch())
    ImageDecoder(RandomResizedCrop(size=224)).fill_row(memoryview(data), [0.5] * 22, row, Scratch())


def test_a_header_that_contradicts_the_pixels():
    data = save(photograph(), "PNG")
    with pytest.raises(ImageError, match=f"the header says 20 x 10 pixels, there are {WIDTH} x {HEIGHT}"):
        decode(data, read_header(save(photograph(20, 10), "PNG")))


def test_reused_scratch_gives_the_same_pixels():
    scratch = Scratch()
    images = [save(photograph(*size, seed=i), "JPEG") for i, size in enumerate([(64, 64), (9, 200), (1, 1), (200, 90)])]
    for data in images + images[::-1]:
        np.testing.assert_array_equal(decode(memoryview(data), None, scratch), by_pillow(data))
    held = scratch.nbytes
    for data in images:
        decode(data, None, scratch)
    assert scratch.nbytes == held
    bad = bytearray(images[3])
    bad[-200:-100] = bytes(100)
    with contextlib.suppress(ImageError):
        decode(bytes(bad), None, scratch)
    np.testing.assert_array_equal(decode(images[0], None, scratch), by_pillow(images[0]))


FUZZED = {
    "jpeg": lambda: save(photograph(), "JPEG", exif=exif(6)),
    "progressive": lambda: save(photograph(), "JPEG", progressive=True),
    "restarts": lambda: save(photograph(), "JPEG", restart_marker_blocks=1),
    "cmyk": lambda: save(photograph().convert("CMYK"), "JPEG"),
    "png": lambda: save(photograph(), "PNG"),
    "palette": lambda: palette(transparency=bytes(range(0, 256, 16))),
    "webp": lambda: save(photograph(), "WEBP", exif=exif(8)),
    "gif": lambda: save(photograph().quantize(16), "GIF"),
    "tiff": lambda: save(photograph(), "TIFF", compression="tiff_lzw", exif=exif(5)),
    "bmp": lambda: save(photograph(), "BMP"),
}


@pytest.mark.parametrize("name", FUZZED)
@pytest.mark.filterwarnings("ignore")  # Pillow's plugins warn about damage before they accept or refuse it
def test_damage_gives_pixels_or_an_image_error(name):
    whole = FUZZED[name]()
    rng = np.random.default_rng(sum(name.encode()))
    scratch, outcomes = Scratch(), {"pixels": 0, "refused": 0}
    row = {"inputs": np.zeros((8, 8, 3), np.uint8)}
    decoder = ImageDecoder(RandomResizedCrop(size=8), max_pixels=2**20)
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 5)):
            at = int(rng.integers(len(data) if rng.random() < 0.5 else min(len(data), 64)))
            match rng.integers(4):
                case 0:
                    data[at] = int(rng.integers(256))
                case 1:
                    data[at] ^= 1 << int(rng.integers(8))
                case 2:
                    del data[max(1, at) :]
                case 3:
                    data[at : at + int(rng.integers(8))] = rng.bytes(int(rng.integers(1, 8)))
        content = bytes(data)
        try:
            decoder.fill_row(memoryview(content), rng.random(22).tolist(), row, scratch)
            pixels = decode(content)
        except ImageError as error:
            assert str(error)
            outcomes["refused"] += 1
        else:
            assert pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8
            outcomes["pixels"] += 1
    assert min(outcomes.values()) > 0, outcomes
    np.testing.assert_array_equal(decode(whole, None, scratch), by_pillow(whole))


def test_heic_is_decoded_if_its_plugin_is_installed(heic, heif_plugin):
    for damaged in (heic()[:30], heic()):
        with pytest.raises(ImageError, match=r"^HEIC, readable after `pip install pillow-heif`$"):
            read_header(damaged)
    heif_plugin(installed=True)
    header = read_header(heic(3))
    assert (header.format, header.extension, header.size) == ("heif", "heif", (40, 32))
    assert decode(heic(3)).shape == (32, 40, 3)
    with pytest.raises(ImageError, match=r"^HEIC, damaged, or of a kind that its decoder does not support$"):
        read_header(heic()[:30])


@pytest.mark.usefixtures("heif_plugin")
@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1heicmiaf", "HEIC, readable after"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "AVIF, (damaged|readable after)"),
        (b"\xff\x0a\x98\xc0", "JPEG XL, readable after `pip install pillow-jxl-plugin`"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL, readable after"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "not an image in a format that Pillow knows"),
        (b"\xff\xff\xff\xffftyp", "not an image in a format that Pillow knows"),
        (b"none", "not an image in a format that Pillow knows"),
    ],
)
def test_formats_that_pillow_does_not_know_are_named(start, reason):
    with pytest.raises(ImageError, match=f"^{reason}"):
        read_header(start)
