"""The cases of test_fuzz.py, by kind: how mutated files are made, and what must hold when they are read."""

import contextlib
import io
import json
import random
import re
import tarfile

import numpy as np
import simplejpeg
from mutations import (
    beton_fields,
    idx_fields,
    jpeg_fields,
    mutated,
    near,
    npy_fields,
    png_fields,
    tar_fields,
    webp_fields,
)
from picture_files import KINDS as PNG_KINDS
from picture_files import bmp, chunk, png, ppm, tiff, webps
from PIL import Image

MAX_PIXELS = 1 << 18


def refused(function, *arguments):
    """The result; None if it raises an error meant for users."""
    from fastimg.loaders.errors import DataError

    try:
        return function(*arguments)
    except DataError as error:
        assert str(error)
        return None


def strictly(data):
    """libjpeg-turbo's pixels, None if it warns; Pillow's if TurboJPEG does not support the subsampling."""
    try:
        return simplejpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError as error:
        if "subsampling level" not in str(error):
            return None
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image)
    except OSError:
        return None


def jpegs():
    """Small JPEGs of every kind, and the same ones tiled."""
    from fastimg.loaders.jpeg.rewriting.tiles import tile

    rng = np.random.default_rng(0)
    pixels = np.clip(rng.normal(128, 40, (37, 67, 3)), 0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    thumbnail = simplejpeg.encode_jpeg(pixels[:16, :16].copy(), 50)
    found = [simplejpeg.encode_jpeg(pixels, 60, "RGB", sampling) for sampling in ("444", "422", "420", "440", "411")]
    found.append(simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), 60, "GRAY", "Gray"))
    for mode in ("RGB", "L", "CMYK"):
        for options in (
            {"progressive": True},
            {"optimize": True, "exif": exif.tobytes() + thumbnail},
            {"restart_marker_blocks": 2, "icc_profile": b"profile" * 20},
            {"progressive": True, "comment": b"a comment", "subsampling": 2},
        ):
            buffer = io.BytesIO()
            Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", quality=60, **options)
            found.append(buffer.getvalue())
    return found + [tile(data, 16).jpeg for data in found]


class Jpegs:
    """Tiled to the same pixels; a crop equals that of the whole; every decoded image has its header's size."""

    def __init__(self, folder):
        from fastimg.loaders.jpeg.rewriting import tiles

        tiles.MAX_COST = float("inf")
        self.seeds = jpegs()
        self.untiled = self.seeds[: len(self.seeds) // 2]
        self.tiled = 0

    def make(self, draw):
        seeds = self.untiled if draw.random() < 0.7 else self.seeds
        return mutated(draw.choice(seeds), self.seeds, draw, jpeg_fields)

    def check(self, data, draw):
        from fastimg.loaders.decode import decode, decode_box, read_header
        from fastimg.loaders.jpeg.rewriting.tiles import tile
        from fastimg.loaders.runtime.scratch import Scratch

        made = tile(data, 16, MAX_PIXELS)
        if made.kept is None:
            self.tiled += 1
            before, after = strictly(data), strictly(made.jpeg)
            assert before is not None, "tiled, although libjpeg warns of the original"
            assert after is not None and np.array_equal(before, after)
        else:
            assert made.jpeg == data
        for jpeg in {data, made.jpeg}:
            header = refused(read_header, jpeg, MAX_PIXELS)
            if header is None:
                continue
            width, height = header.size
            x, y = draw.randrange(width), draw.randrange(height)
            box = (x, y, draw.randrange(1, width - x + 1), draw.randrange(1, height - y + 1))
            whole = refused(decode, jpeg, header, Scratch())
            found = refused(decode_box, jpeg, header, box, Scratch())
            assert whole is None or whole.shape == (height, width, 3)
            if found is not None:
                part, (left, top, *size) = found
                cut = part[top : top + size[1], left : left + size[0]]
                assert cut.shape == (box[3], box[2], 3)
                if strictly(jpeg) is not None and header.turbo:
                    assert np.array_equal(cut, whole[y : y + box[3], x : x + box[2]])

    def close(self):
        return f"{self.tiled} tiled"


def pictures():
    """Small PNG, BMP, PPM and TIFF files of every kind."""
    from fastimg.loaders.pictures.grouped_png import group_rows

    rng = np.random.default_rng(0)
    found = []
    for colour, depth in PNG_KINDS:
        for number, (width, height) in enumerate(((37, 29), (9, 40), (120, 3))):
            before = (chunk(b"iCCP", b"name\0\0x"), chunk(b"tEXt", b"Title\0a"), chunk(b"gAMA", bytes(4)))[number:]
            found.append(png(rng, width, height, colour, depth, before=before, parts=1 + number, smooth=number != 1))
    found += [group_rows(each, 16, 10).png for each in found[::2]]
    for bits in (8, 24, 32):
        found += [bmp(rng, 21, 17, bits), bmp(rng, 18, 30, bits, 124, down=True, colours=5)]
    for number, kind in enumerate(("L", "LA", "P", "RGB", "RGBA", "RGBX")):
        found += [tiff(rng, 21, 17, kind, number % 2 == 0, rows) for rows in (None, 4)]
    return [*found, ppm(rng, 21, 17), ppm(rng, 30, 8, gray=True)]


class Pictures:
    """Crops, views and masks by compiled code equal those by Pillow, or both are refused."""

    fields = staticmethod(png_fields)

    def __init__(self, folder):
        from fastimg.loaders import CenterCrop, ImageDecoder, RandomResizedCrop, View, ViewDecoder

        self.seeds = self.files()
        self.taken = self.masks = 0
        crops = (CenterCrop(size=9, resize=9), RandomResizedCrop(size=8), CenterCrop(size=21, resize=(23, 21)))
        views = (View(crop=8, n=2, scale=(0.05, 0.3)), View(crop=crops[2]))
        self.decoders = [ImageDecoder(crop, MAX_PIXELS, channels=c) for crop in crops for c in (1, 3)]
        self.decoders += [ViewDecoder(views, MAX_PIXELS, channels=c) for c in (1, 3)]
        for number, seed in enumerate(self.seeds):  # whatever they need is compiled before memory is limited
            self.check(seed, random.Random(number))
        self.taken = self.masks = 0

    def files(self):
        return pictures()

    def make(self, draw):
        return mutated(draw.choice(self.seeds), self.seeds, draw, self.fields)

    def check(self, data, draw):
        from fastimg.loaders.decoders.picture_queue import PictureQueue
        from fastimg.loaders.decoders.view_cuts import ViewCuts
        from fastimg.loaders.runtime.scratch import Scratch

        for decoder in self.decoders[draw.randrange(2) :: 2]:
            draws = np.array([[draw.random() for _ in range(decoder.draw(0, 0, np.zeros(1, int)).shape[1])]])
            made = []
            for use in (True, False):
                rows = {field.name: np.full((1, *field.shape), 7, np.uint8) for field in decoder.fields}
                kept = PictureQueue.add_group, ViewCuts.decode
                if not use:
                    PictureQueue.add_group = ViewCuts.decode = lambda self, encoded, places, *_: places
                try:
                    failures = decoder.fill(InMemory(data), [0], draws, rows, Scratch())
                finally:
                    PictureQueue.add_group, ViewCuts.decode = kept
                made.append((None if failures else rows, [str(error) for _, error in failures]))
            (ours, told), (theirs, said) = made
            assert told == said, (told, said)
            assert (ours is None) == (theirs is None)
            assert ours is None or all(np.array_equal(ours[name], theirs[name]) for name in ours)
            self.taken += ours is not None
        self.check_mask(data, draw)

    def check_mask(self, data, draw):
        """Where compiled code decodes it, a mask is Pillow's."""
        from fastimg.loaders import RandomResizedCrop
        from fastimg.loaders.decode import decode_mask_box
        from fastimg.loaders.decoders.geometry import CropView, crop_mask
        from fastimg.loaders.decoders.mask_queue import MaskQueue
        from fastimg.loaders.runtime.scratch import Scratch

        size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        if data[:4] != b"\x89PNG" or not 0 < size[0] * size[1] <= MAX_PIXELS:
            return
        crop = RandomResizedCrop(size=(12, 9), scale=(0.05, 1))
        window = crop.window(*size, [draw.random() for _ in range(crop.draws)])
        queue, out = MaskQueue(), np.full((12, 9), 7, draw.choice((np.uint8, np.int32)))
        assert queue.add(data, CropView(window, out.shape, size, False, 255, "bilinear"), min(2, out.itemsize), out)
        if queue.run(Scratch()):
            return
        mask, box = decode_mask_box(data, size, window.box)
        expected = np.zeros_like(out)
        crop_mask(window._replace(box=box), mask, 255, False, expected)
        assert np.array_equal(out, expected)
        self.masks += 1

    def close(self):
        return f"{self.taken} crops, {self.masks} masks"


class WebPs(Pictures):
    """The same of WebPs."""

    fields = staticmethod(webp_fields)

    def files(self):
        return webps(np.random.default_rng(0), [(37, 29), (9, 40), (70, 3), (33, 65), (1, 1)] * 8)


def deep_pictures():
    """Small PNG, PGM and TIFF files of 16 bits of every kind."""
    from fastimg.loaders.pictures.grouped_png import group_rows

    rng = np.random.default_rng(0)
    found = []
    for colour, depth in PNG_KINDS:
        if depth == 16:
            for number, (width, height) in enumerate(((37, 29), (9, 40), (70, 3), (1, 1))):
                found.append(png(rng, width, height, colour, 16, parts=1 + number, smooth=number != 1))
    found += [group_rows(each, 16, 10).png for each in found[::2]]
    for number, (kind, rows) in enumerate((kind, rows) for kind in ("L", "RGB", "LA", "RGBA") for rows in (None, 4)):
        said = b"first line\0" if number % 3 else b'{"shape": [17, %d, 3]}\0' % (21 - number)
        tags = {270: (2, said)}
        found += [tiff(rng, 21 - number, 17, kind, order, rows, tags=tags, depth=16) for order in (False, True)]
        found += [tiff(rng, 21 - number, 17, kind, order, rows, depth=16) for order in (False, True)]
    found += [ppm(rng, width, height, gray=True, depth=16) for width, height in ((21, 17), (1, 30), (60, 9))]
    return [*found, ppm(rng, 20, 17, depth=16)]


class Deep:
    """Crops of 16 bits that are cut in groups equal those that are decoded one by one, from whole images."""

    def __init__(self, folder):
        from fastimg.loaders import CenterCrop, ImageDecoder, RandomResizedCrop
        from fastimg.loaders.decoders.deep_queue import DeepQueue
        from fastimg.loaders.runtime.scratch import Scratch

        self.seeds = deep_pictures()
        self.queue, self.scratch, self.taken = DeepQueue(), Scratch(), 0
        bicubic = RandomResizedCrop(size=(8, 13), interpolation="bicubic")
        crops = (CenterCrop(size=9, resize=9), bicubic, CenterCrop(size=21, resize=(23, 21)))
        self.decoders = [ImageDecoder(crop, MAX_PIXELS, channels=c, depth=16) for crop in crops for c in (1, 3)]
        for number, seed in enumerate(self.seeds):  # whatever they need is compiled before memory is limited
            self.check(seed, random.Random(number))
        self.taken = 0

    def make(self, draw):
        return mutated(draw.choice(self.seeds), self.seeds, draw, png_fields)

    def check(self, data, draw):
        for decoder in self.decoders[draw.randrange(2) :: 2]:
            draws = np.array([[draw.random() for _ in range(decoder.draw(0, 0, np.zeros(1, int)).shape[1])]])
            ours, theirs = (np.full((1, *decoder.fields[0].shape), 7, np.uint16) for _ in range(2))
            encoded = InMemory(data).read_group([0], self.scratch)
            if self.queue.cut(encoded, decoder.crop, draws, MAX_PIXELS, self.scratch, ours)[0]:
                decoder.fill_row(memoryview(data), draws[0].tolist(), {"inputs": theirs[0]}, self.scratch)
                assert np.array_equal(ours, theirs)
                self.taken += 1

    def close(self):
        return f"{self.taken} crops"


class InMemory:
    """A reader of one sample, with the bytes that follow it in a buffer."""

    blocks = dataset = None

    def __init__(self, data):
        self.data = data

    def read_group(self, ids, scratch, filled=None):
        encoded = scratch.group(1)
        sizes = np.array([len(self.data)])
        encoded.reserve(sizes)
        encoded.buffer(0)[: len(self.data)] = self.data
        encoded.take(sizes, np.ones(1, bool))
        return encoded

    def read(self, index, scratch):
        return memoryview(self.data)

    def timed(self, read, *args):
        return read(*args)

    def stored_pixels(self, ids):
        return None


def tars():
    """Small tars of every kind."""
    found = []
    image = jpegs()[0][:700]
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for long in (False, True):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
                for i in range(3):
                    stem = f"{'é' * 60}/{i}" if long and kind != tarfile.USTAR_FORMAT else f"{'x' * 90 * long}/{i}"
                    for ext, content in (("jpg", image), ("cls", b"%d" % i), ("json", b'{"path": "a"}')):
                        info = tarfile.TarInfo(f"{stem}.{ext}")
                        info.size = len(content)
                        if long and (i, ext) == (2, "jpg"):
                            info.type, info.size, info.linkname = tarfile.LNKTYPE, 0, stem[:-1] + "0.jpg"
                        archive.addfile(info, io.BytesIO(content) if info.size else None)
            found.append(buffer.getvalue()[: -8 * 512] if kind == tarfile.USTAR_FORMAT else buffer.getvalue())
    return found


def opened(folder):
    """Every sample of a dataset as (name, label, bytes), None if it is refused; and the remarks."""
    from fastimg.loaders.containers.datasets import open_dataset
    from fastimg.loaders.runtime.scratch import Scratch

    dataset = refused(open_dataset, folder)
    if dataset is None:
        return None, []
    try:
        assert len(dataset.labels) == len(dataset) and len(dataset.classes) > max([-1, *dataset.labels.tolist()])
        dataset.will_need(np.arange(len(dataset)))
        samples = []
        for i in range(len(dataset)):
            name, data = refused(dataset.sample_name, i), refused(dataset.read, i, Scratch())
            assert isinstance(name, str)
            samples.append((name, int(dataset.labels[i]), None if data is None else bytes(data)))
        return samples, getattr(dataset, "notes", [])
    finally:
        dataset.close()


def judged(tar):
    """Names and contents as tarfile reads them, and whether it reached the end: it stops at unusual user ids."""
    found, data, at = [], tar.read_bytes(), 0
    with contextlib.suppress(tarfile.ReadError), tarfile.open(tar, "r:") as archive:
        for info in archive:
            if (info.isreg() or info.islnk()) and not info.name.rpartition("/")[2].startswith("."):
                found.append((info.name, archive.extractfile(info).read()))
        at = archive.offset
    last = data[at : at + 512]
    whole = not any(last)
    assert whole or tarfile.nti(last[148:156]) in tarfile.calc_chksums(last)
    return found, whole


class Tars:
    """An accepted tar has the members that tarfile finds, and each sample has the bytes at its offset."""

    def __init__(self, folder):
        self.tar = folder / "train-0.tar"
        self.seeds = tars()
        self.taken = 0

    def make(self, draw):
        return mutated(draw.choice(self.seeds), self.seeds, draw, tar_fields)

    def check(self, data, draw):
        from fastimg.loaders.containers.tars.shards import scan

        self.tar.write_bytes(data)
        samples = refused(scan, self.tar)
        found, _ = opened(self.tar.parent)
        if samples is None:
            assert found is None
            return
        self.taken += 1
        members = [member for sample in samples for member in sample]  # of a sample together, wherever they are
        theirs, whole = judged(self.tar)
        assert len(theirs) == len(members) or (len(theirs) < len(members) and not whole)
        for name, content in theirs:  # tarfile joins prefixes in older formats than ustar, too
            same = [m for m in members if name.endswith(m.name) and data[m.offset : m.offset + m.size] == content]
            assert same, name
            members.remove(same[0])
        if found is not None:
            for sample, (_, _, image) in zip(samples, found, strict=True):
                assert image in [data[m.offset : m.offset + m.size] for m in sample]

    def close(self):
        return f"{self.taken} taken"


class Indexes:
    """A foreign tar is read correctly whatever its index says; in fastimg's shards every change is detected."""

    def __init__(self, folder):
        from fastimg.loaders.containers.description import FORMAT, FORMAT_VERSION, SHARD_KEYS
        from fastimg.loaders.containers.tars.shards import ShardWriter, index_path

        self.foreign, self.ours = folder / "foreign", folder / "ours"
        images = jpegs()
        for place in (self.foreign, self.ours):
            place.mkdir()
            with ShardWriter(place / "train-0.tar") as writer:
                for i in range(4):
                    writer.add(f"{i:09d}", {"jpg": images[i], "cls": b"%d" % i, "json": b'{"path": "a"}'})
        shard = {key: (vars(writer) | {"name": "train-0.tar", "samples": 4})[key] for key in SHARD_KEYS}
        self.description = {"format": FORMAT, "version": FORMAT_VERSION, "container": "tar"}
        self.description["classes"] = ["a", "b", "c", "d"]
        self.description["splits"] = {"train": {"samples": 4, "shards": [shard]}}
        (self.ours / "dataset.json").write_text(json.dumps(self.description))
        self.index = index_path(self.foreign / "train-0.tar").read_bytes()
        self.text = (self.ours / "dataset.json").read_bytes()
        self.right, _ = opened(self.foreign)
        self.own, _ = opened(self.ours)
        assert len(self.right) == len(self.own) == 4
        self.noted = 0

    def make(self, draw):
        if draw.random() < 0.3:
            return mutated(self.text, [self.text, self.index], draw, self.values)
        return mutated(self.index, [self.index, self.text], draw, idx_fields)

    def values(self, data, draw):
        """Change a value in dataset.json."""
        try:
            at = described = json.loads(data)
        except ValueError:
            return data
        while True:
            key = draw.choice(list(at.keys()) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], (dict, list)) or not at[key] or draw.random() < 0.2:
                break
            at = at[key]
        value = at[key] if isinstance(at[key], int) else 4
        at[key] = draw.choice((None, True, "", "x", "\0", "\ud800", [], {}, 1.5, near(value, draw), "../" * 2000))
        return json.dumps(described).encode()

    def check(self, data, draw):
        from fastimg.loaders.containers.tars.shards import parse_index

        described = data[:1] == b"{"
        if described:
            (self.ours / "dataset.json").write_bytes(data)
            (self.ours / "train-0.idx").write_bytes(self.index)
        else:
            (self.ours / "dataset.json").write_bytes(self.text)
            for place in (self.foreign, self.ours):
                (place / "train-0.idx").write_bytes(data)
            size = (self.foreign / "train-0.tar").stat().st_size
            for sample in refused(parse_index, self.foreign / "train-0.idx", size) or []:
                assert all(0 < m.offset <= m.offset + m.size <= size for m in sample)
            found, notes = opened(self.foreign)
            assert found == self.right
            assert notes or sorted(data.split()) == sorted(self.index.split())
            self.noted += bool(notes)
        found, _ = opened(self.ours)
        assert found == (self.own if found is not None and (described or data == self.index) else None)

    def close(self):
        return f"{self.noted} noted"


class Betons:
    """Every value has the shape of its field."""

    def __init__(self, folder):
        from fastimg.loaders.containers.betons.files import BetonWriter
        from fastimg.loaders.containers.betons.kinds import BetonField

        self.beton = folder / "train.beton"
        array = BetonField("ndarray", np.dtype("<f4"), (2, 3))
        images = jpegs()
        pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
        plain = {"image": BetonField("rgb"), "label": BetonField("int")}
        further = {"bytes": BetonField("bytes"), "json": BetonField("json"), "array": array}
        further |= {"tensor": BetonField("tensor", np.dtype("<i2"), (3,))}
        self.seeds = []
        for fields in (
            plain,
            plain | further,
            {"image": BetonField("rgb")},
            plain | {"score": BetonField("float")} | further,
        ):
            with BetonWriter(self.beton, fields, 4, page_size=1 << 21) as writer:
                for i in range(4):
                    values = {"image": pixels if i == 2 else images[i], "label": i, "score": i / 2, "bytes": b"abc" * i}
                    values |= {"json": {"path": "a"}, "array": np.ones((2, 3), "<f4"), "tensor": np.ones(3, "<i2")}
                    writer.add({name: values[name] for name in fields})
            self.seeds.append(self.beton.read_bytes())
        self.taken = 0

    def make(self, draw):
        return mutated(draw.choice(self.seeds), [seed[-5000:] for seed in self.seeds], draw, beton_fields)

    def check(self, data, draw):
        from fastimg.loaders.containers.betons.files import BetonFile

        self.beton.write_bytes(data)
        reader = refused(BetonFile, self.beton)
        if reader is not None:
            self.taken += 1
            with reader:
                for name, field in reader.fields.items():
                    if field.kind == "custom":
                        continue
                    for i in range(len(reader)):
                        value = refused(reader.value, name, i)
                        if field.dtype is not None:
                            assert value is None or (value.shape, value.dtype) == (field.shape, field.dtype)
        opened(self.beton)

    def close(self):
        return f"{self.taken} taken"


def arrays():
    """Small .npy files of every type that bands have, and of others."""
    from fastimg.loaders.containers.fields import packed_npy
    from fastimg.loaders.containers.npy import npy_bytes

    rng = np.random.default_rng(0)
    found = []
    for dtype in ("<u2", "|u1", "<f4", ">u2", "<i2", "<f8"):
        for shape in ((3, 21, 17), (1, 40, 9), (3, 9, 9), (2, 12, 30), (21, 17)):
            values = rng.integers(0, 200, shape).astype(dtype)
            found += [npy_bytes(values), packed_npy(values)]
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asfortranarray(values), version=(2, 0))
        found.append(buffer.getvalue())
    return found


def _said(error):
    """The words of an error, without the address of an object that NumPy could not read."""
    return re.sub("0x[0-9a-f]+", "", str(error))


class Arrays:
    """Crops of .npy files by compiled code equal those that torch resizes, or both are refused with the same words."""

    def __init__(self, folder):
        from fastimg.loaders import CenterCrop, RandomResizedCrop
        from fastimg.loaders.decoders.bands import BandsDecoder

        self.seeds = arrays()
        self.taken = 0
        crops = (CenterCrop(size=9, resize=9), RandomResizedCrop(size=8), CenterCrop(size=21, resize=(23, 21)))
        self.decoders = [
            BandsDecoder(crop, bands, dtype, MAX_PIXELS)
            for crop in crops
            for bands, dtype in ((3, "uint16"), (1, "uint16"), (3, "uint8"), (1, "float32"), (3, "float32"))
        ]
        for number, seed in enumerate(self.seeds):  # whatever they need is compiled before memory is limited
            self.check(seed, random.Random(number))
        self.taken = 0

    def make(self, draw):
        return mutated(draw.choice(self.seeds), self.seeds, draw, npy_fields)

    def check(self, data, draw):
        from fastimg.loaders import resample
        from fastimg.loaders.decoder import Decoder
        from fastimg.loaders.runtime.scratch import Scratch

        for decoder in self.decoders:
            (field,) = decoder.fields
            draws = np.array([[draw.random() for _ in range(decoder.draw(0, 0, np.zeros(1, int)).shape[1])]])
            rows = {name: np.full((1, *field.shape), 7, field.dtype) for name in ("ours", "theirs")}
            told = []
            for fill, out in zip((type(decoder).fill, Decoder.fill), rows.values(), strict=True):
                kept = resample.resize_box
                resample.resize_box = lambda *_: False  # torch resizes what `fill` leaves
                try:
                    failures = fill(decoder, InMemory(data), [0], draws, {"inputs": out}, Scratch())
                finally:
                    resample.resize_box = kept
                told.append([_said(error) for _, error in failures])
            assert told[0] == told[1], told
            assert told[0] or rows["ours"].tobytes() == rows["theirs"].tobytes()
            self.taken += not told[0]

    def close(self):
        return f"{self.taken} crops"


KINDS = {
    "jpeg": Jpegs,
    "picture": Pictures,
    "webp": WebPs,
    "deep": Deep,
    "npy": Arrays,
    "tar": Tars,
    "idx": Indexes,
    "beton": Betons,
}
