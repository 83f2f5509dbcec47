"""PNG files in groups of rows: every reader gives the same pixels, and a crop takes only the groups that it touches."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image

from fastimg.loaders import CenterCrop, RandomResizedCrop
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.folders.deep_png import read_deep_png
from fastimg.loaders.pictures.grouped_png import Kept, group_rows
from fastimg.loaders.runtime.scratch import Scratch

from .picture_files import KINDS, SIGNATURE, chunk, png
from .test_picture_queue import assert_as_pillow, rest


def chunks(data):
    return [(part[4:8], part[8:-4]) for part in rest(data, 8)]


def pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image.mode, np.asarray(image), image.getpalette()


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning")
@pytest.mark.parametrize(("colour", "depth"), KINDS)
@pytest.mark.parametrize("smooth", [True, False])
def test_every_reader_gives_the_same_pixels(colour, depth, smooth):
    rng = np.random.default_rng(depth)
    data = png(rng, 61, 75, colour, depth, smooth=smooth, parts=3)
    made = group_rows(data, 16, 10)
    assert made.kept is None
    (mode, pixels, palette), (same, again, colours) = pillow(data), pillow(made.png)
    assert (mode, palette) == (same, colours) and np.array_equal(pixels, again)
    assert sum(name == b"IDAT" for name, _ in chunks(made.png)) == 5
    if depth == 8 or (depth < 8 and colour != 3):  # torchvision leaves smaller palettes packed
        read = [decode_image(torch.frombuffer(bytearray(each), dtype=torch.uint8)) for each in (data, made.png)]
        assert torch.equal(*read)
    elif depth == 16:
        assert np.array_equal(read_deep_png(data), read_deep_png(made.png))
        mode = ImageReadMode.UNCHANGED
        read = [decode_image(torch.frombuffer(bytearray(each), dtype=torch.uint8), mode) for each in (data, made.png)]
        assert torch.equal(*read)


def test_other_chunks_stay_as_they_are():
    rng = np.random.default_rng(1)
    before = [chunk(b"gAMA", struct.pack(">I", 45455)), chunk(b"pHYs", bytes(9)), chunk(b"tEXt", b"Title\0x")]
    behind = [chunk(b"tIME", bytes(7)), chunk(b"tEXt", b"Comment\0y")]
    data = png(rng, 40, 300, 3, 8, before=before, behind=behind)
    made = group_rows(data)
    assert made.kept is None
    others = [each for each in chunks(made.png) if each[0] not in (b"IDAT", b"fgRP")]
    assert others == [each for each in chunks(data) if each[0] != b"IDAT"]
    assert dict(chunks(made.png))[b"fgRP"] == struct.pack(">I", 64)


def test_what_is_not_rewritten():
    rng = np.random.default_rng(2)
    data = png(rng, 40, 300)
    bits = bytearray(data)
    bits[3000] ^= 1
    stream = b"".join(content for name, content in chunks(data) if name == b"IDAT")
    short = zlib.compress(zlib.decompress(stream)[:-1])
    flat = png(rng, 300, 256, 0, 1, scanlines=bytes(256 * 39), level=9)
    cases = {
        Kept.GROUPED: [group_rows(data).png],
        Kept.SMALL: [png(rng, 40, 192), png(rng, 1, 1)],
        Kept.INTERLACED: [data[:8] + chunk(b"IHDR", data[16:28] + b"\1") + data[33:]],
        Kept.ANIMATED: [data[:33] + chunk(b"acTL", bytes(8)) + data[33:]],
        Kept.COSTLY: [flat],
        Kept.DAMAGED: [bytes(bits), data[:-5], data[:33], data[:8], b"", SIGNATURE + chunk(b"IHDR", b"") + data[33:]],
    }
    cases[Kept.DAMAGED].append(data[:33] + chunk(b"IDAT", short) + chunk(b"IEND", b""))
    cases[Kept.DAMAGED].append(data[:33] + chunk(b"IDAT", zlib.compress(b"\7" * 300 * 121)) + chunk(b"IEND", b""))
    for reason, files in cases.items():
        for each in files:
            made = group_rows(each)
            assert made.kept == reason and made.png == each


def test_growth_is_small():
    rng = np.random.default_rng(3)
    noise = Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
    grown = {}
    for level in (1, 6, 9):
        buffer = io.BytesIO()
        noise.save(buffer, "PNG", compress_level=level)
        made = group_rows(buffer.getvalue())
        assert made.kept is None
        grown[level] = len(made.png) / len(buffer.getvalue())
    assert grown[1] < 1 and max(grown.values()) < 1.03


def write(folder, files):
    place = folder / "images" / "a"
    place.mkdir(parents=True)
    for number, data in enumerate(files):
        (place / f"{number:04}.png").write_bytes(data)
    return open_dataset(place.parent)


def test_crops_are_those_of_before(tmp_path):
    rng = np.random.default_rng(4)
    files = [png(rng, 90, 70, colour, depth, smooth=True) for colour, depth in KINDS]
    grouped = [group_rows(each, rows, 10).png for each in files for rows in (7, 16)]
    assert all(b"fgRP" in each for each in grouped)
    dataset = write(tmp_path, [*files, *grouped])
    for crop in (
        RandomResizedCrop(size=12),
        CenterCrop(size=20, resize=24),
        RandomResizedCrop(size=9, scale=(0.01, 0.1)),
    ):
        for channels in (3, 1):
            for epoch in range(3):
                assert assert_as_pillow(ImageDecoder(crop, channels=channels), dataset, epoch) == ([], 0)


def damaged(data, place):
    """The same with a changed byte in a chunk of pixels, whose checksum does not fit."""
    out, number = bytearray(data[:8]), -1
    for part in rest(data, 8):
        number += part[4:8] == b"IDAT"
        if part[4:8] == b"IDAT" and number == place:
            part = bytearray(part)
            part[40] ^= 1
        out += part
    return bytes(out)


@pytest.mark.parametrize("place", [0, 2, 4])
def test_damage_in_other_groups_is_not_looked_for(place, tmp_path):
    rng = np.random.default_rng(5)
    whole = group_rows(png(rng, 200, 160, smooth=True), 32, 10).png
    dataset = write(tmp_path, [damaged(whole, place)] * 24)
    crop = RandomResizedCrop(size=8, scale=(0.02, 0.3))
    decoder = ImageDecoder(crop)
    failed = 0
    for epoch in range(4):
        failures, _ = assert_as_pillow(decoder, dataset, epoch)
        touching = set()
        for number, row in enumerate(decoder.draw(1, epoch, np.arange(24)).tolist()):
            _, top, _, height = crop.window(200, 160, row).box
            if top < 32 * (place + 1) and top + height > 32 * place:
                touching.add(number)
        assert {number for number, _ in failures} == touching
        failed += len(failures)
    assert 0 < failed < 96


def marked(data, count):
    """The same with another number of rows for a group."""
    parts = [chunk(b"fgRP", struct.pack(">I", count)) if part[4:8] == b"fgRP" else part for part in rest(data, 8)]
    return data[:8] + b"".join(parts)


def test_wrong_marks_never_give_another_image(tmp_path):
    rng = np.random.default_rng(6)
    plain = png(rng, 50, 100, smooth=True)
    whole = group_rows(plain, 20, 10).png
    raw = zlib.decompress(b"".join(content for name, content in chunks(plain) if name == b"IDAT"))
    foreign = png(rng, 50, 100, scanlines=raw, parts=5)
    mark = chunk(b"fgRP", struct.pack(">I", 20))
    files = [
        *(marked(whole, count) for count in (0, 1, 19, 21, 24, 25, 50, 100, 1 << 31, (1 << 32) - 1)),
        foreign[:33] + mark + foreign[33:],  # whose chunks end anywhere
        whole[:33] + mark + whole[33:],
        whole[:33] + chunk(b"fgRP", b"123") + whole[33:],
    ]
    dataset = write(tmp_path, files)
    with Image.open(io.BytesIO(plain)) as image:
        expected = np.asarray(image)
    for crop in (CenterCrop(size=(100, 50), resize=(100, 50)), RandomResizedCrop(size=9)):
        for epoch in range(3):
            failures, _ = assert_as_pillow(ImageDecoder(crop), dataset, epoch)
            assert not failures or isinstance(crop, RandomResizedCrop)
    out = {"inputs": np.zeros((len(files), 100, 50, 3), np.uint8)}
    decoder = ImageDecoder(CenterCrop(size=(100, 50), resize=(100, 50)))
    places = list(range(len(files)))
    assert not decoder.fill(SampleReader(dataset), places, decoder.draw(0, 0, np.arange(len(files))), out, Scratch())
    assert (out["inputs"] == expected).all()
