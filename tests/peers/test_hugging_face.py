"""Hugging Face's Dataset in ImageFolderLoader: the batches of torch's DataLoader over the same object."""

import io
import pickle

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, Value
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision import transforms
from torchvision.transforms import v2

from fastimg.loaders import ImageFolderLoader
from fastimg.loaders.migration.arrow import ArrowImages

STEPS = transforms.Compose([transforms.Resize((6, 9)), transforms.PILToTensor()])
NAMES = ["cat", "dog", "eel"]
COLUMNS = Features({"image": datasets.Image(), "label": ClassLabel(names=NAMES), "taken": Value("int64")})
pytestmark = pytest.mark.usefixtures("watchdog")


def encoded(number, mode="RGB"):
    pixels = np.random.default_rng(number).integers(0, 256, (10 + number % 3, 14, 3), np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).convert(mode).save(file, "PNG")
        return file.getvalue()


@pytest.fixture
def photos(tmp_path):
    """30 images, in Arrow files of 7 rows that are mapped; row 4 is a file, row 5 is gray."""
    (tmp_path / "four.png").write_bytes(encoded(4))
    images = [{"bytes": encoded(number, "L" if number == 5 else "RGB"), "path": None} for number in range(30)]
    images[4] = {"bytes": None, "path": str(tmp_path / "four.png")}
    columns = {"image": images, "label": [number % 3 for number in range(30)], "taken": list(range(30))}
    made = datasets.Dataset.from_dict(columns, features=COLUMNS)
    parts = [made.select(range(start, min(start + 7, 30))) for start in range(0, 30, 7)]
    datasets.concatenate_datasets(parts).save_to_disk(tmp_path / "saved", num_shards=2)
    return datasets.load_from_disk(tmp_path / "saved")


def collate(rows):
    return torch.stack([STEPS(row["image"].convert("RGB")) for row in rows]), torch.tensor([r["label"] for r in rows])


def compared(data, count=None):
    """Batches of both loaders; the images of this one, and the targets."""
    ours = ImageFolderLoader(data, STEPS, batch_size=7)
    theirs = DataLoader(data, 7, collate_fn=collate)
    assert len(ours) == len(theirs)
    seen = []
    for (images, targets), (expected, labels) in zip(ours, theirs, strict=True):
        assert torch.equal(targets, labels) and images.dtype == expected.dtype and images.shape == expected.shape
        assert (images.int() - expected.int()).abs().max() <= 1  # Pillow rounds otherwise
        seen += targets.tolist()
    ours.close()
    assert len(seen) == (len(data) if count is None else count)
    return seen


def test_batches_are_those_of_a_data_loader(photos):
    assert compared(photos) == photos["label"][:]
    with ImageFolderLoader(photos, STEPS) as loader:
        assert loader.classes == NAMES and loader.targets == photos["label"][:] and loader.dataset is photos
        assert loader.samples[4][0].endswith("four.png)") and len(loader.samples) == 30
        assert isinstance(loader._loader.dataset, ArrowImages) and len(loader._loader.dataset.files()) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.select([3, 29, 3, 0]),
        lambda data: data.shuffle(seed=4),
        lambda data: data.shuffle(seed=4).select(range(9)).filter(lambda n: n != 2, input_columns="label"),
        lambda data: data.train_test_split(0.3, seed=0)["train"],
        lambda data: datasets.concatenate_datasets([data, data.select([1])]),
        lambda data: data.cast_column("image", datasets.Image(decode=True)),
        lambda data: data.flatten_indices(),
        lambda data: data.with_format("torch").with_format(None),
        lambda data: Subset(Subset(data, [9, 1, 4, 5]), [3, 0, 0]),
        lambda data: ConcatDataset([data.select([5, 6]), Subset(data, [28, 2])]),
        lambda data: random_split(data, [20, 10], torch.Generator().manual_seed(1))[1],
    ],
)
def test_rows_in_another_order(change, photos):
    compared(change(photos))


def test_images_that_are_not_decoded_by_the_dataset(photos):
    """cast_column(decode=False), and other formats than Python's, change nothing of what is read."""
    plain = photos.cast_column("image", datasets.Image(decode=False))
    for data in (plain, photos.with_format("numpy"), photos.cast_column("label", Value("int32"))):
        with ImageFolderLoader(data, STEPS, batch_size=30) as loader:
            ((_, targets),) = loader
        assert targets.tolist() == photos["label"][:]


def test_columns_are_chosen_by_what_they_are(photos):
    renamed = photos.rename_columns({"image": "photo", "label": "species"})
    with ImageFolderLoader(renamed, STEPS) as loader:
        assert loader.classes == NAMES
    coarse = photos.add_column("coarse", photos["label"][:]).cast_column("coarse", ClassLabel(names=NAMES))
    assert compared(coarse) == photos["label"][:]  # of two ClassLabels, the one that is called label
    coarse = coarse.rename_column("label", "fine")
    with pytest.raises(TypeError, match=r"several columns are of ClassLabel: fine, coarse; .*\['image', 'fine'\]"):
        ImageFolderLoader(coarse, STEPS)
    assert ImageFolderLoader(coarse.select_columns(["image", "coarse"]), STEPS).classes == NAMES


def test_epochs_states_and_copies(photos):
    """As of an ImageFolder: each image once, another order in each epoch, and a pickled loader goes on."""
    steps = [transforms.RandomResizedCrop(6), transforms.PILToTensor()]
    with ImageFolderLoader(photos, steps, batch_size=4, shuffle=True, seed=0) as loader:
        first, second = list(loader), list(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        assert torch.equal(next(batches)[0], first[0][0])
        with pickle.loads(pickle.dumps(loader)) as copy:
            for (images, targets), (expected, labels) in zip(copy, first[1:], strict=True):
                assert torch.equal(images, expected) and torch.equal(targets, labels)
    for epoch in (first, second):
        assert sorted(torch.cat([targets for _, targets in epoch]).tolist()) == sorted(photos["label"][:])
    assert not torch.equal(first[0][0], second[0][0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.to_iterable_dataset(), "is a stream.*without streaming=True"),
        (lambda data: datasets.DatasetDict({"train": data}), r"has splits \(train\).*data\['train'\]"),
        (lambda data: data.remove_columns("label"), "no column is of ClassLabel.*class_encode_column"),
        (lambda data: data.remove_columns("image"), r"no column is of Image, of label \(ClassLabel\).*cast_column"),
        (lambda data: data.cast_column("image", datasets.Image(mode="L")), "decodes images as RGB"),
        (lambda data: data.with_transform(lambda rows: rows), "a function of with_transform.*with_format"),
    ],
)
def test_what_is_not_read_is_refused_by_name(change, words, photos):
    with pytest.raises(TypeError, match=words):
        ImageFolderLoader(change(photos), STEPS)


def test_a_transform_of_the_dataset(photos):
    """A function is refused, also one that is set later; a transform of torchvision is taken over."""
    with ImageFolderLoader(photos, STEPS, batch_size=30) as loader:
        ((expected, _),) = loader
        photos.set_transform(lambda rows: rows)
        with pytest.raises(TypeError, match="a function of with_transform"):
            list(loader)
    photos.set_transform(v2.Compose([v2.Resize((6, 9)), v2.PILToTensor()]))
    with ImageFolderLoader(photos, batch_size=30) as loader:
        assert torch.equal(next(iter(loader))[0], expected)


def test_rows_without_an_image_or_a_label(photos):
    broken = datasets.Dataset.from_dict(
        {"image": [encoded(0), None], "label": [0, 1]},
        features=Features({"image": datasets.Image(), "label": ClassLabel(names=NAMES)}),
    )
    with ImageFolderLoader(broken, STEPS, batch_size=2, on_error="skip") as loader:
        assert [targets.tolist() for _, targets in loader] == [[0]]
        assert list(loader.unreadable) == ["Dataset image[1]"]
    unlabelled = photos.map(lambda label: {"label": None}, input_columns="label")
    with pytest.raises(TypeError, match="label is missing in 30 rows"):
        ImageFolderLoader(unlabelled, STEPS)
