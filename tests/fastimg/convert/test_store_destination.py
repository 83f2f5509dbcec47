"""Conversion into an object store: the files of a conversion into a folder, and never what only looks complete."""

import contextlib
import errno
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.delivery.destination_url import staged
from fastimg.convert.delivery.shard_delivery import NotDelivered
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError, open_dataset
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.remote import writable
from fastimg.loaders.runtime.scratch import Scratch

from ...loaders.remote.object_server import LASTING, ObjectServer

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

URL = "s3://bucket/D"


@pytest.fixture
def flags(server: ObjectServer, image_folder: Path, tmp_path: Path) -> Convert:
    """A conversion to the URL, in several shards."""
    return Convert(
        src=image_folder,
        dst=Path(URL),
        val_fraction=0.25,
        shard_size="20KB",
        workers="1",
        cache_dir=tmp_path / "staging",
        storage_option=tuple(f"{name}={value}" for name, value in server.options.items()),
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Convert], object]:
    return lambda config: convert(config, Console(quiet=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def here(flags: Convert, folder: Path) -> dict[str, bytes]:
    """What the same conversion writes into a folder."""
    convert(replace(flags, dst=folder, cache_dir=None, storage_option=()), Console(quiet=True))
    return contents(folder)


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_the_bytes_are_those_of_a_folder(flags, run, server, tmp_path, container):
    flags = replace(flags, format=container)
    report = run(flags)
    assert report.dst == URL
    assert contents(server.folder / "D") == here(flags, tmp_path / "here")
    assert server.writes.written[-1] == "D/dataset.json" and server.writes.written[0] == "D/convert.json"
    assert not any(path.is_file() for path in (tmp_path / "staging").rglob("*"))
    url = open_dataset(URL, "val", cache_dir=tmp_path / "cache", storage_options=server.options)
    assert url.labels.tolist() == open_dataset(tmp_path / "here", "val").labels.tolist()
    url.close()


def test_targets_and_fields_are_derived_from_shards_that_are_gone(flags, run, server, tmp_path, image_folder):
    rows = [(path, path.parent.name) for path in sorted(image_folder.rglob("*.jpg"))][:12]
    table = tmp_path / "t.csv"
    lines = [f"{path},{name},{place / 4},{place}" for place, (path, name) in enumerate(rows)]
    table.write_text("\n".join(["path,kind,age,weight", *lines]))
    flags = replace(
        *(flags,),
        src=table,
        val_fraction=0.0,
        shard_size="8KB",
        target=("kind:class", "age:number"),
        field=("weight:number",),
    )
    run(flags)
    expected = here(flags, tmp_path / "here")
    assert {"train.fcol", "train.ffld", "train-00001.tar"} <= expected.keys()
    assert contents(server.folder / "D") == expected


class TestFaults:
    @pytest.mark.parametrize("fault", ["busy", "cut", "flip"])
    def test_that_pass_are_survived(self, flags, run, server, tmp_path, fault):
        server.faults = [("PUT D/train-00001.tar", fault), ("PUT D/dataset.json", fault), ("PUT D/train.fidx", fault)]
        run(flags)
        assert server.faults == []
        assert contents(server.folder / "D") == here(flags, tmp_path / "here")

    @pytest.mark.parametrize(("fault", "reason"), LASTING)
    def test_an_upload_that_is_refused_can_go_on(self, flags, run, server, tmp_path, fault, reason):
        server.faults = [("PUT D/train-00001.tar", fault)]
        with pytest.raises(NotDelivered, match=rf"train-00001.tar: .*{reason}.*: go on with resume=True$"):
            run(flags)
        assert "dataset.json" not in contents(server.folder / "D")
        with pytest.raises(UserError, match="holds an unfinished conversion; continue it with --resume"):
            run(flags)
        done = [name for name in server.writes.written if name.endswith(".tar")]
        assert done
        run(replace(flags, resume=True))
        assert all(server.writes.written.count(name) == 1 for name in done)
        assert contents(server.folder / "D") == here(flags, tmp_path / "here")

    def test_a_kill_leaves_nothing_that_looks_complete(self, flags, run, server, tmp_path, monkeypatch):
        server.faults = [("PUT D/train-00001.tar", "stall")]
        options = [word for option in flags.storage_option for word in ("--storage-option", option)]
        command = ["convert", str(flags.src), URL, "--val-fraction", "0.25", "--shard-size", "20KB", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "fastimg", *command, "--workers", "1", "--cache-dir", str(flags.cache_dir)],
            stderr=subprocess.DEVNULL,
        )
        assert server.writes.stalled.wait(120)
        process.kill()
        process.wait()
        server.writes.release.set()
        assert "dataset.json" not in contents(server.folder / "D")
        with pytest.raises(DataError, match="s3://bucket/D: a conversion that did not finish"):
            open_dataset(URL, cache_dir=tmp_path / "cache", storage_options=server.options)
        done = [name for name in server.writes.written if name.endswith(".tar")]
        run(replace(flags, resume=True))
        assert contents(server.folder / "D") == here(flags, tmp_path / "here")
        assert sum(server.writes.written.count(name) for name in done) <= len(done) + 1  # one may lack its line

    @pytest.mark.parametrize("left", [[".tar"], [".idx"], [".tar", ".idx"]])
    def test_files_that_a_kill_left_of_an_uploaded_shard_are_deleted(self, flags, run, server, tmp_path, left):
        server.faults = [("PUT D/dataset.json", "denied")]
        with pytest.raises(NotDelivered):
            run(flags)
        staging = staged(flags)[0].dst
        for suffix in left:
            shutil.copy(server.folder / f"D/train-00000{suffix}", staging)
        before = len(server.writes.written)
        run(replace(flags, resume=True))
        assert not [name for name in server.writes.written[before:] if name.endswith(".tar")]
        assert contents(server.folder / "D") == here(flags, tmp_path / "here")

    def test_a_shard_that_was_replaced_meanwhile_is_uploaded_again(self, flags, run, server, tmp_path):
        server.faults = [("PUT D/dataset.json", "denied")]
        with pytest.raises(NotDelivered):
            run(flags)
        (server.folder / "D/train-00000.tar").write_bytes(b"another")
        (server.folder / "D/train-00001.idx").unlink()
        before = len(server.writes.written)
        run(replace(flags, resume=True))
        again = {name for name in server.writes.written[before:] if name.endswith(".tar")}
        assert again == {"D/train-00000.tar", "D/train-00001.tar"}
        assert contents(server.folder / "D") == here(flags, tmp_path / "here")

    def test_a_bucket_that_denies_everything_is_told_of_before_anything_is_read(self, flags, run, server, tmp_path):
        server.faults = [("", "denied")]
        with pytest.raises(DataError, match="access denied"):
            run(flags)
        assert not (tmp_path / "staging").exists()

    def test_a_source_that_is_not_there_is_told_of_before_the_store_is_asked(self, flags, run, server, tmp_path):
        with pytest.raises(DataError, match=r"nothing: no such file or folder"):
            run(replace(flags, src=tmp_path / "nothing"))
        assert server.requests == []

    def test_a_source_that_fails_leaves_nothing(self, flags, run, server, image_folder, tmp_path):
        broken = tmp_path / "broken"
        shutil.copytree(image_folder, broken)
        max(broken.rglob("*.jpg")).write_bytes(b"\xff\xd8 no image")
        with pytest.raises(DataError):
            run(replace(flags, src=broken, on_error="fail"))
        assert contents(server.folder / "D") == {}
        assert not any(path.is_file() for path in (tmp_path / "staging").rglob("*"))

    @pytest.mark.parametrize("moment", ["source", "shard"])
    def test_a_full_disk_here_is_named(self, flags, run, tmp_path, monkeypatch, moment):
        flags = replace(flags, dst=Path(f"file://{tmp_path}/new/D"), storage_option=())

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        again = {"source": "convert again", "shard": "continue with the same command and --resume"}[moment]
        sentence = (
            rf"^{tmp_path}/staging/staging/D-\w+, where shards are made for file://{tmp_path}/new/D: no space left "
            rf"on the disk; free some space, then {again}$"
        )
        with monkeypatch.context() as patched, pytest.raises(UserError, match=sentence):
            place = {
                "source": "fastimg.convert.pipeline.read_source",
                "shard": f"{ShardWriter.__module__}.ShardWriter._write",
            }
            patched.setattr(place[moment], full)
            run(flags)
        run(replace(flags, resume=moment == "shard"))
        assert contents(tmp_path / "new/D") == here(flags, tmp_path / "here")

    def test_files_of_several_parts(self, flags, run, server, tmp_path, monkeypatch):
        monkeypatch.setattr(writable, "PART", 5 << 20)
        server.faults = [("POST D/big.tar", "busy")]
        big = tmp_path / "big.tar"
        big.write_bytes(bytes(range(256)) * (11 << 12))
        folder = writable.WritableFolder(URL, server.options)
        assert folder.send("big.tar", big).size == big.stat().st_size
        assert server.writes.multipart == ["D/big.tar"] and contents(server.folder / "D")["big.tar"] == big.read_bytes()


def images(server: ObjectServer) -> list[tuple[int, bytes]]:
    """The class and the bytes of every image of the dataset in the store."""
    scratch = Scratch()
    with contextlib.closing(open_dataset(server.folder / "D", "train")) as dataset:
        return [(int(label), bytes(dataset.read(index, scratch))) for index, label in enumerate(dataset.labels)]


@pytest.mark.parametrize("container", ["tar", "beton"])
class TestReplacing:
    """The old dataset stays until the new one is complete, as in a folder; its shards have other names."""

    @pytest.fixture
    def old(self, flags, run, container):
        flags = replace(flags, format=container)
        run(flags)
        return replace(flags, overwrite=True, seed=5)

    def test_by_another_one(self, old, run, server, tmp_path, container):
        expected = here(replace(old, overwrite=False), tmp_path / "here")
        first = {name for name in contents(server.folder / "D") if name.endswith((".tar", ".beton"))}
        say = Console(file=io.StringIO(), width=1000)
        convert(old, say)
        assert f"the new shards get other names: {'numbered .beton' if container == 'beton' else 'tars from 00'}" in (
            say.file.getvalue()
        )
        there = contents(server.folder / "D")
        second = {name for name in there if name.endswith((".tar", ".beton"))}
        assert len(second) == len(first) and not first & second and "convert.json" not in there
        shards = sorted(data for name, data in expected.items() if name.endswith((".tar", ".beton")))
        assert sorted(there[name] for name in second) == shards
        run(replace(old, resume=True))
        assert contents(server.folder / "D") == there
        run(replace(old, seed=0))  # the first names are free again
        assert {name for name in contents(server.folder / "D") if name.endswith((".tar", ".beton"))} == first

    def test_a_source_that_fails_replaces_nothing(self, old, run, server, image_folder):
        before = contents(server.folder / "D")
        for file in image_folder.rglob("*.jpg"):
            file.write_bytes(b"\xff\xd8 no image")
        with pytest.raises(DataError):
            run(replace(old, on_error="fail"))
        assert contents(server.folder / "D") == before

    @pytest.mark.parametrize("place", ["second shard", "dataset.json"])
    def test_one_that_was_ended_goes_on(self, old, run, server, tmp_path, container, place):
        before = images(server)
        used = [int(name[-9:-4]) for name in contents(server.folder / "D") if name.endswith(".tar")]
        names = {"tar": f"val-{1 + max(used, default=0):05d}.tar", "beton": "val-00001.beton"}
        server.faults = [(f"PUT D/{names[container] if place == 'second shard' else place}", "denied")]
        with pytest.raises(NotDelivered):
            run(old)
        assert images(server) == before
        with pytest.raises(UserError, match="holds an unfinished conversion that is to replace the dataset there"):
            run(replace(old, overwrite=False))
        run(replace(old, resume=True))
        run(replace(old, overwrite=False, dst=Path(f"file://{tmp_path}/here/D"), storage_option=()))
        expected = contents(tmp_path / "here/D")
        shards = [data for name, data in expected.items() if name.endswith((".tar", ".beton"))]
        there = contents(server.folder / "D")
        assert sorted(data for name, data in there.items() if name.endswith((".tar", ".beton"))) == sorted(shards)
        assert images(server) != before and "convert.json" not in there


class TestDestinations:
    def test_that_hold_a_dataset(self, flags, run, server):
        run(flags)
        before = contents(server.folder / "D")
        with pytest.raises(UserError, match="already holds a dataset; give another URL, or replace it with --over"):
            run(flags)
        run(replace(flags, resume=True))
        with pytest.raises(UserError, match="was started with something else: --seed"):
            run(replace(flags, resume=True, seed=1))
        (server.folder / "D/train-00099.tar").write_bytes(b"")
        run(replace(flags, overwrite=True, delete_first=True))
        assert contents(server.folder / "D") == before

    def test_that_hold_something_else(self, flags, run, server):
        (server.folder / "D").mkdir()
        (server.folder / "D/notes.txt").write_text("mine")
        with pytest.raises(UserError, match="not empty, and not made by fastimg convert; give a new or empty URL"):
            run(flags)
        assert contents(server.folder / "D") == {"notes.txt": b"mine"}

    def test_that_another_machine_began(self, flags, run, server, tmp_path):
        server.faults = [("PUT D/dataset.json", "denied")]
        with pytest.raises(NotDelivered):
            run(flags)
        with pytest.raises(UserError, match="whose journal is not in"):
            run(replace(flags, resume=True, cache_dir=tmp_path / "elsewhere"))

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"dst": Path("D")}, "--cache-dir has no effect without a URL as SRC or DST"),
            ({"storage_option": ("secret_access_key=x",)}, "give it in the environment"),
        ],
    )
    def test_that_cannot_be(self, flags, change, sentence):
        with pytest.raises(UsageError, match=sentence):
            staged(replace(flags, **change))

    def test_a_web_server(self, flags, run):
        with pytest.raises(DataError, match="http://host/D: a web server is only read"):
            run(replace(flags, dst=Path("http://host/D")))

    def test_a_file_url_makes_its_folder(self, flags, run, tmp_path):
        run(replace(flags, dst=Path(f"file://{tmp_path}/new/D"), storage_option=()))
        assert contents(tmp_path / "new/D") == here(flags, tmp_path / "here")
        assert json.loads((tmp_path / "new/D/dataset.json").read_text())["container"] == "tar"
