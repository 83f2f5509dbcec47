"""What fits in a time, and what is tried next: pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.search.staged.rungs import (
    MOST_ARMS,
    MOST_HEADS,
    Arm,
    affordable,
    cost,
    final_epochs,
    head_epochs,
    interleaved,
    next_head,
    rungs,
    shares,
    small_side,
    variations,
)


def arm(seconds=10.0, number=0, small=None):
    return Arm(encoder="e", parameters={"n": number}, seconds=seconds, side=224, small=small)


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        (1, [(1, 1, True)]),
        (2, [(2, 1, False), (1, 2, True)]),
        (3, [(3, 1, False), (1, 2, True)]),
        (4, [(4, 1, False), (2, 2, False), (1, 6, True)]),
        (9, [(9, 1, False), (3, 2, False), (1, 6, True)]),
    ],
)
def test_a_third_of_the_arms_climbs_for_longer(arms, expected):
    assert [(rung.arms, rung.epochs, rung.full) for rung in rungs(arms)] == expected


def test_the_cost_of_arms_is_that_of_their_epochs():
    assert cost([arm()]) == 10
    assert cost([arm(), arm()]) == 2 * 10 + 2 * 10
    assert cost([arm(small=112), arm(small=112)]) == 2 * 10 / 4 + 2 * 10  # small images first, then the full size


@given(st.lists(st.floats(1, 100), max_size=12), st.floats(1, 3000))
def test_what_is_affordable_costs_no_more_than_there_is(seconds, budget):
    chosen = affordable([arm(each, n) for n, each in enumerate(seconds)], budget)
    assert len(chosen) <= MOST_ARMS
    assert not chosen or cost(chosen) <= budget


def test_an_expensive_arm_keeps_no_other_one_out():
    cheap, dear = arm(1.0, 0), arm(1000.0, 1)
    assert affordable([dear, cheap], 10) == [cheap]
    assert affordable([dear], 10) == []


def test_images_that_are_small_already_are_not_made_smaller():
    assert [small_side(side) for side in (32, 128, 160, 224, 288)] == [None, None, 96, 128, 160]


def test_the_first_variation_is_the_usual_one_and_texts_are_never_mirrored():
    for tuned in (False, True):
        for text in (False, True):
            tried = variations(tuned, text, 3e-4)
            assert tried[0] == {"lr": 3e-4}
            assert len({str(each) for each in tried}) == len(tried)
            assert text == (not any("hflip" in each or "aa" in each for each in tried))


def test_good_encoders_and_usual_settings_come_first():
    ranked = [[f"{name}{number}" for number in range(3)] for name in "abc"]
    assert interleaved(ranked) == ["a0", "a1", "b0", "a2", "b1", "c0", "b2", "c1", "c2"]


def test_worse_encoders_are_left_out_by_halves():
    scores = {"bad": [], "good": [], "fair": [], "worst": []}
    reach = {"good": 0.9, "fair": 0.8, "bad": 0.7, "worst": 0.6}
    while (name := next_head(scores)) is not None:
        scores[name].append(reach[name])
    assert {name: len(tried) for name, tried in scores.items()} == {
        "bad": 4,
        "good": MOST_HEADS,
        "fair": 8,
        "worst": 4,
    }


def test_a_stage_without_use_leaves_its_time_to_others():
    for heads in (False, True):
        for tunes in (False, True):
            assert sum(shares(heads, tunes).values()) == pytest.approx(1)
    assert list(shares(True, False)) == ["heads"]
    assert list(shares(False, True)) == ["fine-tuning", "final"]


def test_the_winner_trains_as_long_as_there_is_time_and_no_longer_than_is_useful():
    assert final_epochs(100, 10, tuned=True) == 9
    assert final_epochs(1e6, 10, tuned=True) == 30
    assert final_epochs(-5, 10, tuned=True) <= 0
    assert [head_epochs(n) for n in (100, 1600, 100_000)] == [40, 16, 5]
