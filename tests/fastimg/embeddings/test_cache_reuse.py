"""When cached embeddings are reused, and what causes images to be encoded again."""

import fcntl
import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from fastimg.embeddings.encoder import Encoder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def no_forward(monkeypatch):
    """Fail if anything is encoded."""
    return lambda: monkeypatch.setattr(Encoder, "rows", lambda *_: pytest.fail("a forward pass"))


def test_of_two_processes_at_once_only_one_encodes(train, fast, shards, trained, tmp_path, python):
    """They meet at the lock, which this process holds until both wait for it."""
    train("before", "--epochs", "1")
    (lock,) = shards.glob(".fastimg/embeddings/*/.lock")
    for file in [*lock.parent.glob("0*"), lock.parent / "shards.jsonl"]:
        file.unlink()
    frozen = ("--epochs", "1", "--freeze", "backbone", "--weights", trained.run, "-o", tmp_path / "runs")
    runs = []
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for name in ("a", "b"):
            command = [python, "-m", "fastimg", "train", shards, *fast, *frozen, "--name", name]
            runs.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True))
        for run in runs:
            assert any("waiting for it" in line for line in iter(run.stdout.readline, ""))
    said = "".join(run.communicate()[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    made = [json.loads(line)["samples"] for line in (lock.parent / "shards.jsonl").read_text().splitlines()]
    assert sum(made) == 36
    assert said.count("12 images with test_resnet, once") == said.count("24 images with test_resnet, once") == 1


def test_a_second_run_encodes_nothing(train, no_forward, losses):
    assert "36 made now, kept in" in train("one").out
    no_forward()
    assert "0 made now, kept in" in train("two").out
    assert losses("one") == losses("two")


@pytest.mark.parametrize(
    "flags",
    [("--img-size", "48"), ("--cache-dtype", "fp32"), ("--interpolation", "bicubic"), ("--mean", "0", "0", "0")],
)
def test_another_option_makes_another_key(train, encoded, flags):
    train("one")
    train("two", *flags)
    train("three", *flags, "--seed", "3", "--head", "mlp", "--lr", "0.5", "-b", "4", "-j", "2")  # irrelevant
    assert encoded == [24, 12, 24, 12]


def test_other_weights_make_another_key(train, encoded, trained, tmp_path):
    tensors = load_file(trained.run / "best" / "model.safetensors")
    tensors["bn1.running_mean"][0] += 1e-6
    torch.save({"state_dict": tensors}, tmp_path / "other.pt")
    train("one")
    train("two", "--weights", tmp_path / "other.pt")
    assert encoded == [24, 12, 24, 12]


def test_a_changed_image_is_encoded_again(train, encoded, trained, tmp_path):
    data = shutil.copytree(trained.images, tmp_path / "images")
    train("one", data=data)
    image = data / "train" / "red" / "3.png"
    image.write_bytes(image.read_bytes() + b"\0")
    train("two", data=data)
    assert encoded == [24, 12, 1]


def test_after_an_append_only_new_images_are_encoded(train, encoded, trained, shards, tmp_path, cli, encode):
    train("one")
    for name in ("blue", "green", "red"):
        for split in ("train", "val"):
            folder = tmp_path / "more" / split / name
            folder.mkdir(parents=True)
            (folder / "new.jpg").write_bytes(encode((9, 200, 90), seed=10 * len(name) + len(split)))
    ran = cli("convert", tmp_path / "more", shards, "--append")
    assert ran.code == 0, ran.err
    assert "6 made now" in train("two").out
    assert encoded == [24, 12, 3, 3]


def test_views_depend_on_dct_scaling(train, encoded):
    train("one", "--hflip", "0.5", "--cache-embeddings", "1")
    train("two", "--hflip", "0.5", "--cache-embeddings", "1", "--dct-scaling", "off")
    assert encoded == [24, 12, 24]
