"""`--overwrite`: the old dataset stays until the new one is complete, whatever ends the conversion, and wherever."""

import contextlib
import errno
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

import fastimg.convert.jobs.in_folder
import fastimg.convert.jobs.replacement
from fastimg.convert.jobs.replacement import put_in_place
from fastimg.convert.journal import STAGED, Journal
from fastimg.convert.pipeline import convert
from fastimg.convert.writers import TarStore
from fastimg.errors import UserError
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.errors import DataError
from fastimg.loaders.runtime.scratch import Scratch

from .conversions import contents


@pytest.fixture
def container():
    return "tar"


@pytest.fixture
def old(config, console, container):
    """The flags that replace a dataset by another one of the same names, and what it holds."""
    config = replace(config, format=container, shard_size="30KB")
    convert(config, console)
    return replace(config, overwrite=True, seed=5), contents(config.dst)


@pytest.fixture
def new(old, tmp_path, console):
    """What the replacement will hold."""
    config, _ = old
    convert(replace(config, dst=tmp_path / "new", overwrite=False), console)
    return contents(tmp_path / "new")


both = pytest.mark.parametrize("container", ["tar", "beton"])


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt(monkeypatch):
    """Press Ctrl-C once the first shard is in the journal."""
    add = Journal.add

    def add_and_stop(*arguments):
        add(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", add_and_stop)


def full_after(monkeypatch, count, error=errno.ENOSPC):
    """A disk that has no room for sample number `count`."""
    add = TarStore.add
    left = iter(range(count))

    def add_or_fail(*arguments):
        if next(left, None) is None:
            raise OSError(error, "a system's words")
        add(*arguments)

    monkeypatch.setattr(TarStore, "add", add_or_fail)


def read(folder):
    """The class and the bytes of every sample, in order. Raises DataError if one cannot be read."""
    scratch = Scratch()
    with contextlib.closing(open_dataset(folder, "train")) as dataset:
        return [(int(label), bytes(dataset.read(index, scratch))) for index, label in enumerate(dataset.labels)]


@both
def test_no_image_can_be_used(old, image_folder, console):
    config, before = old
    for file in image_folder.rglob("*.*"):
        file.write_bytes(b"bad")
    with pytest.raises(DataError):
        convert(config, console)
    assert contents(config.dst) == before
    assert f"{config.dst}: the dataset that is there stays as it was" in console.file.getvalue()


def test_one_bad_image_with_on_error_fail(old, image_folder, console):
    config, before = old
    (image_folder / "red" / "bad.jpg").write_bytes(b"bad")
    with pytest.raises(DataError, match=r"bad\.jpg"):
        convert(replace(config, on_error="fail"), console)
    assert contents(config.dst) == before


@both
def test_a_new_dataset_takes_the_place_of_the_old_one(old, new, console):
    config, _ = old
    (config.dst / "notes.txt").write_text("mine")
    convert(config, console)
    assert contents(config.dst) == new | {"notes.txt": b"mine"}


def contents_of_files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


class Killer:
    """Ends the process, as it were, before call number `last` of what changes files."""

    def __init__(self, monkeypatch, links=True):
        self.last = self.calls = 0
        self._patches = monkeypatch
        for owner, name in (
            *((Path, name) for name in ("replace", "unlink", "rmdir", "hardlink_to")),
            (fastimg.convert.jobs.replacement, "replace_file"),
        ):
            real = getattr(owner, name)
            if name == "hardlink_to" and not links:
                real = self._no_links
            monkeypatch.setattr(owner, name, self._counted(real))

    def _no_links(self, *_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def _counted(self, real):
        def call(*arguments, **more):
            self.calls += 1
            if self.calls == self.last:
                raise KeyboardInterrupt
            return real(*arguments, **more)

        return call


@both
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_killed_anywhere_while_it_is_put_in_place(old, new, tmp_path, monkeypatch, links):
    config, _ = old
    for module in (fastimg.convert.jobs.replacement, fastimg.convert.journal):
        monkeypatch.setattr(module, "sync_folder", lambda _: None)  # it takes most of the time
    monkeypatch.setattr("fastimg.loaders.containers.atomic.os.fsync", lambda _: None)
    made = tmp_path / "made"
    shutil.copytree(config.dst, made)
    shutil.copytree(tmp_path / "new", made / STAGED)
    either = [read(config.dst), read(tmp_path / "new")]
    assert either[0] != either[1]
    seen = []
    ended = False
    while not ended:
        folder, copy = (tmp_path / f"{name}-{len(seen)}" for name in ("killed", "copy"))
        shutil.copytree(made, folder)
        with monkeypatch.context() as patches:
            killer = Killer(patches, links)
            killer.last = len(seen) + 1
            try:
                put_in_place(folder / STAGED, folder)
                ended = True
            except KeyboardInterrupt:
                pass
        shutil.copytree(folder, copy)  # reading derives files
        try:
            seen.append(either.index(read(copy)))
        except DataError:
            assert not links
            seen.append(either.index(read(copy / STAGED)))
        if (folder / STAGED / "dataset.json").exists():
            put_in_place(folder / STAGED, folder)
        elif (folder / STAGED).exists():
            (folder / STAGED).rmdir()
        assert contents(folder) == new
    assert set(seen) == {0, 1}
    assert not links or seen == sorted(seen)


@both
def test_an_interrupted_replacement_goes_on(old, new, console, monkeypatch):
    config, before = old
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        convert(config, console)
    monkeypatch.undo()
    assert "the same command with --resume continues from here" in console.file.getvalue()
    assert contents_of_files(config.dst) == before
    if config.format == "tar":
        assert [path.name for path in (config.dst / STAGED).glob("*.tar")] == ["train-00000.tar"]
    with pytest.raises(UserError, match="holds an unfinished conversion that is to replace the dataset there; "):
        convert(replace(config, overwrite=False), console)
    with pytest.raises(UserError, match=r"holds an unfinished .* or give it up: delete \.replacement there"):
        convert(replace(config, overwrite=False, append=True, format=None), console)
    with pytest.raises(UserError, match=r"something else: --seed \(5 there, 6 here\)"):
        convert(replace(config, seed=6, resume=True), console)
    assert contents_of_files(config.dst) == before
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == new
    convert(replace(config, resume=True), console)
    assert "already complete" in console.file.getvalue()
    assert contents(config.dst) == new


def test_it_also_goes_on_without_overwrite(old, new, console, monkeypatch):
    config, _ = old
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        convert(config, console)
    monkeypatch.undo()
    convert(replace(config, resume=True, overwrite=False), console)
    assert contents(config.dst) == new


def test_another_replacement_begins_anew(old, new, console, monkeypatch):
    config, _ = old
    interrupt(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        convert(replace(config, seed=6), console)
    monkeypatch.undo()
    convert(config, console)
    assert contents(config.dst) == new


def test_overwrite_and_resume_where_nothing_was_begun(old, new, console):
    config, _ = old
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == new


def test_what_is_complete_and_not_in_place_is_put_there(old, new, console, monkeypatch):
    config, before = old
    monkeypatch.setattr(fastimg.convert.jobs.in_folder, "put_in_place", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        convert(config, console)
    monkeypatch.undo()
    assert contents_of_files(config.dst) == before
    monkeypatch.setattr(fastimg.convert.image_preparation, "decode", None)
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == new


def test_a_full_disk_keeps_the_old_dataset_and_its_advice_works(old, new, console, monkeypatch):
    config, before = old
    full_after(monkeypatch, 20)
    with pytest.raises(UserError) as told:
        convert(config, console)
    monkeypatch.undo()
    assert str(told.value) == (
        f"{config.dst}, which also holds the dataset that is to be replaced: no space left on the disk; free some "
        "space, then continue with the same command and --resume; or give --overwrite --resume --delete-first, "
        "which deletes that dataset first"
    )
    assert contents_of_files(config.dst) == before
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == new


def test_deleting_first_goes_on_with_what_was_made(old, new, console, monkeypatch):
    config, _ = old
    full_after(monkeypatch, 20)
    with pytest.raises(UserError):
        convert(config, console)
    with pytest.raises(UserError, match="no space left on the disk; free some space, then continue with the same"):
        convert(replace(config, resume=True, delete_first=True), console)
    assert contents_of_files(config.dst) == {}
    monkeypatch.undo()
    convert(replace(config, resume=True, delete_first=True), console)
    assert contents(config.dst) == new


def test_deleting_first_from_the_beginning(old, new, console, monkeypatch):
    config = replace(old[0], delete_first=True)
    full_after(monkeypatch, 20)
    with pytest.raises(UserError, match="no space left on the disk; free some space, then continue with the same"):
        convert(config, console)
    monkeypatch.undo()
    assert "dataset.json" not in contents(config.dst)
    convert(replace(config, resume=True), console)
    assert contents(config.dst) == new


def test_too_little_room_for_both_is_said_first(old, console, monkeypatch):
    config, _ = old
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10_000, 9_000, 1_000))
    convert(config, console)
    assert "stays until the new one is complete; the source has" in console.file.getvalue()
    assert "add --delete-first" in console.file.getvalue()


def test_an_old_dataset_that_cannot_be_read(config, console, whole):
    config.dst.mkdir()
    (config.dst / "dataset.json").write_text('{"format": "fastimg dataset", "version": "x"}')
    convert(replace(config, overwrite=True), console)
    assert contents(config.dst) == whole


def test_a_limit_of_file_sizes(config, console, monkeypatch):
    full_after(monkeypatch, 20, errno.EFBIG)
    monkeypatch.setattr("fastimg.loaders.errors.resource.getrlimit", lambda _: (512_000, 512_000))
    with pytest.raises(UserError) as told:
        convert(config, console)
    assert str(told.value) == (
        f"{config.dst}: larger than this process may write (512,000 bytes); raise that limit, as with `ulimit -f "
        "unlimited`, then continue with the same command and --resume"
    )
