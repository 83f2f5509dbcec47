"""`train --in-chans 1`: gray images from the decoder to the exported graph, with weights folded as timm folds them."""

import contextlib
import json
import shutil

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models._manipulate import adapt_input_conv

from fastimg.config.commands import Train
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import refuse
from fastimg.data.datasets import DatasetPart, build_loader
from fastimg.errors import UsageError
from fastimg.loaders import CenterCrop, LoaderConfig, open_dataset
from fastimg.models.registry import Preprocessing
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_model

THREE = Preprocessing(
    train_size=8, val_size=8, val_resize=9, interpolation="bilinear", mean=(0.2, 0.4, 0.6), std=(0.1, 0.2, 0.3)
)
FLAGS = ("--img-size", "32", "--workers", "1", "--no-amp", "-b", "8", "--epochs", "1", "--lr", "1e-3")


@pytest.fixture(scope="module")
def rgb(tmp_path_factory):
    """A file of RGB weights, without any metadata."""
    torch.manual_seed(1)
    file = tmp_path_factory.mktemp("weights") / "rgb.safetensors"
    save_file(timm.create_model("test_resnet", num_classes=3).state_dict(), file)
    return file


@pytest.fixture
def gray(trained, tmp_path, cli, rgb):
    """What a gray run printed, and its directory."""
    flags = ("--aa", "trivial-gray", "--reprob", "0.2", "--mixup", "0.2", "--weights", rgb, "--in-chans", "1")
    ran = cli("train", trained.shards, "--arch", "test_resnet", *FLAGS, *flags, "-o", tmp_path, "--name", "gray")
    assert ran.code == 0, ran.err
    return ran, tmp_path / "gray"


def test_a_gray_model_from_its_weights_to_its_graph(gray, trained, tmp_path, cli, rgb):
    ran, run = gray
    assert "1 channel" in ran.out and "TrivialAugment without Color" in ran.out
    assert "in_chans: 1\n" in (run / "config.yaml").read_text()
    model, card = load_model(run)
    own = timm.create_model("test_resnet").pretrained_cfg
    for part in ("mean", "std"):
        assert getattr(card.preprocessing, part) == pytest.approx((sum(own[part]) / 3,))
    assert model.module.conv1[0].in_channels == 1 and card.preprocessing.channels == 1

    evaluated = cli("eval", run, trained.shards, "--json")
    assert evaluated.code == 0, evaluated.err
    validated = [record for record in rundir.read_log(run) if record["kind"] == "val"][-1]
    assert json.loads(evaluated.out)["loss"] == pytest.approx(validated["loss"], rel=2e-3)  # its own precision
    assert cli("predict", run, trained.images / "val").code == 0
    assert cli("embed", trained.shards, tmp_path / "embedded", "--weights", run).code == 0
    file = tmp_path / "model.onnx"
    exported = cli("export", run, "--output", file, "--check")
    assert exported.code == 0 and "uint8 [batch, 1, 32, 32]" in exported.out, exported.err


def test_what_comes_after_a_gray_run(gray, trained, tmp_path, cli):
    _, run = gray
    longer = shutil.copytree(run, tmp_path / "longer", symlinks=True)
    ran = cli("train", "--resume", longer, "--epochs", "2", "--config", longer / "config.yaml", "-o", tmp_path)
    assert ran.code == 0, ran.err
    tuned = cli("train", trained.shards, "--weights", run, *FLAGS, "--dry-run")
    assert tuned.code == 0 and "--in-chans 1" in tuned.out and "1 channel" in tuned.out, tuned.err
    wide = cli("train", trained.shards, "--weights", run, *FLAGS, "--in-chans", "3", "--dry-run")
    assert wide.code == 1
    assert "they read images of 1 channel, which cannot be folded to 3; add --in-chans 1" in wide.err
    one = cli("train", trained.shards, "--arch", "test_resnet", *FLAGS, "--teacher", run, "--dry-run")
    assert one.code == 2 and "sees images of 1 channel, and its pupil of 3" in one.err


def test_first_convolutions_are_folded_as_timm_folds_them(rgb, trained, tmp_path, cli):
    still = ("--lr", "1e-9", "--opt", "sgd", "--no-aug")
    flags = [*FLAGS[:-2], *still, "--weights", str(rgb), "--in-chans", "1", "--mean", "0.4", "--std", "0.3"]
    ran = cli("train", "--arch", "test_resnet", *flags, trained.shards, "-o", tmp_path, "--name", "still")
    assert ran.code == 0, ran.err
    before, after = load_file(rgb), load_file(tmp_path / "still" / "last" / "model.safetensors")
    torch.testing.assert_close(after["conv1.0.weight"], adapt_input_conv(1, before["conv1.0.weight"]))
    _, card = load_model(tmp_path / "still")
    assert (card.preprocessing.mean, card.preprocessing.std) == ((0.4,), (0.3,))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"in_chans": 0}, "--in-chans 0: give 1 for gray or 3 for RGB; of other bands name their field"),
        ({"in_chans": 5}, "--in-chans 5: give 1 for gray or 3 for RGB"),
        ({"saturation": (0.5, 1.5)}, "--in-chans 1: --saturation changes colours, which gray images do not have"),
        ({"color_jitter": (0.4, 0.4, 0.4)}, "--in-chans 1: --color-jitter with a third number above 0 changes"),
        ({"hue": 0.1}, "--in-chans 1: --hue changes colours"),
        ({"grayscale_prob": 0.1}, "--in-chans 1: --grayscale-prob changes colours"),
        ({"aa": "ta_wide"}, "--in-chans 1: --aa trivial has the operation Color, .*; use --aa trivial-gray"),
        ({"aa": "rand-m9"}, "--aa rand-m9 has the operation Color, .*; use --aa rand-m9-gray"),
        ({"aa": "auto"}, "--aa auto has the operation Color, .*; use --aa trivial-gray or rand-m9-gray"),
        ({"augmentation": [{"RandomGamma": {}}]}, "--in-chans 1: Kornia's augmentations take RGB images"),
        ({"loader": "dali"}, "--in-chans 1: --loader dali makes only RGB images; leave it out"),
        ({"resident": True}, "--in-chans 1: --resident keeps only RGB images"),
        ({"decode": "gpu"}, "--in-chans 1: --decode gpu makes only RGB images"),
    ],
)
def test_what_does_not_go_with_gray_images_is_refused_by_name(settings, words):
    with pytest.raises(UsageError, match=words):
        refuse(Train(**{"in_chans": 1, "arch": "test_resnet", **settings}), TRAIN)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--arch", "torchvision/resnet18"), "--in-chans 1: torchvision/resnet18 reads only RGB images"),
        (("--arch", "fastimg/airnet"), "--in-chans 1: fastimg/airnet reads only RGB images"),
        (("--mean", "0.4", "0.4", "0.4"), "--mean 0.4 0.4 0.4: images have 1 channel; give a number for each"),
        (("--model-kwargs", "in_chans=1"), "there is a flag for it; use --in-chans instead"),
        (("--mean",), "--mean"),
    ],
)
def test_models_and_numbers_for_other_channels(flags, words, trained, cli):
    ran = cli("train", trained.shards, "--arch", "test_resnet", *FLAGS, "--in-chans", "1", "--dry-run", *flags)
    assert ran.code == 2 and words in ran.err


def test_a_loader_that_makes_only_rgb_is_refused_for_a_gray_checkpoint(trained):
    with contextlib.closing(open_dataset(trained.images, "val")) as dataset:
        part = DatasetPart(dataset, None, "the data")
        settings = LoaderConfig(batch_size=4)
        crop = CenterCrop(size=8, resize=8)
        with pytest.raises(UsageError, match="--loader dali: makes only RGB images, and the model sees gray ones"):
            build_loader(part, crop, settings, None, torch.device("cpu"), "dali", seen=THREE.of(1))


def test_preprocessing_of_one_channel_has_the_mean_of_three():
    one = THREE.of(1)
    assert (one.mean, one.std) == (pytest.approx((0.4,)), pytest.approx((0.2,)))
    assert (THREE.of(3), one.of(1), one.channels) == (THREE, one, 1)
