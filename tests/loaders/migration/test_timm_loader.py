"""create_loader against timm's own: pixels at fixed parameters, and moments of what is drawn."""

import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest
import timm.data.mixup
import torch
from PIL import Image
from timm.data import FastCollateMixup, create_dataset, create_transform
from timm.data import create_loader as timms_create_loader
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import ResizeKeepRatio
from torchvision import transforms

from fastimg.augment.named import parse
from fastimg.data.timm_steps import draw_mixing, erasing_of, mixed_by
from fastimg.loaders import ImageFolderLoader, create_loader
from fastimg.loaders.migration.transforms import translated

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def folder(tmp_path):
    """20 images of 40 x 32 in two classes each for train and val; one class is named so that its natural order is not
    the alphabet's."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 11)):
        for number in range(count):
            path = tmp_path / split / ("c10", "c9")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            smooth = Image.fromarray(rng.integers(0, 256, (8, 10, 3), np.uint8)).resize(
                (40, 32), Image.Resampling.BICUBIC
            )
            smooth.save(path)
    return tmp_path


def dataset_of(folder, split="train", **options):
    return create_dataset("", root=str(folder), split=split, **options)


def ours(dataset, *, size=(3, 16, 16), batch=4, seed=0, **options):
    torch.manual_seed(seed)
    return create_loader(dataset, size, batch, device=CPU, num_workers=1, **options)


def images_of(loader):
    return torch.cat([images for images, _ in loader])


def test_a_script_finds_what_it_looks_for(folder):
    dataset = dataset_of(folder)
    loader = ours(dataset, is_training=True, batch=6, color_jitter=None, interpolation="random")
    assert (len(loader), loader.dataset, loader.batch_size) == (3, dataset, 6)
    assert loader.class_to_idx == dataset.reader.class_to_idx == {"c9": 0, "c10": 1}
    assert not loader.mixup_enabled and hasattr(loader.sampler, "set_epoch")
    assert ours(dataset_of(folder, "validation")).sampler.num_valid_samples == 11
    batches = list(loader)
    assert [images.shape for images, _ in batches] == [(6, 3, 16, 16)] * 3
    assert all(images.is_contiguous() and targets.dtype == torch.int64 for images, targets in batches)
    loader.sampler.set_epoch(0)
    assert torch.equal(images_of(loader), images_of(batches))
    again = pickle.loads(pickle.dumps(loader))
    again.set_epoch(0)
    assert torch.equal(images_of(again), images_of(batches))
    state = loader.state_dict()
    assert torch.equal(images_of(loader), images_of(loader)) is False
    loader.load_state_dict(state)
    half = ours(dataset, is_training=True, img_dtype=torch.bfloat16)
    assert next(iter(half))[0].dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # timm leaves files open
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (16, {}),
        ((3, 16, 12), {"interpolation": "bicubic"}),
        ((3, 16, 16), {"crop_mode": "squash", "crop_pct": 0.8}),
        ((3, 16, 16), {"crop_mode": "border", "crop_pct": 0.9, "mean": (0.5,) * 3, "std": (0.5,) * 3}),
        ((3, 16, 16), {"no_aug": True}),
    ],
)
def test_evaluation_gives_timms_pixels(size, options, folder):
    dataset = dataset_of(folder, "validation")
    if "no_aug" in options:  # timm shuffles what it trains with
        dataset.transform = create_transform(size, is_training=True, no_aug=True)
        pairs = [dataset[number] for number in range(11)]
        expected, targets = torch.stack([image for image, _ in pairs]), torch.tensor([target for _, target in pairs])
        loader = ImageFolderLoader(dataset, batch_size=11)
    else:
        ((expected, targets),) = timms_create_loader(dataset, size, 11, device=CPU, num_workers=0, **options)
        loader = ours(dataset, size=size, batch=11, **options)
    ((found, classes),) = loader
    assert torch.equal(classes, targets)
    apart = (found - expected).abs() * torch.tensor(options.get("std", STD))[:, None, None] * 255
    assert apart.max() < 1.01


def test_each_image_draws_its_filter(folder):
    dataset, options = dataset_of(folder), {"is_training": True, "color_jitter": None, "batch": 20}
    either, linear, cubic = (
        images_of(ours(dataset, interpolation=name, **options)) for name in ("random", "bilinear", "bicubic")
    )
    is_linear, is_cubic = ((either == each).flatten(1).all(1) for each in (linear, cubic))
    assert (is_linear ^ is_cubic).all() and 4 <= is_linear.sum() <= 16


@pytest.mark.parametrize("mode", ["rkrc", "rkrr"])
def test_keeping_the_ratio(mode):
    random.seed(0)
    resize, crop, *_ = create_transform(24, is_training=True, train_crop_mode=mode, hflip=0).transforms
    rule = translated([resize, crop, transforms.ToTensor()]).crop
    image, draws = Image.new("RGB", (60, 40)), np.random.default_rng(0).random((3000, 6))
    ours_, theirs, places = [], [], []
    for numbers in draws.tolist():
        window = rule.window(60, 40, numbers)
        ours_.append(window.size[::-1])
        if mode == "rkrc":
            rooms = [side - 24 for side in window.size]
            assert window.at == tuple(round(room / 2) if room >= 0 else -(-room // 2) for room in rooms)
        theirs.append(
            ResizeKeepRatio.get_params(
                image, resize.size, 0.0, 0.5, resize.random_scale_range, True, 0.5, resize.random_aspect_range
            )
        )
        places.append(
            [at / (side - 24) if side != 24 else 0.5 for at, side in zip(window.at, window.size, strict=True)]
        )
    a, b = np.array(ours_, float), np.array(theirs, float)
    assert np.abs(a.mean(0) - b.mean(0)).max() < 0.25 and np.abs(a.std(0) - b.std(0)).max() < 0.25
    assert a.min(0).tolist() == b.min(0).tolist() and a.max(0).tolist() == b.max(0).tolist()
    if mode == "rkrr":
        assert np.abs(np.mean(places, axis=0) - 0.5).max() < 0.03


@pytest.mark.parametrize(
    "name",
    [
        *("rand-m9-mstd0.5-inc1", "rand-m9-n3-p0.7", "rand-mstd101", "rand-m15-mmax20-inc1", "rand-m7-tweights-mstd1"),
        *("rand-m5-t3a", "rand-m5-t3aw", "augmix-m5-w4-d2", "augmix-m3-mstd0", "augmix-m4-a0.5", "original"),
        *("originalr-mstd0.5", "v0", "v0r-mstd1", "3a"),
    ],
)
def test_policies_are_known_by_their_objects(name):
    step = create_transform(16, is_training=True, auto_augment=name, mean=(0.2, 0.4, 0.6)).transforms[2]
    (policy,) = translated([transforms.RandomCrop(8), step, transforms.ToTensor()]).finish.policies
    assert parse(policy.named) == parse(name)
    assert [round(255 * mean) for mean in policy.mean] == [51, 102, 153]


def drawn_batches(mixup, count, size):
    """What many batches of `size` images draw."""
    ids = np.arange(count * size).reshape(count, size)
    return [draw_mixing(mixup, each, 0, 3, 20, 30) for each in ids]


@pytest.mark.parametrize("mode", ["batch", "elem", "pair", "half"])
@pytest.mark.parametrize("minmax", [None, (0.2, 0.8)])
def test_mixing_gives_timms_pixels(mode, minmax, monkeypatch):
    """With the parameters that this loader has drawn."""
    theirs = FastCollateMixup(0.8, 1.0, minmax, prob=0.8, mode=mode, label_smoothing=0.1, num_classes=5)
    rng = np.random.default_rng(1)
    for number in range(8):
        images, classes = rng.integers(0, 256, (8, 3, 20, 30), np.uint8), rng.integers(0, 5, 8)
        drawn = draw_mixing(theirs, np.arange(8) + 8 * number, 0, 0, 20, 30)
        count = 4 if mode in ("pair", "half") else 8
        share = drawn.share.astype(np.float32)
        raw = np.where(drawn.cut, 0.5, share)[:count].astype(np.float32)  # corrected by the box, which comes next
        given = iter([(box, lam) for box, lam, cut in zip(drawn.boxes.tolist(), share, drawn.cut, strict=True) if cut])
        monkeypatch.setattr(theirs, "_params_per_elem", lambda n, raw=raw, drawn=drawn: (raw.copy(), drawn.cut[:n]))
        monkeypatch.setattr(
            theirs, "_params_per_batch", lambda raw=raw, drawn=drawn: (float(raw[0]), bool(drawn.cut[0]))
        )

        def box_of(*_, given=given, **__):
            (top, left, bottom, right), lam = next(given)
            return (top, bottom, left, right), float(lam)

        monkeypatch.setattr(timm.data.mixup, "cutmix_bbox_and_lam", box_of)
        expected, targets = theirs([(image.copy(), label) for image, label in zip(images, classes, strict=True)])
        found, soft = mixed_by(drawn, torch.from_numpy(images), torch.from_numpy(classes), 5, 0.1, mode == "half")
        assert (found.int() - expected.int()).abs().max() <= 1
        assert (found != expected).float().mean() < 1e-3  # halves, in another precision
        assert torch.allclose(soft, targets, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "prob": 0.7, "switch_prob": 0.3}, "batch"),
        ({"mixup_alpha": 0.2}, "elem"),
        ({"mixup_alpha": 0.0, "cutmix_alpha": 1.0, "correct_lam": False}, "elem"),
        ({"mixup_alpha": 0.8, "cutmix_minmax": (0.2, 0.7)}, "pair"),
    ],
)
def test_mixing_has_timms_distribution(settings, mode):
    theirs = FastCollateMixup(**settings, mode=mode, num_classes=5)
    batches = drawn_batches(theirs, 3000 if mode == "batch" else 400, 8)
    shares, cuts = (np.concatenate(each) for each in list(zip(*batches, strict=True))[:2])
    boxes = np.concatenate([drawn.boxes for drawn in batches])[cuts]
    np.random.seed(0)
    expected_shares, expected_cuts, expected_boxes = [], [], []
    for _ in range(3000):
        (lam,), (cut,) = (
            np.atleast_1d(each)
            for each in (theirs._params_per_batch() if mode == "batch" else theirs._params_per_elem(1))
        )
        if cut and lam < 1:
            (top, bottom, left, right), lam = timm.data.mixup.cutmix_bbox_and_lam(
                (3, 20, 30), lam, theirs.cutmix_minmax, theirs.correct_lam
            )
            expected_boxes.append([top, left, bottom, right])
        expected_shares.append(lam)
        expected_cuts.append(bool(cut and lam < 1))
    assert abs(shares.mean() - np.mean(expected_shares)) < 0.03
    assert abs(shares.std() - np.std(expected_shares)) < 0.03
    assert abs(cuts.mean() - np.mean(expected_cuts)) < 0.05
    if expected_boxes:
        assert np.abs(boxes.mean(0) - np.mean(expected_boxes, axis=0)).max() < 0.8
        assert np.abs(boxes.std(0) - np.std(expected_boxes, axis=0)).max() < 0.8


def test_mixing_ends_when_the_script_says_so(folder):
    mixup = FastCollateMixup(0.8, label_smoothing=0.1, num_classes=2)
    loader = ours(dataset_of(folder), is_training=True, collate_fn=mixup, color_jitter=None)
    plain = ours(dataset_of(folder), is_training=True, color_jitter=None)
    assert loader.mixup_enabled
    for (mixed, soft), (images, _) in zip(loader, plain, strict=True):
        assert torch.allclose(soft.sum(1), torch.ones(4)) and soft.shape == (4, 2)
        assert not torch.allclose(mixed, images)
    loader.mixup_enabled = False
    assert not mixup.mixup_enabled
    for (same, soft), (images, targets) in zip(loader, plain, strict=True):
        assert torch.equal(same, images)
        assert soft.argmax(1).tolist() == targets.tolist() and torch.allclose(soft.amax(1), torch.tensor(0.95))


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
@pytest.mark.parametrize("count", [1, 3])
def test_erasing_has_timms_distribution(mode, count):
    theirs = RandomErasing(0.6, mode=mode, max_count=count, device="cpu")
    last = erasing_of(theirs, MEAN, STD)
    finish = translated(
        [transforms.RandomCrop(20), transforms.ToTensor(), transforms.Normalize(MEAN, STD), theirs]
    ).finish
    images = torch.full((1500, 3, 20, 20), 90, dtype=torch.uint8)
    found = finish.images(images, np.arange(1500), 0, 0, 0)
    again = finish.images(images[:9], np.arange(1500)[40:49], 0, 0, 0)
    assert torch.equal(again, found[40:49])  # of a sample, not of a batch
    plain = finish.images(images[:1], np.array([10**6 + int(not last)]), 1, 0, 0)[0, :, 0, 0] * 0
    normal = (90 / 255 - torch.tensor(MEAN)) / torch.tensor(STD) + plain
    random.seed(0)
    torch.manual_seed(0)
    expected = normal[:, None, None].repeat(1500, 1, 20, 20)
    theirs(expected)
    moments = []
    for batch in (found, expected):
        erased = ((batch - normal[:, None, None]).abs() > 1e-5).any(1)  # [B, 20, 20]
        shares = erased.float().mean((1, 2))
        noise = batch.permute(0, 2, 3, 1)[erased]
        spread = noise.std() if mode != "const" else noise.abs().max()
        moments.append([(shares > 0).float().mean(), shares.mean(), shares.std(), noise.mean(), spread])
        rows = erased.float().mean((0, 2))
        assert (rows[:10] - rows[10:].flip(0)).abs().max() < 0.06  # anywhere alike
    a, b = torch.tensor(moments)
    assert (a - b).abs().max() < 0.06


def test_steps_that_some_images_have():
    """Jitter and blur with a probability, in timm's order."""
    steps = create_transform(16, is_training=True, hflip=0, color_jitter_prob=0.7, gaussian_blur_prob=0.4).transforms
    finish = translated([transforms.RandomCrop(16), *steps[1:]]).finish
    images = torch.randint(40, 200, (400, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = finish.early(images, np.arange(400), 0, 0, 0)
    same = (found == images).flatten(1).all(1).float().mean()
    assert abs(same - 0.3 * 0.6) < 0.06


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_aug_repeats": 3}, "num_aug_repeats=3: leave it out"),
        ({"num_aug_splits": 3}, "num_aug_splits=3: .*AugMixDataset"),
        ({"tf_preprocessing": True}, "tf_preprocessing"),
        ({"crop_border_pixels": 2}, "crop_border_pixels"),
        ({"input_size_choices": [16]}, "set_size"),
        ({"collate_fn": len}, "FastCollateMixup as collate_fn"),
        ({"collate_fn": FastCollateMixup(), "batch": 5}, "even batch_size, not 5"),
        ({"collate_fn": FastCollateMixup(), "use_prefetcher": False}, "needs use_prefetcher"),
        ({"size": (1, 16, 16)}, "of 3 channels"),
        ({"crop_mode": "border"}, 'crop_mode="squash"'),
        ({"interpolation": "lanczos"}, "lanczos"),
        ({"is_training": True, "auto_augment": "augmix-b1"}, "leave b1 out"),
        ({"re_split": True}, "re_split"),
    ],
)
def test_what_cannot_be_done_alike_is_refused_by_name(options, words, folder):
    with pytest.raises(ValueError, match=words):
        ours(dataset_of(folder), **options)
    with pytest.raises(TypeError, match="unexpected keyword argument 'reprob'"):
        ours(dataset_of(folder), reprob=0.1)


def test_other_datasets_of_timm_are_refused(folder):
    for options, words in (
        ({"input_img_mode": "L"}, 'give "RGB"'),
        ({"load_bytes": True}, "leave load_bytes"),
    ):
        with pytest.raises(TypeError, match=words):
            ours(dataset_of(folder, **options))
    other = dataset_of(folder)
    other.reader = SimpleNamespace()
    with pytest.raises(TypeError, match="SimpleNamespace is not read: unpack"):
        ours(other)
    mapped = dataset_of(folder, class_map={"c9": 2, "c10": 0})
    loader = ours(mapped)
    assert loader.classes == ["c10", "1", "c9"]
    assert torch.cat([targets for _, targets in loader]).tolist() == [target for _, target in mapped.reader.samples]


def test_policies_that_move_pixels_are_said_to(folder):
    with pytest.warns(UserWarning, match="nearest pixels"):
        loader = ours(dataset_of(folder), is_training=True, auto_augment="rand-m9-mstd0.5-inc1")
    assert images_of(loader).isfinite().all()
