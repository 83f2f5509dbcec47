"""`fastimg train --backend ray` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:

UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers --group cluster
build/peers/bin/python -m pytest -n 0 tests/fastimg/cluster
"""

import json
import os
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

pytest.importorskip("ray", reason="Ray is not installed: this file has the command")
pytest.importorskip("pandas", reason="Ray Train is not installed: the extra ray brings it")

from fastimg.train.nodes import launch

from .conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

FLAGS = ("--arch", "test_resnet", "--img-size", "32", "--batch-size", "8", "--workers", "1", "--no-amp", "--no-aug")
RUN = (*FLAGS, "--val-fraction", "0.25", "--epochs", "4", "--save-interval", "1", "--log-interval", "1", "--name", "r")
SAMPLES = 48  # in the training split
STEPS = 12  # 4 epochs of 3 steps of 16 images


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """64 images of two classes."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(64):
        path = folder / "train" / ("light", "dark")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8) // (1 + number % 2)
        Image.fromarray(pixels).save(path)
    return folder


def records(run, kind):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == kind]


def once_saved(run, act):
    """Call `act` on a thread once the run has a checkpoint."""

    def wait():
        while not (run / "last").exists():
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_lost_head_and_a_new_one_end_with_the_weights_of_torchrun(
    cli, python, start_cluster, cluster, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "HEAD_SECONDS", 0.5)
    first = start_cluster(2)
    losing = once_saved(tmp_path / "ray" / "r", lambda: first.head_node.kill_all_processes(allow_graceful=False))
    ray = ("--backend", "ray", "--num-workers", 2, "-o", "ray")
    lost = cli("train", photos, *RUN, *ray, "--address", first.address)
    losing.join()
    assert lost.code == 1
    assert "lost" in lost.err
    assert "start the same command with --resume auto" in lost.err
    done = cli("train", photos, *RUN, *ray, "--address", cluster.address, "--resume", "auto")
    assert done.code == 0, done.err
    assert "ray         2 ranks, each with cpu=1" in done.out
    assert f"of {STEPS}" in done.out  # resuming ray/r after step N of 12

    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fastimg"]
    command = [*launcher, "train", str(photos), *RUN, "-o", "torchrun"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    ours, theirs = (load_file(tmp_path / name / "r" / "last" / "model.safetensors") for name in ("ray", "torchrun"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == ["r"]


def test_what_cannot_be_is_said_by_the_rank_and_not_tried_again(cli, cluster, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = cli("train", photos, *FLAGS, "--val-split", "nowhere", "--backend", "ray", "--address", cluster.address)
    assert ran.code == 1
    assert "nowhere" in ran.err
    assert ran.out.count("ranks, each with") == 1


def test_a_lost_node_leaves_a_rank_that_goes_on(cli, cluster, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "r"
    node = next(iter(cluster.worker_nodes))
    losing = once_saved(run, lambda: cluster.remove_node(node, allow_graceful=False))
    ran = cli("train", photos, *RUN, "--backend", "ray", "--address", cluster.address, "--elastic", "1:2")
    losing.join()
    cluster.add_node(num_cpus=1, **SMALL)
    assert ran.code == 0, ran.err
    assert "training goes on from its last checkpoint" in ran.out
    assert "ray         1 rank, each with cpu=1" in ran.out
    epochs = records(run, "epoch")
    assert [(record["epoch"], record["step"]) for record in epochs] == [(n, 3 * n) for n in (1, 2, 3, 4)]
    steps = {record["step"]: record for record in records(run, "step")}
    counts = [sum(steps[step]["samples"] for step in range(first, first + 3)) for first in range(1, STEPS, 3)]
    assert counts == [SAMPLES] * 4
