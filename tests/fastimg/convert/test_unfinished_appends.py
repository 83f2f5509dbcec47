"""Appends that were stopped at any moment: the dataset stays, and no advice leads to its loss."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fastimg.convert.shards.base
from fastimg.config.commands import Convert
from fastimg.convert.journal import Journal
from fastimg.convert.pipeline import convert
from fastimg.convert.shards.base import read_base
from fastimg.errors import UserError

from .conversions import before_planning, contents

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
    """What cannot be derived of the rest: of dataset.json all but the digests of what is derived, which come last."""
    kept = {name: content for name, content in files.items() if name.endswith((".tar", ".beton"))}
    described = json.loads(files["dataset.json"])
    for split in described["splits"].values():
        split.pop("derived", None)
    return kept | {"dataset.json": json.dumps(described).encode()}


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
        assert shards_of(contents(config.dst)).items() >= shards_of(whole).items()
        monkeypatch.undo()
        convert(replace(append, resume=True), QUIET)
        assert contents(config.dst) == whole

    @pytest.mark.parametrize("moment", ["index_large", "clear", "sync_folder"])
    def test_of_a_conversion_deletes_nothing(self, config, monkeypatch, moment):
        whole = whole_of(config)
        fail_once_written(monkeypatch, config.dst, moment, MemoryError())
        with pytest.raises(MemoryError):
            convert(config, QUIET)
        assert shards_of(contents(config.dst)).items() >= shards_of(whole).items()
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


class TestAnUnfinishedAppend:
    @pytest.fixture
    def whole(self, config: Convert, append: Convert) -> dict[str, bytes]:
        """What D becomes in the end."""
        return whole_of(config, append)

    @pytest.fixture(autouse=True)
    def stopped(
        self, config: Convert, append: Convert, whole: Any, monkeypatch: pytest.MonkeyPatch
    ) -> dict[str, bytes]:
        """D, to which the first shard has been added; the journal is there."""
        convert(config, QUIET)
        add = Journal.add

        def add_and_stop(journal: Journal, shard: Any) -> None:
            add(journal, shard)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Journal, "add", add_and_stop)
            convert(append, QUIET)
        return contents(config.dst)

    def test_is_not_answered_with_what_replaces_the_dataset(self, append, stopped, more):
        again = r"D: holds an unfinished append; continue it with its own source, --append and --resume, or give it up"
        other = r"D: an append was started with something else: the source \(.*\); use the same settings, or give it up"
        third = replace(append, src=more("third"))
        for tried, sentence in ((append, again), (third, again), (replace(third, resume=True), other)):
            with pytest.raises(UserError, match=sentence) as caught:
                convert(tried, QUIET)
            assert "--overwrite" not in str(caught.value)
        assert contents(append.dst) == stopped

    @pytest.mark.parametrize("flags", [{}, {"append": True, "val_fraction": 0.0}])
    def test_is_not_deleted_where_the_first_source_goes_on(self, config, append, stopped, whole, flags):
        with pytest.raises(UserError, match=r"an unfinished append; continue it|an append was started with"):
            convert(replace(config, **flags, resume=True), QUIET)
        assert contents(config.dst) == stopped
        convert(replace(append, resume=True), QUIET)
        assert contents(config.dst) == whole

    def test_can_be_given_up(self, config, append, more):
        (config.dst / "convert.json").unlink()
        stated = read_base(config.dst).files
        for name in contents(config.dst).keys() - stated:
            (config.dst / name).unlink()
        third = replace(append, src=more("third"))
        convert(third, QUIET)
        config.dst.rename(config.dst.with_name("given up"))
        config.dst.with_name("whole").rename(config.dst.with_name("whole before"))
        assert contents(config.dst.with_name("given up")) == whole_of(config, third)

    def test_can_be_replaced(self, config, append):
        convert(replace(config, overwrite=True), QUIET)
        assert "convert.json" not in contents(config.dst)


class TestAnAppendThatIsCompleteButForItsJournal:
    @pytest.fixture(autouse=True)
    def stopped(self, config: Convert, append: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
        """D as a kill leaves it between the renaming of dataset.json and the deletion of what it replaces."""
        convert(config, QUIET)

        def kill(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("fastimg.convert.jobs.in_folder._tidy", kill)
            convert(append, QUIET)
        assert {"convert.json", f"train-00001.{config.format}"} <= contents(config.dst).keys()

    @pytest.mark.parametrize("resume", [False, True])
    def test_is_added_to(self, config, append, more, resume):
        third = replace(append, src=more("third"))
        convert(replace(third, resume=resume), QUIET)
        assert contents(config.dst) == whole_of(config, append, third)

    def test_is_found_complete(self, config, append):
        convert(replace(config, resume=True), QUIET)
        assert contents(config.dst) == whole_of(config, append)


class TestADatasetThatAnotherConversionChangesMeanwhile:
    @pytest.mark.parametrize("change", ["append", "overwrite", "delete"])
    def test_is_left_as_it_is(self, config, append, more, monkeypatch, change):
        convert(config, QUIET)
        third = more("third")

        def meanwhile() -> None:
            if change == "append":
                convert(replace(append, src=third), QUIET)
            elif change == "overwrite":
                convert(replace(config, src=third, overwrite=True), QUIET)
            else:
                for file in config.dst.iterdir():
                    file.unlink()
            changed.append(contents(config.dst))

        changed: list[dict[str, bytes]] = []
        before_planning(monkeypatch, meanwhile)
        with pytest.raises(UserError, match=r"/D: was changed by another conversion meanwhile; run this again$"):
            convert(append, QUIET)
        assert [contents(config.dst)] == changed

    def test_is_read_after_what_tells_it_from_others(self, config, append, monkeypatch):
        convert(config, QUIET)
        digest = read_base(config.dst).sha256
        read = fastimg.convert.shards.base.read_made

        def replaced_meanwhile(folder: Path) -> Any:
            with (folder / "dataset.json").open("a") as file:
                file.write(" ")
            return read(folder)

        monkeypatch.setattr(fastimg.convert.shards.base, "read_made", replaced_meanwhile)
        assert read_base(config.dst).sha256 == digest
