"""ffcv 1.0.2 reads fastimg's betons, and fastimg reads ffcv's. conftest.py has the commands."""

import io
import json

import numpy as np
import pytest
import simplejpeg
import torch
from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField
from ffcv.fields.basics import FloatDecoder, IntDecoder
from ffcv.fields.bytes import BytesDecoder
from ffcv.fields.ndarray import NDArrayDecoder
from ffcv.fields.rgb_image import SimpleRGBImageDecoder, encode_jpeg
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.state import State
from ffcv.reader import Reader
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from PIL import Image

from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.files import BetonFile, BetonWriter
from fastimg.loaders.containers.betons.kinds import RAW, BetonField
from fastimg.loaders.decode import decode
from fastimg.loaders.runtime.scratch import Scratch

PAGE = 1 << 21


class AnySizeDecoder(SimpleRGBImageDecoder):
    """ffcv's decoder, writing to the start of a row with room for the largest image, since sizes may differ."""

    def declare_state_and_memory(self, previous_state):
        row = (int(self.metadata["width"].max()) * int(self.metadata["height"].max()) * 3,)
        state = State(jit_mode=True, device=previous_state.device, shape=row, dtype=np.dtype("<u1"))
        return state, AllocationQuery(row, np.dtype("<u1"))


def pixels(size, seed=0):
    """Smooth noise [H, W, 3]."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC))


def jpeg(array, mode="RGB", **options):
    buffer = io.BytesIO()
    Image.fromarray(array).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def ffcv_loads(path, decoders, os_cache):
    """Every sample in order, as ffcv's loader returns it: a list of dicts."""
    loader = Loader(
        str(path),
        batch_size=4,
        num_workers=1,
        os_cache=os_cache,
        order=OrderOption.SEQUENTIAL,
        drop_last=False,
        pipelines={name: [decoder(), ToTensor()] for name, decoder in decoders.items()},
    )
    batches = [[value.numpy().copy() for value in batch] for batch in loader]
    return [dict(zip(decoders, row, strict=True)) for batch in batches for row in zip(*batch, strict=True)]


def shown(row, size):
    width, height = size
    return row[: width * height * 3].reshape(height, width, 3)


SIZES = [(33, 17), (1, 1), (64, 48), (7, 301), (900, 675), (8, 8), (16, 16), (129, 2), (95, 96)]


def images():
    """(value for the writer, size, decoded pixels): JPEGs of many kinds and raw pixels, alternating."""
    kinds = [
        {},
        {"subsampling": 0},
        {"mode": "L"},
        {"progressive": True},
        {"restart_marker_blocks": 1},
        {"quality": 30},
    ]
    for number, size in enumerate(SIZES * 6):
        array = pixels(size, number)
        if number % 5 == 4:
            yield array, size, array
        else:
            data = jpeg(array, **kinds[number % 6])
            yield data, size, simplejpeg.decode_jpeg(data, fastdct=True)  # ffcv uses the fast DCT


@pytest.mark.parametrize("os_cache", [True, False], ids=["mapped", "pages"])
@pytest.mark.parametrize("others", [False, True], ids=["image-label", "all-fields"])
def test_ffcv_loads_our_images_and_labels(tmp_path, os_cache, others):
    fields = {"image": BetonField("rgb")}
    decoders = {"image": AnySizeDecoder}
    if others:
        fields |= {
            "text": BetonField("bytes"),
            "about": BetonField("json"),
            "box": BetonField("ndarray", np.dtype("<f4"), (2, 2)),
        }
        fields |= {"tokens": BetonField("tensor", np.dtype("<i8"), (3,)), "weight": BetonField("float")}
        decoders |= {"text": BytesDecoder, "about": BytesDecoder, "box": NDArrayDecoder}
        decoders |= {"tokens": NDArrayDecoder, "weight": FloatDecoder}
    fields["label"], decoders["label"] = BetonField("int"), IntDecoder
    samples = []
    for number, (value, size, seen) in enumerate(images()):
        sample = {"image": value, "label": 3 * number - 1}
        if others:
            sample |= {"text": b"t" * (number % 5), "about": {"path": f"é/{number}"}, "weight": number / 7}
            sample |= {"box": np.full((2, 2), number, "<f4"), "tokens": np.arange(number, number + 3)}
        samples.append((sample, size, seen))
    with BetonWriter(tmp_path / "a.beton", fields, page_size=PAGE) as beton:
        for sample, _, _ in samples:
            beton.add(sample)
    assert beton.bytes > 3 * PAGE  # several pages of data
    loaded = ffcv_loads(tmp_path / "a.beton", decoders, os_cache)
    assert len(loaded) == len(samples)
    for row, (sample, size, seen) in zip(loaded, samples, strict=True):
        assert (shown(row["image"], size) == seen).all()
        assert row["label"].item() == sample["label"]
        if others:
            assert row["text"][: len(sample["text"])].tobytes() == sample["text"]
            assert JSONField.unpack(row["about"]) == sample["about"]
            assert row["weight"].item() == sample["weight"]
            assert (row["box"] == sample["box"]).all() and (row["tokens"] == sample["tokens"]).all()


def test_ffcv_loads_our_numbers_without_pages(tmp_path):
    with BetonWriter(tmp_path / "a.beton", {"x": BetonField("float"), "label": BetonField("int")}) as beton:
        for number in range(5):
            beton.add({"x": number / 3, "label": -number})
    loaded = ffcv_loads(tmp_path / "a.beton", {"x": FloatDecoder, "label": IntDecoder}, os_cache=True)
    assert [(row["x"].item(), row["label"].item()) for row in loaded] == [(n / 3, -n) for n in range(5)]


class Rows:
    """The interface that DatasetWriter needs of a dataset."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def ffcv_writes(path, fields, rows, workers=1):
    DatasetWriter(str(path), fields, page_size=PAGE, num_workers=workers).from_indexed_dataset(Rows(rows), chunksize=5)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("mode", ["jpg", "raw", "smart"])
def test_we_read_ffcvs_images_and_labels(tmp_path, mode, workers):
    rows = [(pixels(size, number), number % 3) for number, size in enumerate(SIZES * 4)]
    image = RGBImageField(write_mode=mode, smart_threshold=10_000)
    ffcv_writes(tmp_path / "a.beton", {"image": image, "label": IntField()}, rows, workers)
    dataset = BetonDataset(tmp_path / "a.beton")
    assert dataset.labels.tolist() == [label for _, label in rows] and dataset.classes == ("0", "1", "2")
    with BetonFile(tmp_path / "a.beton") as reader:
        modes = set(reader.column("image")["mode"].tolist())
        assert len(modes) == (2 if mode == "smart" else 1)
        theirs = Reader(str(tmp_path / "a.beton"))
        table = {int(ptr): int(size) for _, ptr, size in theirs.alloc_table}
        offsets, sizes = reader.extents("image")
        assert [table[int(offset)] for offset in offsets] == sizes.tolist()
        raw = reader.column("image")["mode"] == RAW
    scratch = Scratch()
    for number, (array, _) in enumerate(rows):
        found = decode(dataset.read(number, scratch), scratch=scratch)
        expected = array if raw[number] else decode(jpeg_of_ffcv(array))
        assert (found == expected).all()
    dataset.close()


def jpeg_of_ffcv(array):
    return encode_jpeg(array, 90).tobytes()


def test_we_read_all_of_ffcvs_field_types(tmp_path):
    fields = {
        "image": RGBImageField(write_mode="jpg"),
        "text": BytesField(),
        "label": IntField(),
        "about": JSONField(),
        "half": NDArrayField(np.dtype("<f2"), (5,)),
        "flags": NDArrayField(np.dtype("bool"), (2, 3, 1)),
        "letters": NDArrayField(np.dtype("<U3"), (2,)),
        "weight": FloatField(),
        "tokens": TorchTensorField(torch.int32, (4, 2)),
    }
    rows = []
    for number in range(23):
        text = np.full(9000 * (number % 7), 65 + number, np.uint8)  # at times empty
        flags = np.arange(6).reshape(2, 3, 1) % (number + 1) == 0
        row = (pixels((60 + number, 40), number), text, number - 3, {"n": [number, "é\0"]})
        row += (np.arange(5, dtype="<f2") + number, flags, np.array(["ab", str(number)], "<U3"), number / 9)
        rows.append((*row, torch.arange(8, dtype=torch.int32).reshape(4, 2) + number))
    ffcv_writes(tmp_path / "a.beton", fields, rows, workers=2)
    with BetonFile(tmp_path / "a.beton") as reader:
        kinds = ["rgb", "bytes", "int", "json", "ndarray", "ndarray", "ndarray", "float", "tensor"]
        assert list(reader.fields) == list(fields) and [f.kind for f in reader.fields.values()] == kinds
        for number, row in enumerate(rows):
            sample = reader.sample(number)
            assert sample["image"] == jpeg_of_ffcv(row[0]) and sample["text"] == row[1].tobytes()
            assert (sample["label"], sample["about"], sample["weight"]) == (row[2], row[3], row[7])
            for name, value in zip(
                ("half", "flags", "letters", "tokens"), (row[4], row[5], row[6], row[8]), strict=True
            ):
                assert (sample[name] == np.asarray(value)).all() and sample[name].dtype == np.asarray(value).dtype
        with BetonWriter(tmp_path / "b.beton", reader.fields, page_size=PAGE) as copy:  # and repeated
            for number in range(len(reader)):
                copy.add(reader.sample(number))
    theirs, ours = Reader(str(tmp_path / "a.beton")), Reader(str(tmp_path / "b.beton"))
    assert theirs.metadata_type == ours.metadata_type and theirs.field_names == ours.field_names
    assert theirs.field_descriptors.tobytes() == ours.field_descriptors.tobytes()


def test_values_that_are_empty(tmp_path):
    """FFCV gives them a region of no bytes before the first page; fastimg gives them one byte, and the size 0."""
    rows = [(np.full(size, 65, np.uint8), 0.5) for size in (0, 0, 3, 0, 5, 0)]
    ffcv_writes(tmp_path / "a.beton", {"text": BytesField(), "x": FloatField()}, rows)
    with BetonFile(tmp_path / "a.beton") as reader:
        assert [reader.sample(n) for n in range(6)] == [{"text": b"A" * len(text), "x": 0.5} for text, _ in rows]
    with BetonWriter(
        tmp_path / "b.beton", {"text": BetonField("bytes"), "label": BetonField("int")}, page_size=PAGE
    ) as beton:
        for number in range(9):
            beton.add({"text": b"", "label": number})
    loaded = ffcv_loads(tmp_path / "b.beton", {"text": BytesDecoder, "label": IntDecoder}, os_cache=False)
    assert [(row["text"].shape, row["label"].item()) for row in loaded] == [((0,), number) for number in range(9)]


class LengthField(IntField):
    """A custom field."""


class NoteField(BytesField):
    """And one with pointers."""


@pytest.mark.parametrize("custom", [LengthField, NoteField])
@pytest.mark.parametrize("first", [True, False])
def test_a_custom_field_is_named_and_skipped(tmp_path, custom, first):
    value = 7 if custom is LengthField else np.frombuffer(b"note", np.uint8)
    names = ["mine", "image", "label"] if first else ["image", "mine", "label"]
    fields = {"mine": custom(), "image": RGBImageField(write_mode="jpg"), "label": IntField()}
    rows = [{"mine": value, "image": pixels((40, 30), n), "label": n} for n in range(9)]
    ffcv_writes(tmp_path / "a.beton", {n: fields[n] for n in names}, [[row[n] for n in names] for row in rows])
    with BetonFile(tmp_path / "a.beton") as reader:
        assert reader.custom == ("mine",)
        for number, row in enumerate(rows):
            assert reader.sample(number) == {"image": jpeg_of_ffcv(row["image"]), "label": number}


def test_json_that_ffcv_would_read_back(tmp_path):
    about = {"a": [1, 2.5, None, True, "é\u0000"], "b": {}}
    with BetonWriter(tmp_path / "a.beton", {"about": BetonField("json")}) as beton:
        beton.add({"about": about})
        beton.add({"about": json.dumps(about, ensure_ascii=False).encode()})
    loaded = ffcv_loads(tmp_path / "a.beton", {"about": BytesDecoder}, os_cache=True)
    assert [JSONField.unpack(row["about"]) for row in loaded] == [about, about]
