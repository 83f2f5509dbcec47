"""The manifest as a file."""

from pathlib import Path
from typing import Any

import pytest

from ..field_samples import jsonl, png
from .field_rows import MASKS, ROWS


@pytest.fixture
def table(write: Any) -> Path:
    folder: Path = write(
        {
            **{f"{name}.jpg": None for name in "abc"},
            "a.png": png(MASKS[0]),
            "b.png": png(MASKS[1]),
            "a.bin": b"\0bytes\xff",
            "rows.jsonl": jsonl(ROWS),
        }
    )
    return folder / "rows.jsonl"
