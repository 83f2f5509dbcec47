"""The machine's profile: writing, reading, errors, and the settings that `train --profile` uses."""

import dataclasses
import json

import pytest
import torch

from fastimg.config.commands import Train
from fastimg.config.yaml_file import load
from fastimg.errors import UsageError
from fastimg.models.ranks import Ranks
from fastimg.train.choices import machine_profile as machine
from fastimg.train.choices.machine_profile import Profile

ALONE = Ranks(0, 1, 1, torch.device("cpu"), None)
PROFILE = Profile(
    device="cpu",
    workers=3,
    prefetch=6,
    augment_stream="own",
    batch_size=4,
    arch="test_resnet",
    size=32,
    amp=False,
    images_per_second=123.0,
    made="2026-01-02T03:04:05+00:00",
)
AUTO = Train(profile="auto")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The path of the profile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fastimg" / "machine.json"


def test_it_is_read_as_it_was_written(file):
    assert machine.write(PROFILE) == file
    assert machine.read(file, ALONE) == PROFILE


def test_a_missing_profile_is_refused(file):
    with pytest.raises(UsageError, match=f"^--profile: there is no profile {file}; make a new one with `fastimg bench"):
        machine.applied(AUTO, ALONE)


@pytest.mark.parametrize(("name", "value"), [("cpu", "another"), ("cores", 999), ("torch", "1.0"), ("fastimg", "0")])
def test_another_machines_is_refused(file, name, value):
    machine.write(PROFILE)
    content = json.loads(file.read_text())
    content["machine"][name] = value
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=f"{file}: made with {name} {value}, here it is .*`fastimg bench DATA --tune`"):
        machine.applied(AUTO, ALONE)


def test_another_devices_is_refused(file):
    machine.write(dataclasses.replace(PROFILE, device="NVIDIA something"))
    with pytest.raises(UsageError, match="made with device NVIDIA something, here it is cpu"):
        machine.applied(AUTO, ALONE)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "fastimg machine profile", "profile": {"workers": 0}}', "{" * 100_000]
)
def test_what_is_not_a_profile_is_refused(file, content):
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(UsageError, match=f"^--profile {file}: .*; make a new one with `fastimg bench DATA --tune`"):
        machine.applied(AUTO, ALONE)


def test_train_takes_what_no_flag_sets(file, tmp_path):
    machine.write(PROFILE)
    assert machine.applied(Train(), ALONE) == (Train(), "")  # not without --profile
    config, said = machine.applied(AUTO, ALONE)
    assert (config.workers, config.prefetch) == ("3", 6)
    assert said.startswith("--workers 3, --prefetch 6, by `fastimg bench --tune` of 2026-01-02")
    told, said = machine.applied(dataclasses.replace(AUTO, workers="1", prefetch=2), ALONE)
    assert (told.workers, told.prefetch, said) == ("1", 2, "")
    elsewhere = file.rename(tmp_path / "p.json")
    config, said = machine.applied(Train(profile=str(elsewhere)), ALONE)
    assert (config.workers, config.prefetch) == ("3", 6) and str(elsewhere) in said


def test_it_is_for_one_process(file):
    machine.write(PROFILE)
    with pytest.raises(UsageError, match="made for one process, and 2 share this machine"):
        machine.applied(AUTO, Ranks(0, 2, 2, torch.device("cpu"), "gloo"))


def test_the_batch_is_only_for_its_model(file):
    machine.write(PROFILE)
    config = Train(arch="test_resnet", batch_size="auto", amp=False, profile="auto")
    size, said = machine.batch_size(config, 32, 100, ALONE)
    assert size == 4 and "fastimg bench --tune" in said
    for other in (
        machine.batch_size(dataclasses.replace(config, arch="resnet18"), 32, 100, ALONE),
        machine.batch_size(config, 64, 100, ALONE),
        machine.batch_size(config, 32, 10, ALONE),  # more than a fifth of the data
        machine.batch_size(dataclasses.replace(config, amp=True), 32, 100, ALONE),
        machine.batch_size(dataclasses.replace(config, ghost_bn=2), 32, 100, ALONE),
        machine.batch_size(dataclasses.replace(config, profile=None), 32, 100, ALONE),
    ):
        assert other is None


def test_train_reads_it_only_with_the_flag(file, cli, image_folder, tmp_path):
    machine.write(PROFILE)
    flags = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "--epochs", "1", "-o", tmp_path / "runs")
    ran = cli("train", image_folder, *flags, "--batch-size", "auto", "--profile")
    assert ran.code == 0, ran.err
    assert f"profile     --workers 3, --prefetch 6, by `fastimg bench --tune` of 2026-01-02 ({file})" in ran.out
    assert "native, 3 threads" in ran.out
    assert "batch size      4   chosen by `fastimg bench --tune`" in ran.out
    (run,) = (tmp_path / "runs").iterdir()
    settings = load(run / "config.yaml", Train)
    assert (settings.profile, settings.workers, settings.prefetch, settings.batch_size) == (None, "3", 6, 4)
    file.write_text("{")
    ran = cli("train", image_folder, *flags, "--batch-size", "8", "--profile")
    assert ran.code == 2 and f"--profile {file}: cannot be read" in ran.err
    ran = cli("train", image_folder, *flags, "--batch-size", "8", "--dry-run")
    assert ran.code == 0 and "profile" not in ran.out


def test_it_is_for_the_native_loader(cli, image_folder):
    ran = cli("train", image_folder, "--profile", "--loader", "torch")
    assert ran.code == 2 and "--profile has no effect with --loader torch" in ran.err
