"""Loaders of a URL: the same batches as from a folder, and orders that suit a cache."""

import numpy as np
import pytest

from fastimg.loaders import DataError, Loader

from .conftest import SAMPLES


def batches(loader):
    with loader:
        return [
            (batch.ids.numpy().copy(), batch.inputs.numpy().copy(), batch.targets.numpy().copy()) for batch in loader
        ]


def assert_same(one, other):
    for ours, theirs in zip(one, other, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


SETTINGS = {"batch_size": 5, "crop": 16, "workers": 2, "seed": 3, "window": 10}


class TestBatches:
    @pytest.mark.parametrize("order", ["quasi-random", "random", "sequential"])
    def test_are_those_of_the_folder(self, server, bucket, cache_dir, order):
        there = Loader(
            "s3://bucket/D", order=order, cache_dir=cache_dir, storage_options=server.options, block="shard", **SETTINGS
        )
        assert_same(batches(there), batches(Loader(bucket / "D", order=order, block="shard", **SETTINGS)))
        assert [name for name in server.requests if name.endswith(".tar")].count("D/train-00001.tar") == 1

    def test_come_by_shards_unless_told_otherwise(self, server, cache_dir):
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        with Loader("s3://bucket/D", **options, **SETTINGS) as loader:
            assert (loader.config.order, loader.config.block) == ("quasi-random", "shard")
            again = [ids.tolist() for ids, *_ in batches(Loader(loader.dataset, **SETTINGS))]
            assert max(max(ids) for ids in again) == SAMPLES - 1

    @pytest.mark.parametrize("url", ["{endpoint}/bucket/D", "file://{folder}/D"])
    def test_are_read_by_http_and_from_files(self, server, bucket, cache_dir, url):
        address = url.format(endpoint=server.endpoint, folder=bucket)
        there = Loader(address, order="sequential", cache_dir=cache_dir, **SETTINGS)
        assert_same(batches(there), batches(Loader(bucket / "D", order="sequential", block="shard", **SETTINGS)))


class TestOrders:
    def test_that_would_fetch_everything_again_and_again_are_refused(self, opened, bucket):
        dataset = opened(int(2.5 * (bucket / "D/train-00002.tar").stat().st_size))
        with pytest.raises(
            DataError, match=r"order random would fetch every shard again and again; use order='quasi-r"
        ):
            Loader(dataset, order="random", **SETTINGS)
        with pytest.raises(DataError, match=r"needs [0-9.]+ KB for 3 shards of a window of 10 samples; give a smaller"):
            Loader(dataset, **SETTINGS)
