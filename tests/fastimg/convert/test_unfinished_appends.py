"""Appends that were stopped at any moment: the dataset stays, and no advice leads to its loss."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.errors import UserError

from .conversions import contents

QUIET = Console(quiet=True)


@pytest.fixture(params=["tar", "beton"])
def config(request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path) -> Convert:
    """A conversion of the class folder to D."""
    flags = {"shard_size": "30KB", "workers": "1", "val_fraction": 0.25, "format": request.param}
    return Convert(src=image_folder, dst=tmp_path / "D", **flags)


@pytest.fixture
def append(config: Convert, more: Callable[[str], Path]) -> Convert:
    """An append to D, of several shards."""
    return Convert(src=more("more"), dst=config.dst, append=True, shard_size="4KB", workers="1")


@pytest.fixture
def more(tmp_path: Path, encode: Any) -> Callable[[str], Path]:
    """`more(name)`: another folder of two classes, whose images differ from those of other names."""

    def make(name: str) -> Path:
        for kind in ("red", "green"):
            (tmp_path / name / kind).mkdir(parents=True)
            for number in range(4):
                (tmp_path / name / kind / f"{name}{number}.jpg").write_bytes(encode(seed=number + len(name)))
        return tmp_path / name

    return make


def whole_of(config: Convert, *appends: Convert) -> dict[str, bytes]:
    """The files of a dataset into which nothing has failed."""
    folder = config.dst.with_name("whole")
    for each in (config, *appends):
        convert(replace(each, dst=folder), QUIET)
    return contents(folder)


def shards_of(files: dict[str, bytes]) -> dict[str, bytes]:
    """What cannot be derived of the rest."""
    return {name: content for name, content in files.items() if name.endswith((".tar", ".beton", ".json"))}


ERRORS = [MemoryError(), OSError(errno.EIO, "Input/output error")]


class TestAnErrorOnceTheDatasetIsThere:
    @pytest.mark.parametrize("error", ERRORS, ids=["memory", "disk"])
    @pytest.mark.parametrize("moment", ["index_large", "clear", "sync_folder"])
    def test_of_an_append_deletes_nothing(self, config, append, monkeypatch, error, moment):
        whole = whole_of(config, append)
        convert(config, QUIET)
        fail_once_written(monkeypatch, config.dst, moment, error)
        with pytest.raises((MemoryError, UserError)):
            convert(append, QUIET)
        assert contents(config.dst).items() >= shards_of(whole).items()
        monkeypatch.undo()
        convert(replace(append, resume=True), QUIET)
        assert contents(config.dst) == whole

    @pytest.mark.parametrize("moment", ["index_large", "clear", "sync_folder"])
    def test_of_a_conversion_deletes_nothing(self, config, monkeypatch, moment):
        whole = whole_of(config)
        fail_once_written(monkeypatch, config.dst, moment, MemoryError())
        with pytest.raises(MemoryError):
            convert(config, QUIET)
        assert contents(config.dst).items() >= shards_of(whole).items()
        monkeypatch.undo()
        convert(replace(config, resume=True), QUIET)
        assert contents(config.dst) == whole

    def test_says_how_to_go_on(self, config, monkeypatch):
        fail_once_written(monkeypatch, config.dst, "index_large", ERRORS[1])
        with pytest.raises(UserError, match=r"/D: Input/output error; .*, then continue with the same .* --resume$"):
            convert(config, QUIET)


def fail_once_written(monkeypatch: pytest.MonkeyPatch, folder: Path, moment: str, error: Exception) -> None:
    """Raise `error` at a `moment` after dataset.json has been renamed, as by a disk that fails from then on."""
    before = (folder / "dataset.json").read_bytes() if folder.exists() else b""
    place = "loaders.containers.atomic" if moment == "sync_folder" else "convert.jobs.in_folder"
    function = getattr(__import__(f"fastimg.{place}", fromlist=["_"]), moment)

    def fail(*arguments: Any, **more: Any) -> Any:
        if (folder / "dataset.json").exists() and (folder / "dataset.json").read_bytes() != before:
            raise error
        return function(*arguments, **more)

    monkeypatch.setattr(f"fastimg.{place}.{moment}", fail)
