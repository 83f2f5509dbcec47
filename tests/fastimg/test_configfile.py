"""Settings as YAML: the same keys as the flags, and the same run from a run's own file."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from fastimg.config import Train
from fastimg.configfile import dump, load
from fastimg.errors import UsageError


def test_what_is_dumped_is_read_back(tmp_path):
    config = Train(
        data=Path("some/där"),
        arch="torchvision/resnet18",
        weights=Path("w.pt"),
        model_kwargs=("a=1", "b=x"),
        scale=(0.5, 1.0),
        mean=(0.1, 0.2, 0.3),
        lr=1e-5,
        no_aug=True,
        freeze="backbone",
        epochs=3,
    )
    file = tmp_path / "config.yaml"
    file.write_text(dump(config), encoding="utf-8")
    assert load(file, Train) == config
    assert "pretrained: false" in file.read_text() and "sched" not in file.read_text()  # unset choices are left out


def test_an_empty_file_is_the_defaults(tmp_path):
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n")
    assert load(file, Train) == Train()


def test_keys_may_be_written_like_flags(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("batch-size: 7\nimg_size: 64\n")
    assert (load(file, Train).batch_size, load(file, Train).img_size) == (7, 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch: 3", "unknown key 'epoch'; did you mean epochs"),
        ("weight_dekay: 3", "did you mean weight_decay"),
        ("1: 2", "unknown key '1'"),
        ("epochs: three", "epochs"),
        ("epochs: 3.5", "epochs"),
        ("lr: '1e-3'", "lr"),
        ("opt: lion", "opt"),
        ("scale: [0.1]", "scale"),
        ("just words", "not a mapping"),
        ("- a\n- b", "not a mapping"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.system ['false']", "not YAML"),
        (b"\xff\xfe", "not YAML"),
    ],
)
def test_what_is_wrong_with_a_file(content, message, tmp_path, cli):
    file = tmp_path / "c.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=str(file)) as caught:
        load(file, Train)
    assert message in str(caught.value)
    ran = cli("train", tmp_path / "nowhere", "--config", file)
    assert ran.code == 2 and str(file) in ran.err and message in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("flag", ["--config=", "--config "])
def test_a_file_that_is_not_there(flag, tmp_path, cli):
    ran = cli("train", *f"{flag}{tmp_path}/no.yaml".split(" "))
    assert ran.code == 2 and "no.yaml: No such file" in ran.err and "Traceback" not in ran.err


def test_flags_win_over_the_file(tmp_path, trained, cli):
    file = tmp_path / "c.yaml"
    file.write_text(f"data: {trained.images}\narch: test_resnet\nepochs: 5\nimg_size: 32\nopt: sgd\n")
    ran = cli("train", "--config", file, "--epochs", "3", "--dry-run", "-o", tmp_path / "runs")
    assert ran.code == 0 and "3 epochs" in ran.out and "sgd, lr" in ran.out and "24 images" in ran.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--opt", "sgd", "--sched", "step", "--img-size", "32", "--warmup-epochs", "0.5", "--clip-grad", "1"),
        (
            "--freeze",
            "backbone",
            "--weights",
            "{run}",
            "--train-crop-size",
            "32",
            "--val-crop-size",
            "40",
            "--hflip",
            "0",
        ),
    ],
)
def test_a_runs_own_file_makes_the_same_weights(flags, trained, tmp_path, cli):
    """Every open choice stands in config.yaml, so that nothing is chosen anew."""
    flags = [flag.format(run=trained.run) for flag in flags]
    common = ("--output", tmp_path, "--device", "cpu")
    first = ("--arch", "test_resnet", "-b", "8", "-j", "1", "--epochs", "2", "--seed", "5")
    ran = cli("train", trained.shards, *first, *flags, *common, "--name", "first")
    assert ran.code == 0, ran.err
    ran = cli("train", "--config", tmp_path / "first" / "config.yaml", "--name", "second")
    assert ran.code == 0, ran.err
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("first", "second"))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    settings = [load(tmp_path / name / "config.yaml", Train) for name in ("first", "second")]
    assert dataclasses.replace(settings[0], name="second") == settings[1]
    for name in ("lr", "weight_decay", "sched", "mean", "std", "interpolation", "train_crop_size", "val_resize_size"):
        assert yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())[name] is not None
