"""The current version writes the same bytes as an earlier version, and reads its containers."""

import gzip
import json

import numpy as np
import pytest

from fastimg.loaders import CenterCrop, Loader, open_dataset
from fastimg.loaders.runtime.scratch import Scratch

from .make import HERE, SAMPLES, convert, pixels


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


def test_dataset_json_is_the_same(written):
    def stated(folder):
        description = json.loads((folder / "dataset.json").read_text())
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
