"""Training on a frozen encoder: its data, its runs, and what they leave."""

import shutil

import pytest
from safetensors.torch import load_file

from fastimg.train.checkpoints import run_directory as rundir


@pytest.fixture
def shards(trained, tmp_path):
    """24 images to train on, 12 to validate; without the embeddings that other tests have kept beside them."""
    return shutil.copytree(trained.shards, tmp_path / "shards", ignore=shutil.ignore_patterns(".fastimg"))


@pytest.fixture
def train(cli, fast, shards, trained, tmp_path):
    """`train("name", *flags)`: the output of a frozen run on the trunk of the trained run."""

    def run(name, *flags, code=0, data=shards):
        frozen = ("--freeze", "backbone", "--weights", trained.run, "--log-interval", "1")
        ran = cli("train", data, *fast, "--epochs", "3", *frozen, "-o", tmp_path / "runs", "--name", name, *flags)
        assert ran.code == code, ran.out + ran.err
        return ran

    return run


@pytest.fixture
def losses(tmp_path):
    """`losses("name")`: (kind, step, samples, loss, top1) of every record with a loss."""

    def read(name):
        records = rundir.read_log(tmp_path / "runs" / name)
        return [(r["kind"], r["step"], r["samples"], r["loss"], r["top1"]) for r in records if "loss" in r]

    return read


@pytest.fixture
def weights(tmp_path):
    return lambda name: load_file(tmp_path / "runs" / name / "last" / "model.safetensors")


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
