"""`fastimg embed` into an object store: the files of a folder, and never a description of what is not there."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.embeddings import stored_results
from fastimg.loaders.containers import quick_sums
from fastimg.loaders.remote import fetching
from fastimg.predict import embedding

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/E"


@pytest.fixture
def embed(cli, trained, server, tmp_path):
    """`embed(out, *flags)`: embeddings from the trunk of the trained run."""

    def run(out, *flags, code=0, data=trained.shards):
        options = [f"{name}={value}" for name, value in server.options.items()]
        stored = (
            [word for option in options for word in ("--storage-option", option)] if "://" in f"{out}{data}" else []
        )
        encoder = ("--arch", "test_resnet", "--weights", trained.run, "--img-size", "32", "--no-amp", "-j", "1")
        ran = cli("embed", data, out, *encoder, "--cache-dir", tmp_path / "cache", *stored, *flags)
        assert ran.code == code, ran.out + ran.err
        return ran

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_are_those_of_a_folder(embed, server, tmp_path):
    said = embed(URL, "--format", "npy").out
    assert f"embeddings in {URL}" in said
    embed(tmp_path / "here", "--format", "npy")
    there, here = contents(server.folder / "E"), contents(tmp_path / "here")
    described = [json.loads(each.pop("embeddings.json")) for each in (there, here)]
    for each in described:
        for split in each["splits"].values():
            del split["made now"]
    assert there == here and described[0] == described[1]
    assert server.writes.written[0] == "E/.embedding" and server.writes.written[-1] == "E/embeddings.json"
    assert not list((tmp_path / "cache").glob("staging/*"))


def test_splits_are_added_and_replaced(embed, server):
    embed(URL, "--split", "val")
    before = contents(server.folder / "E")
    server.writes.written.clear()
    embed(URL, "--split", "train")
    after = contents(server.folder / "E")
    assert json.loads(after["embeddings.json"])["splits"].keys() == {"train", "val"}
    assert not any("val" in name for name in server.writes.written) and before.keys() <= after.keys()
    said = embed(URL, "--dtype", "fp32", code=2).err
    assert f"{URL}: contains embeddings made with other settings" in " ".join(said.split())
    embed(URL, "--format", "npy", "--overwrite")
    assert not any(name.endswith(".tar") for name in contents(server.folder / "E"))


def test_two_at_once_from_one_machine(embed, server, monkeypatch, tmp_path):
    """The second one is refused before it touches what the first one has here or there."""
    write, said = embedding._write, []

    def later(*arguments):
        said.append(embed(URL, "--split", "train", code=1).err)
        write(*arguments)

    monkeypatch.setattr(embedding, "_write", later)
    embed(URL, "--split", "val")
    assert f"{URL}: another embed is writing to it; wait until it ends" in " ".join(said[0].split())
    assert json.loads(contents(server.folder / "E")["embeddings.json"])["splits"].keys() == {"val"}
    assert not list((tmp_path / "cache").glob("staging/*"))
    monkeypatch.setattr(embedding, "_write", write)
    embed(URL, "--split", "train")
    assert json.loads(contents(server.folder / "E")["embeddings.json"])["splits"].keys() == {"train", "val"}


def test_what_a_killed_one_left_here_is_not_sent(embed, server, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(stored_results.shutil, "rmtree", lambda *_, **__: None)
        embed(URL, "--split", "val")
    (kept,) = (tmp_path / "cache/staging").iterdir()
    (kept / "left").touch()
    embed(URL, "--split", "train")
    assert "left" not in contents(server.folder / "E") and not list((tmp_path / "cache").glob("staging/*"))


@pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
def test_faults_that_pass_are_survived(embed, server, fault):
    server.faults = [("PUT E/train-00000.tar", fault), ("PUT E/embeddings.json", fault)]
    embed(URL)
    assert server.faults == [] and "embeddings.json" in contents(server.folder / "E")


def test_a_refusal_leaves_what_was_described(embed, server):
    """The new files have other names, so the description of those that are there holds until theirs is written."""
    embed(URL, "--split", "val")
    server.faults = [("PUT E/train-00000.tar", "denied")]
    said = embed(URL, "--split", "train", code=1).err
    assert "train-00000.tar: access denied" in said and "run the same again" in said
    assert json.loads(contents(server.folder / "E")["embeddings.json"])["splits"].keys() == {"val"}
    embed(URL, "--split", "train")
    assert json.loads(contents(server.folder / "E")["embeddings.json"])["splits"].keys() == {"train", "val"}


class TestData:
    """In the store as well."""

    @pytest.fixture
    def data(self, trained, server, monkeypatch):
        monkeypatch.setattr(fetching, "RANGE", 1000)  # many requests
        monkeypatch.setattr(quick_sums, "BLOCK", 1000)
        convert(Convert(src=trained.images, dst=server.folder / "D", shard_size="12KB"), Console(quiet=True))
        return "s3://bucket/D"

    @staticmethod
    def assert_same(there, here):
        there, here = (
            {name: file for name, file in contents(each).items() if name[0] == "t"} for each in (there, here)
        )
        assert there == here and "train-00000.tar" in here

    def test_five_requests_in_a_hundred_of_each_kind_fail(self, embed, data, server, tmp_path):
        server.rates = dict.fromkeys(("busy", "cut", "flip"), 0.05)
        embed(URL, data=data)
        assert set(server.met) == {"busy", "cut", "flip"}
        embed(tmp_path / "here", data=server.folder / "D")
        self.assert_same(server.folder / "E", tmp_path / "here")

    @pytest.mark.parametrize(
        ("fault", "sentence"),
        [("expired", "the credentials have expired; renew them"), ("bucket", "no such bucket")],
    )
    def test_what_ends_it_is_said_and_the_same_command_goes_on(self, embed, data, server, tmp_path, fault, sentence):
        server.before = lambda name: fault if name.endswith("train-00000.tar") else ""
        said = " ".join(embed(URL, data=data, code=1).err.split())
        assert f"{data}/train-00000.tar: {sentence}" in said and "Traceback" not in said
        assert not (server.folder / "E/embeddings.json").exists()
        server.before = lambda name: ""
        embed(URL, data=data)
        embed(tmp_path / "here", data=server.folder / "D")
        self.assert_same(server.folder / "E", tmp_path / "here")

    def test_latencies_of_a_second_and_a_cache_that_is_deleted(self, embed, data, server, tmp_path, monkeypatch):
        monkeypatch.setattr(fetching, "RANGE", 8 << 20)  # a request for each shard
        deleted: list[str] = []

        def delete(name: str) -> str:
            if name.endswith("train-00001.tar") and not deleted:
                deleted.append(name)
                for folder in (tmp_path / "cache").glob("D-*"):
                    shutil.rmtree(folder)
            return ""

        server.latency, server.before = 1.0, delete
        embed(URL, data=data)
        assert deleted
        embed(tmp_path / "here", data=server.folder / "D")
        self.assert_same(server.folder / "E", tmp_path / "here")

    def test_a_silent_server_is_asked_again_and_one_that_stays_silent_ends_it(self, embed, data, server, tmp_path):
        silent = ("--storage-option", "read_timeout=1s")
        server.faults = [("D/train-00000.tar", "stall"), ("PUT E/train-00000.tar", "stall")]
        embed(URL, *silent, data=data)
        assert server.faults == []
        embed(tmp_path / "here", data=server.folder / "D")
        self.assert_same(server.folder / "E", tmp_path / "here")
        shutil.rmtree(tmp_path / "cache")
        server.before = lambda name: "stall" if name.endswith(".tar") else ""
        said = " ".join(embed("s3://bucket/F", *silent[:1], "read_timeout=200ms", data=data, code=1).err.split())
        assert "tar: tried 9 times: no answer in time; check the network" in said and "Traceback" not in said
        assert not (server.folder / "F/embeddings.json").exists()

    def test_a_shard_that_was_replaced_is_named(self, embed, data, server):
        shard = server.folder / "D/train-00001.tar"
        other = shard.read_bytes()[::-1]

        def replace_shard(name: str) -> str:
            if name.endswith(".tar"):
                shard.write_bytes(other)
            return ""

        server.before = replace_shard
        said = " ".join(embed(URL, data=data, code=1).err.split())
        assert f"{data}/train-00001.tar: fetched 2 times, and its checksum is" in said and "Traceback" not in said
        assert not (server.folder / "E/embeddings.json").exists()

    def test_two_at_once_share_a_cache(self, embed, data, server, tmp_path, monkeypatch):
        """Each shard is fetched once, whoever needs it first."""
        monkeypatch.setattr(fetching, "RANGE", 8 << 20)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: embed(tmp_path / name, data=data), ("one", "two")))
        embed(tmp_path / "here", data=server.folder / "D")
        for name in ("one", "two"):
            self.assert_same(tmp_path / name, tmp_path / "here")
        shards = len(list((server.folder / "D").glob("*.tar")))
        assert sum(name.endswith(".tar") for name in server.requests) == shards


def test_a_folder_of_others_is_refused(embed, server):
    (server.folder / "E").mkdir()
    (server.folder / "E/mine.txt").write_text("mine")
    said = embed(URL, code=2).err
    assert f"{URL}: contains other files; give an empty folder" in " ".join(said.split())
    assert contents(server.folder / "E") == {"mine.txt": b"mine"}
    server.faults = [("", "bucket")]
    assert "no such bucket" in embed(URL, code=1).err
