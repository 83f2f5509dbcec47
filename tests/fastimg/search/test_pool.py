"""The pool: processes that stay, that are replaced where they die, and that end in time."""

import sys
import time
from pathlib import Path

import pytest

from fastimg.errors import UsageError, UserError
from fastimg.search.hosts.machine import LocalHosts
from fastimg.search.hosts.process import ProcessEnd
from fastimg.search.messages import TrialJob
from fastimg.search.pool import TrialPool

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


@pytest.fixture
def pool_of(monkeypatch):
    monkeypatch.setattr(LocalHosts, "command", FAKE)
    return lambda *devices, say=lambda _: None: TrialPool(LocalHosts(devices or ("cpu",)), "top1", say)


@pytest.fixture
def jobs(tmp_path):
    def make(*acts):
        settings = {"log": str(tmp_path / "log")}
        return [
            TrialJob(number=n, stage="trials", parameters={"value": n / 10}, settings={**settings, "act": act})
            for n, act in enumerate(acts)
        ]

    return make


def never(*_):
    return False


def test_one_process_runs_all_trials_one_after_the_other(pool_of, jobs):
    reports = []
    with pool_of() as pool:
        drawn = []

        def asked():
            for job in jobs("report", "report", "report"):
                drawn.append(job.number)
                yield job

        records = []
        for record in pool.run(asked(), lambda *report: bool(reports.append(report))):
            assert drawn[-1] == record.number  # the next one is drawn only when this one was told
            records.append(record)
    assert [record.number for record in records] == [0, 1, 2]
    assert len({record.settings["process"] for record in records}) == 1
    assert {record.settings["device"] for record in records} == {"cpu"}
    assert reports == [(0, 1, 0.0), (0, 2, 0.0), (1, 1, 0.1), (1, 2, 0.2), (2, 1, 0.2), (2, 2, 0.4)]


def test_a_verdict_stops_a_trial_and_a_process_that_dies_is_replaced(pool_of, jobs):
    said = []
    with pool_of(say=said.append) as pool:
        records = list(pool.run(jobs("report", "die", "report"), lambda number, *_: number == 2))
    assert [(record.number, record.state, record.reason) for record in records] == [
        (0, "complete", None),
        (1, "pruned", "its process was killed, by the system where memory runs out"),
        (2, "pruned", "not promising"),
    ]
    assert said == [
        "trial 1: its process was killed, by the system where memory runs out; another process goes on with the next "
        "trial"
    ]
    assert records[0].settings["process"] != records[2].settings["process"]


def test_several_processes_run_trials_side_by_side(pool_of, jobs):
    with pool_of("cuda:0", "cuda:GPU-1") as pool:
        first = pool.run(jobs("hang", "report", "report"), never)
        records = [next(first), next(first)]
        assert {record.settings["device"] for record in records} == {"cuda"}
        pool.deadline = time.monotonic()  # the one that hangs has to be asked
        records += first
    assert [record.number for record in records] == [1, 2, 0]


def test_after_the_deadline_running_trials_end_and_no_more_begin(pool_of, jobs):
    with pool_of() as pool:
        assert [record.number for record in pool.run(jobs("report"), never)] == [0]

        def late():
            pool.deadline = time.monotonic()
            yield from jobs("hang", "report")

        records = list(pool.run(late(), never))
        assert [(record.number, record.reason) for record in records] == [(0, "the time was over")]
        assert list(pool.run(jobs("report"), never)) == []
        pool.deadline = None
        assert [record.number for record in pool.run(jobs("report"), never)] == [0]


def test_a_process_that_was_asked_to_end_before_it_could_listen(pool_of, jobs):
    with pool_of() as pool:

        def dying():
            pool.deadline = time.monotonic()
            yield from jobs("die")

        (record,) = pool.run(dying(), never)
    assert record.reason.startswith(("the time was over", "its process was killed"))


def test_leaving_the_pool_ends_trials_that_run(pool_of, jobs, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), pool_of() as pool:
        list(pool.run(jobs("report"), interrupted))
    assert (tmp_path / "log").read_text().split() == ["begin", "0", "end", "0"]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"fault": "--metric x: give loss", "exit_code": 2}, UsageError, "--metric x: give loss"),
        ({"fault": "D: is not there", "exit_code": 1}, UserError, "D: is not there"),
        ({"fault": "Traceback ...", "exit_code": None}, RuntimeError, "Traceback"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_trial(pool_of, answer, error, words):
    with pool_of() as pool, pytest.raises(error, match=words):
        pool.probe({"answer": answer})


def test_the_metric_is_the_one_that_was_found(pool_of):
    with pool_of() as pool:
        assert pool.probe({"answer": {"metric": "age.mae"}}) == "age.mae"
        assert pool.metric == "age.mae"


class FarHosts(LocalHosts):
    """Processes of this machine that arrive, and are lost, as if they were on others."""

    wait = 60.0

    def start(self, place):
        process = super().start(place)
        process.arrived = False
        process.ended = lambda: process.process.wait() and ProcessEnd(reason="its node was lost", lost=True)
        return process

    def told(self, nodes):
        return f"on {sorted(nodes)}"


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(LocalHosts, "command", FAKE)
    monkeypatch.setenv("FAKE_NODE", "n1")
    return lambda count, say: TrialPool(FarHosts(["cpu"] * count), "top1", say)


def test_a_trial_whose_process_was_lost_is_queued_again(far, jobs, tmp_path):
    said = []
    with far(1, said.append) as pool:
        records = list(pool.run(jobs("report", "die once", "report"), never))
    assert [(record.number, record.state) for record in records] == [(0, "complete"), (1, "complete"), (2, "complete")]
    assert said == [
        "on ['n1']",
        "trial 1: its node was lost; it is queued again, and goes on from its last checkpoint",
    ]
    assert (tmp_path / "log").read_text().split()[4:8] == ["begin", "1", "begin", "1"]


def test_a_trial_that_loses_every_process_is_pruned(far, jobs):
    said = []
    with far(2, said.append) as pool:
        records = sorted(pool.run(jobs("die", "report"), never), key=lambda record: record.number)
    assert [(record.number, record.state, record.reason) for record in records] == [
        (0, "pruned", "its node was lost, 3 times"),
        (1, "complete", None),
    ]
    assert said[-1] == "trial 0: its node was lost, 3 times; another process goes on with the next trial"


def test_a_lost_trial_for_which_no_time_is_left(far, jobs, monkeypatch):
    with far(1, lambda words: words.startswith("trial") and setattr(pool, "deadline", time.monotonic())) as pool:
        (record,) = pool.run(jobs("die"), never)
    assert record.reason.startswith("the time was over before the trial could go on")


def test_why_no_process_can_be_there_is_said(far, monkeypatch):
    monkeypatch.setenv("FAKE_NODE", "full")
    with pytest.raises(UserError, match="full: no room"), far(2, lambda _: None):
        pass


def test_processes_are_not_waited_for_without_end(far, monkeypatch):
    monkeypatch.delenv("FAKE_NODE")
    monkeypatch.setattr(FarHosts, "wait", 0.0)
    with pytest.raises(UserError, match="no process could be started for 0:00"), far(1, lambda _: None):
        pass


def test_a_process_that_dies_between_trials_is_noticed(pool_of, jobs):
    with pool_of() as pool:
        pool._processes[0].process.kill()
        records = list(pool.run(jobs("report", "report"), never))
    assert [record.state for record in records] == ["pruned", "complete"]


def test_each_process_sees_its_own_gpu_and_has_its_own_cores(pool_of, jobs, monkeypatch):
    monkeypatch.setattr("fastimg.system.core_shares.os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    with pool_of("cuda:2", "cuda:GPU-a") as pool:
        first = pool.run(jobs("linger", "report"), never)
        records = [next(first)]
        Path(f"{jobs('report')[0].settings['log']}.go").touch()
        records += first
    found = {record.settings["gpus"]: record.settings["cores"] for record in records}
    assert found.keys() == {"2", "GPU-a"}
    assert sorted(core for cores in found.values() for core in cores.split(",")) == ["0", "1", "2", "3"]
    assert {record.settings["device"] for record in records} == {"cuda"}  # the first of those that it sees


def test_hosts_out_of_reach_end_it_while_trials_run_and_are_opened(jobs, monkeypatch):
    """As those of a cluster whose head is lost."""

    class Unreachable(LocalHosts):
        command = FAKE
        look = 0.01
        grace = 0.0
        lost = False

        def check(self):
            if self.lost:
                raise UserError("out of reach")

    hosts = Unreachable(["cpu"])

    def report(*_):
        hosts.lost = True
        return False

    with pytest.raises(UserError, match="out of reach"), TrialPool(hosts, "top1", lambda _: None) as pool:
        list(pool.run(jobs("linger"), report))
    hosts.lost = False
    with pytest.raises(UserError, match="out of reach"), TrialPool(hosts, "top1", lambda _: None) as pool:
        hosts.lost = True
        pool.probe({})  # which the process does not answer
