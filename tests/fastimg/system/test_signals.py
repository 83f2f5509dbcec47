"""Signals as requests, and the agreement of ranks on one."""

import signal

import pytest

from fastimg.system.signals import SAVE, Interrupt, strongest, votes

INT, TERM = int(signal.SIGINT), int(signal.SIGTERM)


@pytest.mark.parametrize(
    ("heard", "agreed"),
    [
        ([0], 0),
        ([0] * 8, 0),
        ([INT], INT),
        ([0] * 7 + [INT], INT),
        ([TERM] * 8, TERM),
        ([0, TERM], TERM),
        ([INT] * 15, INT),  # the sum of two signal numbers would be two SIGTERMs
        ([INT] * 30 + [0] * 34, INT),
        ([INT, TERM], TERM),
        ([INT] * 63 + [TERM], TERM),
        ([SAVE] + [0] * 7, SAVE),
        ([SAVE, INT], INT),  # which saves, too
    ],
)
def test_ranks_agree_on_the_strongest_signal(heard, agreed):
    """From the sum over ranks only, which is all that they exchange."""
    counts = [sum(column) for column in zip(*map(votes, heard), strict=True)]
    assert strongest(counts) == agreed


def test_a_second_interrupt_takes_effect_at_once():
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.signal == INT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
