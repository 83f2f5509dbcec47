"""What tests of conversions share: reading what was written, and interrupting a conversion."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastimg.convert.image_preparation
import fastimg.convert.pipeline
from fastimg.loaders.containers.betons.files import BetonWriter
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


def move_pages(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Have the data of a .beton moved where `limit` lies between its estimated and its real number of samples.

    They move by less than they take, so that a kill in between leaves neither the old nor the new ones.
    """
    first_page = BetonWriter._first_page

    def further_behind(writer: BetonWriter, samples: int) -> int:
        return first_page(writer, samples) + (1 << 15 if samples > limit else 0)

    monkeypatch.setattr(BetonWriter, "_first_page", further_behind)
    monkeypatch.setattr("fastimg.loaders.containers.betons.files._CHUNK", 1 << 13)


def kill_while_moving(monkeypatch: pytest.MonkeyPatch, folder: Path, killed: Path, writes: int) -> None:
    """End a conversion after some writes of pages that are moved; `killed` is `folder` as a kill would leave it."""
    move = BetonWriter._move

    class Killed:
        def __init__(self, file: Any) -> None:
            self._file, self._left = file, writes

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: bytes) -> int:
            if self._left == 0:
                self._file.flush()
                shutil.copytree(folder, killed)
                raise KeyboardInterrupt
            self._left -= 1
            return int(self._file.write(data))

    def move_and_die(writer: Any, start: int) -> None:
        writer._file = Killed(writer._file)
        move(writer, start)

    monkeypatch.setattr(BetonWriter, "_move", move_and_die)


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
