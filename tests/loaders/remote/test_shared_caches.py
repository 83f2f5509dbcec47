"""One cache for several processes, and one that is deleted while it is read: the right bytes, and few requests."""

import json
import random
import shutil
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

from fastimg.loaders.runtime.scratch import Scratch

from .cache_reader import checksum
from .conftest import PER_SHARD, encoded, write_shards

READER = Path(__file__).with_name("cache_reader.py")
SHARDS = 6


@pytest.fixture
def stored(bucket):
    """Six shards of s3://bucket/E, and what is in them."""
    content = [encoded(number) for number in range(SHARDS * PER_SHARD)]
    write_shards(bucket / "E", content)
    return content


def by_shards(seed):
    """All samples, shard after shard, in an order of shards that the seed gives."""
    numbers = list(range(SHARDS))
    random.Random(seed).shuffle(numbers)
    return [sample for number in numbers for sample in range(number * PER_SHARD, (number + 1) * PER_SHARD)]


@pytest.fixture
def read_twice(python, server, cache_dir):
    """`read_twice(limit, one, other)`: two processes read these orders through one cache, at the same time."""
    started = []

    def read(limit, *orders):
        asked = {"url": "s3://bucket/E", "cache_dir": str(cache_dir), "cache_limit": limit, "options": server.options}
        started.extend(
            subprocess.Popen(
                [python, str(READER), json.dumps(asked | {"orders": each})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for each in orders
        )
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=300)[0].split() for process in started]
        assert [process.returncode for process in started] == [0] * len(orders)
        return said

    yield read
    for process in started:
        process.kill()
        process.wait()


def fetched(server):
    """How often each shard was asked for."""
    return Counter(name for name in server.requests if name.endswith(".tar"))


class TestTwoProcesses:
    def test_fetch_each_shard_once_where_the_cache_holds_all(self, stored, server, read_twice, cache_dir):
        server.latency = 0.02  # the other process comes while a shard is being fetched
        said = read_twice(None, [by_shards(1), by_shards(2)], [by_shards(1), by_shards(3)])
        assert said == [[checksum(stored)] * 2] * 2
        assert set(fetched(server).values()) == {1} and len(fetched(server)) == SHARDS
        assert not list(cache_dir.rglob("*.part"))

    def test_share_one_that_holds_four_of_six_shards(self, stored, server, bucket, read_twice, cache_dir):
        sizes = [path.stat().st_size for path in (bucket / "E").glob("*.tar")]
        others = sum(path.stat().st_size for path in (bucket / "E").iterdir()) - sum(sizes)
        limit = 4 * max(sizes) + others + 20_000  # and what is derived
        assert sum(sizes) > limit
        rounds = 4
        orders = [[by_shards(10 * process + number) for number in range(rounds)] for process in (1, 2)]
        said = read_twice(limit, *orders)
        assert said == [[checksum(stored)] * rounds] * 2
        # A process that reads a shard loses it only to three others that are newer: so many does the other one read
        # for each that it loses. With the pass that derives the index, at most 1.5 fetches for each shard that is read.
        assert sum(fetched(server).values()) <= 1.5 * 2 * SHARDS * (rounds + 1)
        held = sum(path.stat().st_size for path in cache_dir.rglob("*") if path.is_file())
        assert held <= limit and not list(cache_dir.rglob("*.part"))


class TestADeletedCache:
    def test_under_threads_that_read(self, stored, server, cache_dir):
        """It is deleted again and again, each time when some more samples have been read, and others are being read."""
        from fastimg.loaders import open_dataset

        dataset = open_dataset("s3://bucket/E", cache_dir=cache_dir, storage_options=server.options)
        threads, rounds, deletions = 4, 5, 10  # four shards are fetched between two: a read fails if it meets five
        wrong: list[object] = []
        allowed, read = threading.Semaphore(threads), threading.Semaphore(0)

        def work(seed):
            scratch = Scratch()
            try:
                for number in range(rounds):
                    for sample in by_shards(seed + number):
                        assert allowed.acquire(timeout=120)
                        if bytes(dataset.read(sample, scratch)) != stored[sample]:
                            wrong.append(sample)
                        read.release()
            except BaseException as error:
                wrong.append(error)
                read.release(SHARDS * PER_SHARD * rounds)
                raise

        working = [threading.Thread(target=work, args=(10 * place,), daemon=True) for place in range(threads)]
        for thread in working:
            thread.start()
        more = threads * rounds * SHARDS * PER_SHARD // deletions
        for _ in range(deletions):
            allowed.release(more)
            for _ in range(more):
                assert read.acquire(timeout=120)
            shutil.rmtree(cache_dir, ignore_errors=True)
        allowed.release(threads * rounds * SHARDS * PER_SHARD)
        for thread in working:
            thread.join(120)
            assert not thread.is_alive()
        dataset.close()
        assert wrong == []
        assert sum(fetched(server).values()) > SHARDS
