"""`fastimg embed --backend ray` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:
`test_convert_on_cluster.py` has the commands.
"""

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")

import shutil
import sys
import time
from pathlib import Path

import ray
import timm
import torch
from rich.console import Console
from safetensors.torch import save_file

from fastimg.cluster import head, tasks
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.embeddings import nodes, store

from .conftest import FAULTS, NODE, once, options_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


def kept(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture
def weights(tmp_path):
    file = tmp_path / "weights.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", num_classes=3).state_dict(), file)
    return file


def test_embeddings_of_a_url_are_those_of_one_machine(
    warm, cli, cluster, one_core, server, image_folder, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "SHARD", 16)
    data = server.folder / "D"
    convert(Convert(src=image_folder, dst=data, val_fraction=0.25, shard_size="25KB"), Console(quiet=True))
    shutil.copy(weights, server.folder / "w.safetensors")
    server.rates = FAULTS
    for place in (("local",), ("ray", "--address", cluster.address)):
        named = weights if place == ("local",) else "s3://bucket/w.safetensors"
        asked = ("--arch", "test_resnet", "--weights", named, "--img-size", 32, "--device", "cpu")
        caches = ("--cache-dir", tmp_path / f"kept-{place[0]}", "--storage-option", *options_of(server))
        ran = cli("embed", "s3://bucket/D", tmp_path / place[0], *asked, *caches, "--backend", *place)
        assert ran.code == 0, ran.err
    assert "with test_resnet, once, on the cluster" in ran.err
    assert server.met
    assert kept(tmp_path / "local") == kept(tmp_path / "ray")
    embedded = kept(tmp_path / "kept-local" / "embeddings")
    assert len(embedded) > 6 and kept(tmp_path / "kept-ray" / "embeddings") == embedded


def test_texts_of_a_url_are_embedded_on_one_machine(warm, cli, cluster):
    ran = cli("embed", "s3://bucket/T", "out", "--arch", "hf:x", "--backend", "ray", "--address", cluster.address)
    assert ran.code == 2
    assert "--backend ray: texts of s3://bucket/T become tokens on one machine; leave it out" in ran.err


def test_the_bytes_are_those_of_one_machine_even_if_a_node_is_lost(
    warm, cli, cluster, one_core, image_folder, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "SHARD", 16)
    (image_folder / "blue" / "bad.jpg").write_bytes(b"no image")
    made = []
    results = nodes.ClusterTasks.results

    def losing(*arguments, **named):
        for each in results(*arguments, **named):
            yield each
            if arguments[1] is nodes._encode_on_node and not made:
                made.append(each)
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    monkeypatch.setattr(nodes.ClusterTasks, "results", losing)
    for place in (("local",), ("ray", "--address", cluster.address)):
        asked = ("--arch", "test_resnet", "--weights", weights, "--img-size", 32, "--device", "cpu")
        caches = ("--cache-dir", tmp_path / f"kept-{place[0]}", "--backend", *place)
        ran = cli("embed", image_folder, tmp_path / place[0], *asked, *caches)
        assert ran.code == 0, ran.err
    cluster.add_node(**NODE)
    assert "ray         2 tasks at a time, each with cpu=1" in ran.err
    assert made
    assert kept(tmp_path / "local") == kept(tmp_path / "ray")
    assert kept(tmp_path / "kept-local") == kept(tmp_path / "kept-ray")


def encode_once(common, item):
    """The work of a task; all but the one that begins first do nothing, and say so by the file `began`."""
    try:
        Path("first").touch(exist_ok=False)
    except FileExistsError:
        Path("began").touch()
        while True:
            time.sleep(0.01)
    yield from nodes._encode_on_node(common, item)  # there, the module's own


def test_a_lost_head_ends_it_and_a_new_one_goes_on(
    cli, start_cluster, cluster, one_core, image_folder, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "SHARD", 16)
    monkeypatch.setattr(head, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(tasks, "_REFRESH", 0.2)
    monkeypatch.chdir(tmp_path)
    ours, theirs = Path("kept-local"), Path("kept-ray")

    def embedded(cache, out, *more):
        asked = ("--arch", "test_resnet", "--weights", weights, "--img-size", 32, "--device", "cpu")
        return cli("embed", image_folder, out, *asked, "--cache-dir", cache, "--backend", *more)

    def kept_shards():
        found = [path for path in theirs.rglob("0*.tar") if ".attempts" not in path.parts]
        return {path: path.stat().st_mtime_ns for path in found}

    first = start_cluster(1)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with monkeypatch.context() as patched:
            patched.setattr(nodes, "_encode_on_node", encode_once)
            losing = once(
                lambda: Path("began").exists() and kept_shards(),
                lambda: first.head_node.kill_all_processes(allow_graceful=False),
            )
            lost = embedded(theirs, "ray", "ray", "--address", first.address)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert f"--backend ray: the head of the cluster, {first.address}, is lost" in lost.err
    losing.join()
    assert lost.code == 1
    assert "; the same command goes on" in lost.err
    before = kept_shards()
    assert before
    for cache, out, *more in ((theirs, "ray", "ray", "--address", cluster.address), (ours, "local", "local")):
        ran = embedded(cache, out, *more)
        assert ran.code == 0, ran.err
    assert before.items() <= kept_shards().items()
    one, other = kept(Path("local")), kept(Path("ray"))
    stated, again = (each.pop("embeddings.json").decode() for each in (one, other))
    assert stated.replace('"made now": 36', '"made now": 20') == again  # 16 were kept
    assert one == other
    assert kept(ours) == kept(theirs)
