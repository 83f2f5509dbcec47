"""What a search needs of a cluster, and what a node makes of it. Without Ray, which the tests in `cluster` need."""

import dataclasses
from pathlib import Path

import pytest

from fastimg.cluster.connection import room, usual
from fastimg.cluster.shared_places import shared_places
from fastimg.config.values.trial_resources import parse, written
from fastimg.errors import UsageError
from fastimg.search.hosts import node
from fastimg.search.hosts.node import TrialNode
from fastimg.search.hosts.process import ProcessEnd
from fastimg.search.messages import Arrived, Ended, HostFault, Reported, TrialJob, TrialVerdict, TrialWork

FAKE = (str(Path(__file__).with_name("fake_worker.py")),)
BIG = {"CPU": 16.0, "GPU": 4.0, "memory": 1e9}
SMALL = {"CPU": 8.0, "GPU": 1.0}
HEAD = {"CPU": 4.0}


def test_amounts_are_named_as_ray_does():
    assert parse("gpu=0.5, CPU=2,tpu-v4=1") == {"GPU": 0.5, "CPU": 2.0, "tpu-v4": 1.0}
    assert written(parse("gpu=0.5,cpu=2,memory=2e9")) == "gpu=0.5,cpu=2,memory=2000000000"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "give names and amounts above 0, as in gpu=0.5,cpu=2"),
        ("gpu", "give names and amounts above 0"),
        ("cpu=0", "give names and amounts above 0"),
        ("cpu=inf", "give names and amounts above 0"),
        ("gpu=1,GPU=1", "GPU stands there twice"),
        ("gpu=2", "a trial trains on one GPU; give gpu=1 or less"),
        ("cpu=1.5", "cpu=1.5 is none"),
    ],
)
def test_amounts_that_cannot_be(text, words):
    with pytest.raises(UsageError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("nodes", "device", "amounts", "count"),
    [
        ([HEAD, BIG, SMALL], "auto", {"GPU": 1, "CPU": 4}, 5),
        ([HEAD, BIG, SMALL], "cpu", {"CPU": 4}, 7),
        ([HEAD, {"CPU": 6.0}, {}], "auto", {"CPU": 4}, 2),
        ([{}], "auto", {"CPU": 1}, 0),
    ],
)
def test_what_a_trial_takes_if_nothing_is_said(nodes, device, amounts, count):
    assert usual(nodes, device) == amounts
    assert room(nodes, amounts) == count


def test_parts_of_a_gpu_stay_on_one():
    assert room([BIG, SMALL], {"GPU": 0.5, "CPU": 1}) == 10
    assert room([BIG, SMALL], {"GPU": 0.1, "CPU": 0.1}) == 50


@pytest.fixture
def places(tmp_path, monkeypatch):
    for name in ("data", "search"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    with shared_places("search", (tmp_path / "data",), tmp_path / "search") as seen:
        yield seen


def test_a_node_that_does_not_see_everything_starts_nothing(places, monkeypatch):
    monkeypatch.setattr(node, "node_name", lambda: "n1")
    fault = TrialNode(FAKE, 0, None).begin(dataclasses.replace(places, word="another"))
    assert isinstance(fault, HostFault)
    assert fault.words.startswith("n1: has another folder at ")


def test_a_killed_process_is_told_of_only_by_an_actor_that_stays(places, tmp_path, monkeypatch):
    """Ray ends an actor by killing its processes first: that must not look like a trial that was killed."""
    waited = []
    monkeypatch.setattr(node, "node_name", lambda: "n1")
    monkeypatch.setattr(node.time, "sleep", waited.append)
    actor = TrialNode(FAKE, 0, None)
    actor.begin(places)
    settings = {"act": "die", "log": str(tmp_path / "log"), "device": "cpu"}
    job = TrialJob(number=0, stage="trials", parameters={"value": 0.5}, settings=settings)
    actor.send(TrialWork(job=job, metric="top1"))
    end = actor.receive()
    assert end.killed and not end.lost and end.reason == "its process was killed, by the system where memory runs out"
    assert sum(waited) >= 1


def test_a_node_carries_messages_and_tells_how_its_process_ended(places, tmp_path, monkeypatch):
    monkeypatch.setattr(node, "node_name", lambda: "n1")
    monkeypatch.setattr(
        node, "CoreClaim", lambda count: type("Claim", (), {"cores": (0,), "release": lambda _: None})()
    )
    actor = TrialNode(FAKE, 1, 0.5)
    assert actor.begin(places) == Arrived(node="n1")

    def work(act):
        settings = {"act": act, "log": str(tmp_path / "log"), "device": "cuda"}
        job = TrialJob(number=0, stage="trials", parameters={"value": 0.5}, settings=settings)
        actor.send(TrialWork(job=job, metric="top1"))

    work("report")
    for _ in range(2):
        assert isinstance(actor.receive(), Reported)
        actor.send(TrialVerdict(stop=False))
    ended = actor.receive()
    assert isinstance(ended, Ended)
    settings = ended.record.settings
    assert (settings["cores"], settings["share"], settings["here"]) == ("0", "0.5", str(places.here))
    work("hang")
    while (tmp_path / "log").read_text().count("begin") < 2:
        pass
    actor.terminate()
    assert isinstance(actor.receive(), Reported)
    work("die")  # it waits for a verdict, and finds something else
    assert actor.receive() == ProcessEnd(reason="its process ended with exit code 1")
    work("report")  # nobody is there
