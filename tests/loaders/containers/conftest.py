"""Encoded images, and a cache folder for each test."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def images(encode: Callable[..., bytes]) -> list[bytes]:
    """Ten encoded images of different sizes."""
    return [encode((20 * i, 100, 50), (30 + i, 20 + i), seed=i) for i in range(10)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, in tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"
