"""Transforms that ImageFolderLoader takes over, compared with the originals: pixels at fixed parameters, and which
parameters are drawn."""

import itertools
import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from timm.data import create_transform
from torch import nn
from torch.utils.data import Subset
from torchvision import datasets, transforms, tv_tensors
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


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_padding_before_a_crop_is_the_crops(mode):
    """Also where flips stand between a resize, padding and their crop."""
    flip = transforms.RandomHorizontalFlip()
    pad = transforms.Pad((2, 1), 0, mode)
    for kind in (transforms, v2):
        crop = kind.RandomCrop(16, padding=(2, 1), padding_mode=mode)
        one, two = translated([pad, flip, kind.RandomCrop(16)]), translated([crop, flip])
        assert one == two and one.crop.padding == (2, 1, 2, 1)
    resized = translated([transforms.Resize(20), flip, v2.ToImage(), transforms.Pad(2), transforms.RandomCrop(20)])
    assert (resized.crop.resize, resized.crop.padding, resized.finish.flip) == (20, (2, 2, 2, 2), 0.5)


@pytest.mark.parametrize(
    ("step", "same"),
    [
        (transforms.ColorJitter(hue=(0.2, 0.2)), None),
        (transforms.GaussianBlur(5, 1.3), lambda image: F.gaussian_blur(image, [5, 5], [1.3, 1.3])),
        (v2.GaussianBlur((3, 9), (0.4, 0.4)), lambda image: F.gaussian_blur(image, [3, 9], [0.4, 0.4])),
        (transforms.RandomSolarize(100, 1.0), lambda image: F.solarize(image, 100)),
        (v2.RandomSolarize(128.5, 1.0), lambda image: F.solarize(image, 128.5)),
        (transforms.RandomPosterize(3, 1.0), lambda image: F.posterize(image, 3)),
        (v2.RandomAdjustSharpness(1.7, 1.0), lambda image: F.adjust_sharpness(image, 1.7)),
        (transforms.RandomInvert(1.0), F.invert),
        (transforms.RandomEqualize(1.0), F.equalize),
        (v2.RandomAutocontrast(1.0), F.autocontrast),
        (transforms.RandomVerticalFlip(1.0), F.vflip),
        (v2.RandomHorizontalFlip(1.0), F.hflip),
        (v2.RandomGrayscale(1.0), lambda image: F.rgb_to_grayscale(image, 3)),
        (v2.RGB(), lambda image: image),
        (v2.ToPureTensor(), lambda image: image),
        (
            transforms.RandomApply([transforms.RandomInvert(1.0), nn.Sequential(transforms.RandomPosterize(2, 1))], 1),
            lambda image: F.posterize(F.invert(image), 2),
        ),
        (transforms.RandomApply([transforms.RandomInvert(1.0)], 0.0), lambda image: image),
        (v2.RandomChoice([v2.RandomInvert(1.0), v2.RandomGrayscale(1.0)], [1, 0]), F.invert),
    ],
)
def test_pixels_where_nothing_is_drawn(step, same, cifar):
    if same is None:
        with pytest.raises(ValueError, match=r"ColorJitter\(hue=.*give one number"):
            ImageFolderLoader(cifar, [step, transforms.PILToTensor()])
        return
    expected = torch.stack([levels(same(Image.fromarray(each))) for each in cifar.data])
    found = batch_of(cifar, step, transforms.PILToTensor())
    apart = (found.int() - expected.int()).abs()
    assert apart.max() <= 1 and (apart > 0).float().mean() < 1e-3  # a blur's halves, rounded otherwise


def test_hues_are_torchvisions(cifar):
    found = batch_of(cifar, transforms.ColorJitter(hue=0.3), transforms.PILToTensor(), seed=2)
    turns = draw(Policy(hue=0.3), np.arange(48), 2, 0).magnitudes[:, 0]
    signed = torch.where(turns > 127, turns - 256, turns) / 255
    assert signed.min() < -0.2 and signed.max() > 0.2
    pairs = zip(cifar.data, signed.tolist(), strict=True)
    expected = [
        levels(F.adjust_hue(Image.fromarray(each), turn + 1e-6 * (turn > 0) - 1e-6 * (turn < 0)))
        for each, turn in pairs
    ]
    assert torch.equal(found, torch.stack(expected))


def test_jitter_has_an_order_for_each_image(cifar):
    """Each of the six, about equally often, with the pixels that torchvision makes in that order."""
    jitter = transforms.ColorJitter((1.4, 1.4), (0.5, 0.5), (0.3, 0.3))
    functions = (
        lambda image: F.adjust_brightness(image, 1.4),
        lambda image: F.adjust_contrast(image, 0.5),
        lambda image: F.adjust_saturation(image, 0.3),
    )
    found = batch_of(cifar, jitter, transforms.PILToTensor())
    seen = np.zeros(6, np.int64)
    for pixels, image in zip(cifar.data, found, strict=True):
        same = []
        for order in itertools.permutations(functions):
            changed = Image.fromarray(pixels)
            for function in order:
                changed = function(changed)
            same.append(torch.equal(levels(changed), image))
        assert any(same)
        seen += np.array(same)
    assert seen.min() >= 2


# What is compared is a number of each image; torchvision's own images differ from ours as two samples of them do.
MEASURES = {
    "red": lambda images: images[:, 0].mean((1, 2)),
    "green": lambda images: images[:, 1].mean((1, 2)),
    "spread": lambda images: images.std((1, 2, 3)),
    "left": lambda images: images[..., :8].mean((1, 2, 3)) - images[..., 8:].mean((1, 2, 3)),
    "top": lambda images: images[:, :, :8].mean((1, 2, 3)) - images[:, :, 8:].mean((1, 2, 3)),
    "edges": lambda images: (images[..., 1:] - images[..., :-1]).abs().mean((1, 2, 3)),
    "black": lambda images: (images == 0).float().mean((1, 2, 3)),
}


@pytest.fixture(scope="module")
def slope():
    """800 times the same image of 16 x 16, which is not symmetric in anything."""
    data = object.__new__(datasets.CIFAR10)
    down, across = np.mgrid[0:16, 0:16]
    noise = np.random.default_rng(1).integers(0, 40, (16, 16, 3))
    image = np.stack([20 + 9 * across, 200 - 7 * down, 90 + 3 * down + across], 2) + noise
    data.data = np.repeat(np.clip(image, 0, 255).astype(np.uint8)[None], 800, 0)
    data.targets, data.classes, data.transform, data.target_transform = [0] * 800, ["a"], None, None
    return data


@pytest.mark.parametrize(
    "steps",
    [
        [transforms.RandomCrop(16, padding=4)],
        [transforms.RandomHorizontalFlip(0.3)],
        [v2.RandomVerticalFlip(0.7)],
        [transforms.RandomHorizontalFlip(0.5), v2.RandomHorizontalFlip(0.2)],
        [transforms.RandomRotation(40)],
        [transforms.RandomGrayscale(0.3)],
        [transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)],
        [v2.ColorJitter((0.2, 0.9), (1.0, 1.8))],
        [transforms.RandomResizedCrop(16, (0.1, 0.7))],
        [transforms.TrivialAugmentWide()],
        [v2.RandAugment(3, 12)],
        [transforms.AutoAugment()],
        [transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)],
        [transforms.GaussianBlur(5, (0.1, 2.0))],
        [transforms.RandomApply([transforms.GaussianBlur(3, (0.5, 3.0))], 0.3)],
        [transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8), transforms.RandomGrayscale(0.2)],
        [v2.RandomChoice([v2.RandomInvert(1.0), v2.RandomRotation(40), v2.RandomGrayscale(0.5)], [3, 1, 1])],
        [transforms.RandomSolarize(128, 0.2), v2.RandomEqualize(0.4), transforms.RandomPosterize(2, 0.1)],
    ],
)
def test_moments_are_torchvisions(steps, slope):
    compose = transforms.Compose([*steps, transforms.PILToTensor()])
    torch.manual_seed(0)
    random.seed(0)
    theirs = torch.stack([compose(Image.fromarray(each)) for each in slope.data]).float()
    ours = batch_of(slope, *steps, transforms.PILToTensor(), seed=0).float()
    check_moments(ours, theirs)


def test_moments_of_erasing_are_torchvisions(slope):
    steps = [transforms.ToTensor(), transforms.RandomErasing(0.6, (0.05, 0.4), (0.3, 3.0))]
    compose = transforms.Compose(steps)
    torch.manual_seed(0)
    random.seed(0)
    theirs = torch.stack([compose(Image.fromarray(each)) for each in slope.data])
    check_moments(batch_of(slope, *steps, seed=0) * 255, theirs * 255)


@pytest.mark.parametrize("kind", [transforms, v2])
@pytest.mark.parametrize("order", ["after", "before", "without"])
def test_erasing_with_noise_has_torchvisions_distribution(kind, order, slope):
    """The share of erased pixels, where they are, and noise that is independent from pixel to pixel."""
    erasing = kind.RandomErasing(0.6, (0.05, 0.4), (0.3, 3.0), value="random")
    normalize = transforms.Normalize(MEAN, STD)
    late = {"after": [normalize, erasing], "before": [erasing, normalize], "without": [erasing]}[order]
    plain = transforms.Compose([transforms.ToTensor(), *late[: order == "after"], *late[1:][: order == "before"]])
    compose = transforms.Compose([transforms.ToTensor(), *late])
    images = [Image.fromarray(each) for each in slope.data]
    torch.manual_seed(0)
    theirs = torch.stack([compose(image) for image in images])
    ours = batch_of(slope, transforms.ToTensor(), *late, seed=0)
    assert torch.equal(ours[40:49], batch_of(Subset(slope, range(40, 49)), transforms.ToTensor(), *late, seed=0))
    unchanged = plain(images[0])
    found = []
    for batch in (ours, theirs):
        erased = ((batch - unchanged).abs() > 1e-5).all(1)  # [B, 16, 16]
        noise = batch.permute(0, 2, 3, 1)[erased]  # [N, 3]
        if order == "before":
            noise = noise * torch.tensor(STD) + torch.tensor(MEAN)
        assert noise.mean(0).abs().max() < 0.02 and (noise.std(0) - 1).abs().max() < 0.02
        assert (torch.corrcoef(noise.T) - torch.eye(3)).abs().max() < 0.02  # of channels
        pairs = erased[..., 1:] & erased[..., :-1]
        left, right = (side.permute(0, 2, 3, 1)[pairs][:, 0] for side in (batch[..., :-1], batch[..., 1:]))
        assert abs(torch.corrcoef(torch.stack([left, right]))[0, 1]) < 0.02  # of neighbours
        shares = erased.double().mean((1, 2))
        rows, columns = erased.double().mean((0, 2)), erased.double().mean((0, 1))
        found.append(torch.stack([(shares > 0).double().mean(), shares.mean(), shares.std(), rows[8], columns[3]]))
    assert (found[0] - found[1]).abs().max() < 0.06


def check_moments(ours, theirs):
    """Means and mean squares of each measure, within five standard errors."""
    for name, measure in MEASURES.items():
        for power in (1, 2):
            first, second = (measure(images).double() ** power for images in (ours, theirs))
            error = ((first.var() + second.var()) / len(first)).sqrt() + 0.02
            assert abs(first.mean() - second.mean()) < 5 * error, (name, power, first.mean(), second.mean())


def test_simclrs_transform(cifar):
    """As its authors and others write it, for both views."""
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
    theirs = transforms.Compose(
        [
            transforms.RandomResizedCrop(16, (0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([jitter], p=0.8),
            transforms.RandomGrayscale(0.2),
            transforms.GaussianBlur(3, (0.1, 2.0)),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    with ImageFolderLoader(cifar, views=[theirs, theirs], batch_size=48, seed=1) as loader:
        ((first, second), _), ((again, _), _) = *loader, *loader
    assert first.shape == second.shape == (48, 3, 16, 16) and first.dtype == torch.float32
    assert ((first - second).abs().flatten(1).amax(1) > 0).all() and not torch.equal(first, again)
    gray = (
        (first * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]).std(1).amax((1, 2)) < 1e-5
    ).sum()
    assert 2 <= gray <= 20


def test_dinos_transform(cifar):
    """Two global crops, of which one is solarized, and small ones."""
    flip_and_colour = [
        transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        transforms.RandomGrayscale(0.2),
    ]
    blur = transforms.GaussianBlur(5, (0.1, 2.0))
    ends = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    bicubic = {"interpolation": InterpolationMode.BICUBIC}
    large, small = (
        transforms.RandomResizedCrop(14, (0.4, 1), **bicubic),
        transforms.RandomResizedCrop(6, (0.05, 0.4), **bicubic),
    )
    solarize = transforms.RandomSolarize(128, p=0.2)
    views = [
        transforms.Compose([large, *flip_and_colour, blur, *ends]),
        transforms.Compose([large, *flip_and_colour, transforms.RandomApply([blur], p=0.1), solarize, *ends]),
        *[transforms.Compose([small, *flip_and_colour, transforms.RandomApply([blur], p=0.5), *ends])] * 3,
    ]
    with ImageFolderLoader(cifar, views=views, batch_size=48) as loader:
        ((images, targets),) = loader
    assert [tuple(view.shape[1:]) for view in images] == [(3, 14, 14)] * 2 + [(3, 6, 6)] * 3
    assert not torch.equal(images[2], images[3]) and len(targets) == 48


class GaussianBlur:
    """As in scripts of MoCo, SimSiam and DINO, by Pillow."""

    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(1))


def test_a_blur_of_ones_own_is_not_torchvisions(cifar):
    words = rf"GaussianBlur of {__name__} within RandomApply: give torchvision's GaussianBlur, or"
    with pytest.raises(ValueError, match=words):
        ImageFolderLoader(cifar, [transforms.RandomApply([GaussianBlur()], p=0.5), transforms.ToTensor()])


def test_a_blur_too_large_for_the_image_is_an_error(cifar):
    with pytest.raises(ValueError, match="kernel of 33 x 33 pixels is too large for images of 16 x 16"):
        batch_of(cifar, transforms.GaussianBlur(33), transforms.PILToTensor())


def test_gray(cifar):
    gray = transforms.Grayscale(3)
    expected = torch.stack([levels(gray(Image.fromarray(each))) for each in cifar.data])
    assert torch.equal(batch_of(cifar, gray, transforms.PILToTensor()), expected)


def test_containers_and_weights():
    steps = [transforms.Resize(20), transforms.CenterCrop(16), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    composed = translated(transforms.Compose(steps))
    scaled = nn.Sequential(v2.ToDtype(torch.float32, scale=True), steps[3])
    assert translated(nn.Sequential(*steps[:2], nn.Identity(), v2.ToImage(), scaled)) == composed
    by_kind = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
    documented = [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), *steps[:2], by_kind, v2.ToPureTensor(), steps[3]]
    assert translated(v2.Compose(documented)) == composed
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
    (jitter,) = found.finish.policies
    assert (found.finish.flip, found.finish.vertical) == (0.5, 0.2)
    assert jitter.policy.brightness == jitter.policy.contrast == jitter.policy.saturation == (0.7, 1.3)
    erasing = found.finish.last
    assert (erasing.erase, erasing.erase_scale, erasing.erase_values) == (0.25, (0.02, 1 / 3), (0.0, 0.0, 0.0))
    assert erasing.erase_ratio == pytest.approx((0.3, 1 / 0.3))
    assert erasing.mean == pytest.approx(MEAN) and erasing.std == pytest.approx(STD)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([transforms.Pad(3)], "Pad without RandomCrop right after it"),
        ([transforms.Pad(3), transforms.CenterCrop(8)], "Pad without RandomCrop right after it"),
        ([transforms.Resize(20)], r"Resize\(20\) without .*: give Resize\(\(20, 20\)\), or put CenterCrop\(20\)"),
        ([transforms.Pad(3), transforms.RandomCrop(8, padding=1)], "with padding of its own"),
        ([transforms.RandomHorizontalFlip(), transforms.RandomCrop(8, padding=(1, 0, 0, 0))], "flip before RandomCrop"),
        ([transforms.RandomAffine(9)], "RandomAffine: give RandomRotation .*then="),
        ([v2.RandomPerspective()], "RandomPerspective: .*then="),
        ([transforms.Lambda(abs)], "Lambda: leave it out if it makes images RGB.*then="),
        (
            [transforms.RandomApply([transforms.RandomAffine(9)])],
            "RandomAffine within RandomApply: give",
        ),
        ([transforms.RandomApply([abs])], "abs of builtins within RandomApply: leave it out, .*then="),
        ([v2.RandomChoice([transforms.RandomCrop(8)])], "RandomCrop within RandomChoice"),
        ([v2.RandomOrder([transforms.RandomGrayscale()])], "RandomOrder: give the steps in an order"),
        ([transforms.ToTensor(), transforms.GaussianBlur(3)], "GaussianBlur after ToTensor: put it before"),
        ([create_transform(14, is_training=True, auto_augment="augmix-b1")], "leave b1 out"),
        ([create_transform(14, is_training=True, re_prob=0.1, re_num_splits=2)], "leave re_split out"),
        ([transforms.RandomCrop(8, padding=1, padding_mode="edge")], "padding_mode='edge'"),
        ([transforms.RandomCrop(8, padding=1, fill=(1, 2, 3))], "give one number"),
        ([transforms.RandomCrop(8), transforms.RandomRotation((0, 30))], "to either side"),
        ([transforms.RandomCrop(8), transforms.RandomRotation(30, InterpolationMode.BILINEAR)], "with .*BILINEAR"),
        ([transforms.RandomCrop(8), transforms.Grayscale()], "num_output_channels=3"),
        ([transforms.RandomCrop(8), transforms.RandomResizedCrop(8)], "RandomResizedCrop after another crop"),
        ([transforms.ToTensor(), transforms.Normalize(MEAN, STD), transforms.RandomCrop(8)], "after Normalize"),
        ([transforms.ColorJitter(0.4), transforms.RandomCrop(8)], "ColorJitter before the crop"),
        (
            [transforms.ToTensor(), transforms.RandomErasing(value=(1, 2))],
            r"RandomErasing\(value=\(1, 2\)\): give one number, three for RGB, or 'random'",
        ),
        ([nn.Sequential(transforms.RandomCrop(8), nn.Conv2d(3, 3, 1))], "Conv2d of torch.nn"),
    ],
)
def test_what_cannot_be_taken_over_is_named(steps, words, cifar):
    with pytest.raises(ValueError, match=f"cannot take over .*{words}") as refused:
        ImageFolderLoader(cifar, steps)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__
    assert str(refused.value).endswith("docs/migrate/imagefolder.md list what it takes over")


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
    with pytest.raises(ValueError, match=r"TwoCropTransform of .*: if .*views=\[transform, transform\]"):
        ImageFolderLoader(cifar, TwoCropTransform(large))
    with pytest.raises(TypeError, match="views have transforms of their own"):
        ImageFolderLoader(cifar, large, views=[large])
