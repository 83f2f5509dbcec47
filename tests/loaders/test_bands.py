"""The decoder of bands: crops of arrays, with the draws of images, resized as torchvision's v2 resizes floats."""

import io
import struct

import numpy as np
import pytest
import tifffile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional

from fastimg.loaders import CenterCrop, ImageDecoder, Letterbox, Loader, RandomResizedCrop
from fastimg.loaders.containers.fields import StoredField, packed_npy, unpacked_npy
from fastimg.loaders.decoders.bands import BandsDecoder
from fastimg.loaders.errors import ImageError
from fastimg.loaders.folders.bands import bands_head, check_ifds, read_bands
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.loaders.runtime.scratch import Scratch

DTYPES = ("uint8", "uint16", "float32")


def some(high, wide, bands=4, dtype="uint16", seed=0):
    values = np.random.default_rng(seed).integers(0, 256 if dtype == "uint8" else 60_000, (bands, high, wide))
    return values.astype(dtype)


def cut(decoder, array, draws):
    row = {field.name: np.full(field.shape, 7, field.dtype) for field in decoder.fields}
    decoder.fill_row(memoryview(packed_npy(array)), draws, row, Scratch())
    return row["inputs"]


@settings(max_examples=40)
@given(
    high=st.integers(5, 60),
    wide=st.integers(5, 60),
    bands=st.integers(1, 7),
    dtype=st.sampled_from(DTYPES),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    seed=st.integers(0, 2**20),
)
def test_crops_are_those_of_torchvision(high, wide, bands, dtype, interpolation, seed):
    array = some(high, wide, bands, dtype, seed)
    crop = RandomResizedCrop(size=(9, 14), scale=(0.2, 0.9), interpolation=interpolation)
    draws = np.random.default_rng(seed).random(crop.draws).tolist()
    x, y, width, height = crop.window(wide, high, draws).box
    box = torch.from_numpy(array[:, y : y + height, x : x + width].astype(np.float32))
    mode = functional.InterpolationMode(interpolation)
    want = functional.resize(box, [9, 14], interpolation=mode, antialias=True)
    if dtype != "float32":
        want = want.round().clamp(0, np.iinfo(dtype).max)
    seen = cut(BandsDecoder(crop, bands, dtype), array, draws)
    assert (seen == want.permute(1, 2, 0).numpy().astype(dtype)).all()


@pytest.mark.parametrize(
    "crop", [RandomResizedCrop(size=20, scale=(0.1, 0.5)), CenterCrop(size=16, resize=18), Letterbox(size=24)]
)
def test_bands_have_the_pixels_of_an_image_of_16_bits(crop):
    levels = some(40, 33, 1)
    file = io.BytesIO()
    Image.fromarray(levels[0]).save(file, "PNG")
    image, bands = ImageDecoder(crop, channels=1, depth=16), BandsDecoder(crop, 1, "uint16")
    ids = np.array([3, 8])
    assert (image.draw(5, 2, ids) == bands.draw(5, 2, ids)).all()
    for draws in image.draw(5, 2, ids).tolist():
        row = {"inputs": np.zeros(image.fields[0].shape, np.uint16)}
        image.fill_row(memoryview(file.getvalue()), draws, row, Scratch())
        inside = cut(bands, levels, draws)
        beyond = inside == 0  # an image is padded with gray, bands with 0
        assert (np.where(beyond, row["inputs"], inside) == row["inputs"]).all() and not beyond.all()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (some(9, 9, bands=5), "it has 5 bands, and the model reads 4"),
        (some(9, 9, dtype="uint8"), "its bands are uint8, and the model reads uint16"),
        (some(40, 40), "40 x 40 pixels are more than max_pixels=1000"),
    ],
)
def test_arrays_of_another_kind_are_named(array, words):
    decoder = BandsDecoder(CenterCrop(size=8, resize=8), 4, "uint16", max_pixels=1000)
    with pytest.raises(ImageError, match=words):
        cut(decoder, array, ())


def test_values_that_are_no_numbers_are_named():
    array = some(9, 9, dtype="float32")
    array[2, 3, 3:5] = np.nan, np.inf
    with pytest.raises(ImageError, match="2 of its 324 values are NaN or infinite, the first of them in band 2"):
        cut(BandsDecoder(CenterCrop(size=8, resize=8), 4, "float32"), array, ())
    with pytest.raises(ValueError, match="dtype='int16': give one of uint8, uint16, float32"):
        BandsDecoder(CenterCrop(size=8, resize=8), 4, "int16")


def test_files_of_several_sizes_are_one_batch_and_bad_ones_are_skipped(tmp_path):
    for number, size in enumerate([(20, 30), (31, 18), (16, 16)]):
        np.save(tmp_path / f"{number}.npy", some(*size, seed=number))
    (tmp_path / "3.tif").write_bytes(b"II*\0damaged")
    files = FilesDataset(tmp_path, ["0.npy", "1.npy", "2.npy", "3.tif"])
    decoder = BandsDecoder(CenterCrop(size=16, resize=16), 4, "uint16")
    with Loader(files, decoder, batch_size=4, workers=1, order="sequential") as loader:
        batch = next(iter(loader))
        assert batch.inputs.shape == (4, 4, 16, 16) and batch.inputs.dtype == torch.uint16
        assert batch.weight.tolist() == [1, 1, 1, 0] and "cannot be read by tifffile" in loader.unreadable[3]
        assert (batch.inputs[2].numpy() == some(16, 16, seed=2)).all()


def chain(count, back, order="<"):
    """A TIFF of directories without entries, 6 bytes each, of which the last leads back to number `back`."""
    links = [8 + 6 * (number + 1) for number in range(count - 1)] + [0 if back is None else 8 + 6 * back]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return head + b"".join(struct.pack(order + "HI", 0, link) for link in links)


def directory(entries, follows=0):
    """A directory of a TIFF, of (tag, type, count, value) of one value each."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return struct.pack("<H", len(entries)) + body + struct.pack("<I", follows)


@pytest.mark.parametrize(
    "data",
    [
        *(chain(134, back, order) for back in (0, 50, 133) for order in "<>"),
        b"II*\0" + struct.pack("<I", 8) + directory([(256, 4, 1, 9), (330, 4, 1, 8)]),  # its own part
        b"II*\0" + struct.pack("<IHI", 8, 0xFFFF, 8) + bytes(40),  # of more entries than there are bytes
        b"II+\0\x08\0\0\0" + struct.pack("<QQQ", 16, 0, 16),  # BigTIFF
    ],
)
def test_a_tiff_whose_directories_lead_in_a_circle_is_refused(data):
    """tifffile looks for circles after a hundred directories only, and goes round for ever."""
    for read in (read_bands, lambda data, name: bands_head(io.BytesIO(data), name)):
        with pytest.raises(ImageError, match="a TIFF whose directories lead in a circle, or overlap"):
            read(data, "x.tif")


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", "<>")
def test_pages_and_parts_of_sound_tiffs_are_read(big, order, tmp_path):
    bands = some(40, 30, bands=150)
    with tifffile.TiffWriter(tmp_path / "x.tif", bigtiff=big, byteorder=order) as file:
        for band in bands:
            file.write(band, photometric="minisblack", subifds=2, contiguous=False)
            for _ in range(2):
                file.write(band[::2, ::2], photometric="minisblack", subfiletype=1)
    for content in (tmp_path / "x.tif", (tmp_path / "x.tif").read_bytes()):
        assert (read_bands(content, "x.tif")[:, :, :] == bands[: len(read_bands(content, "x.tif"))]).all()
    check_ifds(io.BytesIO((tmp_path / "x.tif").read_bytes()))


def test_a_tiff_that_states_more_than_it_can_hold_is_refused():
    def claim(side):
        strip = [(273, 4, 1, 8), (279, 4, 1, 4)]
        return (
            b"II*\0"
            + struct.pack("<I", 8)
            + directory(
                [
                    (256, 4, 1, side),
                    (257, 4, 1, side),
                    (258, 3, 1, 8),
                    (259, 3, 1, 1),
                    (262, 3, 1, 1),
                    (277, 3, 1, 1),
                    *strip,
                ]
            )
        )

    with pytest.raises(ImageError, match=r"states uint8 \[1, 100000, 100000\], which no file of 110 bytes holds"):
        read_bands(claim(100_000), "x.tif")
    decoder = BandsDecoder(CenterCrop(size=8, resize=8), 1, "uint8", max_pixels=1000)
    row = {"inputs": np.zeros((8, 8, 1), np.uint8)}
    with pytest.raises(ImageError, match="40 x 40 pixels are more than max_pixels=1000"):
        decoder.fill_row(memoryview(claim(40)), (), row, Scratch())


def tiff(array, **options):
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, photometric="minisblack", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("compression", ["zlib", "lzma"])
def test_errors_of_codecs_are_those_of_the_image(compression):
    whole = tiff(some(40, 40, bands=3), compression=compression)
    with tifffile.TiffFile(io.BytesIO(whole)) as file:
        at = file.pages[0].dataoffsets[0]
    damaged = whole[: at + 20] + bytes(200) + whole[at + 220 :]
    with pytest.raises(ImageError, match="cannot be read by tifffile"):
        read_bands(damaged, "x.tif")


@pytest.mark.filterwarnings("ignore")
def test_any_byte_of_a_header_may_be_damaged(caplog):
    """The result is an array or an ImageError, and never another library's error."""
    caplog.set_level("CRITICAL")
    whole = tiff(some(4, 6, bands=3))
    outcomes = {"arrays": 0, "refused": 0}
    for at in range(4, 200):
        for value in (0, 1, 2, 255):
            damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
            try:
                array = read_bands(damaged, "x.tif", 1000)
            except ImageError:
                outcomes["refused"] += 1
            else:
                assert array.ndim == 3
                outcomes["arrays"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_samples_of_a_depth_that_there_is_not():
    """tifffile gives an array of another shape than it states."""
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.zeros((20, 30, 3), np.uint16), photometric="rgb")
    depths = struct.pack("<HHH", 16, 16, 16)
    assert buffer.getvalue().count(depths) == 1
    with pytest.raises(ImageError, match=r"cannot be read|holds \[0, 20, 30, 3\], and states \[20, 30, 3\]"):
        read_bands(buffer.getvalue().replace(depths, struct.pack("<HHH", 4096, 4096, 31488)), "x.tif")


def test_a_lack_of_memory_is_that_of_the_image(monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(tifffile.TiffPageSeries, "asarray", fail)
    with pytest.raises(ImageError, match="it needs more memory than there is"):
        read_bands(tiff(some(4, 4, bands=3)), "x.tif")


def test_a_field_whose_height_and_width_vary():
    schema = StoredField(name="b", kind="array", dtype="uint16", shape=(4, 0, 0), geometry="bands")
    assert schema.varies and StoredField.of_json(schema.to_json()) == schema
    for size in ((3, 5), (7, 2)):
        assert (unpacked_npy(schema, packed_npy(some(*size))) == some(*size)).all()
    with pytest.raises(ValueError, match=r"\[5, 3, 5\] is not \[4, height, width\]"):
        unpacked_npy(schema, packed_npy(some(3, 5, bands=5)))
    with pytest.raises(ValueError, match="shape"):
        StoredField.of_json({**schema.to_json(), "geometry": None})
