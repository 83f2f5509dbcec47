"""A .beton as a dataset: samples, labels, names, classes, and the fields of other programs."""

import numpy as np
import pytest

from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.decode import decode
from fastimg.loaders.errors import DataError, ShardError
from fastimg.loaders.runtime.scratch import Scratch

from .beton_samples import ALL, IMAGES, jpeg, one, write


@pytest.fixture
def dataset(tmp_path):
    write(tmp_path / "a.beton", ALL, [one(number) for number in range(7)])
    dataset = BetonDataset(tmp_path / "a.beton")
    yield dataset
    dataset.close()


def test_samples_labels_and_names(dataset, tmp_path):
    scratch = Scratch()
    assert len(dataset) == 7 and dataset.labels.tolist() == [-1, 0, 1, 2, 3, 4, 5] and dataset.labels.dtype == np.int64
    assert dataset.classes == ("0", "1", "2", "3", "4", "5")
    assert dataset.sample_name(3) == f"{tmp_path}/a.beton: sample 3 (é/3.jpg)"
    dataset.will_need(np.array([0, 5, 3]))
    for number in (6, 0, 1, 4, 4):
        image = one(number)["image"]
        if isinstance(image, bytes):
            assert bytes(dataset.read(number, scratch)) == image
        else:
            assert (decode(dataset.read(number, scratch)) == image).all()


@pytest.mark.parametrize("value", [ord("#"), ord("\n"), ord("1"), 0, 255])
def test_raw_pixels_that_look_like_a_header(tmp_path, value):
    pixels = np.full((1, 3, 3), value, np.uint8)
    write(tmp_path / "a.beton", {"image": BetonField("rgb")}, [{"image": pixels}])
    dataset = BetonDataset(tmp_path / "a.beton")
    assert (decode(dataset.read(0, Scratch())) == pixels).all()
    assert dataset.labels.tolist() == [-1] and dataset.classes == () and dataset.sample_name(0).endswith(": sample 0")
    dataset.close()


def test_given_classes_and_checksums(tmp_path):
    path = tmp_path / "a.beton"
    write(path, IMAGES, [{"image": jpeg(), "label": n} for n in range(3)])
    dataset = BetonDataset(path, ["a", "b", "c"], checksum="1")
    assert dataset.classes == ("a", "b", "c")
    dataset.close()
    others = [BetonDataset(path, checksum=checksum) for checksum in (None, "1", "2")]
    assert len({other.fingerprint for other in others}) == 3 and others[1].fingerprint == dataset.fingerprint
    for other in others:
        other.close()
    with pytest.raises(ShardError, match="the numbers in label, up to 2, are not all among its 2 classes"):
        BetonDataset(path, ["a", "b"])


@pytest.mark.parametrize("label", [-2, 1 << 20, 2**63 - 1])
def test_numbers_that_are_not_labels(tmp_path, label):
    write(tmp_path / "a.beton", IMAGES, [{"image": jpeg(), "label": label}])
    with pytest.raises(ShardError, match=r"the numbers in label, up to .* are not class indices"):
        BetonDataset(tmp_path / "a.beton")


def test_which_field_is_used(tmp_path):
    fields = {
        "left": BetonField("rgb"),
        "Image": BetonField("rgb"),
        "id": BetonField("int"),
        "label": BetonField("int"),
    }
    sample = {"left": jpeg(seed=1), "Image": jpeg(seed=2), "id": 7, "label": 1}
    write(tmp_path / "a.beton", fields, [sample])
    dataset = BetonDataset(tmp_path / "a.beton")
    assert bytes(dataset.read(0, Scratch())) == sample["Image"] and dataset.labels.tolist() == [1]
    dataset.close()
    write(tmp_path / "a.beton", {"a": BetonField("rgb"), "b": BetonField("rgb")}, [{"a": jpeg(), "b": jpeg()}])
    with pytest.raises(DataError, match="a, b are all rgb fields; name the one to train on image"):
        BetonDataset(tmp_path / "a.beton")
    write(tmp_path / "a.beton", {"y": BetonField("int")}, [{"y": 1}])
    with pytest.raises(DataError, match=r"none of its fields \(y\) holds images"):
        BetonDataset(tmp_path / "a.beton")


@pytest.mark.parametrize("kind", ["int", "bytes", "json", "ndarray", "rgb"])
def test_custom_fields_are_skipped(tmp_path, kind):
    fields = {"mine": ALL[{"int": "label", "bytes": "text", "json": "about", "ndarray": "box", "rgb": "image"}[kind]]}
    mine = {"int": 3, "bytes": b"mine", "json": [1], "ndarray": np.zeros((2, 2), "f4"), "rgb": jpeg()}[kind]
    samples = [{"mine": mine, "image": jpeg(seed=n), "label": n} for n in range(100)]
    path = tmp_path / "a.beton"
    write(path, fields | IMAGES, samples)
    with path.open("r+b") as file:
        file.seek(24)
        file.write(b"\xff")
    with BetonFile(path) as reader:
        assert reader.custom == ("mine",)
        assert [reader.sample(n) for n in range(100)] == [{"image": s["image"], "label": s["label"]} for s in samples]


def test_a_custom_field_that_hides_the_others(tmp_path):
    path = tmp_path / "a.beton"
    write(path, {"mine": BetonField("int"), "label": BetonField("int")}, [{"mine": 1, "label": 2}])
    with path.open("r+b") as file:
        file.seek(24)
        file.write(b"\xff")
    with pytest.raises(ShardError, match="only the code that wrote mine knows its size"):
        BetonFile(path)


def test_samples_read_together(dataset, tmp_path):
    """JPEGs as `read` gives them; raw images, which get a header, are left to `read`."""
    indices = [6, 0, 1, 4, 4, 3]
    scratch = Scratch()
    encoded = scratch.group(len(indices))
    dataset.read_group(indices, encoded)
    found = list(map(encoded.__getitem__, range(len(indices))))
    raw = [not isinstance(one(index)["image"], bytes) for index in indices]
    assert any(raw) and not all(raw)
    assert [data is None for data in found] == raw
    for index, data in zip(indices, found, strict=True):
        assert data is None or bytes(data) == one(index)["image"]
    with (tmp_path / "a.beton").open("r+b") as file:
        file.truncate(100)
    encoded = scratch.group(1)
    dataset.read_group([6], encoded)
    assert encoded[0] is None
    with pytest.raises(ShardError, match="shrank while it was in use"):
        dataset.read(6, scratch)


def test_a_beton_that_was_altered_is_noticed_in_groups(dataset, tmp_path):
    with (tmp_path / "a.beton").open("r+b") as file:
        file.write(b"\x02")
    with pytest.raises(ShardError, match="was altered while it was in use"):
        for _ in range(4):
            dataset.read_group([6, 4, 3, 1], Scratch().group(4))
