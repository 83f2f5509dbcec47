"""What tests of conversions share: reading what was written, and interrupting a conversion."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastimg.convert.image_preparation
import fastimg.convert.pipeline
from fastimg.loaders.decode import decode


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def samples(folder: Path, split: str = "train") -> dict[str, tuple[Any, int, str, bytes]]:
    """(note, class, extension, bytes) of every sample, by its stem's name, read by Python's tarfile."""
    found = {}
    for tar in sorted(folder.glob(f"{split}-*.tar")):
        members: dict[str, dict[str, bytes]] = {}
        with tarfile.open(tar) as archive:
            for info in archive:
                stem, _, ext = info.name.partition(".")
                members.setdefault(stem, {})[ext] = archive.extractfile(info).read()  # type: ignore[union-attr]
        for stem, fields in members.items():
            (ext,) = fields.keys() - {"cls", "json"}
            found[stem] = (json.loads(fields["json"]), int(fields["cls"]), ext, fields[ext])
    return found


def stop_after(
    monkeypatch: pytest.MonkeyPatch, count: int, error: BaseException | type[BaseException] = KeyboardInterrupt
) -> None:
    """Raise `error` when image number `count` is checked."""
    left = iter(range(count))

    def decode_or_stop(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise error
        return decode(*arguments)

    monkeypatch.setattr(fastimg.convert.image_preparation, "decode", decode_or_stop)


def before_planning(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` once a conversion has read its source, before it has the destination for itself."""
    plan = fastimg.convert.pipeline.plan_shards

    def first_act(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(fastimg.convert.pipeline, "plan_shards", plan)
        act()
        return plan(*arguments, **more)

    monkeypatch.setattr(fastimg.convert.pipeline, "plan_shards", first_act)
