"""`fastimg convert --backend ray` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:

UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers --group cluster
build/peers/bin/python -m pytest -n 0 tests/fastimg/cluster
"""

import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: this file has the command")

import ray
from rich.console import Console

from fastimg.cluster import head, tasks
from fastimg.config.commands import Convert
from fastimg.convert import pipeline
from fastimg.convert.jobs import shard_passes
from fastimg.convert.sources import folders, spools
from fastimg.convert.sources.folders import FilesReader
from fastimg.errors import UsageError, UserError
from fastimg.loaders.errors import DataError

from .conftest import NODE, once, options_of, press_ctrl_c, read_once

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


class WaitingReader(FilesReader):
    """Waits for the file `go` before it reads an image of the class red, and says on which node it waits.

    passes: how many times an image is read before that; for a .beton each is looked at first.
    """

    passes = 0

    def __init__(self, root):
        super().__init__(root)
        self._places = root.parent

    def read(self, entry):
        reads = self._reads_before(entry)
        if "red" in entry.path and reads >= self.passes:
            (self._places / f"began-{os.getppid()}").touch()  # the node's own process
            while not (self._places / "go").exists():
                time.sleep(0.01)
        return super().read(entry)

    def _reads_before(self, entry):
        with (self._places / f"reads-{entry.path.replace('/', '-')}").open("a") as file:
            file.write("x")
            return file.tell() - 1


@pytest.fixture
def waiting(monkeypatch):
    """Images of one class are read when a file says so, on any node."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(folders, "FilesReader", WaitingReader)
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def said(monkeypatch):
    lines = []
    for module in (pipeline, shard_passes):
        monkeypatch.setattr(module, "say", lambda _, words: lines.append(words))
    return lines


def made(src, dst, cluster=None, **flags):
    """Convert a source, or merge several, into some shards. Returns the files."""
    paths = [*src, dst] if isinstance(src, tuple) else [src, dst]
    flags = {"shard_size": "25KB", "no_shuffle": True, "merge": len(paths) > 2, **flags}
    if cluster is not None:
        flags |= {"backend": "ray", "address": cluster.address}
    pipeline.convert(Convert(src=paths[0], dst=paths[1], more=tuple(paths[2:]), **flags), Console(quiet=True))
    return {path.name: path.read_bytes() for path in sorted(dst.iterdir())}


def began(folder, nodes):
    """Whether images are waited for on so many nodes."""
    return len(list(folder.glob("began-*"))) >= nodes


@pytest.mark.parametrize(
    ("more", "least"), [({}, 5), ({"format": "beton", "raw_fraction": 0.2}, 2)], ids=["tar", "beton"]
)
def test_the_bytes_are_those_of_one_machine(cluster, image_folder, tmp_path, said, more, least):
    (image_folder / "blue" / "bad.jpg").write_bytes(b"no image")
    flags = {"val_fraction": 0.2, "no_shuffle": False, **more}
    here = made(image_folder, tmp_path / "here", **flags)
    assert len([name for name in here if name.endswith((".tar", ".beton"))]) >= least
    said.clear()
    assert made(image_folder, tmp_path / "there", cluster, **flags) == here
    assert said[0] == "ray         2 nodes, 2 shards at a time, each by 1 core"


def test_ctrl_c_ends_it_and_resume_goes_on(cli, cluster, waiting, image_folder, tmp_path):
    dst = tmp_path / "there"
    pressing = once(lambda: (dst / "train-00000.tar").exists() and began(tmp_path, 2), press_ctrl_c)
    asked = ("convert", image_folder, dst, "--shard-size", "25KB", "--no-shuffle", "--backend", "ray")
    ran = cli(*asked, "--address", cluster.address)
    pressing.join()
    assert ran.code == 130
    assert f"{dst}: interrupted; the same command with --resume continues from here" in ran.err
    assert not (dst / ".attempts").exists()
    before = (dst / "train-00000.tar").stat().st_mtime_ns
    (tmp_path / "go").touch()
    there = made(image_folder, dst, resume=True)
    assert (dst / "train-00000.tar").stat().st_mtime_ns == before
    assert there == made(image_folder, tmp_path / "here")


def test_a_beton_goes_on_after_ctrl_c(cli, cluster, waiting, image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(WaitingReader, "passes", 1)
    dst = tmp_path / "there"

    def lines():
        return (dst / "convert.json").read_bytes().splitlines() if (dst / "convert.json").exists() else []

    pressing = once(lambda: len(lines()) > 1 and began(tmp_path, 2), press_ctrl_c)
    asked = ("convert", image_folder, dst, "--shard-size", "25KB", "--no-shuffle", "--backend", "ray")
    ran = cli(*asked, "--format", "beton", "--address", cluster.address)
    pressing.join()
    assert ran.code == 130
    before = lines()
    assert not (dst / ".attempts").exists() and not (dst / "dataset.json").exists()
    first = min(tmp_path.glob("reads-blue-*"))
    assert first.read_text() == "xx"
    (tmp_path / "go").touch()
    there = made(image_folder, dst, cluster, resume=True, format="beton")
    assert len(before) > 1
    assert first.read_text() == "xxx"  # looked at again, and not prepared
    assert there == made(image_folder, tmp_path / "here", format="beton")


def test_resume_goes_on_after_a_lost_head_was_started_again(
    start_cluster, waiting, image_folder, tmp_path, said, monkeypatch
):
    monkeypatch.setattr(head, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(tasks, "_REFRESH", 0.2)
    first = start_cluster(1)
    dst = tmp_path / "there"

    losing = once(
        lambda: (dst / "train-00000.tar").exists() and began(tmp_path, 1),
        lambda: first.head_node.kill_all_processes(allow_graceful=False),
    )
    with pytest.raises(UserError, match=r"the head of the cluster, .*, is lost .* with the same command and --resume"):
        made(image_folder, dst, first)
    losing.join()
    before = (dst / "train-00000.tar").stat().st_mtime_ns
    (tmp_path / "go").touch()
    again = start_cluster(1, like=first)
    assert again.address == first.address
    there = made(image_folder, dst, again, resume=True)
    assert (dst / "train-00000.tar").stat().st_mtime_ns == before
    assert there == made(image_folder, tmp_path / "here")


def test_an_address_without_a_cluster(image_folder, tmp_path):
    dst = tmp_path / "there"
    with pytest.raises(UserError, match=r"--address 127\.0\.0\.1:1: no Ray cluster can be reached there"):
        pipeline.convert(Convert(src=image_folder, dst=dst, backend="ray", address="127.0.0.1:1"), Console(quiet=True))
    assert not dst.exists()


def test_readers_of_shards_open_them_on_the_nodes(warm, cluster, image_folder, tmp_path):
    sources = tmp_path / "tars", tmp_path / "beton"
    for source in sources:
        made(image_folder, source, format="beton" if source.name == "beton" else "tar")
    assert made(sources, tmp_path / "there", cluster) == made(sources, tmp_path / "here")


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_an_image_that_cannot_be_stored_ends_it(warm, cluster, image_folder, tmp_path, container):
    (image_folder / "blue" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg: not an image .*; repair or remove it, or skip it with --on-error"):
        made(image_folder, tmp_path / "there", cluster, on_error="fail", format=container)
    assert not (tmp_path / "there").exists()


def test_cores_that_no_node_has(warm, cluster, image_folder, tmp_path):
    dst = tmp_path / "there"
    asked = {"src": image_folder, "dst": dst, "backend": "ray", "address": cluster.address}
    with pytest.raises(UsageError, match="no node of the cluster has cpu=99 for a conversion"):
        pipeline.convert(Convert(**asked, workers="99"), Console(quiet=True))
    assert not dst.exists()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("images", {"field": ("mask:mask", "age:number")}),
        ("texts", {"shard_size": "2KB"}),
        ("named", {"shard_size": "1MB", "no_shuffle": False}),
    ],
)
def test_nodes_read_what_was_read_once(warm, cluster, image_folder, tmp_path, monkeypatch, said, name, flags):
    src = read_once(image_folder, tmp_path)[name]
    monkeypatch.setattr(spools, "_linked", lambda *_: False) if name == "texts" else None
    here = made(src, tmp_path / "here", **flags)
    assert len([file for file in here if file.endswith(".tar")]) > 2
    said.clear()
    assert made(src, tmp_path / "there", cluster, **flags) == here
    copied = [words for words in said if "copied the temporary file" in words]
    assert len(copied) == (name == "texts")
    assert not (tmp_path / "there" / ".attempts").exists()


@contextmanager
def a_lost_node(cluster, folder, said, container="tar"):
    """In the block, a node is lost once both read images; they are read when a shard is said to be done again."""
    node = next(iter(cluster.worker_nodes))
    losing = once(partial(began, folder, 2), lambda: cluster.remove_node(node, allow_graceful=False))
    going = once(lambda: any("is done again" in words for words in said), (folder / "go").touch)
    yield
    losing.join()
    going.join()
    cluster.add_node(**NODE)
    lost = f".{container}: its node was lost, or its process killed; it is done again"
    assert any(words.endswith(lost) for words in said)


def test_a_lost_node_that_uploads_costs_its_unfinished_shards(
    warm, cluster, waiting, server, image_folder, tmp_path, said
):
    store = {"cache_dir": tmp_path / "cache", "storage_option": options_of(server), "shard_size": "25KB"}
    ray = {"backend": "ray", "address": cluster.address}
    flags = Convert(src=image_folder, dst=Path("s3://bucket/D"), no_shuffle=True, **store, **ray)
    with a_lost_node(cluster, tmp_path, said):
        pipeline.convert(flags, Console(quiet=True))
    there = {path.name: path.read_bytes() for path in (server.folder / "D").iterdir()}
    assert there == made(image_folder, tmp_path / "here")
    assert server.writes.written[-1] == "D/dataset.json"


@pytest.mark.parametrize("container", ["tar", "beton"])
def test_a_lost_node_costs_its_unfinished_shards(
    warm, cluster, waiting, image_folder, tmp_path, said, monkeypatch, container
):
    monkeypatch.setattr(WaitingReader, "passes", int(container == "beton"))
    with a_lost_node(cluster, tmp_path, said, container):
        there = made(image_folder, tmp_path / "there", cluster, format=container)
    assert there == made(image_folder, tmp_path / "here", format=container)
