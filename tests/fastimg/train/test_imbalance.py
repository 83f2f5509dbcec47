"""Rare classes in a whole run: messages, settings that raise their recall, and files of weights that do not match."""

import pytest
from PIL import Image

from fastimg.train.checkpoints import run_directory as rundir

FLAGS = ("--arch", "test_resnet", "--img-size", "32", "-b", "8", "--workers", "1", "--no-amp", "--epochs", "1")
EACH = {"common": 33, "rare": 3}


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


def test_it_is_said_once_where_nothing_is_done(run):
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
        (("--logit-adjust", "-1"), "--logit-adjust -1: give 0 or more"),
    ],
)
def test_what_cannot_be(run, flags, message):
    ran, _ = run(*flags, code=2)
    assert message in ran.err


def test_bce_has_two_names(run, tmp_path):
    _, one = run("--bce-loss")
    (tmp_path / "run").rename(tmp_path / "one")
    _, two = run("--loss", "bce")
    assert one == two
