"""Runs with augmentation: repeated from their own file, and with mixup and cutmix in batches of any size."""

import json

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from fastimg.augment import Policy, draw, mix
from fastimg.loaders.containers.targets import Target
from fastimg.models.ranks import Ranks
from fastimg.train.metrics import Meter
from fastimg.train.tasks.classification import ClassTask
from fastimg.train.tasks.joint import Losses, Tasks
from fastimg.train.tasks.task import Truth

from .augmentation_constants import needs_kornia


def trained_twice(flags, file, trained, tmp_path, cli):
    """A run, and a second run from its config.yaml."""
    common = ("--arch", "test_resnet", "--img-size", "32", "-b", "8", "-j", "1", "--epochs", "1", "-o", tmp_path)
    more = ("--config", file) if file else ()
    ran = cli("train", trained.shards, *common, *flags, *more, "--name", "first")
    assert ran.code == 0, ran.err
    again = tmp_path / "first" / "config.yaml"
    ran = cli("train", "--config", again, "--name", "second")
    assert ran.code == 0, ran.err
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("first", "second"))
    assert all(one[name].equal(two[name]) for name in one)
    return yaml.safe_load(again.read_text())


ALL = ("--aa", "trivial", "--rotate", "15", "--color-jitter", "0.4", "0.4", "0.4", "--reprob", "0.3")
MIXED = (*ALL, "--vflip", "0.5", "--mixup", "0.2", "--cutmix", "1")


def test_a_runs_own_file_is_complete(trained, tmp_path, cli):
    said = trained_twice(MIXED, None, trained, tmp_path, cli)
    assert (said["aa"], said["contrast"], said["cutmix"]) == ("trivial", [0.6, 1.4], 1.0)
    assert "color_jitter" not in said and "augmentation" not in said


@needs_kornia
def test_a_runs_own_file_includes_kornias_operations(trained, tmp_path, cli):
    file = tmp_path / "c.yaml"
    blur = "{RandomGaussianBlur: {kernel_size: [3, 3], sigma: [0.1, 2.0], p: 0.5}}"
    file.write_text(f"augmentation: [random_horizontal_flip, {blur}, random_erasing]\n")
    said = trained_twice((), file, trained, tmp_path, cli)
    assert said["kornia"] == [{"RandomGaussianBlur": {"kernel_size": [3, 3], "sigma": [0.1, 2.0], "p": 0.5}}]
    assert (said["hflip"], said["reprob"]) == (0.5, 0.1)


@pytest.fixture
def one_epoch(trained, tmp_path, cli):
    """Train test_vit (no batch norm) with plain SGD for an epoch; returns its weights and its first training record."""

    def train(data, name, *flags):
        common = ("--arch", "test_vit", "--img-size", "32", "--no-amp", "-j", "1", "--wd", "0", "--seed", "3")
        sgd = ("--opt", "sgd", "--momentum", "0", "--sched", "constant", "--warmup-fraction", "0", "--lr", "0.1")
        log = ("--log-interval", "1", "--epochs", "1", "-o", tmp_path, "--name", name)
        ran = cli("train", data, *common, *sgd, *log, *flags)
        assert ran.code == 0, ran.err
        records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return load_file(tmp_path / name / "last" / "model.safetensors"), next(
            record for record in records if record["kind"] == "train"
        )

    return train


def furthest(one, two):
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_accumulated_gradients_of_mixed_images_are_those_of_a_large_batch(one_epoch, trained):
    """Partners are neighbours, so an even batch is mixed within itself."""
    large, _ = one_epoch(trained.images, "large", "-b", "8", *MIXED)
    small, _ = one_epoch(trained.images, "small", "-b", "2", "--grad-accum-steps", "4", *MIXED)
    assert furthest(large, small) < 1e-5


def test_mixing_with_lambda_1_changes_nothing(one_epoch, trained, monkeypatch):
    """With lambda 1 everywhere, the soft targets are the smoothed classes."""
    plain, said = one_epoch(trained.images, "plain", "-b", "8")
    monkeypatch.setattr("fastimg.augment.draws.beta_quantile", lambda alpha, chances: np.ones_like(chances))
    mixed, also = one_epoch(trained.images, "mixed", "-b", "8", "--mixup", "1", "--cutmix", "1")
    assert furthest(plain, mixed) < 1e-5
    assert also["loss"] == pytest.approx(said["loss"], rel=1e-5) and also["top1"] == said["top1"]


def test_more_outputs_than_classes(one_epoch, trained):
    _, said = one_epoch(trained.images, "wide", "-b", "8", "--num-classes", "7", "--mixup", "1")
    assert said["samples"] == 8


def test_a_partner_that_could_not_be_read_is_not_mixed_in(image_folder, tmp_path, cli):
    """Two files, one of which is not an image: the batch is the other one, unmixed."""
    for name in ("green", "red"):
        for file in (image_folder / name).iterdir():
            file.unlink()
    for file in sorted((image_folder / "blue").iterdir())[1:]:
        file.unlink()
    (image_folder / "green" / "bad.jpg").write_bytes(b"none")
    (image_folder / "red").rmdir()
    flags = ("--arch", "test_vit", "--img-size", "32", "-b", "2", "--no-amp", "--epochs", "2", "--val-fraction", "0")
    runs = ("-j", "1", "-o", tmp_path / "runs", "--log-interval", "1", "--hflip", "0", "--smoothing", "0")
    losses = []
    for name, more in (("plain", ()), ("mixed", ("--mixup", "5")), ("cut", ("--cutmix", "5"))):
        ran = cli("train", image_folder, *flags, *runs, *more, "--name", name)
        assert ran.code == 0, ran.err
        log = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        records = [record for record in map(json.loads, log) if "loss" in record]
        losses.append([(record["loss"], record["samples"]) for record in records])
    assert losses[0] == losses[1] == losses[2]
    assert losses[0][0][1] == 1


def test_padding_is_not_mixed_in(one_epoch, trained):
    """24 images in batches of 23: the second batch has one, and padding that repeats real images."""
    plan = draw(Policy(mixup=1.0, cutmix=1.0), np.arange(4), 0, 0)
    images, targets = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0])
    mixed, soft = mix(plan, images, targets, 3, 0.0, weight)
    assert torch.equal(mixed[0], images[0]) and soft[0].tolist() == [1.0, 0.0, 0.0]
    assert not torch.equal(mixed[2], images[2]) and soft[2].max() < 1
    _, said = one_epoch(trained.images, "tail", "-b", "23", "--mixup", "1", "--cutmix", "1", "--log-interval", "9")
    assert said["samples"] == 24


def test_top1_of_soft_targets_uses_the_largest_share():
    task = ClassTask(target=Target(name="label", kind="class", classes=("a", "b", "c")), outputs=3)
    meter = Meter(Tasks.one_class(task), torch.device("cpu"))
    soft = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.2, 0.7]])
    losses = torch.ones(2)
    logits = torch.tensor([[3.0, 0, 0], [3.0, 0, 0]])
    meter.add(logits, Losses(losses, (losses,)), (Truth(soft),), torch.ones(2))
    assert meter.read(Ranks(0, 1, 1, torch.device("cpu"), None)).top1 == 0.5
