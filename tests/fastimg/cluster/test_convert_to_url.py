"""`fastimg convert --backend ray` to a URL, on a cluster of Ray's own and an object store, both on this machine.

Skipped where Ray is not installed: `test_convert_on_cluster.py` has the commands.
"""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")

from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.delivery.shard_delivery import NotDelivered, staging_of
from fastimg.convert.jobs import shard_passes
from fastimg.convert.pipeline import convert
from fastimg.loaders.errors import DataError

from .conftest import NODE, options_of, read_once

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

URL = "s3://bucket/D"


@pytest.fixture
def flags(image_folder, tmp_path, server):
    """A conversion to the URL, in several shards."""
    return Convert(
        src=image_folder,
        dst=Path(URL),
        val_fraction=0.25,
        shard_size="25KB",
        cache_dir=tmp_path / "cache",
        storage_option=options_of(server),
    )


def run(flags):
    return convert(flags, Console(quiet=True))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def here(flags, folder):
    """What the same conversion writes into a folder, on this machine."""
    run(replace(flags, dst=folder, cache_dir=None, storage_option=(), backend="local", address=None, resume=False))
    return contents(folder)


def test_nodes_upload_their_shards_and_a_refused_one_is_uploaded_after_a_resume(warm, flags, cluster, server, tmp_path):
    table = tmp_path / "images.csv"
    images = sorted(flags.src.rglob("*.*"))
    rows = [f"{path},{path.parent.name},{number / 4}" for number, path in enumerate(images)]
    table.write_text("\n".join(["path,label,age", *rows]))
    flags = replace(flags, src=table, target=("label:class", "age:number"), backend="ray", address=cluster.address)
    server.faults = [("PUT D/train-00001.tar", "denied"), ("PUT D/train-00000.idx", "busy")]
    with pytest.raises(NotDelivered, match=r"train-00001\.tar: access denied.*stays there and in .*: go on with"):
        run(flags)
    assert "dataset.json" not in contents(server.folder / "D")
    run(replace(flags, resume=True))
    written = server.writes.written
    assert written[0] == "D/convert.json" and written[-1] == "D/dataset.json"
    assert written.count("D/train-00001.tar") == 1
    expected = here(flags, tmp_path / "here")
    assert "train.fcol" in expected and len([name for name in expected if name.endswith(".tar")]) > 3
    assert contents(server.folder / "D") == expected
    assert not any(path.is_file() for path in staging_of(URL, flags.cache_dir).rglob("*"))


def test_an_image_that_cannot_be_stored_leaves_nothing_in_the_store(warm, flags, cluster, server):
    (flags.src / "blue" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.jpg: not an image"):
        run(replace(flags, on_error="fail", backend="ray", address=cluster.address))
    assert contents(server.folder / "D") == {}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("images", {"field": ("mask:mask", "age:number"), "no_shuffle": True}),
        ("images", {"field": ("mask:mask", "age:number"), "format": "beton"}),
        ("texts", {"shard_size": "200KB"}),
        ("named", {"shard_size": "1MB", "val_fraction": 0.0}),
    ],
)
def test_nodes_read_in_the_store_what_was_read_once(warm, flags, cluster, server, tmp_path, name, more):
    """Its first block arrives damaged once, and nothing of it stays."""
    flags = replace(flags, src=read_once(flags.src, tmp_path)[name], **more)
    damages = iter(["", "flip"])
    server.before = lambda asked: next(damages, "") if asked == "D/source-0.spool" else ""
    run(replace(flags, backend="ray", address=cluster.address))
    assert next(damages, None) is None and "D/source-0.spool" in server.writes.written
    expected = here(flags, tmp_path / "here")
    assert len([name for name in expected if name.endswith((".tar", ".beton"))]) > 1
    assert contents(server.folder / "D") == expected
    assert not any(path.is_file() for path in staging_of(URL, flags.cache_dir).rglob("*"))


@pytest.mark.parametrize("backend", ["ray", "local"])
def test_a_store_that_refuses_leaves_nothing_that_was_for_a_while(warm, flags, cluster, server, tmp_path, backend):
    flags = replace(flags, src=read_once(flags.src, tmp_path)["images"], backend="ray", address=cluster.address)
    server.faults = [("PUT D/train-00001.tar", "denied")]
    with pytest.raises(NotDelivered, match=r"train-00001\.tar: access denied.*go on with"):
        run(flags)
    there = contents(server.folder / "D")
    assert "D/source-0.spool" in server.writes.written
    assert "convert.json" in there and not there.keys() & {"dataset.json", "source-0.spool"}
    (server.folder / "D/source-0.spool").write_bytes(b"of a conversion that was killed")
    run(replace(flags, resume=True, backend=backend, address=cluster.address if backend == "ray" else None))
    assert contents(server.folder / "D") == here(flags, tmp_path / "here")


def test_a_beton_is_written_here_of_what_nodes_leave_in_the_store(warm, flags, cluster, server, tmp_path):
    """One file of samples arrives damaged, and one is refused; then a part is added."""
    first = replace(flags, format="beton", backend="ray", address=cluster.address)
    reads = Counter()

    def damaged(name):
        reads[name] += name.endswith(".prepared")
        return "flip" if reads[name] == 2 else ""  # HEAD comes first

    server.before = damaged
    server.faults = [("PUT D/train-00002-", "denied")]
    with pytest.raises(NotDelivered, match=r"train-00002-\w+\.prepared: access denied.*go on with"):
        run(first)
    assert contents(server.folder / "D").keys() == {"convert.json"}
    run(replace(first, resume=True))
    assert max(reads.values()) > 2
    assert contents(server.folder / "D") == here(first, tmp_path / "here")
    (tmp_path / "more").mkdir()
    (flags.src / "red").rename(tmp_path / "more" / "red")
    added = replace(first, src=tmp_path / "more", append=True, format=None, val_fraction=0.0)
    run(added)
    assert contents(server.folder / "D") == here(added, tmp_path / "here")


def test_of_a_lost_node_nothing_stays_in_the_store(warm, flags, cluster, server, tmp_path, monkeypatch):
    """It is lost when both nodes have uploaded samples, and wait for the store's answer."""
    said, uploading, lost = [], set(), threading.Event()
    node = next(iter(cluster.worker_nodes))

    def say(_, words):
        said.append(words)
        if "is done again" in words:
            lost.set()

    def losing(name):
        if name.endswith(".prepared") and not lost.is_set():
            uploading.add(name)
            if len(uploading) == 2:
                cluster.remove_node(node, allow_graceful=False)
            lost.wait(20)
        return ""

    monkeypatch.setattr(shard_passes, "say", say)
    server.before = losing
    flags = replace(flags, src=read_once(flags.src, tmp_path)["images"], format="beton")
    run(replace(flags, backend="ray", address=cluster.address))
    cluster.add_node(**NODE)
    assert any(words.endswith(".beton: its node was lost, or its process killed; it is done again") for words in said)
    assert contents(server.folder / "D") == here(flags, tmp_path / "here")
