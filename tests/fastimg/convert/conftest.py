"""Folders of sources, as small files that a test lists, and a conversion of the class folder."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert

from .conversions import contents
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


@pytest.fixture
def console() -> Console:
    """What a conversion says is in its `file`."""
    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def config(image_folder: Path, tmp_path: Path) -> Convert:
    """36 images of 3 classes into shards of a few images each."""
    return Convert(src=image_folder, dst=tmp_path / "out", shard_size="8KB", workers="2", tile="off")


@pytest.fixture
def whole(config: Convert, tmp_path: Path, console: Console) -> dict[str, bytes]:
    """The result of an uninterrupted run of `config`."""
    convert(replace(config, dst=tmp_path / "whole"), console)
    return contents(tmp_path / "whole")
