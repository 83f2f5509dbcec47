"""What images cost that libraries decode, and what `convert --recompress` would give, measured on a few of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from fastimg.convert.slow_formats import SlowFormats, try_slow_formats
from fastimg.loaders import CenterCrop, ImageDecoder, open_dataset

DECODER = ImageDecoder(CenterCrop(size=16, resize=16))


def folder(place: Path, kinds: dict[str, int], size: int = 40) -> Path:
    """Images of these kinds in one class."""
    (place / "a").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for kind, count in kinds.items():
        for i in range(count):
            pixels = rng.integers(0, 256, (size, size, 3), np.uint8)
            Image.fromarray(pixels).save(place / "a" / f"{kind}{i}.{kind}")
    return place


def tried(place: Path) -> SlowFormats | None:
    dataset = open_dataset(place)
    try:
        return try_slow_formats(dataset, np.arange(len(dataset)), DECODER, lambda line: None)
    finally:
        dataset.close()


def test_lossy_webp(tmp_path: Path) -> None:
    found = tried(folder(tmp_path / "D", {"webp": 10, "png": 3}))
    assert found is not None
    assert (found.formats, found.images) == ({"webp": 10, "png": 3}, 8)
    assert found.milliseconds > 0 and found.images_per_second == pytest.approx(1e3 / found.milliseconds, rel=0.05)
    rates = found.recompressed_images_per_second
    assert list(rates) == ["jpeg:95", "lossless"] and rates["jpeg:95"] and rates["lossless"] is None
    words = found.sentence()
    assert words.startswith("10 webp of 13 images looked at are decoded by libraries: a crop takes ")
    assert words.endswith(" img/s; --recompress lossless would change nothing (8 tried)")
    assert json.loads(json.dumps(found.record()))["recompressed_images_per_second"] == rates


def test_tiff_becomes_png(tmp_path: Path) -> None:
    place = folder(tmp_path / "D", {"tif": 3})
    assert tried(place) is None  # compiled code decodes those that are not compressed
    for file in (place / "a").iterdir():
        with Image.open(file) as image:
            image.load()
        image.save(file, compression="tiff_adobe_deflate")
    found = tried(place)
    assert found is not None and found.formats == {"tiff": 3} and found.recompressed_images_per_second["lossless"]
    assert "change nothing" not in found.sentence()


@pytest.mark.skipif(not features.check("avif"), reason="Pillow is built without AVIF")
def test_avif_is_not_recompressed(tmp_path: Path) -> None:
    found = tried(folder(tmp_path / "D", {"avif": 2}))
    assert found is not None and found.recompressed_images_per_second == {"jpeg:95": None, "lossless": None}
    assert "; --recompress jpeg:95 or lossless would change nothing" in found.sentence()


@pytest.mark.parametrize(
    ("kinds", "size"), [({"png": 3}, 40), ({"webp": 2, "png": 2}, 40), ({"jpg": 3, "webp": 2}, 40), ({"webp": 2}, 1500)]
)
def test_nothing_is_said(kinds: dict[str, int], size: int, tmp_path: Path) -> None:
    """Of compiled formats, and of images that are too large to try."""
    assert tried(folder(tmp_path / "D", kinds, size)) is None


def test_inspect_tells_of_many_images(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(tmp_path / "D", {"webp": 3})
    assert "slow_formats" not in json.loads(cli("inspect", place, "--no-pictures", "--json").out)
    monkeypatch.setattr("fastimg.inspect.images._MANY", 3)
    assert "3 webp of 3 images looked at are decoded by libraries" in " ".join(
        cli("inspect", place, "--no-pictures").out.split()
    )
    found = json.loads(cli("inspect", place, "--no-pictures", "--json").out)["slow_formats"]
    assert found["images"] == 3 and found["formats"] == {"webp": 3}
    told = json.loads(cli("inspect", place, "--no-pictures", "--headers-only", "--json").out)
    assert "slow_formats" not in told
