"""ImageFolderLoader compared with torchvision's ImageFolder and torch's DataLoader, as a training script sees them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F

from fastimg.loaders import CenterCrop, DataError, ImageFolderLoader, RandomResizedCrop
from fastimg.loaders.migration import steps as given_steps
from fastimg.loaders.migration.finish import Finish
from fastimg.loaders.migration.sources import EXTENSIONS, list_samples
from fastimg.loaders.migration.transforms import ImageTransform, translated

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EVALUATION = transforms.Compose(
    [transforms.Resize(20), transforms.CenterCrop(16), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
)
TRAINING = transforms.Compose(
    [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)
pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def folder(image_folder):
    """With cases that distinguish sort orders: nested folders, upper case, other files, and train/ as a class."""
    red = image_folder / "red"
    (red / "b").mkdir()
    for old, new in (("000.jpg", "b/x.JPG"), ("001.jpg", "b.jpg"), ("002.jpg", "B.jpeg"), ("004.jpg", "b-c.jpg")):
        (red / old).rename(red / new)
    (red / "notes.txt").write_text("no image")
    (image_folder / ".hidden").mkdir()
    (image_folder / "blue/005.jpg").rename(image_folder / ".hidden/005.jpg")
    (image_folder / "green").rename(image_folder / "train")
    return image_folder


def test_classes_files_and_targets_are_torchvisions(folder):
    theirs = ImageFolder(str(folder), EVALUATION)
    for ours in (ImageFolderLoader(folder, EVALUATION), ImageFolderLoader(theirs)):
        assert (ours.classes, ours.class_to_idx) == (theirs.classes, theirs.class_to_idx)
        assert (ours.samples, ours.targets) == (theirs.samples, theirs.targets)
        assert len(ours.dataset) == len(theirs)
        ours.close()
    assert list_samples(folder) == (theirs.classes, theirs.samples) and theirs.classes[0] == ".hidden"


def test_the_extensions_are_torchvisions():
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert EXTENSIONS == IMG_EXTENSIONS


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_in_order_are_those_of_a_data_loader(folder, drop_last):
    """Their types, shapes and memory layout; Pillow's resize rounds differently from torch's."""
    dataset = ImageFolder(folder, EVALUATION)
    theirs = DataLoader(dataset, batch_size=8, drop_last=drop_last)
    with ImageFolderLoader(dataset, batch_size=8, drop_last=drop_last, num_workers=0) as ours:
        assert len(ours) == len(theirs) == (4 if drop_last else 5)
        kept = list(ours)
    for (images, targets), (expected, labels) in zip(kept, theirs, strict=True):
        assert torch.equal(targets, labels) and images.dtype == expected.dtype and images.shape == expected.shape
        assert images.is_contiguous() and targets.dtype == labels.dtype
        levels = (images - expected).abs() * torch.tensor(STD)[:, None, None] * 255
        assert levels.max() < 1.01 and levels.mean() < 0.1


def test_shuffled_batches_hold_every_file_once(folder):
    dataset = ImageFolder(folder, TRAINING)
    with ImageFolderLoader(dataset, batch_size=8, shuffle=True, seed=1) as loader:
        first, second = ([*loader] for _ in range(2))
        loader.set_epoch(0)
        again = [*loader]
    for epoch in (first, second):
        assert [len(targets) for _, targets in epoch] == [8, 8, 8, 8, 4]
        assert sorted(torch.cat([targets for _, targets in epoch]).tolist()) == sorted(dataset.targets)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], second[0][0]) and first[0][0].min() >= 0 and first[0][0].max() <= 1


def test_flips_have_their_probability(folder):
    """With p = 1 every image is mirrored, with 0.5 some are."""
    plain = [transforms.RandomResizedCrop(16), transforms.PILToTensor()]
    images = {}
    for p in (0, 0.5, 1):
        with ImageFolderLoader(folder, [*plain, transforms.RandomHorizontalFlip(p)], batch_size=40) as loader:
            ((images[p], _),) = loader
    assert images[0].dtype == torch.uint8 and images[0].is_contiguous()
    assert torch.equal(images[1], images[0].flip(3))
    same = (images[0.5] == images[0]).flatten(1).all(1)
    assert 5 < same.sum() < 31 and torch.equal(images[0.5][~same], images[1][~same])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("read", [0, 1, 2, 3])
def test_a_state_continues_within_an_epoch(read, drop_last, folder):
    transform = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])
    settings = {"batch_size": 5, "shuffle": True, "seed": 3, "drop_last": drop_last, "num_workers": 2}
    with ImageFolderLoader(str(folder), transform, **settings) as whole:
        first, second = list(whole), list(whole)
    with ImageFolderLoader(str(folder), transform, **settings) as stopped:
        batches = iter(stopped)
        assert len(first) > read
        for _ in range(read):
            next(batches)
        state = stopped.state_dict()
    with ImageFolderLoader(str(folder), transform, **settings | {"num_workers": 1}) as continued:
        continued.load_state_dict(state)
        found = [*continued, *continued]
    expected = [*first[read:], *second]
    assert len(found) == len(expected)
    for (images, targets), (own_images, own_targets) in zip(expected, found, strict=True):
        assert torch.equal(images, own_images) and torch.equal(targets, own_targets)
    other = ImageFolderLoader(str(folder), transform, **settings | {"seed": 4})
    with other, pytest.raises(ValueError, match="made with seed 3"):
        other.load_state_dict(state)


def test_a_state_at_the_end_of_an_epoch_begins_the_next(folder):
    transform = v2.Compose([v2.RandomResizedCrop(16), v2.ToImage()])
    with ImageFolderLoader(str(folder), transform, batch_size=5, shuffle=True, drop_last=True) as whole:
        list(whole)
        state = whole.state_dict()
        second = list(whole)
    with ImageFolderLoader(str(folder), transform, batch_size=5, shuffle=True, drop_last=True) as continued:
        continued.load_state_dict(state)
        found = list(continued)
    assert len(found) == len(second)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(found, second, strict=True))


def test_a_subset(folder):
    subset = Subset(ImageFolder(folder, EVALUATION), [30, 2, 17])
    with ImageFolderLoader(subset, batch_size=2) as loader:
        targets = [targets.tolist() for _, targets in loader]
    assert targets == [[subset.dataset.targets[30], subset.dataset.targets[2]], [subset.dataset.targets[17]]]


def test_processes_share_every_batch(folder):
    """36 files: both have four batches, and each file comes once."""
    dataset = ImageFolder(folder, EVALUATION)
    options = {"batch_size": 5, "world_size": 2, "shuffle": True}
    loaders = [ImageFolderLoader(dataset, rank=rank, **options) for rank in range(2)]
    epochs = [[targets for _, targets in loader] for loader in loaders]
    assert [[len(targets) for targets in epoch] for epoch in epochs] == [[5, 5, 5, 3]] * 2
    assert [len(epoch) for epoch in epochs] == [len(loader) for loader in loaders] == [4, 4]
    assert sorted(torch.cat([*epochs[0], *epochs[1]]).tolist()) == sorted(dataset.targets)
    for loader in loaders:
        loader.close()


def test_files_that_cannot_be_decoded(folder):
    (folder / "red/b.jpg").write_bytes(b"no image")
    with ImageFolderLoader(folder, EVALUATION, batch_size=40) as loader, pytest.raises(DataError, match=r"red/b\.jpg"):
        list(loader)
    with ImageFolderLoader(folder, EVALUATION, batch_size=40, on_error="skip") as loader:
        ((images, targets),) = loader
        assert len(images) == len(targets) == 35 and [*loader.unreadable] == [str(folder / "red/b.jpg")]
    with ImageFolderLoader(folder, EVALUATION, batch_size=1, on_error="skip") as loader:
        assert [len(images) for images, _ in loader] == [1] * 35  # no batch without an image


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu(folder):
    steps = [*TRAINING.transforms, transforms.Normalize(MEAN, STD)]
    options = {"batch_size": 8, "shuffle": True}
    with (
        ImageFolderLoader(folder, steps, device="cuda", **options) as gpu,
        ImageFolderLoader(folder, steps, **options) as cpu,
    ):
        for (images, targets), (expected, labels) in zip(gpu, cpu, strict=True):
            assert images.is_cuda and targets.is_cuda and torch.equal(targets.cpu(), labels)
            torch.testing.assert_close(images.cpu(), expected)


def test_supported_transforms():
    crop = RandomResizedCrop(size=(16, 24), scale=(0.2, 1.0), interpolation="bicubic")
    theirs = transforms.RandomResizedCrop((16, 24), (0.2, 1.0), interpolation=InterpolationMode.BICUBIC)
    flip, norm = transforms.RandomHorizontalFlip(0.3), transforms.Normalize(MEAN, STD)
    assert translated([theirs, flip]) == image_transform(crop, flip=0.3)
    normalised = {"scaled": True, "mean": MEAN, "std": STD}
    composed = transforms.Compose([theirs, transforms.ToTensor(), flip, norm])
    assert translated(composed) == image_transform(crop, flip=0.3, **normalised)
    gray = transforms.Normalize((0.5,), (0.25,))  # of all channels, as torchvision takes it
    assert translated([theirs, transforms.ToTensor(), gray]) == image_transform(
        crop, scaled=True, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
    )
    modern = v2.Compose([v2.ToImage(), v2.Resize(20), v2.CenterCrop(16), v2.ToDtype(torch.float32, scale=True)])
    assert translated([modern, v2.Normalize(MEAN, STD)]) == image_transform(
        CenterCrop(size=16, resize=20), **normalised
    )


def image_transform(crop, **settings):
    return ImageTransform(crop, Finish(channels_first=True, **settings))


def batch_of(folder, *steps, **options):
    """The images of all files, in order."""
    with ImageFolderLoader(folder, list(steps), batch_size=40, **options) as loader:
        ((images, _),) = loader
    return images


SQUASHED = transforms.Resize((12, 20))


def test_a_rectangle_is_torchvisions(folder):
    expected = next(iter(DataLoader(ImageFolder(folder, transforms.Compose([SQUASHED, transforms.ToTensor()])), 40)))[0]
    found = batch_of(folder, SQUASHED, transforms.ToTensor())
    assert found.shape == (36, 3, 12, 20) and ((found - expected).abs() * 255).max() < 1.01


@pytest.mark.parametrize(
    ("step", "same"),
    [
        (transforms.ColorJitter(brightness=(1.5, 1.5)), lambda image: F.adjust_brightness(image, 1.5)),
        (transforms.ColorJitter(contrast=(0.4, 0.4)), lambda image: F.adjust_contrast(image, 0.4)),
        (v2.ColorJitter(saturation=(0.3, 0.3)), lambda image: F.adjust_saturation(image, 0.3)),
        (transforms.RandomGrayscale(1.0), lambda image: F.rgb_to_grayscale(image, 3)),
        (transforms.RandomVerticalFlip(1.0), F.vflip),
    ],
)
def test_augmentation_without_a_choice_makes_torchvisions_pixels(step, same, folder):
    plain = batch_of(folder, SQUASHED, transforms.PILToTensor())
    expected = [F.pil_to_tensor(same(Image.fromarray(image.permute(1, 2, 0).numpy()))) for image in plain]
    assert torch.equal(batch_of(folder, SQUASHED, step, transforms.PILToTensor()), torch.stack(expected))


@pytest.mark.parametrize("step", [v2.TrivialAugmentWide(), transforms.RandAugment(), transforms.AutoAugment()])
def test_random_policies_are_those_by_name(step, folder):
    """What the names mean is compared with torchvision in tests/augment."""
    (policy,) = translated([SQUASHED, step]).finish.policies
    expected = {"RandAugment": "tvrand-n2-m9-b31", "AutoAugment": "tvauto-imagenet"}.get(type(step).__name__, "")
    assert (policy.named, policy.trivial) == (expected, not expected)
    first, second = (batch_of(folder, SQUASHED, step, transforms.PILToTensor(), seed=seed) for seed in (0, 1))
    assert first.dtype == torch.uint8 and first.is_contiguous() and not torch.equal(first, second)


@pytest.mark.parametrize("value", [0.0, (1.0, 0.5, 0.0)])
@pytest.mark.parametrize("normalised", [True, False])
def test_erasing_is_torchvisions(value, normalised, folder):
    """A third of the area, with its value before or after normalisation."""
    erasing = transforms.RandomErasing(1.0, (0.3, 0.3), (1.0, 1.0), value)
    ends = [transforms.Normalize(MEAN, STD), erasing] if normalised else [erasing, transforms.Normalize(MEAN, STD)]
    plain = batch_of(folder, SQUASHED, transforms.ToTensor(), transforms.Normalize(MEAN, STD))
    found = batch_of(folder, SQUASHED, transforms.ToTensor(), *ends)
    changed = (found - plain).abs().amax(dim=1) > 1e-5
    assert abs(changed.float().mean() - round((0.3 * 240) ** 0.5) ** 2 / 240) < 0.02
    colour = torch.tensor(value if isinstance(value, tuple) else (value,) * 3)
    colour = colour if normalised else (colour - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(found.permute(0, 2, 3, 1)[changed], colour.expand(int(changed.sum()), 3))


def test_arguments_about_processes_are_ignored_with_one_warning(folder):
    with pytest.warns(UserWarning, match="ignores pin_memory, prefetch_factor, persistent_workers: ") as told:
        ImageFolderLoader(folder, EVALUATION, pin_memory=True, prefetch_factor=4, persistent_workers=True).close()
    assert len(told) == 1 and told[0].filename == __file__


class Gauss:
    def __call__(self, image):
        return image


@pytest.mark.parametrize("step", [transforms.ColorJitter(0.5), transforms.RandomErasing()])
def test_loaders_alone_refuse_what_only_augmentation_does(step, monkeypatch):
    order = [step, transforms.ToTensor()] if isinstance(step, transforms.ColorJitter) else [transforms.ToTensor(), step]
    assert translated([transforms.RandomResizedCrop(8), *order])
    monkeypatch.setattr(given_steps, "_given", [])
    with pytest.raises(ValueError, match=f"cannot take over {type(step).__name__}: leave it out"):
        translated([transforms.RandomResizedCrop(8), *order])


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([transforms.RandomResizedCrop(16), transforms.ElasticTransform()], "ElasticTransform: give"),
        ([transforms.ColorJitter(0.4), transforms.RandomResizedCrop(16)], "ColorJitter before the crop"),
        ([transforms.RandomResizedCrop(16), transforms.ToTensor(), v2.RandAugment()], "RandAugment after ToTensor"),
        ([transforms.RandomResizedCrop(16), transforms.RandAugment(fill=9)], "RandAugment with a fill"),
        ([transforms.RandomResizedCrop(16), transforms.TrivialAugmentWide(10)], "for 31"),
        ([transforms.RandomResizedCrop(16), transforms.RandomErasing()], "RandomErasing of uint8"),
        ([transforms.RandomResizedCrop(16), Gauss()], "Gauss of "),
        ([transforms.RandomResizedCrop(16), np.asarray], "asarray of numpy: "),
        ([transforms.RandomResizedCrop(16), transforms.CenterCrop(8)], "CenterCrop after another crop"),
        ([transforms.Resize(20), transforms.ToTensor()], r"Resize\(20\) without CenterCrop or RandomCrop"),
        ([transforms.RandomResizedCrop(16), transforms.Normalize(MEAN, STD)], "put ToTensor before it"),
        (
            [transforms.RandomResizedCrop(16), transforms.ToTensor(), transforms.Normalize((0.5, 0.5), (1, 1))],
            "three for RGB",
        ),
        (
            [transforms.RandomResizedCrop(16), transforms.ToTensor(), transforms.Normalize(MEAN, (1, 0, 1))],
            "no std of 0",
        ),
        ([transforms.RandomResizedCrop(16, interpolation=InterpolationMode.NEAREST)], "with nearest"),
        ([transforms.RandomResizedCrop(16), v2.ToDtype(torch.float16, scale=True)], "torch.float32"),
        ([transforms.RandomResizedCrop(16), v2.ToDtype(torch.float32)], "torch.float32"),
    ],
)
def test_other_transforms_are_refused_by_name(steps, named, folder):
    with pytest.raises(ValueError, match=f"cannot take over .*{named}"):
        ImageFolderLoader(folder, transforms.Compose(steps))


def test_arguments_that_contradict_each_other(folder, tmp_path):
    dataset = ImageFolder(folder, EVALUATION)
    for arguments, options, kind, words in (
        ((folder,), {}, TypeError, "give the transform"),
        ((dataset, EVALUATION), {}, TypeError, "leave out this one"),
        ((ImageFolder(folder, EVALUATION, lambda t: t),), {}, TypeError, "target_transform"),
        ((ImageFolder(folder, EVALUATION, loader=lambda path: Image.open(path)),), {}, TypeError, "own loader"),
        (([1, 2],), {}, TypeError, "not list"),
        ((dataset,), {"on_error": "skip", "rank": 0, "world_size": 2}, TypeError, "without a batch that others"),
        ((tmp_path / "none", EVALUATION), {}, DataError, "No such file"),
        ((folder / "blue", EVALUATION), {}, DataError, "no class folders"),
    ):
        with pytest.raises(kind, match=words):
            ImageFolderLoader(*arguments, **options)
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="empty: the class has no images"):
        ImageFolderLoader(folder, EVALUATION)


@pytest.mark.parametrize("threads", [1, 3])
def test_finished_images_are_torchs_bit_for_bit(threads):
    """All levels of all channels, mirrored and not, on one thread and on several."""
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(5, 16, 16, 3)
    images = (levels + torch.arange(5, dtype=torch.uint8)[:, None, None, None]).permute(0, 3, 1, 2)
    flipped, before = np.array([[1, 0], [0, 0], [0, 1], [1, 1], [1, 0]], np.bool_), torch.get_num_threads()
    across, down = torch.from_numpy(flipped).T[:, :, None, None, None]
    mirrored = torch.where(across, images.flip(3), images)
    mirrored = torch.where(down, mirrored.flip(2), mirrored)
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    torch.set_num_threads(threads)
    try:
        for settings, expected in (
            ({}, mirrored),
            ({"scaled": True}, mirrored.float() / 255),
            ({"scaled": True, "mean": MEAN, "std": STD}, (mirrored.float() / 255).sub(mean).div(std)),
        ):
            found = Finish(channels_first=True, **settings)._in_one_pass(images, flipped)
            assert torch.equal(found, expected) and found.dtype == expected.dtype and found.is_contiguous()
    finally:
        torch.set_num_threads(before)
