"""The meaning of DATA, and its splits."""

import io
import re
import shutil
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.data.datasets import DatasetPart, check_labels, display_name, open_parts, worker_count
from fastimg.data.provenance import record, select
from fastimg.errors import UsageError, UserError
from fastimg.loaders import list_splits, open_dataset
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.errors import DataError
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Preprocessing

PRE = Preprocessing(
    train_size=32, val_size=40, val_resize=44, interpolation="bicubic", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
)


@pytest.fixture(params=["images", "shards"])
def data(request, trained):
    """The same two splits as a plain folder and as shards."""
    return getattr(trained, request.param)


def test_the_whole_validation_split_is_used(data):
    train, val = open_parts(data, "train", None, None, 0)
    assert (len(train), len(val), val.split, val.held_out) == (24, 12, "val", None)


def test_another_split_may_validate(data):
    train, val = open_parts(data, "val", "train", None, 0)
    assert (len(train), len(val), val.split) == (12, 24, "train")


def test_a_test_split_replaces_a_missing_validation_split(trained, tmp_path):
    root = shutil.copytree(trained.images, tmp_path / "d")
    (root / "val").rename(root / "test")
    assert open_parts(root, "train", None, None, 0)[1].split == "test"


def test_validation_is_held_out_of_an_unsplit_folder(image_folder):
    train, val = open_parts(image_folder, "train", None, None, 0)
    assert (len(train), len(val), val.held_out) == (33, 3, 0.1)
    assert val.origin == "8.3% of the 36 images of train, held out by seed 0"  # at least one of each of three classes
    assert sorted([*train.indices, *val.indices]) == list(range(36))
    train, val = open_parts(image_folder, "train", None, 0.25, 0)
    assert np.bincount(val.dataset.labels[val.indices]).tolist() == [3, 3, 3]
    other = open_parts(image_folder, "train", None, 0.25, 1)[1]
    assert val.indices.tolist() != other.indices.tolist()
    assert val.indices.tolist() == open_parts(image_folder, "train", None, 0.25, 0)[1].indices.tolist()


@pytest.fixture
def unlabelled(trained, tmp_path):
    """`unlabelled(split, count, new name)`: a tar for each split, in one of which this many samples have no label."""

    def write(split, count, name=None):
        root = tmp_path / "tars"
        root.mkdir()
        for own in ("train", "val"):
            with tarfile.open(root / f"{name if own == split and name else own}-00000.tar", "w") as tar:
                files = sorted((trained.images / own).glob("*/*"))
                for number, file in enumerate(files):
                    members = {file.suffix: file.read_bytes()}
                    if own != split or number < len(files) - count:
                        members[".cls"] = str(sorted(("blue", "green", "red")).index(file.parent.name)).encode()
                    for suffix, content in members.items():
                        member = tarfile.TarInfo(f"{number:04d}{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        return root

    return write


@pytest.mark.parametrize(
    ("split", "count", "words"),
    [
        (
            "train",
            1,
            r"the sample .*0023\S* of the train split has no label; convert .*another split with --train-split",
        ),
        ("val", 3, r"the sample .*0009\S* of the val split has no label \(and so it is with 2 more\);.*--val-split"),
    ],
)
def test_samples_without_labels_are_named_before_anything_is_read(split, count, words, unlabelled):
    with pytest.raises(UserError, match=words):
        open_parts(unlabelled(split, count), "train", None, None, 0)


def test_a_test_split_without_labels_can_stay_unused(unlabelled):
    """As in competitions."""
    data = unlabelled("val", 12, "test")
    with pytest.raises(
        UserError, match=r"the sample .*0000\S* of the test split.* or hold some of train out with --val-frac"
    ):
        open_parts(data, "train", None, None, 0)
    train, val = open_parts(data, "train", None, 0.25, 0)
    assert (len(train), len(val), val.held_out) == (18, 6, 0.25)
    with pytest.raises(UsageError, match="--val-fraction has no effect"):
        open_parts(data, "train", "test", 0.25, 0)


class TestASplitWithoutSamples:
    """As an append of damaged files made it in earlier versions."""

    @pytest.fixture(params=["tar", "beton"])
    def emptied(self, request, image_folder, tmp_path, encode, monkeypatch):
        data = tmp_path / "D"
        convert(Convert(src=image_folder, dst=data, format=request.param), Console(quiet=True))
        for name, content in (("train/red/1.jpg", encode(seed=50)), ("val/red/2.jpg", b"no image")):
            (tmp_path / "more" / name).parent.mkdir(parents=True)
            (tmp_path / "more" / name).write_bytes(content)
        monkeypatch.setattr("fastimg.convert.description._check_counts", lambda *_: None)
        convert(Convert(src=tmp_path / "more", dst=data, append=True), Console(quiet=True))
        assert list_splits(data) == {"train": 37, "val": 0}
        return data

    def test_is_not_chosen_for_validation(self, emptied):
        train, val = open_parts(emptied, "train", None, None, 0)
        assert (len(train) + len(val), val.split, val.held_out) == (37, None, 0.1)
        with pytest.raises(DataError, match=r"/D: the split 'val' has no samples; name another split$"):
            open_parts(emptied, "train", "val", None, 0)

    def test_is_not_evaluated(self, emptied):
        assert select(emptied, None, None).split == "train"
        with pytest.raises(DataError, match=r"/D: the split 'val' has no samples; name another split$"):
            select(emptied, "val", None)

    def test_has_a_place(self, emptied):
        with closing(open_dataset(emptied, "val")) as dataset:
            assert record(emptied, DatasetPart(dataset, None, "val"), None, "val", 0).identity.samples == 0


def test_labels_are_below_the_number_of_classes(trained):
    dataset = open_dataset(trained.shards, "val")
    check_labels(trained.shards, "val", dataset, 3)
    with pytest.raises(UserError, match=r"of the val split has the label 2, and there are 2 classes .*3 more\)"):
        check_labels(trained.shards, "val", dataset, 2)


@pytest.mark.parametrize("loader", ["native", "torch", "synthetic"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_no_loader_passes_a_missing_label_to_a_model(loader, split, unlabelled, fast, tmp_path, cli, monkeypatch):
    monkeypatch.setattr("fastimg.train.tasks.classification.losses", lambda *_: pytest.fail("a step was taken"))
    monkeypatch.setattr("fastimg.train.loop.evaluate", lambda *_: pytest.fail("validated"))
    flags = [flag for flag in fast if flag not in ("--workers", "1", "--epochs")]
    ran = cli("train", unlabelled(split, 2), *flags, "--epochs", "1", "--loader", loader, "-o", tmp_path / "runs")
    assert ran.code == 1 and f"of the {split} split has no label" in ran.err and len(ran.err.splitlines()) == 1


def test_eval_names_a_sample_without_a_label(unlabelled, fast, tmp_path, cli):
    data = unlabelled("val", 1, "test")
    flags = (*fast, "--val-fraction", "0.25", "-o", tmp_path / "runs", "--name", "run")
    assert cli("train", data, *flags).code == 0
    ran = cli("eval", tmp_path / "runs/run", data)
    assert ran.code == 1 and len(ran.err.splitlines()) == 1
    assert re.search(
        r"the sample .*0011\S* of the test split has no label; convert it .* another split with --spl", ran.err
    )


def test_no_validation(image_folder):
    train, val = open_parts(image_folder, "train", None, 0.0, 0)
    assert (len(train), val) == (36, None)


def test_a_fraction_with_a_validation_split(data):
    with pytest.raises(UsageError, match=r"--val-fraction has no effect: .* has a val split"):
        open_parts(data, "train", None, 0.2, 0)


def test_too_few_to_hold_out(tmp_path, trained):
    for name in ("a", "b"):
        (tmp_path / "d" / name).mkdir(parents=True)
        shutil.copy(trained.images / "val" / "red" / "0.jpg", tmp_path / "d" / name)
    with pytest.raises(UserError, match="too few samples to hold any out"):
        open_parts(tmp_path / "d", "train", None, None, 0)


def test_a_missing_split(data):
    with pytest.raises(DataError, match="no split 'tset'"):
        open_parts(data, "train", "tset", None, 0)


def test_kinds(trained, tmp_path):
    assert is_plain_folder(trained.images) and not is_plain_folder(trained.shards)
    shutil.copy(next(trained.shards.glob("*.tar")), tmp_path / "x-0.tar")
    assert not is_plain_folder(tmp_path)


def test_workers():
    ranks = Ranks(0, 1, 1, torch.device("cpu"), None)
    assert worker_count("3", ranks) == 3 and worker_count("auto", ranks) == max(1, ranks.cpus // 2)
    for text in ("0", "-1", "two", "1.5", "", "²"):
        with pytest.raises(UsageError, match="--workers"):
            worker_count(text, ranks)


@pytest.mark.parametrize(("path", "name"), [("a/b", "b"), ("a/b/", "b"), ("/", "data"), ("a/..", None)])
def test_names(path, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert display_name(Path(path)) == (name or tmp_path.name)
