"""Bands beside images: TIFF and .npy files of several channels, stored as they are, and cut as their image is."""

import contextlib
import json
import re

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from fastimg.loaders import CenterCrop, Letterbox, Loader, RandomResizedCrop, open_dataset
from fastimg.loaders.errors import ImageError
from fastimg.loaders.extras import install
from fastimg.loaders.folders import bands as files
from fastimg.loaders.folders.bands import read_bands

SIZE = (30, 24)  # height, width


def some(number, bands=4, dtype=np.uint16):
    return np.random.default_rng(number).integers(0, 60_000, (bands, *SIZE)).astype(dtype)


@pytest.fixture
def table(tmp_path):
    """A csv of six images with four bands each: of TIFFs by planes, by pixels and by pages, and .npy files."""
    rows = ["path,label,bands"]
    for number in range(6):
        bands, name = some(number), f"{number}.tif"
        Image.fromarray((bands[:3] >> 8).astype(np.uint8).transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
        if number == 0:
            tifffile.imwrite(tmp_path / name, bands, photometric="minisblack", planarconfig="separate")
        elif number == 1:
            tifffile.imwrite(tmp_path / name, bands.transpose(1, 2, 0), photometric="rgb", extrasamples=["unspecified"])
        elif number == 2:
            np.save(tmp_path / (name := "2.npy"), bands)
        else:
            tifffile.imwrite(tmp_path / name, bands, photometric="minisblack", compression="zlib")
        rows.append(f"{number}.png,{number % 2},{name}")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "table.csv"


@pytest.mark.parametrize("form", ["tar", "beton"])
def test_bands_are_stored_and_cut_as_their_image_is(form, table, tmp_path, cli):
    ran = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--format", form, "--no-shuffle")
    assert ran.code == 0, ran.err
    assert f"array [4, {SIZE[0]}, {SIZE[1]}] of uint16" in ran.out + ran.err
    (stated,) = json.loads((tmp_path / "D" / "dataset.json").read_text())["fields"]
    assert (stated["geometry"], stated["dtype"], stated["shape"]) == ("bands", "uint16", [4, *SIZE])
    assert cli("verify", tmp_path / "D", "--deep").code == 0
    inspected = cli("inspect", tmp_path / "D", "--output", tmp_path / "pictures")
    assert inspected.code == 0, inspected.err
    dataset = open_dataset(tmp_path / "D", "train")
    stored = [dataset.read_field("bands", index) for index in range(6)]
    order = [next(number for number in range(6) if (bands == some(number)).all()) for bands in stored]
    assert sorted(order) == list(range(6))
    crop = RandomResizedCrop(size=(9, 14), scale=(0.2, 0.6))
    with Loader(dataset, crop=crop, fields=["bands"], batch_size=6, workers=1, depth=16) as loader:
        batch = next(iter(loader))
    seen = batch.fields["bands"]
    assert seen.dtype == torch.uint16 and seen.shape == (6, 4, 9, 14)
    for row, (index, box) in enumerate(zip(batch.ids.tolist(), batch.boxes_of_crop.int().tolist(), strict=True)):
        left, top, right, bottom = box
        whole = torch.from_numpy(some(order[index])[:, top:bottom, left:right].astype(np.float32))
        want = functional.resize(whole, [9, 14], antialias=True).round()
        assert torch.equal(seen[row].float(), want)
    dataset.close()


def test_letterboxes_and_floats(tmp_path, cli):
    bands = np.random.default_rng(0).standard_normal((5, *SIZE)).astype(np.float32)
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", bands)
    (tmp_path / "t.jsonl").write_text(json.dumps({"path": "a.png", "label": "x", "bands": "a.npy"}) + "\n")
    assert cli("convert", tmp_path / "t.jsonl", tmp_path / "D", "--field", "bands:bands").code == 0
    given = {"fields": ["bands"], "batch_size": 1, "workers": 1, "order": "sequential"}
    with Loader(tmp_path / "D", crop=Letterbox(size=30), **given) as loader:
        seen = next(iter(loader)).fields["bands"][0].numpy()
    assert (seen[:, :, 3:27] == bands).all() and not seen[:, :, :3].any()
    with Loader(tmp_path / "D", crop=CenterCrop(size=24, resize=24), **given) as loader:
        assert (next(iter(loader)).fields["bands"][0].numpy() == bands[:, 3:27]).all()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            some(9, bands=5),
            r"row 8: .* '9.tif' holds uint16 \[5, 30, 24\], and the first row's uint16 \[4",
        ),
        (some(9).astype(np.float32), r"holds float32 \[4, 30, 24\], and the first row's uint16"),
        (some(9).astype(np.complex64), r"complex64 \[4, 30, 24\] is no image of bands; give numbers, \[C, H, W\]"),
        (np.stack([some(9)] * 2), r"has the axes .*, and bands are one of them, beside Y and X"),
        (None, "cannot be read by tifffile"),
    ],
)
def test_files_that_differ_are_named_with_their_row(other, words, table, tmp_path, cli):
    if other is None:
        (tmp_path / "9.tif").write_bytes(b"II*\0damaged")
    else:
        tifffile.imwrite(tmp_path / "9.tif", other, photometric="minisblack")
    with table.open("a") as file:
        file.write("0.png,1,9.tif\n")
    ran = cli("convert", table, tmp_path / "D", "--field", "bands:bands")
    assert ran.code == 1
    assert re.search(words, " ".join(ran.err.split())), ran.err


def test_bands_of_another_size_than_their_image(table, tmp_path, cli):
    Image.new("RGB", (40, 40)).save(tmp_path / "3.png")
    ran = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--on-error", "fail")
    assert ran.code == 1 and "bands: 24 x 30 pixels; the image has 40 x 40" in " ".join(ran.err.split())


@pytest.mark.parametrize("form", ["tar", "beton"])
def test_bands_of_several_sizes(form, table, tmp_path, cli):
    small = some(9)[:, :20, :17]
    Image.new("RGB", (17, 20)).save(tmp_path / "9.png")
    np.save(tmp_path / "9.npy", small)
    with table.open("a") as file:
        file.write("9.png,1,9.npy\n")
    ran = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--format", form, "--no-shuffle")
    assert ran.code == 0, ran.err
    assert "bands [4, H, W] of uint16" in ran.out
    assert cli("verify", tmp_path / "D", "--deep").code == 0
    with contextlib.closing(open_dataset(tmp_path / "D", "train")) as dataset:
        assert [dataset.read_field("bands", index).shape[1:] for index in (0, 6)] == [SIZE, (20, 17)]
        assert (dataset.read_field("bands", 6) == small).all()
        with Loader(dataset, crop=CenterCrop(size=16, resize=16), fields=["bands"], batch_size=7, workers=1) as loader:
            assert next(iter(loader)).fields["bands"].shape == (7, 4, 16, 16)
    again = tmp_path / "again"
    assert cli("convert", tmp_path / "D", again, "--format", "tar" if form == "beton" else "beton").code == 0
    with contextlib.closing(open_dataset(again, "train")) as dataset:
        assert sorted(dataset.read_field("bands", index).shape[1] for index in range(7)) == [20] + [30] * 6


def test_bands_are_not_shrunk(table, tmp_path, cli):
    ran = cli("convert", table, tmp_path / "D", "--field", "bands:bands", "--max-size", "20")
    assert ran.code == 1 and "the field 'bands' holds bands, which --max-size does not shrink" in " ".join(
        ran.err.split()
    )


def test_tifffile_is_named_where_it_is_missing(table, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    ran = cli("convert", table, tmp_path / "D", "--field", "bands:bands")
    assert ran.code == 1 and f"`{install('tiff')}`" in ran.err
    with pytest.raises(ImageError, match="which is not installed"):
        read_bands(table.parent / "0.tif", "0.tif")


def test_colours_of_16_bits_in_a_tiff(tmp_path):
    (tmp_path / "deep" / "one").mkdir(parents=True)
    pixels = some(1)[:3].transpose(1, 2, 0)
    tifffile.imwrite(tmp_path / "deep" / "one" / "a.tif", pixels, photometric="rgb")
    with Loader(tmp_path / "deep", crop=CenterCrop(size=24, resize=24), depth=16, batch_size=1, workers=1) as loader:
        seen = next(iter(loader)).inputs[0].permute(1, 2, 0).numpy()
    assert (seen == pixels[3:27]).all()
