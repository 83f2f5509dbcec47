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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("ray", reason="Ray is not installed: this file has the command")

import ray
from PIL import Image
from rich.console import Console

from fastimg.cluster import head, tasks
from fastimg.config.commands import Convert
from fastimg.convert import pipeline
from fastimg.convert.sources import folders, streams
from fastimg.convert.sources.folders import FilesReader
from fastimg.errors import UsageError, UserError
from fastimg.loaders.errors import DataError

from ..convert.field_samples import png
from .conftest import NODE, once, options_of, press_ctrl_c

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


class WaitingReader(FilesReader):
    """Waits for the file `go` before it reads an image of the class red, and says on which node it waits."""

    def __init__(self, root):
        super().__init__(root)
        self._places = root.parent

    def read(self, entry):
        if "red" in entry.path:
            (self._places / f"began-{os.getppid()}").touch()  # the node's own process
            while not (self._places / "go").exists():
                time.sleep(0.01)
        return super().read(entry)


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
    monkeypatch.setattr(pipeline, "say", lambda _, words: lines.append(words))
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


def test_the_bytes_are_those_of_one_machine(cluster, image_folder, tmp_path, said):
    (image_folder / "blue" / "bad.jpg").write_bytes(b"no image")
    flags = {"val_fraction": 0.2, "no_shuffle": False}
    here = made(image_folder, tmp_path / "here", **flags)
    assert len([name for name in here if name.endswith(".tar")]) > 4
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


def test_resume_goes_on_after_a_lost_head(start_cluster, cluster, waiting, image_folder, tmp_path, said, monkeypatch):
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
    there = made(image_folder, dst, cluster, resume=True)
    assert (dst / "train-00000.tar").stat().st_mtime_ns == before
    assert there == made(image_folder, tmp_path / "here")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"address": "127.0.0.1:1"}, UserError, "--address 127.0.0.1:1: no Ray cluster can be reached there"),
        ({"format": "beton"}, UsageError, "--backend ray writes tars"),
    ],
)
def test_what_the_flags_alone_show(image_folder, tmp_path, change, error, words):
    dst = tmp_path / "there"
    with pytest.raises(error, match=words):
        pipeline.convert(Convert(src=image_folder, dst=dst, backend="ray", **change), Console(quiet=True))
    assert not dst.exists()


def test_readers_of_shards_open_them_on_the_nodes(warm, cluster, image_folder, tmp_path):
    sources = tmp_path / "tars", tmp_path / "beton"
    for source in sources:
        made(image_folder, source, format="beton" if source.name == "beton" else "tar")
    assert made(sources, tmp_path / "there", cluster) == made(sources, tmp_path / "here")


def test_an_image_that_cannot_be_stored_ends_it(warm, cluster, image_folder, tmp_path):
    (image_folder / "blue" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg: not an image .*; repair or remove it, or skip it with --on-error"):
        made(image_folder, tmp_path / "there", cluster, on_error="fail")
    assert not (tmp_path / "there").exists()


def test_cores_that_no_node_has(warm, cluster, image_folder, tmp_path):
    dst = tmp_path / "there"
    asked = {"src": image_folder, "dst": dst, "backend": "ray", "address": cluster.address}
    with pytest.raises(UsageError, match="no node of the cluster has cpu=99 for a conversion"):
        pipeline.convert(Convert(**asked, workers="99"), Console(quiet=True))
    assert not dst.exists()


@pytest.fixture
def read_once(image_folder, tmp_path):
    """Sources that are read once, from front to back: parquet files with images and masks, texts, a named dataset."""
    rows = []
    for number, path in enumerate(sorted(image_folder.rglob("*.jpg"))):
        width, height = Image.open(path).size
        mask = png(np.full((height, width), number % 5, np.uint8))
        rows.append({"image": path.read_bytes(), "label": path.parent.name, "mask": mask, "age": number})
    parquet = tmp_path / "photos.parquet"
    pq.write_table(pa.Table.from_pylist(rows), parquet, row_group_size=7)
    texts = tmp_path / "texts.csv"
    texts.write_text("text,label\n" + "".join(f"number {n},{'odd' if n % 2 else 'even'}\n" for n in range(300)))
    return {"images": parquet, "texts": texts, "named": Path("sklearn:digits")}


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("images", {"field": ("mask:mask", "age:number")}),
        ("texts", {"shard_size": "2KB"}),
        ("named", {"shard_size": "1MB", "no_shuffle": False}),
    ],
)
def test_nodes_read_what_was_read_once(warm, cluster, read_once, tmp_path, monkeypatch, said, name, flags):
    monkeypatch.setattr(streams, "_linked", lambda *_: False) if name == "texts" else None
    here = made(read_once[name], tmp_path / "here", **flags)
    assert len([file for file in here if file.endswith(".tar")]) > 2
    said.clear()
    assert made(read_once[name], tmp_path / "there", cluster, **flags) == here
    copied = [words for words in said if "copied the temporary file" in words]
    assert len(copied) == (name == "texts")
    assert not (tmp_path / "there" / ".attempts").exists()


@contextmanager
def a_lost_node(cluster, folder, said):
    """In the block, a node is lost once both read images; they are read when a shard is said to be done again."""
    node = next(iter(cluster.worker_nodes))
    losing = once(partial(began, folder, 2), lambda: cluster.remove_node(node, allow_graceful=False))
    going = once(lambda: any("is done again" in words for words in said), (folder / "go").touch)
    yield
    losing.join()
    going.join()
    cluster.add_node(**NODE)
    assert any(words.endswith(".tar: its node was lost, or its process killed; it is done again") for words in said)


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


def test_a_lost_node_costs_its_unfinished_shards(warm, cluster, waiting, image_folder, tmp_path, said):
    with a_lost_node(cluster, tmp_path, said):
        there = made(image_folder, tmp_path / "there", cluster)
    assert there == made(image_folder, tmp_path / "here")
