"""`fastimg train --backend ray` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:

UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers --group cluster
build/peers/bin/python -m pytest -n 0 tests/fastimg/cluster
"""

import json
import os
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

pytest.importorskip("ray", reason="Ray is not installed: this file has the command")
pytest.importorskip("pandas", reason="Ray Train is not installed: the extra ray brings it")

from rich.console import Console

from fastimg.cluster import head
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.train.checkpoints.stored_runs import fetch_run
from fastimg.train.nodes import launch

from .conftest import FAULTS, NODE, once, options_of, press_ctrl_c

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

MODEL = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "--no-aug", "--device", "cpu")
FLAGS = (*MODEL, "--batch-size", "8", "--workers", "1")
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
    return once((run / "last").exists, act)


def test_a_lost_head_and_a_new_one_end_with_the_weights_of_torchrun(
    cli, python, start_cluster, cluster, server, photos, tmp_path, monkeypatch
):
    """On the cluster the data comes from an object store that fails now and then, under torchrun from a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(head, "HEAD_SECONDS", 0.5)
    data = server.folder / "D"
    convert(Convert(src=photos, dst=data, shard_size="20KB"), Console(quiet=True))
    url = ("s3://bucket/D", "--cache-dir", tmp_path / "cache", "--storage-option", *options_of(server))
    fixed = (*RUN, "--order", "random")  # of a URL, the default is another
    first = start_cluster(2)
    server.rates = FAULTS
    losing = once_saved(tmp_path / "ray" / "r", lambda: first.head_node.kill_all_processes(allow_graceful=False))
    ray = ("--backend", "ray", "--num-workers", 2, "-o", "ray")
    lost = cli("train", *url, *fixed, *ray, "--address", first.address)
    losing.join()
    assert lost.code == 1
    assert "lost" in lost.err
    assert "start the same command with --resume auto" in lost.err
    done = cli("train", *url, *fixed, *ray, "--address", cluster.address, "--resume", "auto")
    assert done.code == 0, done.err
    assert "ray         2 ranks, each with cpu=1" in done.out
    assert server.met
    assert f"of {STEPS}" in done.out  # resuming ray/r after step N of 12

    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fastimg"]
    command = [*launcher, "train", str(data), *fixed, "-o", "torchrun"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    ours, theirs = (load_file(tmp_path / name / "r" / "last" / "model.safetensors") for name in ("ray", "torchrun"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == ["r"]


def test_what_cannot_be_is_said_by_the_rank_and_not_tried_again(cli, cluster, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ray = ("--backend", "ray", "--address", cluster.address, "--num-workers", 1)
    ran = cli("train", photos, *FLAGS, "--val-split", "nowhere", *ray)
    assert ran.code == 1
    assert "nowhere" in ran.err
    assert ran.out.count("1 rank, each with") == 1


def test_a_lost_node_leaves_a_rank_that_goes_on(cli, cluster, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "r"
    node = next(iter(cluster.worker_nodes))
    losing = once_saved(run, lambda: cluster.remove_node(node, allow_graceful=False))
    ran = cli("train", photos, *RUN, "--backend", "ray", "--address", cluster.address, "--elastic", "1:2")
    losing.join()
    cluster.add_node(**NODE)
    assert ran.code == 0, ran.err
    assert "training goes on from its last checkpoint" in ran.out
    assert "ray         1 rank, each with cpu=1" in ran.out
    epochs = records(run, "epoch")
    assert [(record["epoch"], record["step"]) for record in epochs] == [(n, 3 * n) for n in (1, 2, 3, 4)]
    steps = {record["step"]: record for record in records(run, "step")}
    counts = [sum(steps[step]["samples"] for step in range(first, first + 3)) for first in range(1, STEPS, 3)]
    assert counts == [SAMPLES] * 4


def test_a_run_in_a_store_goes_on_where_no_node_shares_a_folder(
    cli, start_cluster, server, photos, tmp_path, monkeypatch
):
    """Three nodes, each with a cache of its own; the one of rank 0 is lost."""
    monkeypatch.chdir(tmp_path)
    cluster = start_cluster(0)
    homes = [tmp_path / f"home-{number}" for number in range(3)]
    nodes = [cluster.add_node(**NODE, env_vars={"XDG_CACHE_HOME": str(home)}) for home in homes]
    stored = server.folder / "runs" / "r"

    def lose_the_first_rank():
        (home,) = (home for home in homes if list(home.glob("fastimg/runs/*/r/config.yaml")))
        cluster.remove_node(nodes[homes.index(home)], allow_graceful=False)

    losing = once((stored / "manifest.json").exists, lose_the_first_rank)
    store = ("-o", "s3://bucket/runs", "--storage-option", *options_of(server))
    ray = ("--backend", "ray", "--address", cluster.address, "--num-workers", 2)
    ran = cli("train", photos, *RUN, "--epochs", 12, *store, *ray)
    losing.join()
    assert ran.code == 0, ran.err
    assert "training goes on from its last checkpoint" in ran.out
    assert "uploaded    s3://bucket/runs/r" in " ".join(ran.out.split("\n"))
    run = fetch_run("s3://bucket/runs/r", server.options, tmp_path / "here")
    assert [(record["epoch"], record["step"]) for record in records(run, "epoch")] == [(n, 3 * n) for n in range(1, 13)]
    assert (run / "last" / "model.safetensors").exists()
    left = [path for home in homes for path in home.glob("fastimg/runs/*/r/config.yaml")]
    assert len(left) == 3  # those of the lost node, and of both ranks that have resumed
    again = cli("train", photos, *RUN, "--epochs", 12, *store, *ray)
    assert again.code == 2 and "s3://bucket/runs/r: a run of that name already exists" in again.err


def test_ranks_are_where_their_resources_are(cli, start_cluster, server, photos, tmp_path, monkeypatch):
    """One of two nodes has two cores and a custom resource: its cache, and no other, has the shards."""
    monkeypatch.chdir(tmp_path)
    cluster = start_cluster(0)
    homes = {name: tmp_path / name for name in ("slow", "fast")}
    cluster.add_node(**NODE, env_vars={"XDG_CACHE_HOME": str(homes["slow"])})
    more = {"num_cpus": 2, "resources": {"fast": 1}, "env_vars": {"XDG_CACHE_HOME": str(homes["fast"])}}
    cluster.add_node(**NODE | more)
    convert(Convert(src=photos, dst=server.folder / "D", shard_size="20KB"), Console(quiet=True))
    data = ("s3://bucket/D", "--storage-option", *options_of(server), *RUN, "--epochs", 1)
    ray = ("--backend", "ray", "--address", cluster.address, "--resources-per-worker")
    ran = cli("train", *data, *ray, "cpu=2,fast=1")
    assert ran.code == 0, ran.err
    assert "ray         1 rank, each with cpu=2,fast=1" in ran.out
    held = {name: list((home / "fastimg/shards").glob("*/train-*.tar")) for name, home in homes.items()}
    assert held["fast"] and not held["slow"]
    refused = cli("train", *data, "--name", "s", *ray, "cpu=3")
    assert refused.code == 2
    assert "no node of the cluster has cpu=3 for a rank; ask for less with --resources-per-worker" in refused.err


def test_ctrl_c_saves_and_ends_it_and_the_run_goes_on(cli, cluster, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "r"
    pressing = once_saved(run, press_ctrl_c)
    asked = (*RUN, "--epochs", "400")  # far more than are trained until Ctrl-C arrives
    ran = cli("train", photos, *asked, "--backend", "ray", "--address", cluster.address, "--elastic", "1:1")
    pressing.join()
    assert ran.code == 130
    step = records(run, "step")[-1]["step"]
    assert step < 2400
    on = cli("train", "--resume", run, "--max-time", "0.1s")  # on one machine
    assert on.code == 0, on.err
    assert f"after step {step} of 2400" in on.out


@pytest.mark.parametrize("arrives", ["before there is room", "before a rank trains"])
def test_ctrl_c_before_anything_is_trained(cli, cluster, photos, tmp_path, monkeypatch, arrives):
    monkeypatch.chdir(tmp_path)
    said = []
    monkeypatch.setattr(launch, "say", lambda _, words, **style: said.append(words))
    part = "waiting for room" if arrives == "before there is room" else "1 rank, each with"
    pressing = once(lambda: any(part in words for words in said), press_ctrl_c)
    count = 3 if arrives == "before there is room" else 1
    asked = ("--backend", "ray", "--address", cluster.address, "--num-workers", count)
    ran = cli("train", photos, *RUN, *asked)
    pressing.join()
    assert (ran.code, ran.err) == (130, "fastimg: interrupted\n")
