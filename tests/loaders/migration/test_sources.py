"""What ImageFolderLoader reads of torchvision's datasets, and what it refuses, as it would not be called."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    random_split,
)
from torchvision import datasets, transforms

from fastimg.loaders import ImageFolderLoader

TRANSFORM = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])
OTHER = transforms.Compose([transforms.Resize((6, 6)), transforms.PILToTensor()])
pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def dataset(image_folder):
    return datasets.ImageFolder(image_folder, TRANSFORM)


def read(data, **options):
    """All targets and images in order."""
    with ImageFolderLoader(data, batch_size=7, **options) as loader:
        images, targets = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(targets).tolist()


class Tripled(datasets.ImageFolder):
    def __getitem__(self, index):
        return (*super().__getitem__(index), index)


class Longer(datasets.ImageFolder):
    def __len__(self):
        return 2 * len(self.samples)


class Named(datasets.ImageFolder):
    """A subclass that changes nothing of what a sample is."""

    def find_classes(self, directory):
        classes, _ = super().find_classes(directory)
        return classes[::-1], {name: number for number, name in enumerate(classes[::-1])}


class Turned(Subset):
    def __getitem__(self, index):
        image, target = self.dataset[self.indices[index]]
        return image.flip(2), target

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Batched(Subset):
    def __getitems__(self, indices):
        return [self.dataset[index] for index in indices]


class Own(Dataset):
    classes, transform, samples = ("a",), TRANSFORM, ()

    def __getitem__(self, index):
        return torch.zeros(3, 8, 8), 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: Tripled(root, TRANSFORM), "Tripled has a __getitem__ of its own, which would not be called"),
        (lambda root: Longer(root, TRANSFORM), "Longer has a __len__ of its own"),
        (lambda root: Turned(datasets.ImageFolder(root, TRANSFORM), [1]), "Turned has a __getitem__ of its own"),
        (lambda root: Batched(datasets.ImageFolder(root, TRANSFORM), [1]), "Batched has a __getitems__ of its own"),
        (lambda root: Subset(Tripled(root, TRANSFORM), [1]), "Tripled has a __getitem__ of its own"),
        (lambda root: Own(), "give an ImageFolder or a folder, not Own"),
        (lambda root: datasets.FakeData(3), "does not read FakeData"),
        (lambda root: StackDataset(datasets.ImageFolder(root, TRANSFORM)), "does not read a StackDataset"),
        (lambda root: ChainDataset([]), "does not read a ChainDataset; give a ConcatDataset"),
    ],
)
def test_code_that_would_not_be_called_is_refused_by_name(make, words, image_folder):
    with pytest.raises(TypeError, match=words):
        ImageFolderLoader(make(image_folder))


def test_a_subclass_that_reads_the_same_is_taken(image_folder):
    dataset = Named(image_folder, TRANSFORM)
    images, targets = read(dataset)
    assert targets == dataset.targets and dataset.classes[0] == "red"
    expected = torch.stack([dataset[i][0] for i in range(36)])
    assert (images.int() - expected.int()).abs().max() <= 1  # Pillow rounds otherwise


def test_what_is_changed_later_is_refused(dataset):
    subset = Subset(dataset, [0, 1, 2])
    with ImageFolderLoader(subset, batch_size=3) as loader:
        assert len(list(loader)) == 1
        dataset.transform = OTHER
        with pytest.raises(RuntimeError, match="transform was changed after the loader was made"):
            list(loader)
        dataset.transform = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])  # does the same
        assert len(list(loader)) == 1
        dataset.transform.transforms[0].size = (4, 4)  # within the Compose
        with pytest.raises(RuntimeError, match="transform was changed"):
            list(loader)
        dataset.transform, subset.indices = TRANSFORM, [4]
        with pytest.raises(RuntimeError, match="indices of the Subset was changed"):
            list(loader)
    with ImageFolderLoader(dataset, batch_size=3) as loader:
        dataset.target_transform = abs
        with pytest.raises(RuntimeError, match="target_transform of the ImageFolder was changed"):
            list(loader)
        dataset.target_transform = None
        dataset.loader = Image.open
        with pytest.raises(RuntimeError, match="loader of the ImageFolder was changed"):
            list(loader)
        dataset.loader = datasets.folder.default_loader
        first = dataset.samples[0]
        dataset.samples[0] = (first[0], 2)  # in its place
        with pytest.raises(RuntimeError, match="samples of the ImageFolder was changed"):
            list(loader)
        dataset.samples[0] = (first[0], first[1])
        assert len(list(loader)) == 12
        dataset.samples.pop()
        with pytest.raises(RuntimeError, match="samples of the ImageFolder was changed"):
            list(loader)


def test_a_transform_for_a_dataset_that_has_none(image_folder):
    data = datasets.ImageFolder(image_folder)
    with pytest.raises(TypeError, match=r"give the transform.*here or to the dataset"):
        ImageFolderLoader(data)
    images, targets = read(data, transform=TRANSFORM)
    assert images.shape == (36, 3, 8, 8) and targets == data.targets
    with ImageFolderLoader(data, TRANSFORM) as loader:
        data.transform = OTHER
        with pytest.raises(TypeError, match="different transforms"):
            list(loader)
    with pytest.raises(TypeError, match="the ImageFolder has a transform; leave out this one"):
        ImageFolderLoader(data, TRANSFORM)


def test_subsets_of_subsets_and_splits(dataset):
    images, targets = read(dataset)
    inner = Subset(dataset, [30, 2, 17, -1])
    for data, ids in (
        (Subset(inner, [3, 1]), [35, 2]),
        (Subset(inner, torch.tensor([0, 2])), [30, 17]),
        (Subset(inner, [1, 1, 0]), [2, 2, 30]),
    ):
        found, labels = read(data)
        assert torch.equal(found, images[ids]) and labels == [targets[i] for i in ids]
    first, second = random_split(dataset, [20, 16], torch.Generator().manual_seed(3))
    assert sorted(read(first)[1] + read(second)[1]) == sorted(targets)
    assert torch.equal(read(second)[0], images[list(second.indices)])
    with pytest.raises(ValueError, match="indices beyond its dataset of 4"):
        ImageFolderLoader(Subset(inner, [4]))


def test_datasets_one_after_the_other(dataset, image_folder):
    images, targets = read(dataset)
    again = datasets.ImageFolder(image_folder, TRANSFORM)
    data = ConcatDataset([dataset, Subset(again, [5, 3]), again])
    found, labels = read(data)
    ids = [*range(36), 5, 3, *range(36)]
    assert torch.equal(found, images[ids]) and labels == [targets[i] for i in ids]
    with ImageFolderLoader(data) as loader:
        assert loader.dataset is data and loader.classes == dataset.classes
    again.transform = OTHER
    with pytest.raises(TypeError, match="different transforms"):
        ImageFolderLoader(data)


def bare(kind, **attributes):
    """One of torchvision's datasets as it is once its files are there."""
    data = object.__new__(kind)
    for name, value in attributes.items():
        setattr(data, name, value)
    return data


def cifar(kind, transform=TRANSFORM):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    labels = [i % 3 for i in range(20)]
    return bare(kind, data=pixels, targets=labels, classes=["a", "b", "c"], transform=transform, target_transform=None)


KINDS = {
    "ImageFolder": lambda root, own: datasets.ImageFolder(root, TRANSFORM),
    "Named": lambda root, own: Named(root, TRANSFORM),
    "DatasetFolder": lambda root, own: datasets.DatasetFolder(root, datasets.folder.pil_loader, (".jpg",), TRANSFORM),
    "Subset of a Subset": lambda root, own: Subset(
        Subset(datasets.ImageFolder(root, TRANSFORM), range(30)), [9, -1, 9]
    ),
    "random_split": lambda root, own: random_split(datasets.ImageFolder(root, TRANSFORM), [0.3, 0.7])[1],
    "ConcatDataset": lambda root, own: Subset(datasets.ImageFolder(root, TRANSFORM), [7, 3]) + Named(root, TRANSFORM),
    "Flowers102": lambda root, own: bare(datasets.Flowers102, **own),
    "Food101": lambda root, own: bare(datasets.Food101, **own),
    "OxfordIIITPet": lambda root, own: bare(datasets.OxfordIIITPet, **own),
    "ImageNet": lambda root, own: bare(datasets.ImageNet, **own),
    "GTSRB": lambda root, own: bare(datasets.GTSRB, **own),
    "CIFAR10": lambda root, own: cifar(datasets.CIFAR10),
    "CIFAR100": lambda root, own: Subset(cifar(datasets.CIFAR100), [4, 4, 19]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_data_loader(kind, dataset, image_folder):
    files = [path for path, _ in dataset.samples]
    own = {"root": image_folder, "transform": TRANSFORM, "target_transform": None}
    own["transforms"] = datasets.vision.StandardTransform(TRANSFORM)
    own |= {"_image_files": files, "_images": files, "_labels": dataset.targets, "_samples": dataset.samples}
    own |= {"samples": dataset.samples, "classes": dataset.classes, "loader": datasets.folder.default_loader}
    data = KINDS[kind](image_folder, own | {"_target_types": ["category"]})
    with ImageFolderLoader(data, batch_size=7) as loader:
        assert len(loader) == len(DataLoader(data, 7))
        for (images, targets), (expected, labels) in zip(loader, DataLoader(data, 7), strict=True):
            assert torch.equal(targets, labels) and images.dtype == expected.dtype
            assert (images.int() - expected.int()).abs().max() <= 1  # Pillow rounds otherwise


def test_repeated_samples_have_crops_of_their_own(image_folder):
    small = transforms.Compose([transforms.RandomResizedCrop(4, (0.1, 0.3)), transforms.PILToTensor()])
    data = datasets.ImageFolder(image_folder, small)
    images, _ = read(Subset(data, [0] * 6))
    assert len(images.flatten(1).unique(dim=0)) > 1


def test_torchvisions_datasets_with_files(dataset, image_folder):
    images, targets = read(dataset)
    files = [path for path, _ in dataset.samples]
    common = {"root": image_folder, "transform": TRANSFORM, "target_transform": None, "classes": dataset.classes}
    lists = {"_image_files": files, "_labels": targets}
    pet = {"_images": files, "_labels": targets, "transforms": None}
    for data in (
        bare(datasets.Flowers102, **common, **lists),
        bare(datasets.Food101, **common, **lists),
        bare(datasets.OxfordIIITPet, **common, **pet, _target_types=["category"]),
        bare(datasets.GTSRB, **common, _samples=dataset.samples),
    ):
        found, labels = read(data)
        assert torch.equal(found, images) and labels == targets
    masks = bare(datasets.OxfordIIITPet, **common, **pet, _target_types=["segmentation"])
    with pytest.raises(TypeError, match='give target_types="category"'):
        ImageFolderLoader(masks)
    net = bare(datasets.ImageNet, **common | {"classes": [("a", "b"), ("c",), ("d",)]}, samples=dataset.samples)
    with ImageFolderLoader(net) as loader:
        assert loader.classes[0] == ("a", "b") and loader.targets == targets


def test_targets_are_those_of_the_part_that_is_read(dataset):
    part = Subset(dataset, [35, 2, 14])
    with ImageFolderLoader(part, batch_size=3) as loader:
        ((_, targets),) = loader
        assert loader.targets == targets.tolist() == [dataset.targets[index] for index in part.indices]
        assert loader.samples == [dataset.samples[index] for index in part.indices]


@pytest.mark.parametrize("kind", [datasets.CIFAR10, datasets.CIFAR100])
def test_arrays(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    labels = [i % 3 for i in range(20)]
    resize = transforms.Compose([transforms.Resize((16, 16)), transforms.PILToTensor()])
    data = bare(kind, data=pixels, targets=labels, classes=["a", "b", "c"], transform=resize, target_transform=None)
    images, targets = read(data)
    expected = torch.stack([resize(Image.fromarray(each)) for each in pixels])
    assert targets == labels and (images.int() - expected.int()).abs().max() <= 1
    part, labels = read(Subset(data, [3, 3, 1]))
    assert torch.equal(part, images[[3, 3, 1]]) and labels == [0, 0, 1]
