"""Crops of WebPs in compiled calls of Pillow's own libwebp: the rows that Pillow and torch make of them."""

import io
import struct
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import CenterCrop, Loader, RandomResizedCrop
from fastimg.loaders.crop import RandomCrop
from fastimg.loaders.decode import decode_box, read_header
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders import picture_queue
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.pictures import libwebp
from fastimg.loaders.pictures.libwebp import decode_box_alone, webp_decoder
from fastimg.loaders.runtime import compiled
from fastimg.loaders.runtime.scratch import Scratch

from .mutations import webp_chunks, webp_file
from .picture_files import webp, webps
from .test_picture_queue import ALL, assert_as_pillow, filled

pytestmark = pytest.mark.skipif(not webp_decoder(), reason="Pillow's libwebp is not found")


def pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def sizes(rng, count):
    return [*((w, h) for w in (1, 2, 3, 15, 16, 17) for h in (1, 4, 5, 9)), *rng.integers(1, 90, (count, 2)).tolist()]


def test_every_kind(folder):
    rng = np.random.default_rng(0)
    dataset = folder(webps(rng, sizes(rng, 56)))
    crops = [
        *(RandomResizedCrop(size=size, interpolation=how) for size in (7, (24, 10)) for how in ("bilinear", "bicubic")),
        CenterCrop(size=16, resize=16),
    ]
    for channels in (3, 1):
        for crop in crops:
            for epoch in range(2):
                assert assert_as_pillow(ImageDecoder(crop, channels=channels), dataset, epoch) == ([], 0)
        mirrored = RandomCrop(size=16, padding=4)
        assert assert_as_pillow(ImageDecoder(mirrored, channels=channels), dataset)[0] == []


def test_what_keeps_its_size(folder):
    rng = np.random.default_rng(1)
    dataset = folder(webps(rng, [(28, 28)] * 24))
    for crop in (CenterCrop(size=28, resize=28), CenterCrop(size=(20, 28), resize=28), RandomCrop(size=28, padding=3)):
        for channels in (3, 1):
            assert assert_as_pillow(ImageDecoder(crop, channels=channels), dataset) == ([], 0)


def test_boxes_are_those_of_the_whole_picture():
    rng = np.random.default_rng(2)
    for data in webps(rng, sizes(rng, 40)):
        whole = pillow(data)
        height, width, _ = whole.shape
        for _ in range(20):
            x, y = rng.integers(width), rng.integers(height)
            box = (int(x), int(y), int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1)))
            pixels, (left, top) = decode_box_alone(data, (width, height), box)
            part = pixels[top : top + box[3], left : left + box[2]]
            np.testing.assert_array_equal(part, whole[y : y + box[3], x : x + box[2]])


def changed(data, at, value):
    out = bytearray(data)
    out[at : at + len(value)] = value
    return bytes(out)


def odd_files():
    """Files that are unusual or damaged, by name."""
    rng = np.random.default_rng(3)
    lossy, lossless = webp(rng, 20, 30), webp(rng, 20, 30, lossless=True)
    alpha = webp(rng, 20, 30, alpha=True)
    full = webp(rng, 20, 30, alpha=True, orientation=1, icc_profile=b"profile", xmp=b"<x/>")
    chunks = webp_chunks(full)
    names = [name for name, _ in chunks]
    assert names == [b"VP8X", b"ICCP", b"ALPH", b"VP8 ", b"EXIF", b"XMP "]
    content = dict(chunks)
    frames = io.BytesIO()
    images = [Image.fromarray(rng.integers(0, 256, (30, 20, 3), np.uint8)) for _ in range(3)]
    images[0].save(frames, "WEBP", save_all=True, append_images=images[1:])

    def without(*left):
        return webp_file([each for each in chunks if each[0] not in left])

    def other(**values):
        return webp_file([[name, values.get(name.decode().strip(), part)] for name, part in chunks])

    def flags(value):
        return other(VP8X=bytes([value]) + content[b"VP8X"][1:])

    exif = content[b"EXIF"]
    return {
        "lossy": lossy,
        "lossless": lossless,
        "alpha": alpha,
        "full": full,
        "several frames": frames.getvalue(),
        **{f"orientation {n}": webp(rng, 20, 30, orientation=n) for n in range(2, 9)},
        "orientation 9": webp(rng, 20, 30, orientation=9),
        "turned by XMP": webp(rng, 20, 30, xmp=b'<x tiff:Orientation="6"/>'),
        "much XMP": webp(rng, 20, 30, xmp=b" " * 70_000),
        "the name of EXIF": other(EXIF=b"Exif\0\0" + exif),
        "other EXIF": other(EXIF=b"other" * 9),
        "short EXIF": other(EXIF=exif[:9]),
        "EXIF whose entries end early": other(EXIF=changed(exif, 8, b"\x7f\x7f")),
        "no EXIF": without(b"EXIF"),
        "no XMP": without(b"XMP "),
        "no profile": without(b"ICCP"),
        "no alpha": without(b"ALPH"),
        "no pixels": without(b"VP8 "),
        "no VP8X": without(b"VP8X"),
        "only VP8X": webp_file(chunks[:1]),
        "two of pixels": webp_file([*chunks, chunks[3]]),
        "two of EXIF": webp_file([*chunks, chunks[4]]),
        "an unknown chunk": webp_file([*chunks, [b"abcd", b"1"]]),
        "an unknown chunk first": webp_file([chunks[0], [b"abcd", b"1"], *chunks[1:]]),
        "another order": webp_file([chunks[0], *chunks[:0:-1]]),
        "a chunk behind a simple one": webp_file([*webp_chunks(lossy), [b"EXIF", exif]]),
        **{f"flags {value}": flags(value) for value in (0, 2, 4, 8, 16, 32, 60, 62, 255)},
        "another canvas": other(VP8X=changed(content[b"VP8X"], 4, b"\x14")),
        "a large canvas": other(VP8X=changed(content[b"VP8X"], 4, b"\xff" * 6)),
        "VP8X of 9 bytes": other(VP8X=content[b"VP8X"][:9]),
        "no bytes of alpha": other(ALPH=b""),
        "other alpha": other(ALPH=b"\x01" + bytes(9)),
        "bytes behind": lossy + b"more",
        "cut short": lossy[:-9],
        "lossless, cut short": lossless[:-9],
        "cut short, lengths fit": webp_file([[b"VP8 ", webp_chunks(lossy)[0][1][:-30]]]),
        "lossless, cut short, lengths fit": webp_file([[b"VP8L", webp_chunks(lossless)[0][1][:-30]]]),
        "a length of 2^32 - 1": changed(lossy, 4, b"\xff" * 4),
        "a chunk of 2^32 - 1 bytes": changed(lossy, 16, b"\xff" * 4),
        "no key frame": changed(lossy, 20, bytes([lossy[20] | 1])),
        "profile 7": changed(lossy, 20, bytes([lossy[20] | 14])),
        "not shown": changed(lossy, 20, bytes([lossy[20] & ~16])),
        "a partition of 2^19 bytes": changed(lossy, 20, struct.pack("<I", 0x7FFFF0 | lossy[20])[:3]),
        "no width": changed(lossy, 26, b"\0\0"),
        "no height": changed(lossy, 28, b"\0\0"),
        "scaled": changed(lossy, 27, bytes([lossy[27] | 0x40])),
        "wider": changed(lossy, 26, b"\x25"),
        "as large as can be": changed(lossy, 26, b"\xff\x3f\xff\x3f"),
        "lossless, as large as can be": changed(lossless, 21, b"\xff\xff\xff\x0f"),
        "lossless of another version": changed(lossless, 24, bytes([lossless[24] | 0x20])),
        "lossless, another signature": changed(lossless, 20, b"\x30"),
        "altered codes": changed(lossless, 30, b"\xff\0\xff\0\xff"),
        "altered pixels": changed(lossy, 60, b"\xff\0\xff\0\xff"),
        "only a start": lossy[:12],
        "less than a header": lossy[:25],
    }


TAKEN = {"lossy", "lossless", "alpha", "full", "the name of EXIF", "scaled", "altered pixels"}
REFUSED = {"cut short", "cut short, lengths fit", "lossless, cut short, lengths fit", "no pixels", "no key frame"}


@pytest.mark.parametrize("crop", [RandomResizedCrop(size=8, scale=(0.1, 0.3)), ALL])
@pytest.mark.parametrize("channels", [3, 1])
def test_odd_files_are_as_pillow_has_them(crop, channels, folder):
    files = odd_files()
    dataset = folder(files.values())
    names = list(files)
    decoder = ImageDecoder(crop, channels=channels)
    for epoch in range(3 if crop is not ALL else 1):
        failures, others = assert_as_pillow(decoder, dataset, epoch)
        if crop is ALL:
            refused = {names[place] for place, _ in failures}
            assert not refused & TAKEN and refused >= REFUSED
            assert others <= len(files) - len(TAKEN)


def test_damage_below_the_crop_is_not_looked_for(folder):
    rng = np.random.default_rng(4)
    files = []
    for options in ({}, {"lossless": True}, {"alpha": True}):
        (*before, (name, content)) = webp_chunks(webp(rng, 300, 300, **options))
        files.append(webp_file([*before, [name, content[: len(content) * 2 // 3]]]))
    dataset = folder(files * 8)
    decoder = ImageDecoder(RandomResizedCrop(size=8, scale=(0.02, 0.05)))
    failed = 0
    for epoch in range(3):
        failures, _ = assert_as_pillow(decoder, dataset, epoch)
        failed += len(failures)
    assert 0 < failed < 3 * 24


def test_damage_is_named_without_machine_code_in_the_same_crops(folder, build, monkeypatch):
    rng = np.random.default_rng(5)
    ((name, content),) = webp_chunks(webp(rng, 200, 200, lossless=True))
    dataset = folder([webp_file([[name, content[: len(content) // 2]]])] * 20)

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


def test_a_box_of_a_damaged_gray_one_is_as_pillow_converts_it():
    rng = np.random.default_rng(6)
    whole = webp(rng, 60, 90)
    ((name, content),) = webp_chunks(whole)
    damaged = webp_file([[name, content[: len(content) // 2]]])
    pixels, (x, y, *_) = decode_box(damaged, read_header(damaged), (11, 3, 40, 20), channels=1)
    expected = np.asarray(Image.fromarray(pillow(whole)).convert("L"))[3:23, 11:51]
    np.testing.assert_array_equal(pixels[y : y + 20, x : x + 40, 0], expected)


def test_larger_ones_than_allowed_are_refused(folder):
    rng = np.random.default_rng(7)
    decoder = ImageDecoder(ALL, max_pixels=500)
    failures, _ = assert_as_pillow(decoder, folder([webp(rng, 20, 25), webp(rng, 20, 26)]))
    assert [place for place, _ in failures] == [1]


def test_what_takes_too_much_memory_is_left_to_pillow(folder):
    large, small = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (4100, 4100), "red").save(large, "WEBP", lossless=True)
    Image.new("RGB", (410, 410), "red").save(small, "WEBP", lossless=True)
    dataset = folder([large.getvalue(), small.getvalue()])
    assert filled(ImageDecoder(RandomResizedCrop(size=8)), dataset)[1:] == ([], 1)


def test_without_the_library_pillow_decodes(folder, monkeypatch):
    rng = np.random.default_rng(9)
    dataset = folder(webps(rng, [(20, 30)] * 8))
    expected = filled(ImageDecoder(ALL), dataset)
    assert expected[1:] == ([], 0)
    monkeypatch.setattr(picture_queue, "webp_decoder", lambda: 0)
    rows, failures, others = filled(ImageDecoder(ALL), dataset)
    assert (failures, others) == ([], 8) and np.array_equal(rows, expected[0])


@pytest.mark.parametrize("missing", ["WebPDecode", "WebPInitDecoderConfigInternal", "the library", "its struct"])
def test_a_library_that_is_not_known(missing, monkeypatch):
    class Library:
        def __getattr__(self, name):
            if name == missing:
                raise AttributeError(name)
            return lambda *_: 1  # which leaves the struct as it is

    def load(path):
        if missing == "the library":
            raise OSError(path)
        return Library()

    monkeypatch.setattr(libwebp.ctypes, "CDLL", load)
    assert libwebp.webp_decoder.__wrapped__() == 0


def test_several_threads_at_once(folder):
    rng = np.random.default_rng(10)
    dataset = folder(webps(rng, rng.integers(1, 120, (64, 2)).tolist()))
    decoder = ImageDecoder(RandomResizedCrop(size=16))
    expected = filled(decoder, dataset)[0]
    made = {}

    def fill(number):
        rows = {"inputs": np.zeros((64, 16, 16, 3), np.uint8)}
        draws = decoder.draw(1, 0, np.arange(64))
        scratch = Scratch()
        for _ in range(10):
            assert not decoder.fill(SampleReader(dataset), list(range(64)), draws, rows, scratch)
        made[number] = rows["inputs"]

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6 and all(np.array_equal(rows, expected) for rows in made.values())


def test_from_a_folder_and_from_shards(tmp_path):
    rng = np.random.default_rng(11)
    files = webps(rng, [(40, 30)] * 32)
    (tmp_path / "files" / "a").mkdir(parents=True)
    for number, data in enumerate(files):
        (tmp_path / "files" / "a" / f"{number:03}.webp").write_bytes(data)
    convert(Convert(src=tmp_path / "files", dst=tmp_path / "shards"), Console(quiet=True))
    expected = sorted(int(pillow(data)[:, 5:35].astype(int).sum()) for data in files)
    for place in ("files", "shards"):
        with Loader(tmp_path / place, batch_size=8, crop=CenterCrop(size=30, resize=30), order="sequential") as loader:
            loader.compile()
            rows = torch.cat([batch.inputs[: batch.samples].clone() for batch in loader]).numpy()
        assert sorted(int(row.astype(int).sum()) for row in rows) == expected
