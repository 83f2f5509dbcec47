"""Rare classes in a whole run: messages, settings that raise their recall, and files of weights that do not match."""

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from fastimg.train import step
from fastimg.train.checkpoints import run_directory as rundir

FLAGS = ("--arch", "test_resnet", "--img-size", "32", "-b", "8", "--workers", "1", "--no-amp", "--epochs", "1")
EACH = {"common": 33, "rare": 3}


class Killed(BaseException):
    """Stands for a kill -9."""


@pytest.fixture(scope="module")
def unbalanced(tmp_path_factory):
    """A folder of 33 grey images of one class and three of another; three of each for validation."""
    root = tmp_path_factory.mktemp("unbalanced")
    for split, each in (("train", EACH), ("val", dict.fromkeys(EACH, 3))):
        for shade, (name, count) in enumerate(each.items()):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (32, 32), (90 + 60 * shade + number,) * 3)
                image.save(root / split / name / f"{number}.png")
    return root


@pytest.fixture
def run(unbalanced, tmp_path, cli):
    """run(flag, ...): train on it; returns the output and the losses of the steps."""

    def call(*flags, code=0):
        ran = cli("train", unbalanced, *FLAGS, "--log-interval", "1", *flags, "-o", tmp_path, "--name", "run")
        assert ran.code == code, ran.err
        if code:
            assert not (tmp_path / "run").exists()
            return ran, []
        return ran, [each["loss"] for each in rundir.read_log(tmp_path / "run") if each["kind"] == "train"]

    return call


def test_imbalance_is_reported_once_if_nothing_is_done(run):
    ran, _ = run()
    said = "rare has 3 samples, common 33: --class-weights balanced or --sampler balanced raises the recall"
    assert ran.out.count(said) == 1


def test_weights_and_priors_are_printed_and_applied(run, tmp_path):
    ran, weighted = run("--class-weights", "balanced", "--logit-adjust", "1")
    assert "rare has" not in ran.out
    assert "classes weigh 0.545 to 6 (balanced), logits adjusted by 1 x log priors" in ran.out
    (tmp_path / "w.csv").write_text("rare,11\ncommon,1\n")
    (tmp_path / "run").rename(tmp_path / "before")
    _, filed = run("--class-weights", tmp_path / "w.csv", "--logit-adjust", "1")
    assert filed == weighted
    (tmp_path / "run").rename(tmp_path / "filed")
    _, plain = run("--mixup", "0.2", "--class-weights", "effective", "--loss", "focal", "--focal-gamma", "1")
    assert plain != weighted


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--class-weights", "balanced!"), "--class-weights balanced!: no such file"),
        (("--loss", "focal", "--bce-loss"), "--loss has no effect with --bce-loss; leave one of them out"),
        (("--focal-gamma", "1"), "--focal-gamma has no effect without --loss focal"),
        (("--bce-loss", "--logit-adjust", "1"), "--logit-adjust has no effect with binary cross-entropy"),
        (("--sampler", "fair"), "--sampler fair: no such file; give a word that --sampler takes"),
        (("--sampler", "sqrt", "--order", "quasi-random"), "--sampler has no effect with --order quasi-random"),
        (("--sampler", "balanced", "--class-weights", "effective"), "after which all classes weigh the same"),
        (("--sampler", "balanced", "--logit-adjust", "1"), "after which priors are equal"),
        (("--logit-adjust", "-1"), "--logit-adjust -1: give 0 or more"),
    ],
)
def test_invalid_settings(run, flags, message):
    ran, _ = run(*flags, code=2)
    assert message in ran.err


def test_bce_has_two_names(run, tmp_path):
    _, one = run("--bce-loss")
    (tmp_path / "run").rename(tmp_path / "one")
    _, two = run("--loss", "bce")
    assert one == two


def test_a_sampler_is_printed_and_weights_are_of_what_it_draws(run):
    """36 images: sqrt draws 27.7 and 8.3 of them."""
    ran, _ = run("--sampler", "sqrt", "--class-weights", "balanced")
    assert "rare has" not in ran.out
    assert "random, drawn with repetition (sqrt)" in ran.out
    assert "classes weigh 0.651 to 2.16 (balanced)" in ran.out


@pytest.mark.parametrize("frozen", [(), ("--freeze", "backbone", "--cache-dir", "CACHE")])
def test_a_run_with_a_sampler_goes_on_as_if_it_had_not_stopped(unbalanced, tmp_path, cli, monkeypatch, frozen):
    """With crops and flips of their own for images that come again; and on kept embeddings."""
    kept = [tmp_path / "cache" if word == "CACHE" else word for word in frozen]
    flags = ("--sampler", "balanced", "--epochs", "2", "--log-interval", "1", "--save-interval", "2", *kept)
    command = ["train", unbalanced, *FLAGS, *flags, "-o", tmp_path]
    assert cli(*command, "--name", "whole").code == 0

    average = step.average_gradients

    def stop(run, *rest):
        if run.progress.step == 7:  # the third of the second epoch's five
            raise Killed
        return average(run, *rest)

    monkeypatch.setattr(step, "average_gradients", stop)
    with pytest.raises(Killed):
        cli(*command, "--name", "cut")
    monkeypatch.setattr(step, "average_gradients", average)
    assert "after step 6 of 10" in cli(*command, "--name", "cut", "--resume", tmp_path / "cut").out
    one, two = (load_file(tmp_path / name / "last/model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_file_that_changed_is_not_gone_on_with(unbalanced, tmp_path, cli):
    shares = tmp_path / "shares.csv"
    command = ["train", unbalanced, *FLAGS, "--sampler", shares, "-o", tmp_path, "--name", "run"]
    shares.write_text("rare,1\ncommon,2\n")
    assert cli(*command).code == 0
    shares.write_text("rare,1\ncommon,3\n")
    ran = cli(*command, "--resume", tmp_path / "run")
    assert ran.code == 2 and "was trained with other numbers in --sampler" in ran.err
