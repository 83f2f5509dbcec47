"""Annotations, fields and arrays in an object store: the bytes of a conversion of a copy of them on disk."""

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.stored.files import AnnouncedFiles
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError
from fastimg.loaders.remote import stores
from fastimg.loaders.remote.trees import StoredFiles

from ...loaders.remote.object_server import ObjectServer
from .field_samples import jsonl, mask_of, palette, png
from .fields.field_rows import ASKED, MASKS, ROWS
from .fields.test_coco import COCO
from .fields.test_voc import voc_xml
from .fields.test_yolo import DESCRIBED, YOLO

pytest.importorskip("obstore", reason="the extra `remote` is not installed")

Files = dict[str, Any]


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def tiff(array: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, photometric="minisblack")
    return buffer.getvalue()


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def bands(number: int, size: tuple[int, int] = (40, 32)) -> Any:
    return np.random.default_rng(number).integers(0, 9_000, (4, size[1], size[0])).astype(np.uint16)


IMAGES: Files = {f"{name}.jpg": None for name in "abc"}
FILES: Files = {**IMAGES, "a.png": png(MASKS[0]), "b.png": png(MASKS[1]), "a.bin": b"\0bytes\xff"}
ARRAYS: Files = {
    "a.tif": tiff(bands(0)),
    "b.npy": npy(bands(1)),
    "far/c.tif": tiff(bands(2)),
    "a.npy": npy(np.arange(3.0)),
    "c.npy": npy(np.ones((5, 2), np.int32)),
    "rows.jsonl": jsonl(
        [
            {"path": "a.jpg", "more": "a.tif", "vector": "a.npy", "pairs": "c.npy"},
            {"path": "b.jpg", "more": " b.npy", "vector": [1, 2, 3], "pairs": []},
            {"path": "c.jpg", "more": "far\\c.tif", "vector": "a.npy", "pairs": "c.npy"},
        ]
    ),
}
PARQUET: Files = {
    "images/a.png": png(np.zeros((32, 40, 3), np.uint8)),
    "data/far/a-mask.png": png(mask_of(1)),
    "data/far/b-mask.png": png(mask_of(2)),
}
IN_FOLDERS: dict[str, tuple[Files, str, Files]] = {  # files, what is converted, flags
    "COCO": (
        {
            **{f"{split}2017/{name}.jpg": None for split in ("train", "val") for name in "abc"},
            **{f"annotations/instances_{split}2017.json": COCO for split in ("train", "val")},
        },
        "",
        {"masks": "semantic"},
    ),
    "COCO, one file of several": (
        {**{f"train2017/{name}.jpg": None for name in "abc"}, "annotations/instances_train2017.json": COCO},
        "/annotations/instances_train2017.json",
        {},
    ),
    "COCO, one file": ({**{f"images/{name}.jpg": None for name in "abc"}, "x.json": COCO}, "/x.json", {}),
    "COCO, images elsewhere": (
        {**{f"far/away/{name}.jpg": None for name in "abc"}, "x.json": COCO},
        "/x.json",
        {"images": Path("far/away")},
    ),
    "Roboflow's COCO": (
        {**{f"train/{name}.jpg": None for name in "abc"}, "train/_annotations.coco.json": COCO},
        "",
        {},
    ),
    "YOLO": ({**YOLO, "data.yaml": DESCRIBED}, "", {"masks": "semantic"}),
    "YOLO without a description": (YOLO, "", {}),
    "VOC": (
        {
            **{f"JPEGImages/{name}": None for name in IMAGES},
            "Annotations/a.xml": voc_xml(("dog", [1, 1, 40, 32]), ("cat", [5, 6, 10, 12])),
            "Annotations/b.xml": voc_xml(),
            "SegmentationClass/a.png": palette(mask_of(3)),
            "ImageSets/Main/train.txt": "a\nb  1\n",
            "ImageSets/Main/val.txt": "c\n",
        },
        "",
        {},
    ),
    "masks": ({"images/a.jpg": None, "images/b.jpg": None, "masks/a.png": png(mask_of(1))}, "", {}),
    "fields": ({**FILES, "rows.jsonl": jsonl(ROWS)}, "/rows.jsonl", {"field": ASKED}),
    "arrays as fields": (
        {**IMAGES, **ARRAYS},
        "/rows.jsonl",
        {"field": ("more:bands", "vector:array", "pairs:ragged")},
    ),
    "arrays as images": (
        {"x/a.npy": ARRAYS["b.npy"], "x/b.tif": ARRAYS["a.tif"], "y/c.npy": npy(bands(3, (20, 20))), "y/d.npy": b"?"},
        "",
        {"image_field": "bands"},
    ),
    "arrays of a manifest": (
        {"a.npy": npy(bands(4)), "b.npy": npy(bands(5)), "rows.csv": "path,label\na.npy,x\nb.npy,y\n"},
        "/rows.csv",
        {"image_field": "bands"},
    ),
    "a parquet file beside masks": (
        {
            **PARQUET,
            "data/train.parquet": parquet(
                image=[PARQUET["images/a.png"]] * 2, mask=["far/a-mask.png", "far/b-mask.png"]
            ),
        },
        "/data",
        {"field": ("mask:mask",)},
    ),
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr(stores, "PAUSE", 0.0)
    monkeypatch.setattr(StoredFiles, "retries", 0)
    (tmp_path / "bucket").mkdir()
    served = ObjectServer(tmp_path / "bucket")
    yield served
    served.close()


@pytest.fixture
def run(server: ObjectServer, tmp_path: Path) -> Callable[..., str]:
    """`run(src, dst, **flags)`: what a conversion says."""

    def run_(src: object, dst: str, **flags: Any) -> str:
        said = Console(record=True, width=400, file=io.StringIO())
        given = {"src": Path(str(src)), "dst": tmp_path / dst, "shard_size": "20KB", "workers": "1"}
        if str(src).startswith("s3:"):
            options = tuple(f"{name}={value}" for name, value in server.options.items())
            given |= {"cache_dir": tmp_path / "cache", "storage_option": options}
        convert(Convert(**(given | flags)), said)
        return said.export_text()

    return run_


@pytest.fixture
def stored(write: Any, tmp_path: Path, server: ObjectServer) -> Callable[[Files], Path]:
    """`stored(files)`: the folder that is s3://bucket/data."""
    return lambda files: write(files).rename(tmp_path / "bucket/data")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize("layout", IN_FOLDERS)
def test_the_bytes_are_those_of_a_copy_on_disk(layout: str, run: Any, stored: Any, tmp_path: Path) -> None:
    files, source, flags = IN_FOLDERS[layout]
    folder = stored(files)
    at = {"images": folder / flags["images"]} if "images" in flags else {}
    run(f"{folder}{source}", "here", **(flags | at))
    at = {"images": Path(f"s3://bucket/data/{flags['images']}")} if at else {}
    said = run(f"s3://bucket/data{source}", "D", **(flags | at))
    assert contents(tmp_path / "D") == contents(tmp_path / "here")
    assert str(tmp_path / "cache") not in said
    assert not any((tmp_path / "cache").glob("listings/*"))


def test_beton_and_faults_that_pass(run: Any, stored: Any, server: ObjectServer, tmp_path: Path) -> None:
    files, _, flags = IN_FOLDERS["YOLO"]
    folder = stored(files)
    run(folder, "here", format="beton", **flags)
    server.faults = [("a.jpg", 503), ("a.txt", 503), ("c.txt", "cut"), ("b.jpg", "flip")]
    run("s3://bucket/data", "D", format="beton", **flags)
    assert contents(tmp_path / "D") == contents(tmp_path / "here")


def test_what_is_fetched_is_said(run: Any, stored: Any) -> None:
    stored(IN_FOLDERS["YOLO"][0])
    assert "s3://bucket/data: 2 files of annotations, fetched to be listed" in run("s3://bucket/data", "D")


def test_a_mask_that_vanishes_costs_its_image(run: Any, stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was announced of a sample that is skipped is dropped."""
    folder = stored({**{f"images/{name}": None for name in IMAGES}, "masks/a.png": png(mask_of(1))})
    closing = AnnouncedFiles.close
    left: list[int] = []
    lock = threading.Lock()

    def announce(self: AnnouncedFiles, path: str, real: Any = AnnouncedFiles.announce) -> None:
        with lock:
            (folder / "masks/a.png").unlink(missing_ok=True)
        real(self, path)

    def close(self: AnnouncedFiles) -> None:
        left.append(len(self._coming))
        closing(self)

    monkeypatch.setattr(AnnouncedFiles, "announce", announce)
    monkeypatch.setattr(AnnouncedFiles, "close", close)
    run("s3://bucket/data", "D")
    assert left and set(left) == {0}


def test_arrays_that_cannot_be_read_are_named(run: Any, stored: Any) -> None:
    rows = [{"path": f"{name}.jpg", "more": f"{name}.npy"} for name in "ab"]
    stored({**IMAGES, "a.npy": ARRAYS["b.npy"], "b.npy": ARRAYS["b.npy"][:300], "rows.jsonl": jsonl(rows)})
    with pytest.raises(DataError, match=r"^s3://bucket/data/rows.jsonl: row 2: column 'more': 'b.npy' .* whole of"):
        run("s3://bucket/data/rows.jsonl", "D", field=("more:bands",))


def test_images_at_another_url_are_refused(run: Any, stored: Any) -> None:
    stored(IN_FOLDERS["COCO, one file"][0])
    with pytest.raises(UsageError, match="--images s3://other/images: is not below the URL of the annotations"):
        run("s3://bucket/data/x.json", "D", images=Path("s3://other/images"))
