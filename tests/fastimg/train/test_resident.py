"""`train --resident`: the same training as from disk, bit for bit, and an error if impossible."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fastimg import cli as command_line
from fastimg.errors import UserError
from fastimg.models.ranks import Ranks
from fastimg.train import parts
from fastimg.train import step as training_step

FAST = (
    *("--arch", "fastimg/airnet", "--model-kwargs", "width=4", "--batch-size", "8", "--no-amp", "--epochs", "3"),
    *("--crop-padding", "4", "--alternating-flip", "--opt", "sgd", "--lr", "0.1", "--lookahead", "2"),
    *("--workers", "2", "--log-interval", "1", "--save-interval", "3"),
)


def outcome(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "last/model.safetensors")


def scores(run: Path) -> list[tuple[Any, ...]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (r["kind"], r["step"], r["loss"], r["top1"]) for r in records if r["kind"] in ("train", "val", "train_eval")
    ]


def same(a: Path, b: Path) -> bool:
    ours, theirs = outcome(a), outcome(b)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def runs(write_images, tmp_path_factory):
    """The folder of images, and the outputs of the run from disk and the resident run."""
    root = tmp_path_factory.mktemp("resident")
    images = write_images(root / "images")
    for name, more in (("disk", ()), ("resident", ("--resident",))):
        flags = (*FAST, "--evaluate-training-set", "--output", str(root), "--name", name, *more)
        assert command_line.run(["train", str(images), *flags]) == 0
    return root


@pytest.mark.parametrize("name", ["disk", "resident"])
def test_it_is_the_same_training(runs, name):
    written = yaml.safe_load((runs / name / "config.yaml").read_text())
    assert written.get("resident", False) == (name == "resident") and written["crop_padding"] == 4
    assert written["alternating_flip"] is True and "scale" not in written and "ratio" not in written
    assert same(runs / "disk", runs / name) and scores(runs / "disk") == scores(runs / name)


def test_it_is_announced_and_its_configuration_runs_again(runs, cli, tmp_path):
    flags = ("train", "--config", runs / "resident" / "config.yaml", "--output", tmp_path, "--name", "again")
    ran = cli(*flags, "--dry-run")
    assert ran.code == 0 and re.search(r"loader +resident, 33 images, 0.1 MiB on cpu", ran.out + ran.err)
    assert "random crop 32 of the image mirrored by 4 pixels at its edges, hflip 0.5, alternating" in ran.out + ran.err
    ran = cli(*flags, "--verbose")
    assert ran.code == 0 and "69 images read and decoded" in ran.out + ran.err  # 33 seen twice in training, 3 held out
    assert "whitening   the first layer, from patches of 33 training images" in ran.out + ran.err
    assert "a batch takes 0 bytes on the host" in ran.out + ran.err
    assert same(runs / "resident", tmp_path / "again")


class Killed(BaseException):
    """Simulates kill -9."""


@pytest.mark.parametrize("step", [3, 9])
def test_a_kill_and_resume_gives_the_same_bits(runs, tmp_path, monkeypatch, step):
    """Lookahead's averages are saved, between two of its steps; the first layer is whitened only once."""
    average = training_step.average_gradients

    def kill(run, *args):
        if run.progress.step == step:
            monkeypatch.setattr(training_step, "average_gradients", average)
            raise Killed
        return average(run, *args)

    monkeypatch.setattr(training_step, "average_gradients", kill)
    flags = [*FAST, "--evaluate-training-set", "--output", str(tmp_path), "--name", "run", "--resident"]
    with pytest.raises(Killed):
        command_line.run(["train", str(runs / "images"), *flags])
    assert command_line.run(["train", str(runs / "images"), *flags, "--resume", "auto"]) == 0
    assert same(runs / "resident", tmp_path / "run") and scores(runs / "resident") == scores(tmp_path / "run")


def test_random_resized_crops_too(runs, cli, tmp_path):
    """Images of any size are kept whole. dct_scaling would decode tiled JPEGs smaller, but these are not tiled."""
    shared = ("--arch", "test_resnet", "--img-size", "32", "-b", "8", "--no-amp", "--epochs", "2", "--output", tmp_path)
    for name, more in (("disk", ()), ("kept", ("--resident",))):
        assert cli("train", runs / "images", *shared, "--workers", "1", "--name", name, *more).code == 0
    assert same(tmp_path / "disk", tmp_path / "kept")
    assert "prefetch" not in yaml.safe_load((tmp_path / "kept" / "config.yaml").read_text())


def test_two_ranks_each_keep_all_images(two_ranks, runs, tmp_path):
    flags = [*FAST, "--output", str(tmp_path), "-b", "4"]
    ran = two_ranks(
        *(
            ["train", str(runs / "images"), *flags, "--name", name, *more]
            for name, more in (("disk", []), ("kept", ["--resident"]))
        )
    )
    assert ran.code == 0, ran.err
    assert "resident, 33 images" in ran.out + ran.err and same(tmp_path / "disk", tmp_path / "kept")


def test_unreadable_images_are_named_in_the_summary(make_image_folder, cli, tmp_path):
    folder = make_image_folder(8)
    (folder / "red" / "000.jpg").write_bytes(b"\xff\xd8 no image")
    flags = ("train", folder, *FAST, "--val-fraction", "0", "--resident", "--output", tmp_path)
    ran = cli(*flags)
    assert ran.code == 0 and "1 training image could not be decoded" in ran.out + ran.err, ran.err
    assert "23 images read and decoded in " in ran.out and "; 1 could not be decoded" in ran.out
    ran = cli(*flags, "--on-error", "fail")
    assert ran.code == 1 and "red/000.jpg: " in ran.err and "repair or remove it" in ran.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--resident", "--loader", "torch"], "--resident has no effect with --loader torch"),
        (["--resident", "--decode", "gpu"], "--decode has no effect with --resident"),
        (["--resident", "--prefetch", "4"], "--prefetch has no effect with --resident"),
        (["--resident", "--dct-scaling", "off"], "--dct-scaling has no effect with --resident"),
        (["--resident", "--profile", "auto"], "--profile has no effect with --resident"),
        (["--crop-padding", "4", "--scale", "0.5", "1"], "--crop-padding has no effect with --scale"),
        (["--crop-padding", "4", "--progressive", "16:32"], "--crop-padding has no effect with --progressive"),
        (["--crop-padding", "4", "--no-aug"], "--crop-padding has no effect with --no-aug"),
        (["--crop-padding", "4", "--loader", "dali"], "--crop-padding has no effect with --loader dali"),
        (["--crop-padding", "4", "--decode", "gpu"], "--crop-padding has no effect with --decode gpu"),
        (["--crop-padding", "0"], "--crop-padding 0: give 1 pixel or more"),
        (["--crop-padding", "32"], "--crop-padding 32: crops of 32 pixels can be mirrored by up to 31; give less"),
        (["--alternating-flip", "--hflip", "0"], "--alternating-flip has no effect with --hflip 0"),
        (["--alternating-flip", "--no-aug"], "--alternating-flip has no effect with --no-aug"),
        (["--norm-lr-scale", "0"], "--norm-lr-scale 0: give a number above 0"),
        (["--lookahead", "1"], "--lookahead 1: give 2 or more"),
        (["--resident", "--freeze", "backbone", "--no-aug"], "--resident has no effect on cached embeddings"),
    ],
)
def test_refused_settings(cli, image_folder, tmp_path, flags, words):
    ran = cli("train", image_folder, "--arch", "test_resnet", "--img-size", "32", "--output", tmp_path, *flags)
    assert ran.code == 2 and words in ran.err, ran.err
    assert not list(tmp_path.glob("test*"))


def test_texts_are_not_kept(cli, tmp_path):
    ran = cli("train", tmp_path, "--arch", "hf:x", "--resident", "--output", tmp_path)
    assert ran.code == 2 and "--resident has no effect on texts" in ran.err


def test_images_that_do_not_fit_are_refused_before_they_are_decoded(cli, image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(parts.memory, "available", lambda: 150_000)
    monkeypatch.setattr(parts.ResidentImages, "load", None)
    ran = cli("train", image_folder, *FAST, "--resident", "--output", tmp_path)
    assert ran.code == 1 and "--resident: the images take " in ran.err, ran.err
    assert "the host has 150,000 free, of which they may take 50%; leave --resident out, or make the images" in ran.err
    assert not list(tmp_path.glob("images*/config.yaml"))


def test_all_ranks_of_a_host_decode_there_before_images_go_to_gpus(monkeypatch):
    """Two splits of 100 and 40 bytes: four ranks decode the larger one at the same time."""
    ranks = Ranks(0, 1, 4, torch.device("cuda"), None)
    monkeypatch.setattr(Ranks, "sum", lambda self, tensor: tensor)
    monkeypatch.setattr(parts.torch, "tensor", lambda values, **_: torch.as_tensor(values))
    monkeypatch.setattr(parts.torch.cuda, "mem_get_info", lambda device: (280, 1000))
    monkeypatch.setattr(parts.memory, "available", lambda: 500)
    parts._check_room([100, 40], 7, ranks)
    monkeypatch.setattr(parts.memory, "available", lambda: 499)
    with pytest.raises(UserError, match=r"take 400 bytes \(7 training.*where they are decoded, has 499 free.* 80%"):
        parts._check_room([100, 40], 7, ranks)
    monkeypatch.setattr(parts.torch.cuda, "mem_get_info", lambda device: (279, 1000))
    with pytest.raises(UserError, match=r"take 140 bytes .*cuda has 279 free, of which they may take 50%"):
        parts._check_room([100, 40], 7, ranks)


def test_the_batch_size_search_keeps_the_images_once(cli, make_image_folder, tmp_path, monkeypatch):
    loads = []
    load = parts.ResidentImages._read_sizes
    monkeypatch.setattr(
        parts.ResidentImages, "_read_sizes", lambda images: loads.append(len(images.dataset)) or load(images)
    )
    ran = cli("train", make_image_folder(20), *FAST, "--resident", "-b", "auto", "--epochs", "1", "--output", tmp_path)
    assert ran.code == 0 and "chosen" in ran.out + ran.err and len(loads) == 2, ran.err  # training and validation


def test_the_recipe_learns_digits(cli, tmp_path):
    """A narrow network, three epochs: three of four digits are right, against one of ten by chance."""
    from fastimg.data.digits import digits_folder

    flags = ("--model-kwargs", "width=8", "--epochs", "3", "-b", "64", "--no-amp", "--no-tta", "--output", tmp_path)
    ran = cli("train", digits_folder(), "--recipe", "cifar-fast", *flags, "--name", "digits")
    assert ran.code == 0, ran.err
    top1 = [score[3] for score in scores(tmp_path / "digits") if score[0] == "val"]
    assert max(top1) >= 0.75, top1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_is_the_same_training(runs, cli, tmp_path):
    """The pixels are the same; with deterministic algorithms, so is the step."""
    for name, more in (("disk", ()), ("kept", ("--resident",))):
        flags = (*FAST, "--deterministic", "--device", "cuda", "--output", tmp_path, "--name", name)
        ran = cli("train", runs / "images", *flags, *more)
        assert ran.code == 0, ran.err
        assert ("33 images, 0.1 MiB on cuda" in ran.out + ran.err) == (name == "kept")
    assert same(tmp_path / "disk", tmp_path / "kept")
