"""Samples that cannot be decoded."""

from typing import Literal

from fastimg.loaders.containers.datasets import Dataset
from fastimg.loaders.errors import DataError


class Faults:
    """Samples that cannot be decoded: recorded and skipped, or raised as an error. Shared by all threads."""

    def __init__(self, dataset: Dataset, on_error: Literal["skip", "fail"]) -> None:
        self.unreadable: dict[int, str] = {}  # id -> reason
        self.rerouted: dict[int, str] = {}  # id -> reason, if a decoder other than the chosen one took over
        self._dataset = dataset
        self._on_error = on_error

    def add(self, index: int, reason: str, cause: Exception | None = None) -> None:
        """Record a skipped sample. Raises DataError with its name if `on_error` is "fail"."""
        if self._on_error == "fail":
            name = self._dataset.sample_name(index)
            raise DataError(f"{name}: {reason}; repair or remove it, or use on_error=skip") from cause
        self.unreadable[index] = reason
