"""Folders of shards: files beside them, names of splits, and formats without their plugin."""

import io
import re
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.convert.sources import resolve as sources
from fastimg.convert.sources.columns import Columns
from fastimg.convert.strays import strays
from fastimg.loaders import open_dataset
from fastimg.loaders.errors import DataError

from .manifests import read_source, write_csv


def write_tar(file, image, ext="jpg"):
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in ((f"0.{ext}", image), ("0.cls", b"0")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_parquet(file, image):
    file.parent.mkdir(exist_ok=True)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(pa.table({"image": pa.array([{"bytes": image, "path": None}], kind), "label": ["x"]}), file)


STRAYS = ("loose.jpg", "more/raw.dng", "README.md", "more/.hidden")


@pytest.fixture
def shard_folder(tmp_path, image_folder, encode):
    """`shard_folder(kind)`: a folder of shards of that kind, and STRAYS."""

    def make(kind):
        folder = tmp_path / "shards"
        if kind in ("dataset", "betons"):
            made = "beton" if kind == "betons" else "tar"
            convert(Convert(src=image_folder, dst=folder, format=made, workers="2"), Console(quiet=True))
            (folder / ".fastimg").mkdir()
            (folder / ".fastimg/kept.tar").touch()
        if kind == "betons":
            (folder / "dataset.json").unlink()
        if kind == "tars":
            folder.mkdir()
            write_tar(folder / "train-0.tar", encode())
            (folder / "train-0.idx").touch()
        if kind == "parquet":
            folder.mkdir()
            write_parquet(folder / "data/train-00000-of-00001.parquet", encode())
        for name in STRAYS:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"x")
        return folder

    return make


@pytest.mark.parametrize("kind", ["dataset", "tars", "betons", "parquet"])
def test_files_next_to_shards_are_counted(kind, shard_folder):
    folder = shard_folder(kind)
    suffix = {"betons": ".beton", "parquet": ".parquet"}.get(kind, ".tar")
    (folder / f"more/x{suffix}").touch()
    source = read_source(folder, Columns())
    what = "parquet files" if kind == "parquet" else "shards"
    assert source.ignored.reasons == {
        f"outside the {what}": 2,
        f"a {suffix} file in an unexpected place": 1,
        f"not among the {what}": 1,
        "hidden by a leading dot": 1,
    }
    assert {path for path, _ in source.ignored.first()} == {*STRAYS, f"more/x{suffix}"}
    source.close()


def test_a_relative_folder_of_shards_has_no_strays(shard_folder, monkeypatch):
    folder = shard_folder("tars")
    monkeypatch.chdir(folder)
    assert strays(type(folder)(), folder.parent.glob("none")).total == 5  # its tar too
    source = sources.read_source(type(folder)(), Columns(), folder.parent)
    assert {path for path, _ in source.ignored.first()} == set(STRAYS)


def test_unlisted_files_are_not_counted_and_that_is_reported(files, tmp_path):
    (files / "other.jpg").touch()
    source = read_source(write_csv(files, "path,label", "a/1.jpg,x"), Columns())
    assert source.ignored.total == 0
    assert source.uncounted == ("set.csv names the files to read; other files beside them are not counted",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["val-0.tar", "valid-0.tar", "train-0.tar"], "val and valid are both names of the split val; rename one"),
        (["train.beton", "dev.beton", "Validation.beton"], "Validation and dev are both names of the split val"),
        (["val/x.parquet", "dev/x.parquet"], "dev/ and val/ are both names of the split val; keep one of them"),
    ],
)
def test_two_names_for_one_split_are_refused(names, message, tmp_path, encode):
    for name in names:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("parquet"):
            write_parquet(tmp_path / "d" / name, encode())
        else:
            (tmp_path / "d" / name).touch()
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / 'd'))}: {message}"):
        read_source(tmp_path / "d", Columns())


@pytest.mark.parametrize("name", ["dev", "Testing", "eval", "TRAINING"])
def test_names_of_splits_in_manifests(name, files):
    rows = ["a/1.jpg,x,train", f"a/2.jpg,x,{name}"]
    splits = read_source(write_csv(files, "path,label,split", *rows), Columns()).splits
    assert set(splits) == {
        "train",
        {"d": "val", "t": "train" if "RAIN" in name else "test", "e": "test"}[name[0].lower()],
    }


def test_a_sample_of_a_format_without_its_plugin_names_the_remedy(tmp_path, heic, heif_plugin):
    write_tar(tmp_path / "train-0.tar", heic(), "heic")
    with pytest.raises(DataError, match=r"a sample without an image that can be decoded \(heic, cls\): HEIC, readable"):
        open_dataset(tmp_path)
    source = read_source(tmp_path, Columns())
    (entry,) = source.splits["train"]
    assert "without an image that can be decoded: HEIC, readable after `pip install" in source.problem(entry)
    heif_plugin(installed=True)
    assert len(open_dataset(tmp_path)) == 1


def test_whole_floats_in_tars_are_integers(tmp_path, encode):
    src = tmp_path / "train-0.tar"
    with tarfile.open(src, "w") as archive:
        for number, label in enumerate(("0", "1", "1.0", "2.", "01")):
            for name, content in ((f"{number}.jpg", encode()), (f"{number}.cls", label.encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    source = read_source(src, Columns())
    assert source.splits["train"].labels.tolist() == [0, 1, 1, 2, 1] and source.classes == ("0", "1", "2")
    assert source.remarks == (f"{src}: labels are all integers and named as such: '01' is class 1",)
    source.close()
