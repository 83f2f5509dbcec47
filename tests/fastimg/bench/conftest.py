"""The modules of `benchmarks/`, for the tests that ask for them."""

import pytest

from .gpu_runs import BENCHMARKS


@pytest.fixture
def benchmarks_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of `benchmarks/` can be imported."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
