"""`bench --loaders all` with every loader installed: none fails, and their pixels are as close as stated."""

import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fastimg.bench.peers import comparison
from fastimg.bench.peers.comparison import Setting, compare, names
from fastimg.bench.peers.pipelines import PEERS
from fastimg.cli import run
from fastimg.loaders import open_dataset

pytestmark = pytest.mark.usefixtures("nothing_left")

# Mean absolute differences of centre crops of smooth images, 0 to 255. Pillow's libjpeg and torchvision's rounding of
# windows differ little. DALI rounds the resized side differently, which shifts small images by a fraction of a pixel.
# FFCV first cuts whole pixels, encodes again (unless DATA is a .beton) and resizes by areas.
BOUNDS = {"native": 0, "torch": 0.1, "webdataset": 0.1, "dali": 4.0, "ffcv": 5.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 smooth JPEGs of two classes, one of them a PNG and one rotated by EXIF."""
    root = tmp_path_factory.mktemp("compared") / "images"
    for i in range(24):
        drawn = np.random.default_rng(i).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(drawn).resize((90 + 5 * i, 200 - 3 * i), Image.Resampling.BICUBIC)
        path = root / "ab"[i % 2] / f"{i:02d}.{'png' if i == 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        if i == 5:
            exif[0x0112] = 6
        image.save(path, exif=exif, **({} if i == 3 else {"quality": 92}))
    return root


@pytest.mark.parametrize("kind", ["folder", "beton"])
def test_all_loaders(kind, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "BOXES", 300)
    data = folder
    if kind != "folder":
        data = tmp_path / "data"
        assert run(["convert", str(folder), str(data), "--format", kind]) == 0
    (tmp_path / "scratch").mkdir()
    dataset = open_dataset(data)
    setting = Setting(batch_size=8, size=48, threads=(2,), repeats=2, images=40)
    console = Console(file=io.StringIO(), width=250)
    found = compare(dataset, data, names("all"), setting, tmp_path / "scratch", console)
    dataset.close()
    found.show(console)
    print(console.file.getvalue())
    assert found.missing == found.faults == found.left_out == {}
    records = found.records()
    assert [(r["name"], r["threads"]) for r in records] == [(name, 2) for name in PEERS]
    for record in records:
        if record["name"] == "synthetic":
            assert record["parity"] is None
            continue
        assert record["parity"] <= BOUNDS[record["name"]], record
        assert record["boxes"] < 1.3 * record["boxes_limit"], record
    assert ("DATA itself" in found.about["ffcv"]) == (kind == "beton")
    turned = {record["name"]: record["parity_exif_turned"] for record in records}
    if kind == "folder":  # a loader that ignores EXIF has a different image
        assert turned["torch"] > 10 and turned["ffcv"] > 10 and turned["dali"] < 5
    assert list((tmp_path / "scratch").iterdir()) == []
