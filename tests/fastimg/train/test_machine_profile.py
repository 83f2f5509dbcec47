"""The machine's profile: written, believed, ignored and said so, and what `train` takes from it."""

import dataclasses
import json

import pytest
import torch

from fastimg.config.commands import Train
from fastimg.models.ranks import Ranks
from fastimg.train.checkpoints import machine_profile as machine
from fastimg.train.checkpoints.machine_profile import Profile

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


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Where the profile is."""
    monkeypatch.setenv(machine.VARIABLE, str(tmp_path / "cache" / "machine.json"))
    return tmp_path / "cache" / "machine.json"


def test_it_is_read_as_it_was_written(file):
    assert machine.read(torch.device("cpu")) == (None, "")
    assert machine.write(PROFILE) == file
    assert machine.read(torch.device("cpu")) == (PROFILE, "")


@pytest.mark.parametrize(("name", "value"), [("cpu", "another"), ("cores", 999), ("torch", "1.0"), ("fastimg", "0")])
def test_another_machines_is_ignored_and_said_so(file, name, value):
    machine.write(PROFILE)
    content = json.loads(file.read_text())
    content["machine"][name] = value
    file.write_text(json.dumps(content))
    found, why = machine.read(torch.device("cpu"))
    assert found is None
    assert f"made with {name} {value}" in why and "fastimg bench --tune" in why


def test_another_devices_is_ignored(file):
    machine.write(dataclasses.replace(PROFILE, device="NVIDIA something"))
    assert "made with device NVIDIA something, here it is cpu" in machine.read(torch.device("cpu"))[1]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": "fastimg machine profile", "profile": {"workers": 0}}', "{" * 100_000]
)
def test_what_is_no_profile_is_ignored_and_said_so(file, content):
    file.parent.mkdir()
    file.write_text(content)
    found, why = machine.read(torch.device("cpu"))
    assert found is None and str(file) in why


def test_train_takes_what_it_was_not_told(file):
    machine.write(PROFILE)
    config, said = machine.applied(Train(), ALONE)
    assert (config.workers, config.prefetch) == ("3", 6)
    assert said.startswith("--workers 3, --prefetch 6, by `fastimg bench --tune` of 2026-01-02")
    told, said = machine.applied(Train(workers="1", prefetch=2), ALONE)
    assert (told.workers, told.prefetch, said) == ("1", 2, "")
    assert machine.applied(Train(loader="torch"), ALONE) == (Train(loader="torch"), "")


def test_it_is_for_one_process(file):
    machine.write(PROFILE)
    config, said = machine.applied(Train(), Ranks(0, 2, 2, torch.device("cpu"), "gloo"))
    assert config == Train() and "2 share this machine" in said


def test_the_batch_is_for_its_model_alone(file):
    machine.write(PROFILE)
    config = Train(arch="test_resnet", batch_size="auto", amp=False)
    size, said = machine.batch_size(config, 32, 100, ALONE)
    assert size == 4 and "fastimg bench --tune" in said
    for other in (
        machine.batch_size(dataclasses.replace(config, arch="resnet18"), 32, 100, ALONE),
        machine.batch_size(config, 64, 100, ALONE),
        machine.batch_size(config, 32, 10, ALONE),  # more than a fifth of the data
        machine.batch_size(dataclasses.replace(config, amp=True), 32, 100, ALONE),
        machine.batch_size(dataclasses.replace(config, ghost_bn=2), 32, 100, ALONE),
    ):
        assert other is None


def test_train_says_that_it_reads_it(file, cli, image_folder, tmp_path):
    machine.write(PROFILE)
    flags = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "--epochs", "1", "-o", tmp_path / "runs")
    ran = cli("train", image_folder, *flags, "--batch-size", "auto")
    assert ran.code == 0, ran.err
    assert f"profile     --workers 3, --prefetch 6, by `fastimg bench --tune` of 2026-01-02 ({file})" in ran.out
    assert "native, 3 threads" in ran.out
    assert "batch size      4   chosen by `fastimg bench --tune`" in ran.out
    file.write_text("{")
    ran = cli("train", image_folder, *flags, "--batch-size", "8")
    assert ran.code == 0 and f"profile     {file}: cannot be read" in ran.out


def test_off_is_no_profile(monkeypatch, cli, image_folder):
    monkeypatch.setenv(machine.VARIABLE, "off")
    assert machine.read(torch.device("cpu")) == (None, "")
    ran = cli("bench", image_folder, "--tune", "--arch", "test_resnet", "--img-size", "32")
    assert ran.code == 2 and "FASTIMG_PROFILE is off" in ran.err
