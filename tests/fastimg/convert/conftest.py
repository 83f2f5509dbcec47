"""Folders of sources, as small files that a test lists."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .field_samples import SIZE


@pytest.fixture
def write(tmp_path: Path, encode: Any) -> Callable[[dict[str, Any]], Path]:
    """`write(files)`: a folder of these files; None is a JPEG, and what is no bytes or text is written as JSON."""

    def make(files: dict[str, Any]) -> Path:
        root = tmp_path / "source"
        for seed, (name, content) in enumerate(files.items()):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                content = encode((10 * seed, 90, 40), SIZE, seed=seed)
            elif not isinstance(content, bytes | str):
                content = json.dumps(content)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return make
