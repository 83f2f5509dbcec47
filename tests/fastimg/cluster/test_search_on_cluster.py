"""`fastimg search --backend ray` on a cluster of Ray's own, on this machine. Skipped where Ray is not installed:

UV_PROJECT_ENVIRONMENT=build/peers uv sync --group peers --group trackers --group cluster
build/peers/bin/python -m pytest -n 0 tests/fastimg/cluster
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

pytest.importorskip("ray", reason="Ray is not installed: this file has the command")

from fastimg.cluster import head
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UsageError, UserError
from fastimg.search import pool as pool_module
from fastimg.search.hosts.cluster import ClusterRequest, RayHosts, connected
from fastimg.search.messages import TrialJob
from fastimg.search.pool import TrialPool

from .conftest import FAULTS, NODE, once, options_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings

SEARCH = Path(__file__).parents[1] / "search"


@pytest.fixture
def asked(cluster, tmp_path):
    folder = tmp_path / "S"
    folder.mkdir()
    return ClusterRequest(
        address=cluster.address,
        amounts={"CPU": 1},
        jobs=None,
        device="auto",
        memory=False,
        data=tmp_path,
        folder=folder,
    )


@pytest.fixture
def fake(monkeypatch):
    """Trials that do what their settings say."""
    monkeypatch.setattr(RayHosts, "arguments", (str(SEARCH / "fake_worker.py"),))


def jobs(folder, *acts):
    return [
        TrialJob(number=n, stage="trials", parameters={"value": n}, settings={"log": str(folder / "log"), "act": act})
        for n, act in enumerate(acts)
    ]


def never(*_):
    return False


def comparable(folder):
    board = json.loads((folder / "leaderboard.json").read_text())
    for row in board["trials"]:
        for name in ("cache_dir", "storage_option"):  # of data at a URL
            row["settings"].pop(name, None)
        for name in ("seconds", "images_per_second"):
            row.pop(name)
    return board["trials"]


def test_the_best_model_is_that_of_the_local_pool(cli, cluster, one_core, server, image_folder, tmp_path, monkeypatch):
    """Here the data is in a folder, on the cluster in an object store that fails now and then."""
    monkeypatch.setattr("fastimg.search.param_search.prediction_speed", lambda *_: 1.0)
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path / "shared")
    data = server.folder / "D"
    convert(Convert(src=image_folder, dst=data, val_fraction=0.2, shard_size="25KB"), Console(quiet=True))
    settings = ("--img-size", 32, "--batch-size", 8, "--workers", 1, "--no-amp", "--epochs", 1, "--order", "random")
    trials = ("--arch", "test_resnet", "--param", "lr=log:1e-4:1e-2", "--trials", 2, "--device", "cpu", "--jobs", 1)
    there = ("--cache-dir", tmp_path / "cache", "--storage-option", *options_of(server))
    address = ("ray", "--address", cluster.address)
    server.rates = FAULTS
    for given, place, cache in ((data, ("local",), ()), ("s3://bucket/D", address, there)):
        ran = cli("search", given, *trials, "-o", tmp_path / place[0], "--backend", *place, "--", *settings, *cache)
        assert ran.code == 0, ran.err
    assert "ray         1 process on 1 node; a trial has cpu=1" in ran.out
    assert server.met
    ours, theirs = tmp_path / "local", tmp_path / "ray"
    assert comparable(ours) == comparable(theirs)
    a, b = (load_file(folder / "best" / "best" / "model.safetensors") for folder in (ours, theirs))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not list(theirs.glob(".seen-*"))


def test_processes_stay_and_a_trial_that_kills_its_process_is_no_lost_node(asked, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    with connected(asked) as hosts, TrialPool(hosts, "top1", said.append) as pool:
        records = list(pool.run(jobs(tmp_path, "report", "die", "report", "report"), never))
        pool.deadline = time.monotonic()
        assert list(pool.run(jobs(tmp_path, "report"), never)) == []
        pool.deadline = None

        def late():
            pool.deadline = time.monotonic()
            yield from jobs(tmp_path, "hang")

        (overdue,) = pool.run(late(), never)
    assert said[0] == "ray         2 processes on 2 nodes; a trial has cpu=1"
    assert [record.number for record in records if record.state == "complete"] == [0, 2, 3]
    (died,) = [record for record in records if record.state == "pruned"]
    assert died.reason == "its process was killed, by the system where memory runs out"
    assert {record.settings["here"] for record in records if record is not died} == {str(tmp_path)}
    assert overdue.reason == "the time was over"


def carriers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("fastimg-ray-")]


def test_threads_have_ended_when_the_connection_does(asked, fake, tmp_path):
    """Ray ends the program, with exit code 1 or a fault of the memory, if one of them waits for it at that time."""
    with pytest.raises(ZeroDivisionError), connected(asked) as hosts:
        first, _ = hosts.start(0), hosts.start(1)
        assert first.connection.recv().node  # it has arrived, and waits for a trial
        assert len(carriers()) == 4
        raise ZeroDivisionError
    assert not carriers()
    with connected(replace(asked, jobs=1)) as hosts, TrialPool(hosts, "top1", lambda _: None) as pool:
        assert len(list(pool.run(jobs(tmp_path, "report"), never))) == 1
    assert not carriers()


def test_a_trial_that_does_not_end_is_killed(asked, fake, tmp_path, monkeypatch):
    monkeypatch.setattr(pool_module, "GRACE", 0.5)
    with connected(replace(asked, jobs=1)) as hosts, TrialPool(hosts, "top1", lambda _: None) as pool:

        def late():
            pool.deadline = time.monotonic()
            yield from jobs(tmp_path, "deaf")

        (overdue,) = pool.run(late(), never)
    assert overdue.reason == "the time was over, and its process ended before it could tell more"


def test_a_part_of_a_gpu(asked, fake, tmp_path):
    """As far as it goes without GPUs: what Ray shows a process, and what the process is told."""
    asked = replace(asked, amounts={"GPU": 0.5}, jobs=1, memory=True)
    with connected(asked) as hosts, TrialPool(hosts, "top1", lambda _: None) as pool:
        (record,) = pool.run(jobs(tmp_path, "report"), never)
    settings = record.settings
    assert (settings["device"], settings["gpus"], settings["share"], settings["cores"]) == ("cuda", "0", "0.5", "")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"amounts": {"CPU": 9999}}, UsageError, "no node of the cluster has cpu=9999 for a trial; ask for less"),
        ({"amounts": {"tpu": 0.5}}, UsageError, "no node of the cluster has tpu=0.5 for a trial"),
        ({"amounts": {"GPU": 1}, "device": "cpu"}, UsageError, "leave gpu out of --resources-per-trial"),
        ({"device": "cuda"}, UsageError, "add gpu=1 to --resources-per-trial"),
        ({"address": "127.0.0.1:1"}, UserError, "--address 127.0.0.1:1: no Ray cluster can be reached there"),
    ],
)
def test_what_the_cluster_does_not_have(asked, change, error, words):
    with pytest.raises(error, match=words), connected(replace(asked, **change)):
        pass


def test_a_node_that_does_not_see_the_folder_is_named(asked, fake, tmp_path):
    with connected(asked) as hosts, pytest.raises(UserError) as caught:
        hosts._places.token.write_text("another folder's")
        with TrialPool(hosts, "top1", lambda _: None):
            pass
    assert os.uname().nodename in str(caught.value)
    assert f"has another folder at {asked.folder} than the machine that started the search" in str(caught.value)


def test_a_search_that_is_killed_leaves_no_process_and_goes_on(cluster, asked, tmp_path):
    command = [sys.executable, str(SEARCH / "killed_search.py"), str(asked.folder), cluster.address]
    search = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with search:
        assert search.stdout.readline() == "asked 0\n"
        search.stdin.write("\n")
        search.stdin.flush()
        assert search.stdout.readline() == "reported 0\n"  # the trial runs, and waits for an answer
        search.kill()
    said = subprocess.run(command, input="\n" * 99, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:2] == ["asked 0", "reported 0"]
    assert sum(line.startswith("record") for line in said) == 6
    begun = (asked.folder / "log").read_text().split()[:4]
    assert begun == ["begin", "0", "begin", "0"]  # the first one never ended


def test_a_lost_node_costs_no_trial(cluster, asked, fake, tmp_path):
    log, go = tmp_path / "log", tmp_path / "log.go"
    said = []
    running = set()

    def report(number, epoch, _value):
        running.add(number)
        if running == {0, 1} and len(cluster.worker_nodes) == 2:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        return False

    def say(words):
        said.append(words)
        if words.startswith("trial "):
            go.touch()

    with connected(asked) as hosts, TrialPool(hosts, "top1", say) as pool:
        records = list(pool.run(jobs(tmp_path, "linger", "linger"), report))
    cluster.add_node(**NODE)
    assert sorted((record.number, record.state) for record in records) == [(0, "complete"), (1, "complete")]
    assert len({record.settings["process"] for record in records}) == 1
    assert "its node was lost, or its actor ended; it is queued again, and goes on from its last checkpoint" in said[1]
    words = log.read_text().splitlines()
    assert sum(line.startswith("begin") for line in words) == 3


def test_a_lost_head_ends_it_and_the_same_command_goes_on(
    cli, start_cluster, cluster, image_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(head, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(RayHosts, "arguments", (str(SEARCH / "waiting_worker.py"),))
    monkeypatch.setattr("fastimg.search.param_search.prediction_speed", lambda *_: 1.0)
    monkeypatch.chdir(tmp_path)
    settings = ("--img-size", 32, "--batch-size", 8, "--workers", 1, "--no-amp", "--epochs", 1, "--val-fraction", 0.25)
    trials = ("--arch", "test_resnet", "--param", "lr=log:1e-4:1e-2", "--trials", 2, "--device", "cpu", "--jobs", 1)

    def searched(address):
        return cli(
            "search", image_folder, *trials, "-o", "S", "--backend", "ray", "--address", address, "--", *settings
        )

    first = start_cluster(1)
    losing = once(Path("began").exists, lambda: first.head_node.kill_all_processes(allow_graceful=False))
    lost = searched(first.address)
    assert f"search --backend ray: the head of the cluster, {first.address}, is lost" in lost.err
    losing.join()
    assert lost.code == 1
    assert "; the same command goes on when there is one again" in lost.err
    runs = [path.parent for path in Path("S").glob("*/*/metrics.jsonl")]
    (done,) = [run for run in runs if (run / "last").exists()]
    before = (done / "metrics.jsonl").stat().st_mtime_ns
    again = searched(cluster.address)
    assert again.code == 0, again.err
    assert sorted(row["trial"] for row in comparable(Path("S"))) == [0, 1]
    assert (done / "metrics.jsonl").stat().st_mtime_ns == before
    assert not list(Path("S").glob(".seen-*"))
