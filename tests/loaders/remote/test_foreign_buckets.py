"""Tars of other writers in an object store: named by braces, or all of a folder."""

import hashlib
import itertools
import shutil
import tempfile
import threading

import pytest

from fastimg.loaders import DataError, Loader, ShardError, list_splits, open_dataset
from fastimg.loaders.remote import fetching
from fastimg.loaders.remote.cache.wanted_files import WantedFile
from fastimg.loaders.remote.client import etags
from fastimg.loaders.remote.listing import expanded, named_tars
from fastimg.loaders.remote.stores import RemoteFolder

from .conftest import PER_SHARD, SAMPLES
from .test_remote_batches import SETTINGS, assert_same, batches
from .test_remote_datasets import samples


@pytest.fixture
def tars(bucket):
    """A folder of three tars, as webdataset's users have them."""
    for file in (bucket / "D").iterdir():
        if file.suffix != ".tar":
            file.unlink()
    return bucket / "D"


class TestOpening:
    @pytest.mark.parametrize("url", ["s3://bucket/D", "s3://bucket/D/train-{00000..00002}.tar"])
    def test_gives_the_samples_of_the_folder(self, server, tars, cache_dir, url):
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        there, here = open_dataset(url, **options), open_dataset(tars)
        assert samples(there) == samples(here) and len(there) == SAMPLES
        assert there.labels.tolist() == here.labels.tolist() and there.classes == here.classes
        assert there.sample_key(3) == here.sample_key(3)
        assert list_splits(there.files()[0].parent) == {"train": -1}

    def test_scans_every_tar_once(self, server, tars, cache_dir):
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        open_dataset("s3://bucket/D", **options).close()
        assert [server.requests.count(f"D/train-0000{n}.tar") for n in range(3)] == [1, 1, 1]
        server.requests.clear()
        open_dataset("s3://bucket/D", **options).close()
        assert [name for name in server.requests if name.endswith(".tar")] == []

    def test_fetches_the_next_tars_while_one_is_scanned(self, server, tars, cache_dir):
        arrived = server.hold_next()  # before the folder is listed
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        opening = threading.Thread(target=lambda: open_dataset("s3://bucket/D", **options).close())
        opening.start()
        assert arrived.wait(30)
        held = threading.Event()

        def answer(request, of=server.answer):  # no tar is answered before all are asked for
            if request.path.endswith(".tar") and request.command == "GET":
                asked.add(request.path)
                if len(asked) == 3:
                    held.set()
                assert held.wait(30)
            of(request)

        asked: set[str] = set()
        server.answer = answer
        server.hold.set()
        opening.join()
        assert len(asked) == 3

    def test_an_empty_tar_is_named_as_in_a_folder(self, server, tars, cache_dir):
        (tars / "train-00003.tar").touch()
        with pytest.raises(ShardError, match=r"/train-00003.tar: (.*)$") as here:
            open_dataset(tars)
        with pytest.raises(ShardError, match=r"/train-00003.tar: (.*)$") as there:
            open_dataset("s3://bucket/D", cache_dir=cache_dir, storage_options=server.options)
        assert str(here.value).partition(".tar: ")[2] == str(there.value).partition(".tar: ")[2]

    def test_sees_that_one_was_replaced(self, server, tars, cache_dir, images):
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        assert samples(open_dataset("s3://bucket/D", **options)) == images
        shutil.copy(tars / "train-00000.tar", tars / "train-00002.tar")
        assert samples(open_dataset("s3://bucket/D", **options)) == images[: 2 * PER_SHARD] + images[:PER_SHARD]

    def test_trains_in_the_same_order(self, server, tars, cache_dir):
        there = Loader("s3://bucket/D", cache_dir=cache_dir, storage_options=server.options, **SETTINGS)
        here = Loader(tars, order="quasi-random", block="shard", **SETTINGS)
        assert_same(batches(there), batches(here))

    def test_is_of_one_split_by_its_name(self, server, tars, cache_dir):
        shutil.copy(tars / "train-00001.tar", tars / "val-00000.tar")
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        assert len(open_dataset("s3://bucket/D", "val", **options)) == PER_SHARD


class TestContent:
    def test_a_flipped_byte_is_found_by_a_tag_that_is_an_md5(self, server, tars, cache_dir, images):
        server.faults = [("train-00001.tar", "flip")]
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        assert samples(open_dataset("s3://bucket/D/train-{00000..00002}.tar", **options)) == images
        assert server.faults == []

    def test_a_tag_that_is_no_md5_is_believed_when_the_content_comes_twice(self, server, tars, cache_dir, images):
        server.tags = {"D/train-00001.tar": f'"{"0" * 32}"', "D/train-00002.tar": '"0123-4"'}
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        dataset = open_dataset("s3://bucket/D", **options)
        assert samples(dataset) == images
        assert [server.requests.count(f"D/train-0000{n}.tar") for n in range(3)] == [1, 2, 2]
        for file in dataset.files():
            file.unlink()
        assert samples(dataset) == images  # what came twice alike is known by its checksum
        assert [server.requests.count(f"D/train-0000{n}.tar") for n in range(3)] == [2, 3, 3]

    def test_without_a_checksum_is_believed_at_once_by_tls(self, server, bucket):
        server.tags = {"D/train-00001.tar": '"0123-4"'}
        remote = RemoteFolder("s3://bucket/D", server.options)
        assert not remote.guarded and not RemoteFolder("http://127.0.0.1/D").guarded
        assert RemoteFolder("https://127.0.0.1/D").guarded and RemoteFolder("s3://bucket/D").guarded
        remote.guarded = True
        stored = remote.look("train-00001.tar")
        wanted = WantedFile(stored.name, stored.size, "", stored.tag)
        for strict, requests in ((False, 1), (True, 3)):
            with tempfile.TemporaryFile() as file:
                fetching.Fetching(remote).fetch(wanted, file.fileno(), strict)
                assert file.read() == (bucket / "D/train-00001.tar").read_bytes()
            assert server.contents_asked("D/train-00001.tar") == requests

    def test_a_flipped_byte_is_found_by_a_tag_of_parts(self, server, tars, cache_dir, images, monkeypatch):
        monkeypatch.setattr(etags, "_MIB", 1000)
        content = (tars / "train-00001.tar").read_bytes()
        sums = [hashlib.md5(content[at : at + 8000]).digest() for at in range(0, len(content), 8000)]
        server.tags = {"D/train-00001.tar": f'"{hashlib.md5(b"".join(sums)).hexdigest()}-{len(sums)}"'}
        server.faults = [("train-00001.tar", "flip")]
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        assert samples(open_dataset("s3://bucket/D", **options)) == images
        assert server.faults == [] and server.requests.count("D/train-00001.tar") == 2

    def test_another_content_each_time_is_refused(self, server, tars, cache_dir, monkeypatch):
        server.tags = {"D/train-00000.tar": f'"{"0" * 32}"'}
        sums = itertools.count()
        monkeypatch.setattr(fetching, "_digest", lambda *_: str(next(sums)))
        with pytest.raises(DataError, match=r"train-00000.tar: fetched 5 times, with another content each time; check"):
            open_dataset("s3://bucket/D", cache_dir=cache_dir, storage_options=server.options)


class TestNames:
    def test_braces(self):
        assert named_tars("s3://b/p/train-{000..002}.tar") == ("s3://b/p", "train-{000..002}.tar")
        assert named_tars("s3://b/p") == ("s3://b/p", None) == named_tars("s3://b/p")
        assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
        assert expanded("{a,b}-{0..1}.tar") == ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]
        assert expanded("one.tar") == ["one.tar"]

    @pytest.mark.parametrize(
        ("pattern", "fault"),
        [
            ("{3..1}.tar", "ends before it begins"),
            ("{0..999999}.tar", "1,000,000 names; give at most 100,000"),
            ("{0..9999}{0..9999}.tar", "100,000,000 names"),
            ("{x}.tar", "neither a range"),
            ("{0..1.tar", "do not match"),
        ],
    )
    def test_that_are_refused(self, pattern, fault):
        with pytest.raises(ValueError, match=fault):
            expanded(pattern)

    def test_a_tar_that_is_not_there(self, server, tars, cache_dir):
        options = {"cache_dir": cache_dir, "storage_options": server.options}
        with pytest.raises(DataError, match=r"^s3://bucket/D/train-00003.tar: not found"):
            open_dataset("s3://bucket/D/train-{00000..00003}.tar", **options)
        with pytest.raises(DataError, match=r"braces stand in the names of tars alone"):
            open_dataset("s3://bucket/{a,b}/train.tar", **options)
        with pytest.raises(DataError, match=r"/bucket/D/dataset.json: not found; .* as a web server lists none"):
            open_dataset(f"{server.endpoint}/bucket/D", cache_dir=cache_dir)


class TestRanges:
    """A cache of 0 bytes."""

    def test_each_sample_is_a_request_and_nothing_is_kept(self, opened, server, bucket, images, cache_dir):
        open_dataset(bucket / "D").close()  # makes train.fidx
        dataset = opened(0)
        server.requests.clear()
        assert samples(dataset, [3, 20]) == [images[3], images[20]]
        assert server.requests.count("D/train-00000.tar") == 7  # its tag, five places of it, and the sample
        assert list(cache_dir.glob("D-*/*.tar")) == [] and dataset.shard_files.by_ranges
        assert dataset.shard_files.about() == (
            "samples come from s3://bucket/D one by one, and nothing is kept: the cache may hold 0 bytes"
        )

    def test_batches_are_the_same_in_any_order(self, server, bucket, cache_dir):
        here = Loader(bucket / "D", order="random", block="shard", **SETTINGS)
        want = batches(here)
        options = {"cache_dir": cache_dir, "cache_limit": 0, "storage_options": server.options}
        assert_same(batches(Loader("s3://bucket/D", order="random", **options, **SETTINGS)), want)

    def test_a_replaced_shard_is_named(self, opened, bucket, server):
        open_dataset(bucket / "D").close()
        dataset = opened(0)
        samples(dataset, [PER_SHARD])
        content = (bucket / "D/train-00001.tar").read_bytes()
        (bucket / "D/train-00001.tar").write_bytes(content[:-1] + b"x")
        with pytest.raises(DataError, match=r"train-00001.tar: was replaced in the store while it was in use"):
            samples(dataset, [PER_SHARD + 1])

    def test_without_an_index_a_cache_is_needed(self, opened):
        with pytest.raises(DataError, match=r"may hold 0 bytes; give a larger cache_limit="):
            opened(0)
