"""Signals as requests, and the agreement of ranks on one."""

import os
import pty
import signal

import pytest

from fastimg.system import signals
from fastimg.system.signals import SAVE, Interrupt, sigterm_exits, strongest, votes

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


@pytest.fixture
def hung_up():
    """SIGHUP does what it does unless the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_as_sigterm_does(monkeypatch, hung_up):
    """What is printed to it from then on fails no more, so that the checkpoint is written."""
    terminal, ours = pty.openpty()
    monkeypatch.setattr(signals, "_terminals", lambda: [ours])
    with Interrupt() as interrupt:
        os.close(terminal)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(ours, b"x")
        signal.raise_signal(signal.SIGHUP)
        assert interrupt.signal == TERM
        assert os.write(ours, b"x") == 1
    os.close(ours)


def test_nohup_is_respected_and_what_a_block_has_opened_is_closed(hung_up):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
        assert interrupt.signal == 0
        with sigterm_exits():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    with pytest.raises(SystemExit) as ended, sigterm_exits():
        signal.raise_signal(signal.SIGHUP)
    assert ended.value.code == 129 and signal.getsignal(signal.SIGHUP) is before
