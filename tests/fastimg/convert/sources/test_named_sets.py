"""Datasets known by name: digits, MNIST and others of torchvision, whose files keep their bytes."""

import io
import struct
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from fastimg.data.digits import write_digits
from fastimg.errors import UsageError
from fastimg.loaders.errors import DataError

from .parquets import contents


def pixels_of(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def test_digits_are_those_of_the_demo(tmp_path, named):
    seen = []
    source = named("sklearn:digits", tick=seen.append)
    write_digits(tmp_path / "digits")
    entries = source.splits["train"]
    assert (source.kind, source.classes, source.named, len(entries)) == (
        "sklearn:digits", tuple("0123456789"), True, 1797
    )  # fmt: skip
    assert entries[3].path == "digits/0003" and len(seen) == 1797 and str(source.src) == "sklearn:digits"
    for number in (0, 3, 1796):
        entry = entries[number]
        assert source.read(entry).image == (tmp_path / "digits" / str(entry.label) / f"{number:04d}.png").read_bytes()
    assert source.name(entries[3]) == "sklearn:digits: digits/0003"


def write_idx(file, array):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_mnist(tmp_path, named):
    raw = tmp_path / "cache" / "fastimg" / "torchvision" / "MNIST" / "raw"
    drawn = np.random.default_rng(0)
    images = {name: drawn.integers(0, 256, (n, 28, 28), np.uint8) for name, n in (("train", 20), ("t10k", 10))}
    for name, array in images.items():
        write_idx(raw / f"{name}-images-idx3-ubyte", array)
        write_idx(raw / f"{name}-labels-idx1-ubyte", (np.arange(len(array)) % 10).astype(np.uint8))
    source = named("torchvision:MNIST")
    assert (source.kind, source.named, source.stored) == ("torchvision:MNIST", True, False)
    assert source.classes[3] == "3 - three"
    for split, name in (("train", "train"), ("test", "t10k")):
        entries = source.splits[split]
        assert entries.labels.tolist() == [i % 10 for i in range(len(images[name]))]
        stored = [pixels_of(data) for data in contents(source, split)]
        assert np.array_equal(stored, images[name])
    assert source.splits["test"][7].path == "test/000007"


class Pairs(datasets.VisionDataset):
    """The test's own dataset in place of one of torchvision's."""

    splits = ("train", "valid", "test")

    def __init__(self, root, split="train", download=False, loader=None):
        super().__init__(root)
        if split not in self.splits:
            raise ValueError(f"Unknown value '{split}' for argument split. Valid values are {self.splits}.")
        print("Files already downloaded and verified")
        self.loader, self.split = loader, split
        self.files = [f"{i}.jpg" for i in range(3)]

    def __getitem__(self, index):
        return self.loader(Path(self.root) / self.files[index]), np.int64(index)

    def __len__(self):
        return len(self.files)


@pytest.fixture
def cached_jpegs(tmp_path, jpegs):
    root = tmp_path / "cache" / "fastimg" / "torchvision"
    root.mkdir(parents=True)
    for i, data in enumerate(jpegs):
        (root / f"{i}.jpg").write_bytes(data)
    return root


def test_files_keep_their_bytes(named, monkeypatch, cached_jpegs, jpegs, capsys):
    monkeypatch.setattr(datasets, "DTD", Pairs)
    source = named("torchvision:DTD")
    assert sorted(source.splits) == ["test", "train", "val"]
    assert contents(source, "val") == jpegs
    assert (source.classes, source.named) == (("0", "1", "2"), False)
    assert capsys.readouterr() == ("", "")


def test_images_opened_or_listed_keep_their_files(named, monkeypatch, cached_jpegs, jpegs):
    class Opened(Pairs):
        def __init__(self, root):
            super().__init__(root)
            self.classes = [("tench", "Tinca tinca"), "dog", "owl"]
            self._images = [Path(self.root) / file for file in self.files]

        def __getitem__(self, index):
            image = Image.open(Path(self.root) / self.files[index])
            if index == 1:
                image = image.convert("RGB")
            if index == 2:
                image = image.convert("L").convert("RGB")  # differs from the file's content
            return image, index

    monkeypatch.setattr(datasets, "Caltech101", Opened)
    source = named("torchvision:Caltech101")
    assert source.classes == ("tench, Tinca tinca", "dog", "owl") and source.named
    stored = contents(source)
    assert stored[:2] == jpegs[:2]
    assert np.array_equal(
        pixels_of(stored[2]), np.asarray(Image.open(io.BytesIO(jpegs[2])).convert("L").convert("RGB"))
    )


@pytest.mark.parametrize("target", [{"boxes": []}, (1, 2), "a caption", 0.5])
def test_targets_that_are_not_classes(named, monkeypatch, cached_jpegs, target):
    class Other(Pairs):
        def __getitem__(self, index):
            return self.loader(Path(self.root) / self.files[index]), target

    monkeypatch.setattr(datasets, "DTD", Other)
    with pytest.raises(DataError, match=r"torchvision:DTD: .* is not a pair of an image and a class index"):
        named("torchvision:DTD")


def test_withheld_labels(named, monkeypatch, cached_jpegs):
    class Secret(Pairs):
        splits = ("train", "test")

        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return image, None if self.split == "test" else label

    monkeypatch.setattr(datasets, "CLEVRClassification", Secret)
    source = named("torchvision:CLEVRClassification")
    assert source.stored and source.splits["test"].labels.tolist() == [-1, -1, -1]
    assert "3 of 3 images of test have no label" in source.remarks[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torchvision:CIFAR", "torchvision has no such set; did you mean CIFAR10"),
        ("torchvision:", "torchvision has no such set; torchvision's documentation"),
        ("torchvision:ImageFolder", "torchvision has no such set"),
        ("sklearn:iris", "use sklearn:digits"),
    ],
)
def test_unknown_names(named, text, message):
    with pytest.raises(UsageError, match=message):
        named(text)


def test_datasets_with_required_arguments(named):
    with pytest.raises(DataError, match=r"torchvision.datasets.CocoDetection requires annFile, which"):
        named("torchvision:CocoDetection")


@pytest.mark.parametrize(
    "name", ["MNIST", "CIFAR10", "Flowers102", "EMNIST", "EuroSAT", "Imagenette", "GTSRB", "STL10"]
)
def test_downloads_that_fail(named, monkeypatch, tmp_path, name):
    def fail(*_, **__):
        raise URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(DataError) as caught:
        named(f"torchvision:{name}")
    message = str(caught.value)
    assert message.startswith(f"torchvision:{name}: torchvision cannot load it (") and "\n" not in message
    assert "Name or service not known" in message
    assert (
        f"check the network connection, or put its files into {tmp_path}/cache/fastimg/torchvision yourself" in message
    )


def test_packages_that_are_missing(named, monkeypatch):
    def missing(*_, **__):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy.io")

    monkeypatch.setattr(datasets.SVHN, "__init__", lambda self, root, split="train", download=False: missing())
    with pytest.raises(
        DataError, match="torchvision:SVHN: needs scipy, which is not installed; run `pip install scipy`"
    ):
        named("torchvision:SVHN")


def test_cache_that_cannot_be_written(named, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"torchvision:MNIST: .*Not a directory; set another cache directory"):
        named("torchvision:MNIST")
