"""An earlier version's checkpoint: this version writes the same structure, evaluates it and resumes from it."""

import json
import re
import tarfile

import pytest
import torch
from safetensors import safe_open

from fastimg.cli import run

from .make import HERE, metadata_of, train


@pytest.fixture
def kept(tmp_path):
    """The golden run, after one of two epochs."""
    folder = tmp_path / "run"
    with tarfile.open(HERE / "run.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    config = folder / "config.yaml"
    config.write_text(f"data: {HERE / 'shards'}\noutput: {tmp_path}\n{config.read_text()}")
    (folder / "last").symlink_to("checkpoints/00000002")
    return folder


def structure(value):
    """Nested types; for tensors, their type and shape."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape)
    if isinstance(value, dict):
        return {key: structure(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [structure(each) for each in value]
    return type(value).__name__


def written(checkpoint):
    """The structure of a checkpoint, without its values."""
    weights = checkpoint / "model.safetensors"
    with safe_open(weights, framework="pt") as handle:
        tensors = {name: structure(handle.get_tensor(name)) for name in handle.keys()}  # noqa: SIM118
    metadata = metadata_of(weights)
    return {
        "files": sorted(file.name for file in checkpoint.iterdir()),
        "tensors": tensors,
        "metadata": sorted(metadata),
        "card": structure(json.loads(metadata["fastimg"])),
        "training": structure(torch.load(checkpoint / "training.pt", weights_only=True)),
    }


def test_a_checkpoint_has_the_same_structure(kept, tmp_path):
    assert train(HERE / "shards", tmp_path / "new") == 0
    new = written(tmp_path / "new" / "run" / "checkpoints" / "00000002")
    assert new["card"].pop("precision") == "str"  # stated since; earlier checkpoints lack it
    assert new == written(kept / "last")


def test_it_is_evaluated(kept, capsys, tmp_path):
    arguments = [
        "eval",
        str(kept),
        str(HERE / "shards"),
        "--json",
        "--output",
        str(tmp_path / "plot.png"),
        "--overwrite",
    ]
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == 4 and told["loss"] == pytest.approx(0.6931, abs=1e-3)  # zeros: two equal classes
    assert "4 images were trained on" in told["warning"]


def test_training_goes_on(kept, tmp_path, capsys):
    assert train(HERE / "shards", tmp_path, "--resume", "auto") == 0
    out = capsys.readouterr().out
    assert re.search(r"resuming \S+run after step 2 of 4", out)
    assert (kept / "last").resolve().name == "00000004"
