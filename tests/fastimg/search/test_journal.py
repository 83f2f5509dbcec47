"""The journal of a search: what has ended is read, the rest runs; its clock goes on where it stood."""

import json

import pytest

from fastimg.errors import UserError
from fastimg.search.places.folder import JOURNAL
from fastimg.search.pool import Job
from fastimg.search.records import TrialRecord
from fastimg.search.staged.journal import TrialJournal


class Clock:
    """Time that passes only when told."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


def job(number, **settings):
    return Job(number=0, stage="heads", parameters={"n": number}, settings={"lr": number, **settings})


def ended(each, seconds=1.0):
    return TrialRecord(
        number=each.number,
        stage=each.stage,
        state="complete",
        parameters=each.parameters,
        settings=each.settings,
        values=(0.5,),
        metrics={"loss": 1.0},
        reported={1: 0.5},
        seconds=seconds,
        epochs=1,
    )


class Runner:
    """Runs jobs in no time on a clock, and remembers which."""

    def __init__(self, clock, seconds=10.0, die_after=None):
        self.clock, self.seconds, self.die_after = clock, seconds, die_after
        self.ran = []

    def __call__(self, jobs, report):
        for each in jobs:
            if len(self.ran) == self.die_after:
                raise KeyboardInterrupt
            self.ran.append(each)
            self.clock.time += self.seconds
            yield ended(each, self.seconds)


def nothing(*_):
    return False


def test_trials_that_ended_are_read_and_the_next_one_runs(tmp_path):
    clock = Clock()
    first = TrialJournal(tmp_path, Runner(clock, die_after=2), clock)
    with pytest.raises(KeyboardInterrupt):
        list(first.run([job(0), job(1), job(2), job(3)], nothing))
    runner = Runner(clock)
    clock.time = 50.0  # another day
    again = TrialJournal(tmp_path, runner, clock)
    records = list(again.run([job(0), job(1), job(2), job(3)], nothing))
    assert [each.parameters["n"] for each in runner.ran] == [2, 3]
    assert [record.parameters["n"] for record in records] == [0, 1, 2, 3]
    assert [record.number for record in records] == [1, 2, 3, 4]
    assert again.now() == 40


def test_the_clock_stands_still_until_something_runs_and_does_not_count_the_time_between(tmp_path):
    clock = Clock()
    first = TrialJournal(tmp_path, Runner(clock), clock)
    list(first.run([job(0)], nothing))
    clock.time += 5000
    again = TrialJournal(tmp_path, Runner(clock), clock)
    seen = []
    for record in again.run((job(n) for n in range(3)), nothing):
        seen.append((record.parameters["n"], again.now()))
    assert seen == [(0, 10.0), (1, 20.0), (2, 30.0)]


def test_a_job_is_asked_for_after_the_records_before_it_were_taken(tmp_path):
    """Since it may be drawn from them: as `run` of a pool promises, for known trials too."""
    clock = Clock()

    def search(journal):
        told = []

        def drawn():
            for n in range(4):
                yield job(n, drawn_from=len(told))

        for record in journal.run(drawn(), nothing):
            told.append(record)
        return [record.settings["drawn_from"] for record in told]

    assert search(TrialJournal(tmp_path, Runner(clock), clock)) == [0, 1, 2, 3]
    runner = Runner(clock)
    assert search(TrialJournal(tmp_path, runner, clock)) == [0, 1, 2, 3]
    assert runner.ran == []


def test_a_line_that_a_kill_cut_off_is_a_trial_that_runs_again_in_its_own_directory(tmp_path):
    clock = Clock()
    list(TrialJournal(tmp_path, Runner(clock), clock).run([job(0), job(1)], nothing))
    file = tmp_path / JOURNAL
    file.write_text(file.read_text()[:-20])
    runner = Runner(clock)
    records = list(TrialJournal(tmp_path, runner, clock).run([job(0), job(1)], nothing))
    assert [(each.number, each.settings["name"], each.settings["resume"]) for each in runner.ran] == [
        (2, "0002", "auto")
    ]
    assert [record.number for record in records] == [1, 2]
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_run_made_longer_is_another_trial_in_the_same_directory(tmp_path):
    clock = Clock()
    runner = Runner(clock)
    jobs = [job(0, epochs=1, name="ignored"), job(0, epochs=3, name="0007")]
    list(TrialJournal(tmp_path, runner, clock).run(jobs, nothing))
    assert [(each.number, each.settings["name"]) for each in runner.ran] == [(1, "ignored"), (2, "0007")]


def test_what_was_measured_is_measured_once(tmp_path):
    clock = Clock()
    first = TrialJournal(tmp_path, Runner(clock), clock)

    def slowly():
        clock.time += 7
        return {"rate": 3.0}

    assert first.fact("speed", slowly) == {"rate": 3.0}
    again = TrialJournal(tmp_path, Runner(clock), clock)
    assert again.fact("speed", lambda: pytest.fail("measured twice")) == {"rate": 3.0}
    assert again.now() == 7


def test_running_trials_are_told_how_long_they_have(tmp_path):
    clock = Clock()
    told = []
    journal = TrialJournal(tmp_path, Runner(clock), clock, told.append)
    journal.until = 25.0
    list(journal.run([job(0), job(1)], nothing))
    assert told == [25.0, 25.0, 15.0]


def test_a_trial_that_the_clock_ended_runs_again_and_its_time_counts(tmp_path):
    clock = Clock()

    def cut(jobs, report):
        for each in jobs:
            clock.time += 30
            reason = "the time was over after 1 epoch"
            yield TrialRecord(number=each.number, stage=each.stage, state="pruned", reason=reason, values=(0.4,))

    list(TrialJournal(tmp_path, cut, clock).run([job(0)], nothing))
    runner = Runner(clock)
    again = TrialJournal(tmp_path, runner, clock)
    assert [record.values for record in again.records] == [(0.4,)]  # it is a model until it goes on
    (record,) = again.run([job(0)], nothing)
    assert again.records == [record]
    assert (record.state, record.number, again.now()) == ("complete", 1, 40)


@pytest.mark.parametrize(
    "line", ["{", "3", '{"kind": "begun", "key": "a"}', '{"kind": "ended", "key": 1, "at": 2, "record": []}']
)
def test_a_damaged_line_is_named_in_a_sentence(line, tmp_path):
    (tmp_path / JOURNAL).write_text('{"kind": "begun", "key": "a", "number": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=r"trials\.jsonl: line 2 is damaged, and without it the search does not know"):
        TrialJournal(tmp_path, nothing)
