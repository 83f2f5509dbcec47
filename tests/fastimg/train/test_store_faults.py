"""Trainings, uploads of runs and conversions while the store fails: what they make is right, or they say why not."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.data import provenance
from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.containers import quick_sums
from fastimg.loaders.remote import fetching
from fastimg.train.checkpoints.run_uploads import RunUploads
from fastimg.train.checkpoints.stored_runs import fetch_run, manifest_of

from ...loaders.remote.object_server import ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/D"
FLAGS = ("--arch", "test_resnet", "--img-size", 32, "-b", 8, "--workers", 1, "--no-amp", "--epochs", 4)
RUN = (*FLAGS, "--order", "random", "--save-interval", 1)


@pytest.fixture
def server(named_server: ObjectServer) -> ObjectServer:
    return named_server


@pytest.fixture
def data(server: ObjectServer, image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the store serves as s3://bucket/D: some shards, whose quick sums have several blocks."""
    monkeypatch.setattr(quick_sums, "BLOCK", 1000)
    folder = server.folder / "D"
    convert(Convert(src=image_folder, dst=folder, val_fraction=0.25, shard_size="12KB"), Console(quiet=True))
    return folder


@pytest.fixture
def trained(cli, tmp_path, monkeypatch):
    """`trained(data, name, *flags)`: a run in ./runs, whose directory is runs/NAME."""
    monkeypatch.chdir(tmp_path)
    return lambda data, name, *more: cli("train", data, *RUN, "--name", name, *more)


def assert_same_weights(one: str, other: str) -> None:
    ours, theirs = (load_file(Path("runs") / name / "last/model.safetensors") for name in (one, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class TestTraining:
    def test_three_requests_in_a_hundred_of_each_kind_fail_and_the_weights_are_those_of_a_folder(
        self, trained, server, data, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(fetching, "RANGE", 3000)  # many requests
        assert trained(data, "here").code == 0
        server.rates = dict.fromkeys(("busy", "cut", "flip"), 0.03)
        ran = trained(URL, "there", "--cache-dir", tmp_path / "cache")
        assert ran.code == 0, ran.err
        assert set(server.met) == {"busy", "cut", "flip"}
        assert_same_weights("here", "there")

    @pytest.mark.parametrize(
        ("fault", "sentence"),
        [
            ("expired", ": the credentials have expired; renew them in the environment, and start again with"),
            ("bucket", "bucket; check the URL and"),  # the answer to HEAD does not tell which, object or bucket
        ],
    )
    def test_what_ends_it_is_said_and_resume_goes_on_to_the_same_weights(
        self, trained, cli, server, data, tmp_path, fault, sentence
    ):
        """Samples are read by ranges, so that there are requests in all epochs."""
        server.before = lambda name: fault if Path("runs/there/last").exists() and "train-" in name else ""
        lost = trained(URL, "there", "--cache-dir", tmp_path / "cache", "--cache-limit", 0)
        assert lost.code == 1
        assert f"{URL}/train-0" in lost.err and sentence in lost.err and "Traceback" not in lost.err
        server.before = lambda name: ""
        on = cli("train", "--resume", "runs/there")
        assert on.code == 0, on.err
        assert trained(data, "here").code == 0
        assert_same_weights("here", "there")

    @pytest.mark.parametrize(
        ("limit", "sentence"),
        [
            ("0", "was replaced in the store while it was in use; open the data again, with"),
            ("1GB", "and its checksum is"),
        ],
        ids=["by ranges", "by shards"],
    )
    def test_a_shard_that_is_replaced_is_named(self, trained, server, data, tmp_path, limit, sentence):
        """By ranges after the first epoch; by shards before the first one is fetched."""
        shard = data / "train-00001.tar"
        other = shard.read_bytes()[::-1]

        def replace_shard(name: str) -> str:
            if "train-0" in name and name.endswith(".tar") and (limit != "0" or Path("runs/there/last").exists()):
                shard.write_bytes(other)
            return ""

        server.before = replace_shard
        ran = trained(URL, "there", "--cache-dir", tmp_path / "cache", "--cache-limit", limit)
        assert ran.code == 1
        assert f"{URL}/train-00001.tar: " in ran.err and sentence in ran.err and "Traceback" not in ran.err

    def test_a_cache_that_is_deleted_under_it_and_latencies_of_a_second(self, trained, server, data, tmp_path):
        cache, deleted = tmp_path / "cache", []

        def delete(name: str) -> str:
            if name.endswith(("train-00001.tar", "val-00000.tar")) and deleted.count(name) < 2:
                deleted.append(name)
                shutil.rmtree(cache)
            return ""

        server.before, server.latency = delete, 1.0
        ran = trained(URL, "there", "--cache-dir", cache, "--epochs", 2)
        assert ran.code == 0, ran.err
        assert len(deleted) == 4  # each of them was fetched again
        assert trained(data, "here", "--epochs", 2).code == 0
        assert_same_weights("here", "there")

    def test_a_silent_server_is_asked_again_and_one_that_stays_silent_ends_it(self, trained, server, data, tmp_path):
        store = ("--cache-dir", tmp_path / "cache", "--storage-option")
        server.faults = [("train-00001.tar", "stall"), ("val-00000.tar", "stall")]
        ran = trained(URL, "there", *store, "read_timeout=1s", "--epochs", 1)
        assert ran.code == 0 and server.faults == [], ran.err
        shutil.rmtree(tmp_path / "cache")
        server.before = lambda name: "stall" if name.endswith(".tar") else ""
        lost = trained(URL, "lost", *store, "read_timeout=200ms")
        said = " ".join(lost.err.split())
        assert lost.code == 1 and "Traceback" not in said
        assert ".tar: tried 9 times: no answer in time; check the network, and read_timeout with" in said


class TestSamplesThatIdentifyData:
    @pytest.fixture
    def there(self, server, data, tmp_path):
        with closing(
            open_dataset(URL, "train", cache_dir=tmp_path / "cache", storage_options=server.options)
        ) as dataset:
            shutil.rmtree(tmp_path / "cache")  # with the shards that its index was made of
            yield dataset

    def test_are_those_of_the_folder_whatever_is_flipped_on_the_way(self, there, server, data):
        server.faults = [("train-0", "flip anywhere")] * 3  # all of them may meet one sample
        found = provenance.Identity.of(there)
        assert server.faults == []
        with closing(open_dataset(data, "train")) as here:
            assert found == provenance.Identity.of(here) and found.fits(there) and found.shared(there) == 16

    def test_that_always_differ_end_it(self, there, server):
        server.rates = {"flip": 1.0}
        with pytest.raises(DataError, match=rf"^{URL}/train-0.*: a part of it was fetched 5 times, with another c"):
            provenance.Identity.of(there)


class TestUploadsOfRuns:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "config.yaml").write_text("arch: x\n")
        return folder

    @staticmethod
    def checkpoint(folder: Path, step: int) -> dict[str, bytes]:
        saved = folder / "checkpoints" / f"{step:08d}"
        saved.mkdir(parents=True)
        content = {"model.safetensors": b"model %d" % step * 100, "training.pt": b"training %d" % step * 100}
        for name, each in content.items():
            (saved / name).write_bytes(each)
        for link in ("last", "best"):
            (folder / link).unlink(missing_ok=True)
            (folder / link).symlink_to(f"checkpoints/{step:08d}")
        return content

    def test_five_requests_in_a_hundred_of_each_kind_fail(self, server, directory, tmp_path):
        url, said = "s3://bucket/runs/x", []
        server.rates = dict.fromkeys(("busy", "cut", "flip"), 0.05)
        for step in range(1, 13):
            content = self.checkpoint(directory, step)
            running = RunUploads(url, directory, server.options, said.append)
            running.finish(lambda words: None)
            shutil.rmtree(directory / "checkpoints" / f"{step - 1:08d}", ignore_errors=True)
        assert set(server.met) == {"busy", "cut", "flip"} and said == []
        server.rates = {}
        assert manifest_of(url, server.options).step == 12
        run = fetch_run(url, server.options, tmp_path / "cache")
        assert {path.name: path.read_bytes() for path in (run / "last").iterdir()} == content
        assert len(list((server.folder / "runs/x/objects").iterdir())) == 3

    def test_a_silent_server_is_asked_again(self, server, directory):
        server.faults = [("PUT runs/x/objects", "stall"), ("PUT runs/x/manifest.json", "stall")]
        self.checkpoint(directory, 4)
        options = server.options | {"read_timeout": "1s"}
        RunUploads("s3://bucket/runs/x", directory, options, lambda words: None).finish(lambda words: None)
        assert server.faults == [] and manifest_of("s3://bucket/runs/x", server.options).step == 4


class TestConversions:
    @pytest.fixture
    def flags(self, server: ObjectServer, image_folder: Path, tmp_path: Path) -> Convert:
        return Convert(
            src=image_folder, dst=Path(URL), val_fraction=0.25, shard_size="12KB", cache_dir=tmp_path / "staging"
        )

    @staticmethod
    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

    def assert_right(self, flags: Convert, server: ObjectServer, folder: Path) -> None:
        """What is in the store is what the same conversion writes into a folder."""
        convert(replace(flags, dst=folder, cache_dir=None, storage_option=()), Console(quiet=True))
        assert self.contents(server.folder / "D") == self.contents(folder)
        assert server.writes.written[-1] == "D/dataset.json"

    def test_three_requests_in_a_hundred_of_each_kind_fail(self, flags, server, tmp_path):
        server.rates = dict.fromkeys(("busy", "cut", "flip"), 0.03)
        convert(flags, Console(quiet=True))
        assert set(server.met) == {"busy", "cut", "flip"}
        self.assert_right(flags, server, tmp_path / "here")

    def test_latencies_of_a_second(self, flags, server, tmp_path):
        flags = replace(flags, val_fraction=0.0, shard_size="1GB")
        server.latency = 1.0
        convert(flags, Console(quiet=True))
        self.assert_right(flags, server, tmp_path / "here")

    def test_a_silent_server_is_asked_again(self, flags, server, tmp_path):
        flags = replace(flags, storage_option=("read_timeout=1s",))
        server.faults = [("PUT D/train-00000.tar", "stall"), ("D/train-00000.tar", "stall")]
        convert(flags, Console(quiet=True))
        assert server.faults == []
        self.assert_right(flags, server, tmp_path / "here")

    def test_a_server_that_stays_silent_ends_it(self, flags, server, tmp_path):
        server.before = lambda name: "stall"
        with pytest.raises(
            DataError, match=r"tried \d times: no answer in time; check the network, and read_timeout with"
        ):
            convert(replace(flags, storage_option=("read_timeout=200ms",)), Console(quiet=True))
        assert json.dumps(server.writes.written) == "[]"
