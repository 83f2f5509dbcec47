"""Durations of training: notation, conversion to steps, and invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastimg.config.values.durations import Span, parse
from fastimg.errors import UsageError


@pytest.mark.parametrize(
    ("text", "span", "words", "canonical"),
    [
        ("16ep", Span(16.0, "ep"), "16 epochs", "16ep"),
        ("16", Span(16.0, "ep"), "16 epochs", "16ep"),
        ("1ep", Span(1.0, "ep"), "1 epoch", "1ep"),
        ("0", Span(0.0, "ep"), "0 epochs", "0ep"),
        (".5ep", Span(0.5, "ep"), "0.5 epochs", "0.5ep"),
        ("300ba", Span(300.0, "ba"), "300 steps", "300ba"),
        ("1ba", Span(1.0, "ba"), "1 step", "1ba"),
        ("100000sp", Span(100000.0, "sp"), "100,000 samples", "100000sp"),
        (" 1e6 SP ", Span(1e6, "sp"), "1,000,000 samples", "1000000sp"),
        ("0.2dur", Span(0.2, "dur"), "0.2 of the run", "0.2dur"),
        ("1e-5dur", Span(1e-5, "dur"), "1e-05 of the run", "1e-05dur"),
        ("1dur", Span(1.0, "dur"), "1 of the run", "1dur"),
    ],
)
def test_notation(text, span, words, canonical):
    assert parse(text, "--warmup") == span
    assert (str(span), span.text) == (words, canonical)
    assert parse(span.text, "--warmup") == span


@pytest.mark.parametrize(
    ("text", "steps"), [("2ep", 20), ("0.25ep", 2.5), ("300ba", 300), ("640sp", 10), ("100sp", 1.5625), ("0.2dur", 32)]
)
def test_steps(text, steps):
    assert parse(text, "--warmup").steps(10, 64, 160) == pytest.approx(steps)


def test_a_share_needs_a_total():
    assert parse("3ba", "--duration", whole=True).steps(10, 64) == 3
    with pytest.raises(AssertionError):
        parse("0.5dur", "--warmup").steps(10, 64)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "write a number and its unit") for text in ("", "ep", "5 epochs", "5min", "many", "nan", "inf")),
        *(
            (text, "write a number and its unit")
            for text in ("nanep", "1.2.3ep", "5ep3", "1,000sp", "0x10ba", "5ep\n5")
        ),
        *((text, "0 or more") for text in ("-1", "-1ep", "-0.1dur", "1e999ep")),
        *((text, "from 0 to 1") for text in ("1.1dur", "20dur")),
        ("1.5ba", "steps are whole numbers"),
        ("0.5sp", "samples are whole numbers"),
    ],
)
def test_nonsense(text, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        parse(text, "--warmup")
    assert str(caught.value).startswith(f"--warmup {text}: ") and "300ba (optimiser steps)" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"), [("0.5dur", "a share of itself"), ("0", "nothing would"), ("0ba", "nothing would")]
)
def test_the_duration_of_a_run_is_neither_a_share_nor_zero(text, reason):
    parse(text, "--warmup")
    with pytest.raises(UsageError, match=reason) as caught:
        parse(text, "--duration", whole=True)
    assert "16ep (epochs)" in str(caught.value) and "(share of the run)" not in str(caught.value)


@given(st.floats(0, 1e12), st.sampled_from(["ep", "ba", "sp", "dur"]))
def test_text_round_trip(value, unit):
    value = float(round(value)) if unit in ("ba", "sp") else value % 1 if unit == "dur" else value
    assert parse(Span(value, unit).text, "--decay") == Span(value, unit)
