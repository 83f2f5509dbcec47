"""Pillow opens what the docs list, within `max_pixels`, and in one place."""

import io
import struct
import threading
import zlib
from pathlib import Path

import pytest
from PIL import Image

from fastimg.loaders import CenterCrop, FilesDataset, Loader
from fastimg.loaders.decode import decode, decode_mask, read_header
from fastimg.loaders.errors import ImageError
from fastimg.loaders.folders.formats import image_extensions, undecodable_extensions
from fastimg.loaders.opening import MAX_PIXELS, check_pixels, open_image

pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")

HDF5 = b"\x89HDF\r\n\x1a\n"
GRIB, BUFR = b"GRIB\0\0\0\x01" + bytes(16), b"BUFR" + bytes(20)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"
WMF = b"\xd7\xcd\xc6\x9a\0\0" + struct.pack("<hhhhH", 0, 0, 100, 100, 72) + bytes(8) + b"\1\0\t\0" + bytes(18)
EMF = b"\1\0\0\0" + bytes(36) + b" EMF" + bytes(80)


def saved(kind, size=(9, 7), **options):
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 100, 50)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "BMP", "DIB", "GIF", "PPM", "WEBP", "TIFF", "JPEG2000", "TGA"])
def test_listed_formats_are_opened(kind):
    assert decode(saved(kind)).shape == (7, 9, 3)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        *[(EPS, "PostScript"), (WMF, "a Windows metafile"), (EMF, "a Windows metafile")],
        *[(HDF5, "HDF5"), (HDF5 + bytes(500), "HDF5"), (GRIB, "GRIB"), (BUFR, "BUFR"), (saved("ICO"), "an icon")],
    ],
)
def test_what_starts_programs_or_has_no_decoder_is_refused(data, name, monkeypatch, tmp_path):
    def never(*_, **__):
        raise AssertionError("started")

    monkeypatch.setattr("subprocess.Popen", never)
    monkeypatch.setattr("subprocess.check_call", never)
    Image.init()  # its plugins are known
    (tmp_path / "x.jpg").write_bytes(data)
    for refuse in (
        *(lambda: read_header(data), lambda: decode(data), lambda: open_image(tmp_path / "x.jpg")),
        lambda: decode_mask(data, (8, 8)),
    ):
        with pytest.raises(ImageError, match=f"{name}, which must be converted to JPEG or PNG first"):
            refuse()
    loader = Loader(FilesDataset(tmp_path, ["x.jpg"]), crop=CenterCrop(size=8, resize=8), batch_size=1, workers=1)
    for batch in loader:
        assert batch.weight.tolist() == [0.0]
    loader.close()


def test_extensions_are_those_of_the_formats():
    found, others = image_extensions(), undecodable_extensions()
    assert {".jpg", ".png", ".tif", ".webp", ".bmp", ".ppm", ".tga", ".qoi", ".pcx", ".mpo"} <= set(found)
    for extension in (".eps", ".ps", ".wmf", ".emf", ".h5", ".hdf", ".grib", ".bufr", ".mpg", ".psd", ".ico", ".fits"):
        assert extension not in found and extension not in set(found)
    assert others[".eps"] == "PostScript, which must be converted to JPEG or PNG first"
    assert {".wmf", ".h5", ".psd", ".ico"} <= set(others)


def test_an_image_of_no_width_or_height_is_refused():
    bmp = bytearray(saved("BMP"))
    for at in (18, 22):
        empty = bmp[:at] + bytes(4) + bmp[at + 4 :]
        with pytest.raises(ImageError, match=r"nothing to decode|not an image"):
            read_header(bytes(empty))
    for width, height in ((0, 5), (5, 0)):
        with pytest.raises(ImageError):  # Pillow, which does not check it for every format
            read_header(b"qoif" + struct.pack(">IIBB", width, height, 3, 0) + bytes(20))
        with pytest.raises(ImageError, match=f"{width} x {height} pixels: there is nothing to decode"):
            check_pixels(width, height, 10)


def claim(side):
    """A small PNG whose header claims `side` x `side` gray pixels of one bit."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", MAX_PIXELS)


@pytest.mark.usefixtures("limit")
def test_max_pixels_counts_above_pillows_limit():
    side = 20_000  # four times Pillow's limit, twice what it refuses
    with pytest.raises(
        ImageError, match=r"400,000,000 pixels are more than max_pixels=89478485; raise it if you trust"
    ):
        read_header(claim(side))
    assert Image.MAX_IMAGE_PIXELS == MAX_PIXELS
    assert read_header(claim(side), side * side).size == (side, side)
    with pytest.raises(ImageError, match="20000 x 20000 pixels are more than max_pixels=399999999"):
        read_header(claim(side), side * side - 1)


@pytest.mark.usefixtures("limit")
def test_the_limit_is_raised_by_all_threads_and_lowered_by_none():
    data, failures = claim(15_000), []

    def read(most):
        for _ in range(30):
            try:
                assert (most >= 225_000_000) == (read_header(data, most).width == 15_000)
            except ImageError as error:
                failures.append(most)
                assert "max_pixels" in str(error)

    threads = [threading.Thread(target=read, args=(most,)) for most in (1000, MAX_PIXELS, 225_000_000, 10**12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(failures)) == [1000, MAX_PIXELS] and len(failures) == 60
    assert Image.MAX_IMAGE_PIXELS == 10**12


def test_an_error_of_a_library_names_the_reason():
    with pytest.raises(ImageError, match="No such file"):
        open_image(Path("/nowhere/x.png"))
