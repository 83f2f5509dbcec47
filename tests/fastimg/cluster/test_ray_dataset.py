"""`ray_dataset` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")
pytest.importorskip("pandas", reason="Ray Data is not installed: the extra ray brings it")

import logging
import re

import numpy as np
import ray
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import CenterCrop, DataError, Loader, RandomResizedCrop, ray_dataset

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


@pytest.fixture
def joined(cluster):
    """Connected to the cluster, as a program of the user's is."""
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def shards(image_folder, server):
    """Shards of the photographs, at the URL s3://bucket/D, too."""
    convert(
        Convert(src=image_folder, dst=server.folder / "D", val_fraction=0.25, shard_size="20KB"), Console(quiet=True)
    )
    return server.folder / "D"


def by_loader(data, crop, **settings):
    """Pixels [H, W, C] and target of each sample, by id."""
    with Loader(data, crop=crop, order="sequential", batch_size=8, **settings) as loader:
        return {
            int(batch.ids[row]): (batch.inputs[row].permute(1, 2, 0).numpy().copy(), int(batch.targets[row]))
            for batch in loader
            for row in range(len(batch.ids))
            if batch.weight[row] > 0
        }


def by_ray(dataset):
    rows = [(row["id"], row["image"], row["target"]) for row in dataset.take_all()]
    found = {int(number): (np.asarray(image), int(target)) for number, image, target in rows}
    assert len(found) == len(rows)
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for number, (pixels, target) in expected.items():
        assert found[number][1] == target
        assert found[number][0].dtype == pixels.dtype
        np.testing.assert_array_equal(found[number][0], pixels)


@pytest.mark.parametrize("crop", [32, CenterCrop(size=(24, 40), resize=48), RandomResizedCrop(size=32)])
def test_rows_are_those_of_a_loader(joined, shards, crop):
    assert_same(
        by_ray(ray_dataset(shards, crop=crop, split="val", seed=3)), by_loader(shards, crop, split="val", seed=3)
    )


def test_a_url_is_read_by_whole_shards(joined, shards, server, tmp_path):
    url = {"cache_dir": tmp_path / "cache", "storage_options": server.options}
    dataset = ray_dataset("s3://bucket/D", crop=32, **url)
    expected = by_loader(shards, 32)
    server.requests.clear()
    assert_same(by_ray(dataset), expected)
    tars = [name for name in (str(request) for request in server.requests) if ".tar" in name]
    assert {re.search(r"train-\d+", name)[0] for name in tars} == {tar.stem for tar in shards.glob("train-*.tar")}


def test_gray_images_of_sixteen_bits_have_their_shape(joined, image_folder):
    dataset = ray_dataset(image_folder, crop=16, channels=1, depth=16)
    assert_same(by_ray(dataset), by_loader(image_folder, 16, channels=1, depth=16))


def test_images_that_cannot_be_decoded_are_left_out_or_end_it(joined, image_folder):
    broken = max(image_folder.rglob("*.jpg"))
    broken.write_bytes(broken.read_bytes()[:200])
    expected = by_loader(image_folder, 32)
    count = sum(path.is_file() for path in image_folder.rglob("*"))
    assert len(expected) == count - 1
    assert_same(by_ray(ray_dataset(image_folder, crop=32)), expected)
    with pytest.raises(Exception, match=re.escape(broken.name)):
        ray_dataset(image_folder, crop=32, on_error="fail").take_all()


def test_data_that_is_replaced_is_not_taken_for_the_other(joined, shards, image_folder):
    before = ray_dataset(shards, crop=32)
    assert_same(by_ray(before), by_loader(shards, 32))
    again = Convert(src=image_folder, dst=shards, val_fraction=0.5, shard_size="20KB", overwrite=True)
    convert(again, Console(quiet=True))
    assert_same(by_ray(ray_dataset(shards, crop=32)), by_loader(shards, 32))
    with pytest.raises(Exception, match=r"was replaced|while it was in use"):
        before.take_all()


def test_what_no_task_could_do_is_refused_at_once(shards, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        ray_dataset(tmp_path / "nothing", crop=32)
    with pytest.raises(DataError, match="test"):
        ray_dataset(shards, crop=32, split="test")
    with pytest.raises(ValueError, match="num_cpus=0"):
        ray_dataset(shards, crop=32, num_cpus=0)
    with pytest.raises(ValueError, match="crop 0"):
        ray_dataset(shards, crop=0)
