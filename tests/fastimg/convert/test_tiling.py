"""`convert --tile`: the same pixels, cut into tiles; JPEGs that cannot be tiled are stored unchanged, and counted."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from fastimg import cli
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.report import Report
from fastimg.loaders.decode import decode, read_header


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of photographs large enough to be worth tiling, one PNG, one JPEG with bytes after its end."""
    draws = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(8):
            y, x = np.mgrid[: 150 + 8 * i, : 200 + 5 * i]
            noise = draws.integers(0, 50, y.shape)
            pixels = np.stack([120 + 80 * np.sin(x / 11 + i), noise + y / 2, (x + y) % 256], axis=2)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(tmp_path / "images" / name / f"{i}.{'png' if (name, i) == ('a', 0) else 'jpg'}", quality=90)
    with (tmp_path / "images/b/1.jpg").open("ab") as file:
        file.write(b"a second picture, perhaps")
    return tmp_path / "images"


def run(src: Path, dst: Path, tile: str, workers: str = "2") -> Report:
    return convert(Convert(src=src, dst=dst, tile=tile, workers=workers, shard_size="60KB"), Console(quiet=True))


def stored(dst: Path) -> dict[str, bytes]:
    """Images by their original path."""
    images: dict[str, bytes] = {}
    for tar in sorted(dst.glob("*.tar")):
        with tarfile.open(tar) as archive:
            files = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        for name, data in files.items():
            stem, ext = name.split(".")
            if ext not in ("cls", "json"):
                images[json.loads(files[f"{stem}.json"])["path"]] = data
    return images


def test_pixels_are_unchanged_and_untiled_images_are_counted(folder: Path, tmp_path: Path) -> None:
    report = run(folder, tmp_path / "tiled", "auto")
    assert report.outcomes == {"kept: bytes behind its end": 1, "kept: png": 1, "tiled": 14}
    assert (report.tiled, report.reencoded, report.kept) == (14, 0, 2)
    images = stored(tmp_path / "tiled")
    for path, data in images.items():
        source = (folder / path).read_bytes()
        np.testing.assert_array_equal(decode(data), decode(source))
        with Image.open(io.BytesIO(data)) as ours, Image.open(folder / path) as theirs:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
        if path in ("a/0.png", "b/1.jpg"):
            assert data == source
        else:
            assert read_header(data).restarts


def test_tiling_is_deterministic_and_recorded(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "one", "auto", workers="1")
    run(folder, tmp_path / "four", "32", workers="4")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "four" / path.name).read_bytes(), path.name
    assert json.loads((tmp_path / "one/dataset.json").read_text())["options"]["tile"] == 32


def test_without_it_bytes_are_stored_as_they_are(folder: Path, tmp_path: Path) -> None:
    assert run(folder, tmp_path / "plain", "off").outcomes == {"kept": 16}
    for path, data in stored(tmp_path / "plain").items():
        assert data == (folder / path).read_bytes()


@pytest.mark.parametrize("value", ["yes", "0", "-1", "7", "70000"])
def test_an_invalid_tile_width_is_refused(
    folder: Path, tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["convert", str(folder), str(tmp_path / "out"), f"--tile={value}"]) == 2
    assert "--tile" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_resume_with_other_tiles_is_refused(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", "off")
    again = Convert(src=folder, dst=tmp_path / "out", tile="auto", shard_size="60KB", resume=True)
    with pytest.raises(Exception, match="--tile"):
        convert(again, Console(quiet=True))
    convert(replace(again, tile="off"), Console(quiet=True))


def test_training_sees_the_same_pixels_unless_it_may_scale_them(folder: Path, tmp_path: Path) -> None:
    weights = {}
    for name, tile, flags in (
        ("plain", "off", ["--dct-scaling", "off"]),
        ("tiled", "auto", ["--dct-scaling", "off"]),
        ("scaled", "auto", []),
    ):
        if not (tmp_path / tile).exists():
            run(folder, tmp_path / tile, tile)
        base = ["train", str(tmp_path / tile), "--arch", "test_resnet", "--img-size", "64", "-b", "4", "--epochs", "2"]
        assert cli.run([*base, *flags, "-o", str(tmp_path / "runs"), "--name", name]) == 0
        weights[name] = load_file(tmp_path / "runs" / name / "last/model.safetensors")
    assert all(torch.equal(value, weights["tiled"][name]) for name, value in weights["plain"].items())
    assert not all(torch.equal(value, weights["scaled"][name]) for name, value in weights["plain"].items())
