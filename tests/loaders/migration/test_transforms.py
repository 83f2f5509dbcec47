"""Transforms that ImageFolderLoader takes over, compared with the originals: pixels at fixed parameters, and which
parameters are drawn."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torch import nn
from torchvision import datasets, transforms
from torchvision.models import ResNet50_Weights
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F

from fastimg.augment import Policy, draw
from fastimg.loaders import DataError, ImageFolderLoader
from fastimg.loaders.migration.transforms import translated

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def cifar():
    """48 images of 16 x 16 in CIFAR's form, and as Pillow's."""
    data = object.__new__(datasets.CIFAR10)
    data.data = np.random.default_rng(0).integers(0, 256, (48, 16, 16, 3), np.uint8)
    data.targets, data.classes, data.transform, data.target_transform = [0] * 48, ["a"], None, None
    return data


def batch_of(data, *steps, **options):
    """The images of all samples, in order."""
    with ImageFolderLoader(data, list(steps), batch_size=len(data), **options) as loader:
        ((images, _),) = loader
    return images


def levels(image):
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def test_to_tensor_alone(cifar, image_folder):
    expected = torch.stack([F.to_tensor(Image.fromarray(each)) for each in cifar.data])
    assert torch.equal(batch_of(cifar, transforms.ToTensor()), expected)
    Image.new("RGB", (5, 7)).save(image_folder / "blue/999.png")
    with pytest.raises(DataError, match="all have to be equal"):
        batch_of(datasets.ImageFolder(image_folder), transforms.ToTensor())


@pytest.mark.parametrize(
    ("crop", "padding", "mode", "fill"),
    [
        (transforms.RandomCrop(16, padding=2), (2, 2, 2, 2), "constant", 0),
        (v2.RandomCrop((12, 14), padding=(1, 3), fill=7), (1, 3, 1, 3), "constant", 7),
        (v2.RandomCrop(16, padding=[0, 1, 2, 3], padding_mode="reflect"), (0, 1, 2, 3), "reflect", 0),
        (transforms.RandomCrop((14, 13)), (0, 0, 0, 0), "constant", 0),
        (transforms.RandomCrop((20, 16), pad_if_needed=True), (0, 4, 0, 4), "constant", 0),
    ],
)
def test_random_crops_are_cut_out_of_the_same_padded_image(crop, padding, mode, fill, cifar):
    """Each place there is, about equally often."""
    tall, wide = crop.size
    places = []
    for epoch in range(4):
        found = batch_of(cifar, crop, transforms.PILToTensor(), seed=epoch)
        for image, pixels in zip(found, cifar.data, strict=True):
            padded = F.pad(levels(pixels), list(padding), fill, mode)
            windows = padded.unfold(1, tall, 1).unfold(2, wide, 1)  # [3, rows, columns, tall, wide]
            same = (windows == image[:, None, None]).flatten(3).all(3).all(0)
            assert same.sum() == 1
            places.append(same.nonzero()[0].tolist())
    rows, columns = windows.shape[1:3]
    for axis, count in ((0, rows), (1, columns)):
        seen = np.bincount([place[axis] for place in places], minlength=count)
        expected = len(places) / count
        assert ((seen - expected) ** 2 / expected).sum() < 12 + 3 * count  # chi-squared


def test_a_crop_that_does_not_fit_is_an_error(cifar):
    with pytest.raises(DataError, match="fewer than a crop of 20 x 20"):
        batch_of(cifar, transforms.RandomCrop(20, padding=1), transforms.ToTensor())


@pytest.mark.parametrize(
    "steps",
    [
        [transforms.CenterCrop(11)],
        [transforms.CenterCrop((20, 13))],
        [transforms.Resize((24, 20)), transforms.CenterCrop(17)],
        [transforms.Resize(20, InterpolationMode.BICUBIC), transforms.CenterCrop(24)],
        [v2.Resize([20]), v2.CenterCrop([17])],
    ],
)
def test_centre_crops(steps, cifar):
    compose = transforms.Compose([*steps, transforms.PILToTensor()])
    expected = torch.stack([compose(Image.fromarray(each)) for each in cifar.data])
    found = batch_of(cifar, *steps, transforms.PILToTensor())
    assert found.shape == expected.shape
    apart = (found.int() - expected.int()).abs()  # of noise, which bicubic filters sharpen
    assert apart.max() <= 2 and (apart > 1).float().mean() < 1e-4


@pytest.mark.parametrize("rotation", [transforms.RandomRotation(30), v2.RandomRotation([-30, 30])])
def test_rotations(rotation, cifar):
    found = batch_of(cifar, rotation, transforms.PILToTensor(), seed=4)
    angles = draw(Policy(rotate=30), np.arange(48), 4, 0).angle.tolist()
    expected = [levels(F.rotate(Image.fromarray(each), a)) for each, a in zip(cifar.data, angles, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    many = draw(Policy(rotate=30), np.arange(4000), 0, 0).angle
    assert abs(many.mean()) < 1 and abs(many.std() - 60 / 12**0.5) < 0.5 and many.abs().max() <= 30


def test_gray(cifar):
    gray = transforms.Grayscale(3)
    expected = torch.stack([levels(gray(Image.fromarray(each))) for each in cifar.data])
    assert torch.equal(batch_of(cifar, gray, transforms.PILToTensor()), expected)


def test_containers_and_weights():
    steps = [transforms.Resize(20), transforms.CenterCrop(16), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    composed = translated(transforms.Compose(steps))
    scaled = nn.Sequential(v2.ToDtype(torch.float32, scale=True), steps[3])
    assert translated(nn.Sequential(*steps[:2], nn.Identity(), v2.ToImage(), scaled)) == composed
    of_weights = translated(ResNet50_Weights.IMAGENET1K_V2.transforms())
    same = [transforms.Resize(232), transforms.CenterCrop(224), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    assert of_weights == translated(same)


@pytest.mark.parametrize("options", [{}, {"crop_mode": "squash"}, {"crop_pct": 0.7, "interpolation": "bicubic"}])
def test_timms_evaluation(options, cifar):
    theirs = create_transform(14, is_training=False, **options)
    expected = torch.stack([theirs(Image.fromarray(each)) for each in cifar.data])
    found = batch_of(cifar, theirs)
    assert ((found - expected).abs() * torch.tensor(STD)[:, None, None] * 255).max() < 1.01


def test_timms_training():
    theirs = create_transform((14, 12), is_training=True, scale=(0.3, 1), vflip=0.2, re_prob=0.25, color_jitter=0.3)
    found = translated(theirs)
    assert (found.crop.size, found.crop.scale, found.crop.interpolation) == ((14, 12), (0.3, 1.0), "bilinear")
    vertical, jitter = found.finish.policies
    assert (found.finish.flip, vertical.vflip) == (0.5, 0.2)
    assert jitter.brightness == jitter.contrast == jitter.saturation == (0.7, 1.3)
    erasing = found.finish.last
    assert (erasing.erase, erasing.erase_scale, erasing.erase_values) == (0.25, (0.02, 1 / 3), (0.0, 0.0, 0.0))
    assert erasing.erase_ratio == pytest.approx((0.3, 1 / 0.3))
    assert erasing.mean == pytest.approx(MEAN) and erasing.std == pytest.approx(STD)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([transforms.Pad(3)], "Pad;"),
        ([create_transform(14, is_training=True, interpolation="random")], "that draws its interpolation"),
        ([create_transform(14, is_training=True, auto_augment="rand-m9")], "timm's RandAugment .*Policy"),
        ([create_transform(14, is_training=True, re_prob=0.1, re_mode="pixel")], 're_mode="const"'),
        ([transforms.RandomCrop(8, padding=1, padding_mode="edge")], "padding_mode='edge'"),
        ([transforms.RandomCrop(8, padding=1, fill=(1, 2, 3))], "give one number"),
        ([transforms.RandomCrop(8), transforms.RandomRotation((0, 30))], "to either side"),
        ([transforms.RandomCrop(8), transforms.RandomRotation(30, InterpolationMode.BILINEAR)], "with .*BILINEAR"),
        ([transforms.RandomCrop(8), transforms.Grayscale()], "num_output_channels=3"),
        ([transforms.RandomCrop(8), transforms.RandomResizedCrop(8)], "RandomResizedCrop after another crop"),
        ([transforms.ToTensor(), transforms.Normalize(MEAN, STD), transforms.RandomCrop(8)], "after Normalize"),
        ([transforms.ColorJitter(0.4), transforms.RandomCrop(8)], "ColorJitter before the crop"),
        ([nn.Sequential(transforms.RandomCrop(8), nn.Conv2d(3, 3, 1))], "Conv2d;"),
    ],
)
def test_what_cannot_be_taken_over_is_named(steps, words, cifar):
    with pytest.raises(ValueError, match=f"cannot take over .*{words}.*then="):
        ImageFolderLoader(cifar, steps)


class TwoCropTransform:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        return [self.transform(image), self.transform(image)]


def test_two_crops_are_views(cifar):
    steps = [transforms.RandomResizedCrop(8), transforms.RandomHorizontalFlip(), v2.ColorJitter(0.4)]
    large = transforms.Compose([*steps, transforms.ToTensor()])
    small = transforms.Compose([transforms.RandomResizedCrop(4), transforms.PILToTensor()])
    with ImageFolderLoader(cifar, batch_size=20, views=[large, large, small], seed=2) as loader:
        epoch = list(loader)
    assert [len(targets) for _, targets in epoch] == [20, 20, 8]
    (first, second, third), _ = epoch[0]
    assert first.shape == second.shape == (20, 3, 8, 8) and third.shape == (20, 3, 4, 4)
    assert first.dtype == torch.float32 and third.dtype == torch.uint8
    assert ((first - second).abs().flatten(1).amax(1) > 0).all()  # crops of their own
    assert torch.equal(first, batch_of(cifar, large, seed=2)[:20])  # the first as without views
    with pytest.raises(ValueError, match=r"TwoCropTransform \(.*views=\[transform, transform\]"):
        ImageFolderLoader(cifar, TwoCropTransform(large))
    with pytest.raises(TypeError, match="views have transforms of their own"):
        ImageFolderLoader(cifar, large, views=[large])
