"""Pillow as the reference: torchvision's transforms of Pillow images equal fastimg's bit for bit."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from fastimg.augment import Plan, Policy, apply, draw
from fastimg.augment.ops import BINS, TRIVIAL, Op, trivial_table

SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (2, 40), (3, 3), (37, 53), (53, 37), (64, 64), (224, 224), (96, 131)]
SIGNED = {name for name, (_, signed) in v2.TrivialAugmentWide._AUGMENTATION_SPACE.items() if signed}
MAGNITUDES = [name for name in TRIVIAL if name not in ("Identity", "AutoContrast", "Equalize")]


def picture(height, width, seed=0, kind="noise"):
    """uint8 [H, W, 3]: noise; a ramp with noise, darker in blue; few levels; or one colour."""
    random = np.random.default_rng((height, width, seed))
    if kind == "noise":
        return random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == "levels":
        return random.choice(np.array([3, 90, 91, 200], np.uint8), (height, width, 3))
    if kind == "plain":
        return np.broadcast_to(random.integers(0, 256, 3, dtype=np.uint8), (height, width, 3)).copy()
    ramp = np.linspace(20, 180, width)[None, :, None] * (1.0, 0.8, 0.4) + random.normal(0, 12, (height, width, 3))
    return np.clip(ramp, 7, 211).astype(np.uint8)


def plan_of(rows, *, hflip=False, vflip=False, angle=0.0):
    """A plan of one image per row of the table."""
    rows = np.asarray(rows)
    table = trivial_table()
    return Plan(
        hflip=torch.full((len(rows),), hflip),
        vflip=torch.full((len(rows),), vflip),
        angle=torch.full((len(rows),), angle, dtype=torch.float64),
        trivial=torch.from_numpy(rows),
        ops=torch.from_numpy(table.ops[rows][:, None]),
        magnitudes=torch.from_numpy(table.magnitudes[rows][:, None]),
    )


def rows_of(name):
    """(row, bin, negative) of every bin and sign of an operation."""
    number = list(TRIVIAL).index(name)
    signs = (0, 1) if name in SIGNED else (0,)
    bins = range(BINS) if name in MAGNITUDES else (0,)
    return [((number * BINS + at) * 2 + negative, at, negative) for at in bins for negative in signs]


def torchvisions(image, name, at, negative):
    """The result of v2.TrivialAugmentWide on a Pillow image for given draws."""
    space, _ = v2.TrivialAugmentWide._AUGMENTATION_SPACE[name]
    magnitudes = space(BINS, *image.size)
    magnitude = 0.0 if magnitudes is None else float(magnitudes[at]) * (-1 if negative else 1)
    transform = v2.TrivialAugmentWide()
    return transform._apply_image_or_video_transform(
        image, name, magnitude, interpolation=transform.interpolation, fill=transform._fill
    )


def ours(plan, pixels, backend="reference"):
    """uint8 [B, H, W, 3] after applying the plan."""
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].expand(len(plan), -1, -1, -1)
    return apply(plan, batch, Policy(), torch.uint8, backend=backend).permute(0, 2, 3, 1).numpy()


def test_the_table_has_torchvisions_operations():
    assert list(TRIVIAL) == list(v2.TrivialAugmentWide._AUGMENTATION_SPACE)
    assert v2.TrivialAugmentWide().num_magnitude_bins == BINS


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", TRIVIAL)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_operation_bin_and_sign(name, size, backend):
    kinds = ("noise", "ramp") if max(size) > 60 else ("noise", "ramp", "levels", "plain")
    for kind in kinds:
        pixels = picture(*size, kind=kind)
        rows = rows_of(name)[:: 5 if max(size) > 60 and backend == "reference" else 1]  # slow
        got = ours(plan_of([row for row, _, _ in rows]), pixels, backend)
        for (_, at, negative), result in zip(rows, got, strict=True):
            expected = np.asarray(torchvisions(Image.fromarray(pixels), name, at, negative))
            np.testing.assert_array_equal(result, expected, err_msg=f"{kind} bin {at} negative {negative}")


@pytest.mark.parametrize("name", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Sharpness", "Equalize"])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (37, 53), (64, 64)], ids=str)
def test_flips_come_first_and_are_exact(name, size):
    pixels = picture(*size)
    for hflip, vflip in ((True, False), (False, True), (True, True)):
        rows = rows_of(name)[::5]
        got = ours(plan_of([row for row, _, _ in rows], hflip=hflip, vflip=vflip), pixels)
        flipped = pixels[:: -1 if vflip else 1, :: -1 if hflip else 1]
        for (_, at, negative), result in zip(rows, got, strict=True):
            image = Image.fromarray(np.ascontiguousarray(flipped))
            np.testing.assert_array_equal(result, np.asarray(torchvisions(image, name, at, negative)))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (37, 53), (64, 64), (224, 200)], ids=str)
def test_rotation_is_pillows(size):
    pixels = picture(*size)
    angles = [*np.random.default_rng(0).uniform(-180, 180, 40), 0.0, 90.0, -90.0, 180.0, -180.0, 45.0, 1e-9, 1e-3]
    for angle in angles:
        for hflip in (False, True):
            image = Image.fromarray(np.ascontiguousarray(pixels[:, :: -1 if hflip else 1]))
            expected = np.asarray(F.rotate(image, float(angle)))
            got = ours(plan_of([0], angle=float(angle), hflip=hflip), pixels)[0]
            np.testing.assert_array_equal(got, expected, err_msg=str(angle))


def test_a_rotation_and_a_warp_are_one_resampling():
    """The composed map is applied once: it equals Pillow's transform by the product of the matrices."""
    name, (height, width) = "ShearX", (60, 81)
    pixels, angle = picture(height, width), 30.0
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    cx, cy = width / 2, height / 2
    turn = np.array([[cos, -sin, cx - cos * cx + sin * cy], [sin, cos, cy - sin * cx - cos * cy], [0, 0, 1]])
    for row, at, negative in rows_of(name)[::7]:
        shear = np.eye(3)
        shear[0, 1] = float(torch.linspace(0.0, 0.99, BINS)[at]) * (-1 if negative else 1)
        matrix = (turn @ shear)[:2].ravel()
        expected = np.asarray(Image.fromarray(pixels).transform((width, height), Image.Transform.AFFINE, matrix))
        np.testing.assert_array_equal(ours(plan_of([row], angle=angle), pixels)[0], expected)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (37, 53), (96, 96)], ids=str)
def test_jitter_equals_torchvisions_in_a_fixed_order(size):
    """Flips, brightness, contrast, saturation, then TrivialAugment, with the drawn factors."""
    policy = Policy(hflip=0.5, brightness=(0.3, 1.9), contrast=(0.2, 2.5), saturation=(0.0, 3.0), trivial=True)
    plan = draw(policy, np.arange(60), 1, 0)
    assert plan.ops.shape == (60, 4) and plan.passes == 2
    table = [(name, at, negative) for name in TRIVIAL for at in range(BINS) for negative in (0, 1)]
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation)
    warps = 0
    for kind in ("noise", "ramp"):
        pixels = picture(*size, kind=kind)
        got = ours(plan, pixels)
        for i in range(len(plan)):
            name, at, negative = table[int(plan.trivial[i])]
            image = Image.fromarray(np.ascontiguousarray(pixels[:, :: -1 if plan.hflip[i] else 1]))
            geometric, negative = TRIVIAL[name] is Op.IDENTITY, negative and name in SIGNED
            warps += geometric
            if geometric:  # geometry comes first
                image = torchvisions(image, name, at, negative)
            for change, factor in zip(adjust, plan.magnitudes[i, :3].tolist(), strict=True):
                image = change(image, factor)
            if not geometric:
                image = torchvisions(image, name, at, negative)
            np.testing.assert_array_equal(got[i], np.asarray(image), err_msg=f"{kind} {i} {name}")
    assert warps


def test_factors_0_and_1():
    pixels = picture(20, 30)
    for field, change in (
        ("brightness", F.adjust_brightness),
        ("contrast", F.adjust_contrast),
        ("saturation", F.adjust_saturation),
    ):
        for factor in (0.0, 1e-3, 0.999999, 1.000001, 2.0, 1e6):
            plan = draw(Policy(**{field: (factor, factor)}), np.arange(1), 0, 0)
            np.testing.assert_array_equal(ours(plan, pixels)[0], np.asarray(change(Image.fromarray(pixels), factor)))


@pytest.mark.parametrize("size", [(512, 777), (1024, 1024)], ids=str)
def test_larger_images(size):
    pixels = picture(*size, kind="ramp")
    for name in TRIVIAL:
        for row, at, negative in rows_of(name)[::13]:
            expected = np.asarray(torchvisions(Image.fromarray(pixels), name, at, negative))
            np.testing.assert_array_equal(ours(plan_of([row]), pixels, "cpu")[0], expected)
