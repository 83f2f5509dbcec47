"""The current version writes the same bytes as an earlier version, and reads its containers."""

import gzip
import json

import numpy as np
import pytest

from fastimg.loaders import CenterCrop, Loader, open_dataset
from fastimg.loaders.runtime.scratch import Scratch

from .make import HERE, SAMPLES, convert, convert_targets, pixels


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("golden")
    convert(HERE / "images", root / "shards", root / "betons")
    return root


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Paths of the golden datasets."""
    beton = tmp_path_factory.mktemp("kept") / "train.beton"
    beton.write_bytes(gzip.decompress((HERE / "train.beton.gz").read_bytes()))
    return {"tar": HERE / "shards", "beton": beton}


@pytest.mark.parametrize("name", ["train-00000.tar", "train-00000.idx", "train.fidx"])
def test_shards_have_the_same_bytes(name, written):
    assert (written / "shards" / name).read_bytes() == (HERE / "shards" / name).read_bytes()


def test_a_beton_has_the_same_bytes(written):
    packed = (HERE / "train.beton.gz").read_bytes()
    assert (written / "betons" / "train.beton").read_bytes() == gzip.decompress(packed)


def described(file):
    """A dataset.json without what later versions have added: further sums of shards and files, a digest of samples."""
    description = json.loads(file.read_text())
    for options in (description["options"], *description.get("appended", ())):
        options.pop("contents", None)
    for split in description["splits"].values():
        split.pop("derived", None)
        for shard in split["shards"]:
            shard.pop("xxh3", None)
            shard.pop("identity", None)
    return description


def test_dataset_json_is_the_same(written):
    def stated(folder):
        description = described(folder / "dataset.json")
        del description["fastimg"]  # the version that wrote it
        del description["options"]["fastimg"]
        return description

    assert stated(written / "shards") == stated(HERE / "shards")


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_they_are_read(container, kept):
    dataset = open_dataset(kept[container])
    assert dataset.classes == (("ebb", "flow") if container == "tar" else ("0", "1"))
    assert sorted(dataset.labels.tolist()) == [0, 0, 1, 1]
    if container == "tar":
        scratch = Scratch()
        for index in range(len(dataset)):
            key = dataset.sample_key(index)
            assert key in SAMPLES
            if key.endswith(".png"):
                assert bytes(dataset.read(index, scratch)) == (HERE / "images" / key).read_bytes()
    dataset.close()


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_pixels_equal_the_images(container, kept):
    crop = CenterCrop(size=(40, 56), resize=(40, 56))
    with Loader(kept[container], crop=crop, batch_size=4, order="sequential", workers=1) as loader:
        images = next(iter(loader)).inputs.permute(0, 2, 3, 1).numpy()
    made = np.stack([pixels(number) for number in SAMPLES.values()]).astype(int)
    distances = np.abs(images[:, None].astype(int) - made[None]).mean(axis=(2, 3, 4))  # [read, made]
    assert sorted(distances.argmin(axis=1).tolist()) == [0, 1, 2, 3]
    assert distances.min(axis=1).max() < 10  # JPEGs of quality 90; the distance to any other image is 30 or more


@pytest.fixture(scope="module")
def with_targets(tmp_path_factory):
    """The golden datasets with targets, as they are now written."""
    root = tmp_path_factory.mktemp("targets")
    convert_targets(root / "shards", root / "betons")
    return root


@pytest.mark.parametrize("name", ["train-00000.tar", "train-00000.idx", "train.fidx", "train.fcol"])
def test_shards_with_targets_have_the_same_bytes(name, with_targets):
    assert (with_targets / "shards" / name).read_bytes() == (HERE / "targets" / name).read_bytes()


def test_a_beton_with_targets_has_the_same_bytes(with_targets):
    packed = (HERE / "targets.beton.gz").read_bytes()
    assert (with_targets / "betons" / "train.beton").read_bytes() == gzip.decompress(packed)


@pytest.mark.parametrize(("name", "kept"), [("shards", "targets/dataset.json"), ("betons", "targets.beton.json")])
def test_dataset_json_states_the_same_targets(name, kept, with_targets):
    stated = [described(file) for file in (with_targets / name / "dataset.json", HERE / kept)]
    assert stated[0]["targets"] == stated[1]["targets"]
    assert stated[0]["splits"] == stated[1]["splits"]


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_targets_are_read(container, tmp_path):
    folder = HERE / "targets"
    if container == "beton":
        folder = tmp_path
        (folder / "train.beton").write_bytes(gzip.decompress((HERE / "targets.beton.gz").read_bytes()))
        (folder / "dataset.json").write_bytes((HERE / "targets.beton.json").read_bytes())
    dataset = open_dataset(folder)
    tide, depth, seen = dataset.targets
    assert [(column.target.name, column.target.kind) for column in dataset.targets] == [
        ("tide", "class"),
        ("depth", "number"),
        ("seen", "multilabel"),
    ]
    found = {}
    for i in range(len(dataset)):
        labels = [seen.target.classes[label] for label in seen.labels_of(i)] if seen.present[i] else None
        number = float(depth.values[i]) if depth.present[i] else None
        found[dataset.sample_key(i)] = (
            tide.target.classes[tide.values[i]] if tide.present[i] else None,
            number,
            labels,
        )
    dataset.close()
    assert found == {
        "images/ebb/0.jpg": ("ebb", 1.5, ["boat", "gull"]),
        "images/ebb/1.png": ("ebb", None, []),
        "images/flow/2.jpg": ("flow", -2.0, ["gull"]),
        "images/flow/3.jpg": (None, None, None),
    }
