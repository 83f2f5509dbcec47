"""`Loader(fields=...)`: what belongs to an image stands in the batch, moved with the crop."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from fastimg.loaders import (
    CenterCrop,
    DataError,
    FieldsDecoder,
    FieldSelection,
    FilesDataset,
    ImageDecoder,
    Letterbox,
    Loader,
    RandomCrop,
    RandomResizedCrop,
)
from fastimg.loaders.containers.fields import StoredField
from fastimg.loaders.decode import decode_mask, read_header
from fastimg.loaders.decoders.geometry import crop_box, crop_boxes, crop_mask
from fastimg.loaders.random import uniforms

N = 23
LABELS = StoredField(name="box_labels", kind="ragged", dtype="int64", longest=4, along="boxes")
SCHEMAS = (
    StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box", longest=4),
    LABELS,
    StoredField(name="joints", kind="ragged", shape=(2, 2), geometry="keypoint", longest=4, along="boxes"),
    StoredField(name="eyes", kind="array", shape=(2, 2), geometry="keypoint", optional=True),
    StoredField(name="mask", kind="image", dtype="uint8", geometry="mask", optional=True),
    StoredField(name="instances", kind="image", dtype="uint16", geometry="mask"),
    StoredField(name="age", kind="number", optional=True),
    StoredField(name="year", kind="number", dtype="uint16", optional=True),
    StoredField(name="depths", kind="array", dtype="float64", shape=(2, 3)),
    StoredField(name="tags", kind="ragged", dtype="int32", longest=3, optional=True),
    StoredField(name="note", kind="bytes", longest=5, optional=True),
)


def png(values, mode=None):
    image, buffer = Image.fromarray(values), io.BytesIO()
    if mode == "P":
        image = image.convert("P")
        image.putdata(values.ravel().tolist())
        image.putpalette([i // 3 for i in range(768)][::-1])
    image.save(buffer, "PNG")
    return buffer.getvalue()


class FieldedFiles(FilesDataset):
    """Files with fields in memory."""

    fields = None  # set by the fixture

    def read_field(self, name, index):
        return self.values[name][index]


@pytest.fixture
def fielded(files, tmp_path):
    """The `files` with fields; sample i has i % 5 boxes, and every third one lacks what is optional."""
    files = FieldedFiles(
        tmp_path, sorted(file.name for file in tmp_path.iterdir()), files.classes, files.labels.tolist()
    )
    sizes = [read_header(files.read(i, scratch()), 1 << 20).size for i in range(N)]
    values = {name.name: [] for name in SCHEMAS}
    for i, (width, height) in enumerate(sizes):
        random = np.random.default_rng(i)
        ends = np.sort(random.uniform(0, 1, (i % 5, 2, 2)), axis=1) * (width, height)
        boxes = ends.reshape(-1, 4).astype(np.float32)
        missing = i % 3 == 2
        values["boxes"].append(boxes)
        values["box_labels"].append(np.arange(len(boxes)) + 10 * i)
        values["joints"].append(boxes.reshape(-1, 2, 2))
        values["eyes"].append(None if missing else np.array([[1, 2], [width / 2, height / 2]], np.float32))
        indices = random.integers(0, 9, (height, width)).astype(np.uint8)
        values["mask"].append(None if missing else png(indices, "P" if i % 2 else None))
        values["instances"].append(png(random.integers(0, 60000, (height, width)).astype(np.uint16)))
        values["age"].append(None if missing else np.float32(i / 2))
        values["year"].append(None if missing else np.uint16(60000 + i))
        values["depths"].append(np.full((2, 3), i))
        values["tags"].append(None if missing else np.arange(i % 4, dtype=np.int32) + 1)
        values["note"].append(None if missing else b"x" * (i % 6))
    files.fields = {field.name: field for field in SCHEMAS}
    files.values, files.sizes = values, sizes
    return files


def scratch():
    from fastimg.loaders.runtime.scratch import Scratch

    return Scratch()


def whole_epoch(dataset, fields, **options):
    """The one batch of all samples, by name."""
    defaults = {"crop": RandomResizedCrop(size=(24, 32), scale=(0.3, 1.0)), "batch_size": 25, "order": "sequential"}
    with Loader(dataset, fields=fields, workers=2, seed=3, **(defaults | options)) as loader:
        return next(iter(loader)), loader


ALL = [field.name for field in SCHEMAS]


def test_fields_of_gray_images_and_of_16_bits_are_those_of_rgb(fielded):
    rgb, _ = whole_epoch(fielded, ALL)
    for options, dtype in (({"channels": 1}, torch.uint8), ({"channels": 1, "depth": 16}, torch.uint16)):
        gray, _ = whole_epoch(fielded, ALL, **options)
        assert gray.inputs.shape == (25, 1, 24, 32) and gray.inputs.dtype == dtype
        for name, values in rgb.fields.items():
            assert torch.equal(torch.nan_to_num(gray.fields[name]), torch.nan_to_num(values)), name


def test_types_and_shapes(fielded):
    batch, loader = whole_epoch(fielded, ALL)
    shapes = {name: (list(tensor.shape[1:]), tensor.dtype) for name, tensor in batch.fields.items()}
    count, share = ([], torch.int32), ([4], torch.float32)
    assert shapes == {
        "crop_box": ([4], torch.float32),
        "boxes": ([4, 4], torch.float32),
        "boxes_count": count,
        "boxes_visible": share,
        "box_labels": ([4], torch.int64),
        "box_labels_count": count,
        "joints": ([4, 2, 2], torch.float32),
        "joints_count": count,
        "eyes": ([2, 2], torch.float32),
        "mask": ([24, 32], torch.uint8),
        "instances": ([24, 32], torch.int32),
        "age": ([], torch.float32),
        "year": ([], torch.int32),
        "year_present": ([], torch.bool),
        "depths": ([2, 3], torch.float64),
        "tags": ([3], torch.int32),
        "tags_count": count,
        "note": ([5], torch.uint8),
        "note_count": count,
    }
    assert sorted(batch.counts) == ["box_labels", "boxes", "joints", "note", "tags"]
    assert batch.boxes_of_crop is batch.fields["crop_box"]
    assert "boxes, box_labels" in loader.describe()


@pytest.mark.parametrize(
    "crop",
    [
        RandomResizedCrop(size=(24, 32), scale=(0.3, 1.0)),
        RandomCrop(size=16, padding=5),
        CenterCrop(size=20, resize=24),
        Letterbox(size=40),
    ],
    ids=lambda crop: type(crop).__name__,
)
def test_every_field_follows_the_crop_of_its_sample(fielded, crop):
    batch, _ = whole_epoch(fielded, FieldSelection(names=ALL, min_visibility=0.25), crop=crop)
    shape = tuple(batch.inputs.shape[2:])
    numbers = uniforms(3, 0, np.arange(N), ImageDecoder._STAGE, crop.draws)
    plain, _ = whole_epoch(fielded, None, crop=crop)
    assert torch.equal(plain.inputs, batch.inputs)
    fields = {name: tensor.numpy() for name, tensor in batch.fields.items()}
    for i in range(N):
        window = crop.window(*fielded.sizes[i], numbers[i].tolist())
        boxes, visible = crop_boxes(window, shape, fielded.values["boxes"][i])
        keep = (visible > 0) & (visible >= 0.25)
        count = int(keep.sum())
        assert {int(batch.counts[name][i]) for name in ("boxes", "box_labels", "joints")} == {count}
        assert np.array_equal(fields["boxes"][i, :count], boxes[keep]) and not fields["boxes"][i, count:].any()
        assert np.array_equal(fields["boxes_visible"][i, :count], visible[keep])
        assert np.array_equal(fields["box_labels"][i, :count], fielded.values["box_labels"][i][keep])
        assert not fields["box_labels"][i, count:].any()
        assert np.array_equal(fields["crop_box"][i], np.float32(crop_box(window, shape)))
        missing = i % 3 == 2
        mask, mirrors = np.empty(shape, np.uint8), not isinstance(crop, Letterbox)
        if not missing:
            crop_mask(window, decode_mask(fielded.values["mask"][i], fielded.sizes[i]), 255, mirrors, mask)
        assert np.array_equal(fields["mask"][i], np.full(shape, 255) if missing else mask)
        assert fields["instances"][i].max() <= 60000 and fields["instances"][i].max() > 255
        assert np.isnan(fields["age"][i]) if missing else fields["age"][i] == i / 2
        assert fields["year"][i] == (0 if missing else 60000 + i) and fields["year_present"][i] == (not missing)
        assert np.isnan(fields["eyes"][i]).all() or not missing
        assert fields["tags"][i].tolist() == ([0, 0, 0] if missing else ([*range(1, 1 + i % 4), 0, 0, 0][:3]))
        assert batch.counts["note"][i] == (0 if missing else i % 6)
    assert not batch.counts["boxes"][N:].any() and (fields["mask"][N:] == 255).all()  # rows that pad the batch


def test_what_boxes_drop_is_dropped_where_the_boxes_are_not_in_the_batch(fielded):
    both, _ = whole_epoch(fielded, ["boxes", "box_labels"])
    alone, _ = whole_epoch(fielded, ["box_labels"])
    assert torch.equal(both.fields["box_labels"], alone.fields["box_labels"]) and "boxes" not in alone.fields
    assert int(alone.counts["box_labels"].sum()) < sum(i % 5 for i in range(N))


def test_batches_do_not_depend_on_workers_and_can_be_kept(fielded):
    def epoch(workers):
        with Loader(fielded, crop=16, fields=ALL, batch_size=6, workers=workers, copy=True) as loader:
            return list(loader)

    for one, two in zip(epoch(1), epoch(3), strict=True):
        for name in one.fields:
            assert torch.equal(torch.nan_to_num(one.fields[name]), torch.nan_to_num(two.fields[name]))


def test_no_names_give_the_crops_alone(fielded):
    batch, loader = whole_epoch(fielded, [], copy=True)
    assert list(batch.fields) == ["crop_box"] and batch.counts == {}
    with loader:
        loader.set_epoch(0)
        loader.set_size((12, 16))
        smaller = next(iter(loader))
    assert smaller.inputs.shape[2:] == (12, 16) and torch.equal(smaller.boxes_of_crop, batch.boxes_of_crop)
    plain, _ = whole_epoch(fielded, None)
    with pytest.raises(ValueError, match="boxes_of_crop is for a Loader with fields"):
        _ = plain.boxes_of_crop


def test_an_image_that_cannot_be_decoded_has_no_fields(fielded, spoil):
    spoil(fielded, 4)
    batch, loader = whole_epoch(fielded, ALL)
    assert batch.weight[4] == 0 and batch.samples == N - 1 and list(loader.unreadable) == [4]
    assert not batch.counts["boxes"][4] and (batch.fields["mask"][4] == 255).all() and not batch.boxes_of_crop[4].any()


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (png(np.zeros((3, 5), np.uint8)), "mask: 5 x 3 pixels; the image has 40 x 60"),
        (png(np.zeros((60, 40, 3), np.uint8)), "mask: pixels of mode RGB"),
        (png(np.zeros((60, 40), np.uint16)), "mask: it has 16 bits, and the field is uint8"),
        (png(np.zeros((60, 40), np.uint8))[:60], "mask: "),
        (b"no mask", "mask: not an image"),
        (b"", "mask: the file is empty"),
    ],
    ids=["size", "colours", "16 bits", "cut short", "text", "empty"],
)
def test_a_mask_that_does_not_fit_its_image_is_named(fielded, mask, reason):
    fielded.values["mask"][0] = mask
    batch, loader = whole_epoch(fielded, ["mask"])
    assert batch.weight[0] == 0 and (batch.fields["mask"][0] == 255).all()
    assert reason in loader.unreadable[0]
    with pytest.raises(DataError, match=r"00\.jpeg: mask: "):
        whole_epoch(fielded, ["mask"], on_error="fail")


def test_masks_of_one_bit_and_their_palettes():
    bits = np.arange(12).reshape(3, 4) % 3 == 0
    buffer = io.BytesIO()
    Image.fromarray(bits).save(buffer, "PNG")
    assert np.array_equal(decode_mask(buffer.getvalue(), (4, 3)), bits)
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(decode_mask(png(values, "P"), (4, 3)), values)
    wide = values.astype(np.uint16) * 5000
    assert np.array_equal(decode_mask(png(wide), (4, 3)), wide)


def test_labels_that_do_not_match_their_boxes_end_the_run(fielded):
    fielded.values["box_labels"][2] = np.arange(1)
    with pytest.raises(DataError, match=r"02.jpeg: 1 box_labels along 2 boxes"):
        whole_epoch(fielded, ["box_labels"])


def test_no_sample_has_any(fielded):
    fielded.fields = {"boxes": StoredField(name="boxes", kind="ragged", shape=(4,), geometry="box")}
    fielded.values["boxes"] = [np.zeros((0, 4), np.float32)] * N
    batch, _ = whole_epoch(fielded, ["boxes"])
    assert batch.fields["boxes"].shape == (25, 0, 4) and not batch.counts["boxes"].any()


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (["boxs"], DataError, "no field 'boxs'; it has boxes, "),
        (["boxes", "boxes"], ValueError, "name each field once"),
        (["depth_map"], ValueError, "'depth_map' is an encoded image that is not a mask"),
        (["odd"], ValueError, r"'odd' has items of \[3\]; points are"),
        (FieldSelection(names=["mask"], ignore=-1), ValueError, "ignore=-1: the masks 'mask' hold 0 to 255"),
    ],
)
def test_what_a_batch_cannot_hold_is_refused(fielded, fields, error, message):
    fielded.fields |= {
        "depth_map": StoredField(name="depth_map", kind="image"),
        "odd": StoredField(name="odd", kind="ragged", shape=(3,), geometry="keypoint"),
    }
    with pytest.raises(error, match=message):
        Loader(fielded, crop=8, batch_size=2, fields=fields)


def test_arguments_that_contradict_each_other(fielded):
    decoder = ImageDecoder(RandomResizedCrop(size=8))
    with pytest.raises(TypeError, match="fields go with crop"):
        Loader(fielded, decoder, batch_size=2, fields=["boxes"])
    with pytest.raises(ValueError, match=r"min_visibility=1\.5"):
        FieldSelection(names=["boxes"], min_visibility=1.5)
    assert FieldSelection(names="boxes").names == ("boxes",)
    own = FieldsDecoder.of(decoder, FieldSelection(names=["boxes"]), fielded)
    assert next(iter(Loader(fielded, own, batch_size=2, workers=1))).fields["boxes"].shape == (2, 4, 4)
    with pytest.raises(TypeError, match="call `fill`"):
        own.fill_row(memoryview(b""), (), {}, scratch())


def test_ignored_pixels_of_wide_masks(fielded):
    batch, _ = whole_epoch(fielded, FieldSelection(names=["instances"], ignore=-1), crop=Letterbox(size=70))
    assert (batch.fields["instances"] == -1).any() and batch.fields["instances"].max() > 255
