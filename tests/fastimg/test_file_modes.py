"""Files that commands write are readable as the umask allows: by a cluster's colleagues, or another user's job."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastimg.loaders.containers.atomic import give_usual_mode
from fastimg.train.choices import machine_profile as machine


@pytest.fixture
def with_umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


@pytest.mark.curves
@pytest.mark.parametrize(("mask", "last"), [(0o022, None), (0o027, 4)])  # the second: shared by a group
def test_files_and_folders_follow_the_umask(
    mask: int,
    last: int | None,
    with_umask: Callable[[int], None],
    make_image_folder: Callable[[int], Path],
    cli: Callable[..., Any],
    fast: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images = make_image_folder(5)
    root = tmp_path / "written"
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    with_umask(mask)
    root.mkdir()
    shards, run = root / "shards", root / "runs" / "one"
    encoder = ("--arch", "test_resnet", "--weights", run, "--img-size", "32", "-j", "1")
    commands: list[tuple[object, ...]] = [
        ("convert", images, shards, "--val-fraction", "0.2"),
        ("convert", images, root / "betons", "--format", "beton"),
        ("train", shards, *fast, "--output", root / "runs", "--name", "one"),
        ("train", shards, *fast, "--weights", run, "--freeze", "backbone", "--output", root / "runs", "--name", "two"),
        ("embed", shards, root / "vectors", *encoder),
        ("embed", shards, root / "arrays", *encoder, "--format", "npy"),
        ("embed", shards, root / "tables", *encoder, "--format", "parquet"),
        ("export", run, "--format", "safetensors", "-o", root / "model.safetensors"),
        ("predict", run, images / "red", "--csv", root / "predictions.csv"),
        ("eval", run, shards, "--split", "val"),
        ("inspect", shards, "--output", root / "sheets"),
    ]
    for command in commands[:last]:
        ran = cli(*command)
        assert ran.code == 0, ran.err
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    profile = {
        "workers": 1,
        "prefetch": 2,
        "batch_size": 8,
        "arch": "test_resnet",
        "size": 32,
        "images_per_second": 1.0,
    }
    machine.write(machine.Profile(device="cpu", augment_stream="own", amp=False, made="now", **profile))
    for path in (root, *root.rglob("*")):
        usual = (0o777 if path.is_dir() else 0o666) & ~mask
        assert path.is_symlink() or stat.S_IMODE(path.stat().st_mode) == usual, path.relative_to(root)
    written = {path.suffix or path.name for path in root.rglob("*")}
    assert written >= {".safetensors", ".pt", ".yaml", ".jsonl", ".png", ".tar", ".idx", ".fidx", ".beton"}
    assert last or written >= {".npy", ".parquet", ".csv"}


def test_the_mode_of_a_new_file(tmp_path: Path, with_umask: Callable[[int], None]) -> None:
    with_umask(0o007)
    file = tmp_path / "model"
    file.touch(0o600)
    give_usual_mode(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o660
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
