"""`fastimg embed --backend ray` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:
`test_convert_on_cluster.py` has the commands.
"""

import os

import pytest

pytest.importorskip("ray", reason="Ray is not installed: test_convert_on_cluster.py has the command")

import timm
import torch
from safetensors.torch import save_file

from fastimg.embeddings import nodes, store

from .conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


@pytest.fixture
def one_core():
    """As many threads as a task has."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def kept(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_the_bytes_are_those_of_one_machine_even_if_a_node_is_lost(
    cli, cluster, one_core, image_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "SHARD", 16)
    (image_folder / "blue" / "bad.jpg").write_bytes(b"no image")
    weights = tmp_path / "weights.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", num_classes=3).state_dict(), weights)
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
    cluster.add_node(num_cpus=1, **SMALL)
    assert "ray         2 tasks at a time, each with cpu=1" in ran.err
    assert made
    assert kept(tmp_path / "local") == kept(tmp_path / "ray")
    assert kept(tmp_path / "kept-local") == kept(tmp_path / "kept-ray")
