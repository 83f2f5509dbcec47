"""Searches in tests draw no pictures, unless a test is about them."""

import pytest


@pytest.fixture(autouse=True)
def pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures of a search in tests of `test_plots` alone: they take longer than a small search."""
    if request.path.name != "test_plots.py":
        monkeypatch.setattr("fastimg.search.plots.draw", lambda *_: [])
