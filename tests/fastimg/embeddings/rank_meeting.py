"""Ranks that are threads of a test: what they exchange."""

import threading


class Meeting:
    """Where the threads that stand for ranks exchange values."""

    def __init__(self, ranks):
        self._barrier = threading.Barrier(ranks)
        self._values = [""] * ranks

    def of(self, rank):
        return type("", (), {"gather": lambda _, value: self._gather(rank, value)})()

    def _gather(self, rank, value):
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values
