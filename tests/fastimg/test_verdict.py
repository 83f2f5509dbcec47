"""The verdict's arithmetic: what limits, what comes next, what is promised; with made-up rates."""

import dataclasses

import pytest

from fastimg.verdict import Advice, Measured, judge, together

FAST = 10_000.0


def measured(**changes: float | bool | None) -> Measured:
    """A GPU machine on which every part does 10,000 img/s, and what is changed."""
    whole = Measured(storage=FAST, decode=FAST, copy=FAST, augment=FAST * 9, step=FAST, synthetic=FAST, real=FAST)
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part", "kind"),
    [("storage", "storage-bound"), ("decode", "decode-bound"), ("copy", "copy-bound"), ("synthetic", "compute-bound")],
)
def test_the_slowest_part_limits(part, kind):
    found = judge(measured(**{part: 2_000.0, "real": 1_900.0}))
    assert found.kind == kind and found.limit_rate == 2_000
    assert found.next_rate == FAST
    assert found.share == pytest.approx(1_900 / (2_000 if part == "synthetic" else FAST))


def test_what_is_about_as_fast_is_balanced():
    assert judge(measured(decode=2_000.0, synthetic=2_150.0, real=1_900.0)).kind == "balanced"
    assert judge(measured(decode=2_000.0, synthetic=2_250.0, real=1_900.0)).kind == "decode-bound"
    assert judge(measured(decode=2_250.0, synthetic=2_000.0, real=1_900.0)).kind == "compute-bound"


def test_the_next_limit_is_the_second_slowest():
    found = judge(measured(decode=1_000.0, copy=3_000.0, synthetic=5_000.0, real=990.0))
    assert (found.limit, found.next, found.next_rate) == ("decode", "copy", 3_000)
    assert "decode-bound at 0.20: the loader allows 1,000 img/s" in found.sentence()
    assert "the copy to the device, the next limit, 3,000" in found.sentence()


def test_augmentation_that_takes_more_than_the_step_is_named():
    slow = measured(augment=1_500.0, step=6_000.0, synthetic=1_200.0, real=1_150.0)
    assert judge(slow).kind == "augment-bound"
    assert judge(dataclasses.replace(slow, augment=9_000.0)).kind == "compute-bound"


def test_a_part_that_there_is_not_limits_nothing():
    found = judge(measured(storage=None, copy=None, decode=500.0, real=480.0))
    assert (found.kind, found.next) == ("decode-bound", "compute")


def test_parts_run_at_the_same_time_on_a_gpu_and_share_the_cores_of_a_cpu():
    rates = {"decode": 300.0, "synthetic": 600.0, "storage": FAST}
    assert together(measured(**rates)) == 300
    assert together(measured(**rates, shared=True, copy=None)) == pytest.approx(200)
    assert together(measured(decode=300.0, synthetic=600.0, storage=50.0, shared=True)) == 50


def test_on_shared_cores_decoding_counts_though_it_is_the_faster():
    one = measured(decode=900.0, synthetic=700.0, real=340.0, shared=True, copy=None)
    assert judge(one).kind == "balanced"
    assert judge(dataclasses.replace(one, real=680.0)).kind == "compute-bound"
    assert judge(dataclasses.replace(one, shared=False)).kind == "compute-bound"


def test_advice_says_whether_it_was_tried():
    ways = [
        Advice(change="--loader native", factor=2.612, tried=True),
        Advice(change="--workers 16", factor=2.0, tried=False),
        Advice(change="--compile", factor=None, tried=False, note="takes a minute first"),
    ]
    found = judge(measured(decode=1_000.0, real=950.0), ways)
    assert found.sentence().endswith(
        "; --loader native (2.61x, tried) or --workers 16 (2.00x, an estimate) or --compile (not tried; takes a minute "
        "first)"
    )
    assert [one["tried"] for one in found.record()["advice"]] == [True, False, False]
    assert found.record()["sentence"] == found.sentence()
