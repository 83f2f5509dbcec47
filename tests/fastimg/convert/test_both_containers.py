"""The guarantees of a conversion in both containers: always the same bytes, and either a complete dataset or none."""

import errno
import io
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.journal import Journal
from fastimg.convert.pipeline import convert
from fastimg.errors import UserError
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.datasets import open_dataset, unfinished
from fastimg.loaders.containers.tars.shards import ShardWriter
from fastimg.loaders.errors import DataError

from .conversions import contents, stop_after

QUIET = Console(quiet=True)


@pytest.fixture(params=["tar", "beton"])
def config(request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path) -> Convert:
    """36 images in several shards, or parts of a file."""
    size = "8KB" if request.param == "tar" else "30KB"
    settings: dict[str, Any] = {"format": request.param, "shard_size": size, "workers": "2", "tile": "off"}
    return Convert(src=image_folder, dst=tmp_path / "out", val_fraction=0.25, **settings)


def test_the_same_bytes_with_any_number_of_threads(config: Convert, whole: dict[str, bytes]) -> None:
    for workers in ("1", "5"):
        convert(replace(config, workers=workers, overwrite=True), QUIET)
        assert contents(config.dst) == whole


@pytest.mark.parametrize("stop_at", [0, 1, 9, 20, 35])
def test_interrupted_and_resumed_equals_uninterrupted(
    config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    console = Console(file=io.StringIO(), width=200)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, stop_at)
        convert(config, console)
    assert "--resume continues from here" in console.file.getvalue()  # type: ignore[attr-defined]
    parts = [".train.beton.part", ".val.beton.part"] if config.format == "beton" else []
    assert unfinished(config.dst) and not {file.name for file in config.dst.glob(".*")} - set(parts)
    with pytest.raises(DataError, match=r"did not finish; .*resume=True"):
        open_dataset(config.dst)
    with pytest.raises(
        UserError, match=r"unfinished conversion; continue it with --resume, or start again with --over"
    ):
        convert(config, QUIET)
    with pytest.raises(UserError, match=r"something else: --seed"):
        convert(replace(config, resume=True, seed=1), QUIET)
    convert(replace(config, resume=True), QUIET)
    assert contents(config.dst) == whole


def test_resume_from_every_state_that_a_kill_can_leave(
    config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop at every change of the folder, as if the process had been killed there, without any clean-up."""
    states: list[dict[str, bytes]] = []

    def remember(function: Callable[..., Any]) -> Callable[..., Any]:
        def before_and_after(*arguments: Any) -> Any:
            states.append(contents(config.dst))
            result = function(*arguments)
            states.append(contents(config.dst))
            return result

        return before_and_after

    with monkeypatch.context() as patched:
        for kind, name in ((Journal, "add"), (Journal, "remove"), (BetonWriter, "_publish")):
            patched.setattr(kind, name, remember(getattr(kind, name)))
        for module in ("fastimg.loaders.containers.atomic", "fastimg.loaders.containers.tars.shards"):
            patched.setattr(f"{module}.sync_folder", lambda _: states.append(contents(config.dst)))
        convert(config, QUIET)
    different = [state for number, state in enumerate(states) if state not in states[:number]]
    assert len(different) > 10
    for number, state in enumerate(different):
        torn = {name: data + b"torn" if name.endswith(".part") else data for name, data in state.items()}
        if "dataset.json" not in state and config.format == "tar":
            torn |= {".train-00001.tar.part": b"half", ".convert.json.part": b"{", ".dataset.json.part": b"{"}
        shutil.rmtree(config.dst)
        config.dst.mkdir()
        for name, content in torn.items():
            (config.dst / name).write_bytes(content)
        convert(replace(config, resume=True), QUIET)
        assert contents(config.dst) == whole, number


def test_a_full_disk(config: Convert, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name, room = (ShardWriter, "_write", 20) if config.format == "tar" else (BetonWriter, "part", 3)
    write, left = getattr(kind, name), iter(range(room))

    def full(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    with (
        monkeypatch.context() as patched,
        pytest.raises(UserError, match=r"no space left on the disk; free some space, then continue .*--resume"),
    ):
        patched.setattr(kind, name, full)
        convert(config, QUIET)
    assert unfinished(config.dst)
    convert(replace(config, resume=True), QUIET)
    assert contents(config.dst) == whole


@pytest.mark.slow
@pytest.mark.parametrize("container", ["tar", "beton"])
def test_killed_and_resumed(container: Any, make_image_folder: Any, tmp_path: Path) -> None:
    """A real SIGKILL, repeatedly, each time a little later; then an uninterrupted run."""
    source = make_image_folder(60)
    flags = ["--format", container, "--shard-size", "60KB", "--val-fraction", "0.2", "--workers", "2"]
    command = [sys.executable, "-m", "fastimg", "convert", str(source)]
    done = convert(
        Convert(src=source, dst=tmp_path / "whole", format=container, shard_size="60KB", val_fraction=0.2), QUIET
    )
    kills = 0
    for _ in range(3):
        process = subprocess.Popen([*command, str(tmp_path / "D"), *flags, "--resume"], stderr=subprocess.DEVNULL)
        deadline, wanted = time.monotonic() + 60, 2 + 6 * kills
        while process.poll() is None and time.monotonic() < deadline:
            journal = tmp_path / "D/convert.json"
            if journal.exists() and len(journal.read_bytes().splitlines()) >= wanted:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        process.wait(60)
        kills += process.returncode == -signal.SIGKILL
    assert kills
    convert(
        Convert(src=source, dst=tmp_path / "D", format=container, shard_size="60KB", val_fraction=0.2, resume=True),
        QUIET,
    )
    assert contents(tmp_path / "D") == contents(tmp_path / "whole") and done.images == 180
