"""Datasets in an object store: the same samples as from a folder, whatever the network and the cache do."""

import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fastimg.loaders import DataError, ShardError, open_dataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.extras import install
from fastimg.loaders.remote import fetching
from fastimg.loaders.remote.client import etags
from fastimg.loaders.remote.stores import url_of
from fastimg.loaders.runtime.scratch import Scratch

from .conftest import PER_SHARD, SAMPLES, write_shards


def samples(dataset, indices=range(SAMPLES)):
    scratch = Scratch()
    return [bytes(dataset.read(i, scratch)) for i in indices]


def shards_held(cache_dir):
    return sorted(path.name for path in cache_dir.glob("D-*/*.tar"))


def test_a_path_keeps_one_slash_of_a_url():
    assert url_of(Path("s3://bucket/D/")) == "s3://bucket/D"
    assert url_of(Path("file:///data/D")) == "file:///data/D"
    assert url_of(Path("/data/s3:/D")) is None and url_of("s3") is None


class TestFaults:
    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_that_pass_are_survived(self, opened, server, bucket, fault):
        server.faults = [("train-00001.tar", fault), ("dataset.json", "busy")]
        assert samples(opened()) == samples(open_dataset(bucket / "D"))
        assert server.faults == [] and server.requests.count("D/train-00001.tar") == 2

    def test_that_stay_are_a_sentence(self, opened, server):
        opened().close()
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        server.faults = [("train-00001.tar", "busy")] * 9
        with pytest.raises(DataError, match=r"^s3://bucket/D/train-00001.tar: tried 9 times: .*503"):
            samples(dataset, [PER_SHARD])
        assert server.faults == []

    def test_of_a_minute_are_waited_for(self, opened, server, bucket):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        server.faults = [("train-00001.tar", "busy")] * 8
        assert samples(dataset, [PER_SHARD]) == samples(open_dataset(bucket / "D"), [PER_SHARD])
        assert server.faults == [] and sum(0.2 * 2**attempt for attempt in range(8)) > 50  # seconds, by stores.PAUSE

    def test_a_flipped_byte_of_the_description_changes_no_class(self, server, bucket, cache_dir):
        for name, tag in (("E", ""), ("F", '"no checksum"')):  # of F nothing tells which of two contents is right
            shutil.copytree(bucket / "D", bucket / name)
            described = json.loads((bucket / name / "dataset.json").read_text()) | {"classes": ["a" * 9999, "b"]}
            content = json.dumps(described)
            assert content[len(content) // 2] == "a"
            (bucket / name / "dataset.json").write_text(content)
            server.tags[f"{name}/dataset.json"] = tag
            server.faults = [(f"{name}/dataset.json", "flip")]
            dataset = open_dataset(f"s3://bucket/{name}", cache_dir=cache_dir, storage_options=server.options)
            assert dataset.classes == ("a" * 9999, "b") and server.faults == []
            assert server.requests.count(f"{name}/dataset.json") == (3 if tag else 2)
            dataset.close()

    def test_a_description_that_differs_each_time_is_refused(self, opened, server, monkeypatch):
        server.tags = {"D/dataset.json": '"no checksum"'}
        monkeypatch.setattr(server, "rates", {"flip": 1.0})
        with pytest.raises(DataError, match=r"dataset.json: fetched 5 times, with another content each time; check t"):
            opened()

    def test_a_shard_that_was_replaced_is_named_with_both_checksums(self, opened, bucket, images):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        write_shards(bucket / "other", images[::-1])
        shutil.copy(bucket / "other/train-00001.tar", bucket / "D/train-00001.tar")
        stated = json.loads((bucket / "D/dataset.json").read_text())["splits"]["train"]["shards"][1]["xxh3"]
        with pytest.raises(ShardError, match=f"train-00001.tar: fetched 2 times, .* dataset.json says {stated}"):
            samples(dataset)
        assert shards_held(dataset.files()[0].parents[1]) == ["train-00000.tar"]

    def test_an_index_that_was_replaced_is_named_too(self, opened, server):
        server.faults = [("train-00001.idx", "flip")] * 4  # twice ahead, and twice when it is needed
        with pytest.raises(
            ShardError, match=r"train-00001.idx: fetched 2 times, .* where dataset.json says [0-9a-f]{64}"
        ):
            opened()
        assert server.faults == []
        opened()

    def test_a_bucket_that_vanishes(self, opened, bucket):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        shutil.rmtree(bucket / "D")
        with pytest.raises(DataError, match=r"train-00000.tar: not found: no such file or bucket; check the URL"):
            samples(dataset)
        with pytest.raises(
            DataError, match=r"s3://bucket/D/dataset.json: not found.*must be one that `fastimg convert`"
        ):
            opened()

    def test_access_denied(self, opened, server):
        server.faults = [("dataset.json", "denied")]
        with pytest.raises(DataError, match=r"dataset.json: access denied; give credentials"):
            opened()

    def test_options_from_the_environment(self, server, cache_dir, monkeypatch):
        for name, value in server.options.items():
            monkeypatch.setenv({"endpoint": "AWS_ENDPOINT_URL"}.get(name, f"AWS_{name.upper()}"), value)
        open_dataset("s3://bucket/D", cache_dir=cache_dir).close()

    def test_options_and_urls_that_nobody_knows(self, cache_dir):
        with pytest.raises(
            DataError, match="'flavour' is not valid for store 'S3'; check the URL and storage_options="
        ):
            open_dataset("s3://bucket/D", cache_dir=cache_dir, storage_options={"flavour": "sweet"})
        with pytest.raises(DataError, match=r"^https://...: names and passwords do not belong in a URL"):
            open_dataset("https://me:secret@host/D", cache_dir=cache_dir)

    def test_a_folder_that_is_not_there(self, tmp_path, cache_dir):
        with pytest.raises(DataError, match=r"^file://.*/none: no such folder; check the URL$"):
            open_dataset(f"file://{tmp_path}/none", cache_dir=cache_dir)

    def test_without_obstore(self, cache_dir, monkeypatch):
        monkeypatch.setitem(sys.modules, "obstore.store", None)
        with pytest.raises(DataError, match=re.escape(install("remote"))):
            open_dataset("s3://bucket/D", cache_dir=cache_dir)

    def test_a_cache_goes_with_a_url(self, bucket, cache_dir):
        with pytest.raises(ValueError, match="it is on this machine; leave out cache_dir"):
            open_dataset(bucket / "D", cache_dir=cache_dir)


def forget_quick_sums(folder: Path) -> None:
    """Make a dataset.json what older versions wrote."""
    description = json.loads((folder / "dataset.json").read_text())
    for shard in description["splits"]["train"]["shards"]:
        del shard["xxh3"]
    (folder / "dataset.json").write_text(json.dumps(description))


class TestChecksums:
    @pytest.fixture(params=["one range", "ranges"], autouse=True)
    def ranges(self, request, monkeypatch):
        if request.param == "ranges":
            monkeypatch.setattr(fetching, "RANGE", 4000)

    @pytest.mark.parametrize("old", [False, True])
    def test_a_flipped_byte_is_found_wherever_it_is(self, opened, server, bucket, old):
        if old:
            forget_quick_sums(bucket / "D")
        want = samples(open_dataset(bucket / "D"))
        server.faults = [("train-00001.tar", "flip anywhere")] * 3
        assert samples(opened()) == want
        assert server.faults == []

    def test_the_quick_sum_is_enough_where_it_is_stated(self, opened, bucket, monkeypatch):
        want = samples(open_dataset(bucket / "D"))
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        monkeypatch.setattr(fetching.hashlib, "sha256", None)
        monkeypatch.setattr(fetching, "_digest", None)
        assert samples(dataset) == want

    def test_without_it_a_replaced_shard_is_named_by_its_sha256(self, opened, bucket, images):
        forget_quick_sums(bucket / "D")
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        write_shards(bucket / "other", images[::-1])
        shutil.copy(bucket / "other/train-00001.tar", bucket / "D/train-00001.tar")
        stated = json.loads((bucket / "D/dataset.json").read_text())["splits"]["train"]["shards"][1]["sha256"]
        with pytest.raises(ShardError, match=f"train-00001.tar: fetched 2 times, .* dataset.json says {stated}"):
            samples(dataset)

    def test_a_dataset_may_have_both_kinds_of_shards(self, opened, bucket):
        """As after an append to one that an older version wrote."""
        description = json.loads((bucket / "D/dataset.json").read_text())
        del description["splits"]["train"]["shards"][0]["xxh3"]
        (bucket / "D/dataset.json").write_text(json.dumps(description))
        assert samples(opened()) == samples(open_dataset(bucket / "D"))

    def test_a_full_disk_is_not_tried_again(self, opened, server, monkeypatch):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        server.requests.clear()

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(fetching.os, "pwritev", full)
        with pytest.raises(DataError, match=r"train-00000.tar: no space left on the disk; free some space"):
            dataset.read(0, Scratch())


class TestPhotographs:
    """What is kept of large ones, of which dataset.json states no checksum."""

    @pytest.fixture
    def kept(self, bucket, server, monkeypatch):
        """An index that was uploaded in parts."""
        monkeypatch.setattr(etags, "_MIB", 1000)
        content = np.random.default_rng(0).bytes(20_000)
        (bucket / "D/train.ftil").write_bytes(content)
        sums = [hashlib.md5(content[at : at + 8000]).digest() for at in range(0, len(content), 8000)]
        server.tags["D/train.ftil"] = f'"{hashlib.md5(b"".join(sums)).hexdigest()}-{len(sums)}"'
        return content

    @pytest.mark.parametrize("tag", [None, '"no checksum"', f'"{"0" * 32}-3"'])
    def test_a_flipped_byte_is_found(self, opened, server, kept, tag):
        mirror = opened().shard_files.mirror
        if tag:
            server.tags["D/train.ftil"] = tag
        server.faults = [("train.ftil", "none"), ("train.ftil", "flip")]  # of HEAD, and of the content
        assert mirror.fetch_photographs("train") == []
        assert (mirror.folder / "train.ftil").read_bytes() == kept
        assert server.faults == [] and server.contents_asked("D/train.ftil") == (3 if tag else 2)

    def test_what_differs_each_time_is_not_used(self, opened, server, kept, monkeypatch):
        mirror = opened().shard_files.mirror
        server.tags["D/train.ftil"] = '"no checksum"'
        sums = itertools.count()
        monkeypatch.setattr(fetching, "_digest", lambda *_: str(next(sums)))
        (note,) = mirror.fetch_photographs("train")
        assert note.startswith("s3://bucket/D: its large photographs are read whole: s3://bucket/D/train.ftil: fetched")
        assert not list(mirror.folder.glob("*ftil*"))


class TestCache:
    def test_is_bounded(self, opened, server, bucket, cache_dir):
        size = (bucket / "D/train-00000.tar").stat().st_size
        dataset = opened(int(2.6 * size))
        want = samples(open_dataset(bucket / "D"))
        for _ in range(2):
            assert samples(dataset) == want
            assert len(shards_held(cache_dir)) == 2
        assert dataset.shard_files.mirror.cache.spent.again > 0

    def test_a_shard_larger_than_the_cache_is_refused(self, opened):
        with pytest.raises(DataError, match=r"train-00000.tar: [0-9.]+ KB, and the cache .* may hold 5.0 KB"):
            opened("5KB")

    def test_is_fetched_from_again_after_it_was_deleted(self, opened, bucket, cache_dir):
        dataset = opened()
        want = samples(dataset)
        shutil.rmtree(cache_dir)
        assert samples(dataset) == want
        assert list(cache_dir.glob("D-*/has-remote-copy"))  # so that shards may be deleted to make room

    def test_is_not_believed_after_somebody_wrote_to_it(self, opened, server, cache_dir):
        dataset = opened()
        want = samples(dataset)
        (shard,) = cache_dir.glob("D-*/train-00001.tar")
        content = bytearray(shard.read_bytes())
        content[3000] ^= 1
        shard.write_bytes(content)
        assert samples(dataset) == want
        assert server.requests.count("D/train-00001.tar") == 2

    def test_is_kept_for_the_next_run(self, opened, server):
        samples(opened())
        server.requests.clear()
        samples(opened())
        assert server.requests == ["D/dataset.json"]

    def test_a_file_is_fetched_once_by_many_readers(self, opened, server, monkeypatch):
        datasets = [opened() for _ in range(4)]
        shutil.rmtree(datasets[0].files()[0].parent)
        server.requests.clear()
        threads = [threading.Thread(target=samples, args=(each,)) for each in datasets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(server.requests) == [f"D/train-0000{i}.tar" for i in range(3)]

    def test_shards_are_fetched_ahead(self, opened, server, cache_dir):
        dataset = opened()
        shutil.rmtree(dataset.files()[0].parent)
        server.requests.clear()
        server.hold.clear()
        dataset.will_need(np.arange(PER_SHARD))  # returns at once
        server.hold.set()
        samples(dataset, range(PER_SHARD))
        assert server.requests == ["D/train-00000.tar"]

    def test_what_was_derived_is_fetched_and_no_shard_is_read(self, opened, server, bucket):
        open_dataset(bucket / "D").close()  # makes train.fidx
        opened()
        assert sorted(server.requests) == ["D/dataset.json", "D/train.fidx", "D/train.fidx"]
        assert server.heads == ["D/train.fidx"]

    def test_what_was_derived_is_fetched_once_by_two_processes_and_by_ranges(self, server, bucket, cache_dir):
        open_dataset(bucket / "D").close()
        code = (
            "import sys, json\n"
            "from fastimg.loaders import open_dataset\n"
            "from fastimg.loaders.remote import fetching\n"
            "fetching.RANGE = 200\n"
            "print('ready', flush=True); sys.stdin.readline()\n"
            "dataset = open_dataset('s3://bucket/D', cache_dir=sys.argv[1], storage_options=json.loads(sys.argv[2]))\n"
            "print(len(dataset))\n"
        )
        arguments = [sys.executable, "-c", code, str(cache_dir), json.dumps(server.options)]
        processes = [
            subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        for each in processes:
            assert each.stdout.readline() == "ready\n"
        server.latency = 0.1  # so that both are at it
        for each in processes:
            each.stdin.write("\n")
            each.stdin.flush()
        assert [each.communicate(timeout=60)[0] for each in processes] == [f"{SAMPLES}\n"] * 2
        size = (bucket / "D/train.fidx").stat().st_size
        assert server.contents_asked("D/train.fidx") == -(-size // 200) > 1
        assert server.requests.count("D/dataset.json") == 2  # each process asks whether it is still the same
        assert not any(name.endswith(".tar") for name in server.requests)

    def test_a_damaged_index_is_fetched_again_and_no_shard_is_read(self, opened, server, bucket):
        open_dataset(bucket / "D").close()
        server.faults = [("train.fidx", "none"), ("train.fidx", "flip")]  # of HEAD, and of the content
        opened()
        assert server.faults == [] and server.contents_asked("D/train.fidx") == 2
        assert not any(name.endswith(".tar") for name in server.requests)

    def test_several_ranges_of_a_shard(self, opened, bucket, server, monkeypatch):
        monkeypatch.setattr(fetching, "RANGE", 4000)
        assert samples(opened()) == samples(open_dataset(bucket / "D"))
        assert server.requests.count("D/train-00000.tar") > 5

    def test_a_process_that_is_killed_while_it_fetches(self, opened, server, bucket, cache_dir):
        code = (
            "import sys, json\n"
            "from fastimg.loaders.containers import quick_sums; quick_sums.BLOCK = 1000\n"
            "from fastimg.loaders.remote.mirrors import open_mirror, wanted_shards\n"
            "mirror = open_mirror('s3://bucket/D', sys.argv[1], None, json.loads(sys.argv[2]))\n"
            "described = json.loads((mirror.folder / 'dataset.json').read_text())\n"
            "print('ready', flush=True); sys.stdin.readline()\n"
            "mirror.bring(wanted_shards(described['splits']['train']['shards'])[0])\n"
        )
        arguments = [sys.executable, "-c", code, str(cache_dir), json.dumps(server.options)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "ready\n"
            arrived = server.hold_next()
            other.stdin.write("\n")
            other.stdin.flush()
            assert arrived.wait(60)
            (part,) = cache_dir.glob("D-*/.train-00000.tar.part")
            os.kill(other.pid, signal.SIGKILL)
        server.hold.set()
        assert samples(opened()) == samples(open_dataset(bucket / "D"))
        assert not part.exists()

    def test_a_beton_is_fetched_whole_and_stays(self, server, bucket, images, cache_dir):
        folder = bucket / "B"
        folder.mkdir()
        fields = {"image": BetonField("rgb"), "label": BetonField("int")}
        with BetonWriter(folder / "train.beton", fields, len(images)) as beton:
            for i, image in enumerate(images):
                beton.add({"image": image, "label": i % 2})
        entry = {"name": "train.beton", "samples": len(images), "bytes": beton.bytes, "sha256": beton.sha256}
        described = json.loads((bucket / "D/dataset.json").read_text())
        split = {"samples": len(images), "shards": [entry]}
        (folder / "dataset.json").write_text(json.dumps(described | {"container": "beton", "splits": {"train": split}}))
        dataset = open_dataset("s3://bucket/B", cache_dir=cache_dir, storage_options=server.options)
        assert samples(dataset) == images
        lease = dataset.lease
        dataset.close()
        assert not lease.close.alive
