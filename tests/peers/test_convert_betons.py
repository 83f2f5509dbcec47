"""`convert --format beton` compared with ffcv 1.0.2, whose own betons are converted to tars and betons."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.state import State
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from PIL import Image
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders.containers.betons.files import BetonFile
from fastimg.loaders.decode import decode

SIZES = [(160, 120), (97, 131), (64, 64), (201, 150), (33, 17)]


class AnySizeDecoder(SimpleRGBImageDecoder):
    """ffcv's decoder, writing to the start of a row with room for the largest image, since sizes may differ."""

    def declare_state_and_memory(self, previous_state):
        row = (int(self.metadata["width"].max()) * int(self.metadata["height"].max()) * 3,)
        state = State(jit_mode=True, device=previous_state.device, shape=row, dtype=np.dtype("<u1"))
        return state, AllocationQuery(row, np.dtype("<u1"))


def picture(size, seed):
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """JPEGs of several kinds, PNGs, CMYK, an EXIF orientation; two classes."""
    for number in range(30):
        name = tmp_path / "images" / ("a" if number % 3 else "b") / f"{number:02d}"
        name.parent.mkdir(parents=True, exist_ok=True)
        image = picture(SIZES[number % 5], number)
        exif = Image.Exif()
        if number % 6 == 0:
            image.save(name.with_suffix(".png"))
        elif number % 6 == 1:
            image.convert("CMYK").save(name.with_suffix(".jpg"))
        elif number % 6 == 2:
            exif[0x0112] = 1 + number % 8
            image.save(name.with_suffix(".jpg"), exif=exif, quality=90)
        else:
            options = [{"subsampling": 0}, {"progressive": True}, {"quality": 60}][number % 3]
            image.save(name.with_suffix(".jpg"), **options)
    return tmp_path / "images"


def ffcv_loads(path: Path) -> list[tuple[np.ndarray, int]]:
    """(row of pixels, label) of every sample, in order."""
    loader = Loader(
        str(path),
        batch_size=4,
        num_workers=1,
        os_cache=False,
        order=OrderOption.SEQUENTIAL,
        drop_last=False,
        pipelines={
            "image": [AnySizeDecoder(), ToTensor()],
            "label": [IntDecoder(), ToTensor()],
            "json": None,
            "original": None,
        },
    )
    return [(row.numpy().copy(), int(label)) for batch in loader for row, label in zip(*batch[:2], strict=True)]


@pytest.mark.parametrize("tile", ["auto", "off"])
def test_ffcv_loads_what_convert_stores(folder: Path, tmp_path: Path, tile: str) -> None:
    convert(Convert(src=folder, dst=tmp_path / "D", format="beton", tile=tile), Console(quiet=True))
    loaded = ffcv_loads(tmp_path / "D/train.beton")
    classes = json.loads((tmp_path / "D/dataset.json").read_text())["classes"]
    assert len(loaded) == 30
    with BetonFile(tmp_path / "D/train.beton") as beton:
        for i, (row, label) in enumerate(loaded):
            sample = beton.sample(i)
            path = folder / sample["json"]["path"]
            assert classes[label] == path.parent.name
            image, source = sample["image"], decode(path.read_bytes())
            height, width, _ = source.shape
            seen = row[: height * width * 3].reshape(height, width, 3)
            if isinstance(image, bytes):  # ffcv's decoder uses libjpeg-turbo's fast DCT
                np.testing.assert_array_equal(seen, simplejpeg.decode_jpeg(image, fastdct=True))
                assert np.abs(seen.astype(int) - source).mean() < 12  # upright, whatever its orientation was
            else:
                np.testing.assert_array_equal(seen, source)


def test_a_beton_of_ffcv_converts_to_a_tar_and_a_beton(tmp_path: Path) -> None:
    class Samples:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i):
            array = np.full((2, 3), i, np.float32)
            return (
                np.asarray(picture(SIZES[i % 5], i)),
                i % 4,
                i / 8,
                array,
                {"i": int(i)},
                np.frombuffer(b"x" * (i + 1), np.uint8),
            )

    fields = {
        "image": RGBImageField(write_mode="smart", smart_threshold=20_000),
        "label": IntField(),
        "weight": FloatField(),
        "box": NDArrayField(np.dtype("<f4"), (2, 3)),
        "meta": JSONField(),
        "blob": BytesField(),
    }
    DatasetWriter(str(tmp_path / "theirs.beton"), fields, num_workers=1).from_indexed_dataset(
        Samples(), shuffle_indices=False
    )
    convert(Convert(src=tmp_path / "theirs.beton", dst=tmp_path / "tar", tile="off"), Console(quiet=True))
    convert(Convert(src=tmp_path / "tar", dst=tmp_path / "ours", format="beton", tile="off"), Console(quiet=True))
    with tarfile.open(tmp_path / "tar/train-00000.tar") as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}
    with BetonFile(tmp_path / "theirs.beton") as theirs, BetonFile(tmp_path / "ours/train.beton") as ours:
        assert len(theirs) == len(ours) == 12
        for i in range(12):
            a, b = theirs.sample(i), ours.sample(i)
            if isinstance(a["image"], bytes):
                assert a["image"] == b["image"] == members[f"{i:09d}.jpg"]
            else:
                np.testing.assert_array_equal(a["image"], b["image"])
                np.testing.assert_array_equal(a["image"], decode(members[f"{i:09d}.png"]))
            assert (a["label"], a["weight"], a["meta"], a["blob"]) == (b["label"], b["weight"], b["meta"], b["blob"])
            np.testing.assert_array_equal(a["box"], b["box"])
            np.testing.assert_array_equal(a["box"], np.load(io.BytesIO(members[f"{i:09d}.box.npy"])))
            assert json.loads(members[f"{i:09d}.meta.json"]) == {"i": i}
