"""Loaders of a URL: the same batches as from a folder, and orders that suit a cache."""

import fcntl
import shutil
import threading
import time

import numpy as np
import pytest

from fastimg.loaders import DataError, Loader
from fastimg.loaders.errors import OVER
from fastimg.loaders.remote import fetching
from fastimg.loaders.remote.stores import RemoteFolder
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.loaders.runtime.stopping import Cancelled, cancelled_by, check

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

    def test_of_samples_whose_shards_fit(self, opened, bucket):
        """Two of three shards: nothing is fetched again."""
        dataset = opened(int(2.5 * (bucket / "D/train-00002.tar").stat().st_size))
        part = np.flatnonzero(dataset.shard_numbers > 0)
        spent = dataset.shard_files.mirror.cache.spent
        with Loader(dataset, order="random", indices=part, **SETTINGS) as loader:
            for _ in range(2):
                assert sum(batch.samples for batch in loader) == len(part)
        assert dataset.shard_files.mirror.cache.spent.files - spent.files <= 2
        with pytest.raises(DataError, match=r"order random would fetch every shard again"):
            Loader(dataset, order="random", indices=np.arange(0, len(dataset), 2), **SETTINGS)


class TestClosing:
    """Whoever waits for a shard stops waiting when nobody needs it any more."""

    def test_ends_a_fetch_after_the_ranges_in_flight(self, opened, monkeypatch):
        monkeypatch.setattr(fetching, "RANGE", 1000)
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        receive = RemoteFolder.receive
        first, over, caller = threading.Event(), threading.Event(), threading.current_thread()

        def read(*arguments):
            if first.is_set() and threading.current_thread() is not caller:
                assert over.wait(60)  # until the waiting thread has asked
            part = receive(*arguments)
            first.set()
            return part

        def is_over():
            if first.is_set():
                over.set()
            return first.is_set()

        monkeypatch.setattr(RemoteFolder, "receive", read)
        with pytest.raises(Cancelled), cancelled_by(is_over):
            dataset.read(0, Scratch())
        assert list(dataset.files()[0].parent.glob("*.tar")) == list(dataset.files()[0].parent.glob(".*.part")) == []
        assert len(dataset.read(0, Scratch())) > 0

    def test_ends_waiting_for_another_process(self, opened):
        dataset = opened()
        folder = dataset.files()[0].parent
        (folder / "train-00000.tar").unlink()
        with (folder / ".train-00000.tar.part").open("w") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            with pytest.raises(Cancelled), cancelled_by(lambda: True):
                dataset.read(0, Scratch())

    def test_of_the_loader_tells_its_threads(self, opened):
        dataset = opened()
        reading = threading.Event()

        def read(index, scratch):
            reading.set()
            end = time.monotonic() + 60
            while time.monotonic() < end:
                check()
            raise AssertionError("nobody said that the iteration is over")

        dataset.read = read
        dataset.read_group = lambda ids, encoded: None
        loader = Loader(dataset, order="sequential", **SETTINGS)
        ended = []

        def consume():
            try:
                next(iter(loader))
            except RuntimeError as error:
                ended.append(str(error))

        consumer = threading.Thread(target=consume)
        consumer.start()
        assert reading.wait(60)
        loader.close()
        consumer.join()
        assert ended == [OVER]
