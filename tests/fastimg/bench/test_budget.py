"""The plan of `bench`: expected durations, how they are printed, and when a repeat is skipped."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fastimg.bench.budget import FULL, QUICK, Effort, Probe, Timetable, Work, short

PROBE = Probe(
    images=200,
    mean_bytes=1e5,
    dataset_bytes=20_000_000,
    batch_size=20,
    decoding=500.0,
    threads=1,
    cores=2,
    step=0.2,
    gpu=False,
    native=True,
)
WORK = Work(repeats=3, stages=("read", "decode", "augment", "step"), archs=("one",))


def test_the_expected_duration_of_a_part():
    parts = WORK.expected(QUICK, PROBE)
    assert list(parts) == [
        *("reading", "decoding", "augmentation", "the step", "the loader alone", "the loader on all cores"),
        "training one",
    ]
    assert parts["decoding"] == pytest.approx(3 * 1.25 * 0.4)  # 200 images at 500 a second; a quarter again
    assert parts["the loader alone"] == pytest.approx(7 * 0.4)
    assert parts["the loader on all cores"] == pytest.approx(4 * 0.2)
    slow = WORK.expected(QUICK, replace(PROBE, step=2.0))
    assert slow["the step"] == pytest.approx(3 * 2.0) and slow["training one"] == pytest.approx(3 * (2 + 2 * 2.02))
    assert sum(WORK.expected(FULL, PROBE).values()) > 1.4 * sum(parts.values())


def test_optional_parts_take_time_too():
    more = replace(WORK, threads=(1, 2), loaders=2, advice=True, tune=True).expected(QUICK, PROBE)
    assert [part for part in more if part not in WORK.expected(QUICK, PROBE)] == [
        *("what would be faster", "numbers of threads", "loaders", "tuning")
    ]
    other = WORK.expected(QUICK, replace(PROBE, native=False, gpu=True))
    assert other["the loader alone"] == pytest.approx(7 * 0.8) and "the loader on all cores" not in other


def test_the_plan_and_its_outcome_are_printed():
    said, now = io.StringIO(), iter([10.0, 13.0])
    table = Timetable(
        expected={"one": 2.0, "other": 118.4}, progress=Console(file=said, width=80), clock=lambda: next(now)
    )
    assert table.text() == "about 2 min: one 2 s, other 118 s"
    with table.measuring("one"):
        pass
    assert said.getvalue() == "[1/2] one: about 2 s\n"
    assert table.outcome() == "3 s, where 2 s were expected"
    assert table.records() == [
        {"part": "one", "expected_seconds": 2.0, "seconds": 3.0},
        {"part": "other", "expected_seconds": 118.4, "seconds": None},
    ]


@pytest.mark.parametrize(("hurries", "rounds"), [(True, [0, 1]), (False, [0, 1, 2, 3])])
def test_two_repeats_suffice_if_a_part_takes_longer_than_planned(hurries, rounds):
    now = [0.0]
    table = Timetable(expected={"one": 2.0}, progress=Console(quiet=True), clock=lambda: now[0])
    effort = Effort(repeats=4, budget=QUICK, timetable=table, advice=False, hurries=hurries)
    done = []
    with table.measuring("one"):
        for number in effort.rounds("one"):
            done.append(number)
            now[0] += 1.6
    assert done == rounds


def test_durations_are_short():
    assert [short(seconds) for seconds in (0.01, 0.44, 1.2, 119, 150)] == ["0.1 s", "0.4 s", "1 s", "119 s", "2 min"]
