"""The model that `bench` measures by default: that of the newest run on images."""

import os

import pytest

from fastimg.bench.last_run import last_run
from fastimg.bench.request import understand
from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Train
from fastimg.config.yaml_file import dump


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """`runs(name, age, **settings)`: a run directory in the folder runs with this configuration, `age` seconds old."""
    monkeypatch.chdir(tmp_path)

    def make(name, age, **settings):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        file = folder / "config.yaml"
        file.write_text(settings["text"] if "text" in settings else dump(Train(**settings)))
        os.utime(file, (10_000 - age, 10_000 - age))

    make("old", 90, arch="test_vit", train_crop_size=160)
    return make


def asked(**flags):
    return understand(Bench(data="D", **flags), "cpu")


def test_the_newest_runs_model_is_measured_at_its_size(runs):
    assert (asked().archs, asked().img_size) == (("test_vit",), 160)
    runs("new", 5, arch="test_resnet", train_crop_size=96, model_kwargs=("act_layer=gelu",))
    found = asked()
    assert (found.archs, found.img_size, found.model_kwargs) == (("test_resnet",), 96, ("act_layer=gelu",))
    assert found.origin == "the last run's, runs/new" and found.remarks == []
    assert asked(img_size=64).img_size == 64


def test_arch_wins(runs):
    found = asked(arch="resnet18, resnet34")
    assert (found.archs, found.img_size, found.origin) == (("resnet18", "resnet34"), 224, "--arch")


def test_runs_on_texts_are_skipped_and_unreadable_ones_named(runs):
    runs("texts", 5, arch="hf:somewhere")
    runs("future", 1, text="no_such_setting: 1")
    found = asked()
    assert found.archs == ("test_vit",)
    (remark,) = found.remarks
    assert remark.startswith("runs/future: not taken as the last run: ") and "no_such_setting" in remark


def test_progressive_crops_count_by_the_largest(runs):
    runs("new", 1, arch="test_resnet", progressive="64:128", epochs=4)
    assert asked().img_size == 128


def test_without_a_run_there_is_a_default(tmp_path):
    assert last_run(tmp_path / "nowhere") == (None, [])
    found = understand(Bench(data="D"), "cuda", tmp_path)
    assert (found.archs, found.img_size, found.origin) == (("resnet50",), 224, "the default, since there is no run yet")
