"""Kornia's operations: the images and seeds that they get, what is refused, and Kornia missing."""

import sys

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, apply, draw
from fastimg.data import kornia_pass
from fastimg.data.model_input import model_input
from fastimg.loaders.extras import install

from .augmentation_constants import MEAN, STD, needs_kornia


def batch(size=6, side=20):
    pixels = np.random.default_rng(5).integers(0, 256, (size, side, side, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@needs_kornia
def test_kornia_gets_unnormalised_images_and_seeded_draws():
    images, cpu = batch(), torch.device("cpu")
    policy = Policy(hflip=0.5, erase=1.0, mean=MEAN, std=STD)
    plan = draw(policy, np.arange(6), 0, 0)
    nothing = kornia_pass.build([{"RandomInvert": {"p": 0.0}}], 20, cpu)
    assert torch.equal(model_input(plan, images, policy, torch.float32, nothing, 1), apply(plan, images, policy))
    invert = kornia_pass.build([{"RandomInvert": {"p": 1.0}}], 20, cpu)
    unit = Policy(hflip=0.5, erase=1.0, mean=MEAN, std=STD)
    inverted = model_input(plan, images, policy, torch.float32, invert, 1)
    assert torch.equal(inverted, apply(plan, 255 - images, unit))  # erased rectangles are not inverted
    some = kornia_pass.build([{"RandomInvert": {"p": 0.5}}], 20, cpu)
    first = model_input(plan, images, policy, torch.float32, some, 1)
    torch.rand(3)
    assert torch.equal(first, model_input(plan, images, policy, torch.float32, some, 1))
    each = [torch.equal(one, other) for one, other in zip(first, inverted, strict=True)]
    assert any(each) and not all(each)  # each image draws for itself
    assert not torch.equal(first, model_input(plan, images, policy, torch.float32, some, 2))


@needs_kornia
@pytest.mark.parametrize(
    ("name", "arguments", "drawn_at"),
    [
        ("RandomInvert", {}, "cpu"),
        ("RandomGamma", {}, "cpu"),
        ("RandomTranslate", {"translate_x": (-0.1, 0.1)}, "cpu"),
        ("RandomGaussianNoise", {}, "meta"),
        ("RandomElasticTransform", {}, "meta"),
        ("RandomLinearIllumination", {}, "meta"),
    ],
)
def test_numbers_per_image_are_drawn_on_the_cpu_and_numbers_per_pixel_on_the_device(name, arguments, drawn_at):
    """The device is torch's `meta`: what is drawn there has no values."""
    kind, side = getattr(kornia_pass._library(), name), 64
    tried = kind(**arguments, p=1.0)
    kornia_pass._try(tried, name, side, torch.device("cpu"))
    placed = kornia_pass._placed(
        kind(**arguments, p=0.5), torch.device("meta"), draws_pixels=kornia_pass._draws_pixels(tried, side)
    )
    drawn = placed.forward_parameters((4, 3, side, side))
    del drawn["forward_input_shape"]  # is no draw
    assert {each.device.type for each in drawn.values()} == {drawn_at}


@needs_kornia
def test_on_the_cpu_the_pixels_are_those_of_kornias_own_modules():
    library, images = kornia_pass._library(), batch()
    entries = {"RandomAffine": {"degrees": 15.0, "p": 0.5}, "RandomGaussianNoise": {"std": 0.1, "p": 0.5}}
    ours = kornia_pass.build([{name: arguments} for name, arguments in entries.items()], 20, torch.device("cpu"))
    torch.manual_seed(7)
    values = images.float() / 255
    for name, arguments in entries.items():
        values = getattr(library, name)(**arguments)(values)
    assert torch.equal(ours(images, 7), (values.clamp(0, 1) * 255).round().to(torch.uint8))


@needs_kornia
def test_what_is_moved_to_another_device_is_moved_beside_its_work(monkeypatch):
    """The device is torch's `meta`, to which copies are made as to a GPU."""
    moved = []

    def noted(tensor, device):
        moved.append((tensor.device.type, device.type))
        return tensor.to(device)

    monkeypatch.setattr(kornia_pass, "to_device", noted)
    entries = [{"RandomAffine": {"degrees": 15.0, "p": 0.5}}, {"RandomGamma": {"p": 0.5}}, {"RandomInvert": {"p": 0.5}}]
    meta = torch.device("meta")
    modules = [
        kornia_pass._placed(kornia_pass._made(kind, name, arguments), meta, draws_pixels=False)
        for entry in entries
        for name, arguments in entry.items()
        for kind in [getattr(kornia_pass._library(), name)]
    ]
    augmented = kornia_pass.KorniaPass(modules)(batch().to(meta), 3)
    assert augmented.shape == (6, 3, 20, 20) and augmented.device == meta
    assert len(moved) >= 3 and set(moved) == {("cpu", "meta")}


def test_copies_to_the_cpu_and_between_types_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(kornia_pass, "to_device", lambda tensor, device: pytest.fail("moved"))
    values = torch.arange(3)
    with kornia_pass._Moving():
        assert (
            values.to(torch.float64).dtype == torch.float64 and values.to("cpu", torch.float32).dtype == torch.float32
        )
        assert values.to(torch.ones(1)).dtype == torch.float32
        assert torch.tensor([1.0, 2.0], device="cpu").tolist() == [1.0, 2.0] and torch.as_tensor(values) is values


@needs_kornia
def test_only_the_images_device_is_seeded():
    kornia = kornia_pass.build([{"RandomInvert": {"p": 0.5}}], 20, torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "manual_seed", lambda seed: pytest.fail("all devices were seeded"))
        kornia(batch(), 3)
    assert torch.initial_seed() == 3


@pytest.mark.gpu
@needs_kornia
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "entry",
    [
        {"RandomAffine": {"degrees": 15.0, "p": 0.5}},
        {"RandomGamma": {"p": 0.5}},
        {"RandomGaussianNoise": {"std": 0.1, "p": 0.5}},
        {"RandomInvert": {"p": 0.5}},
    ],
    ids=str,
)
def test_on_a_gpu_no_draw_waits(entry, sync_debug_mode):
    device = torch.device("cuda", 0)
    kornia = kornia_pass.build([entry], 20, device)
    images = batch().to(device)
    expected = kornia(images, 3)
    torch.cuda.synchronize()
    with sync_debug_mode("error"):
        got = kornia(images, 3)
    assert torch.equal(got, expected)


@needs_kornia
def test_checking_does_not_change_the_generators():
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    kornia_pass.build([{"RandomGaussianNoise": {"std": 0.1}}], 16, torch.device("cpu"))
    assert torch.rand(1) == expected


@needs_kornia
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("RandomGausianBlur", "kornia.augmentation.RandomGausianBlur is not there; did you mean RandomGaussianBlur"),
        ("RandomGaussianBlur", "missing 2 required positional arguments: 'kernel_size' and 'sigma'"),
        ("{RandomInvert: {probability: 0.5}}", "RandomInvert has no argument 'probability'"),
        ("{RandomInvert: {p: 2}}", "p is a probability, from 0 to 1; it was 2"),
        ("{RandomInvert: {p: often}}", "p is a probability"),
        ("{RandomInvert: {same_on_batch: true}}", "every image draws its own"),
        ("{RandomPerspective: {distortion_scale: 7}}", "RandomPerspective"),
        ("{RandomGaussianBlur: {kernel_size: [3, 3], sigma: [2.0, 0.1], p: 0.1}}", "RandomGaussianBlur"),
        ("{RandomGaussianBlur: {kernel_size: [4, 4], sigma: [0.1, 2.0], p: 0.1}}", "fails on 32 x 32 pixels"),
        ("{RandomCrop: {size: [10, 10]}}", "makes 10 x 10 pixels of 32 x 32"),
        ("RandomMixUpV2", "is not one of its augmentations of single images"),
        ("RandomAffine3D", "is not one of its augmentations of single images"),
        ("AugmentationBase2D", "is not one of its augmentations of single images"),
        ("ImageSequential", "is not one of its augmentations of single images"),
    ],
)
def test_operations_that_kornia_lacks_are_refused(entry, message, trained, tmp_path, fast, cli):
    file = tmp_path / "c.yaml"
    file.write_text(f"augmentation: [{entry}]\n")
    ran = cli("train", trained.images, *fast, "--config", file, "-o", tmp_path / "runs")
    assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err, ran.err
    assert not (tmp_path / "runs").exists()


def test_without_kornia_its_install_command_is_shown(trained, tmp_path, fast, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    monkeypatch.setitem(sys.modules, "kornia", None)
    file = tmp_path / "c.yaml"
    file.write_text("augmentation: [RandomInvert]\n")
    ran = cli("train", trained.images, *fast, "--config", file, "-o", tmp_path / "runs")
    assert ran.code == 2 and install("kornia") in ran.err and "Traceback" not in ran.err


def test_kornia_and_erasing_follow_a_policy_of_several_stages():
    """What the model is given is what `apply` makes, erased afterwards, where Kornia's part changes nothing."""
    policy = Policy(named="rand-m9-p1", hflip=0.5, blur=0.5, erase=1.0)
    images = torch.randint(0, 256, (8, 3, 20, 24), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    plan = draw(policy, torch.arange(8), 0, 0)
    got = model_input(plan, images, policy, torch.float32, lambda levels, seed: levels)
    assert torch.equal(got, model_input(plan, images, policy, torch.float32))
