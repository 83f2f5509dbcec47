"""`export --check`: a file that disagrees with its checkpoint is told."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastimg.loaders import FilesDataset
from fastimg.predict import inference
from fastimg.predict.exporting import check as agreement
from fastimg.predict.exporting import graph
from fastimg.predict.exporting import interface as subject
from fastimg.train.checkpoints.format import load_model

from .exports import FORMATS


@pytest.mark.parametrize("kind", FORMATS)
def test_check(kind, trained, tmp_path, cli):
    """The whole command; the file is checked on real samples, and only the result is printed."""
    ran = cli(
        "export", trained.run, "--format", kind, "-o", tmp_path, "--check", "--check-data", trained.shards, "--json"
    )
    assert ran.code == 0 and ran.err == ""
    told = json.loads(ran.out)
    assert told["file"] == str(tmp_path / f"run.{kind}") and [told["file"]] == [
        str(file) for file in tmp_path.iterdir()
    ]
    assert told["bytes"] == os.path.getsize(told["file"])
    assert told["inputs"] == ([] if kind == "safetensors" else ["images uint8 [batch, 3, 32, 32]"])
    assert told["preprocessing"]["normalisation"] == ("by the caller" if kind == "safetensors" else "inside")
    check = told["check"]
    assert check["agrees"] and (check["samples"], check["top1"], check["unreadable"]) == (12, 12, 0)
    assert check["origin"] == f"images from {trained.shards} (val)"
    assert check["probabilities"] < 1e-5 and check["logits"] < 1e-4


@pytest.fixture
def judged(trained):
    """`judged(run, data)`: the report of the check on a file that behaves like `run`."""

    def judge(run, data=None):
        engine = inference.load(trained.run, torch.device("cpu"), amp=False)
        return agreement.compare(Path("model.onnx"), run, engine, data)

    return judge


@pytest.fixture
def honest(trained):
    return graph.open_module(subject.of(*load_model(trained.run)))


def test_words(trained, tmp_path, written, honest, monkeypatch, cli):
    monkeypatch.setattr(graph, "open_pt2", lambda file, what: honest)
    ran = cli("export", trained.run, "--format", "pt2", "-o", tmp_path, "--check")
    assert ran.code == 0 and ran.err == ""
    for words in (
        *("run.pt2", "test_resnet, 3 classes", "images uint8 [batch, 3, 32, 32]", "resize to", "logits float32"),
        *("normalisation (mean 0.5 0.5 0.5", "agrees with predict on 16 noise images", "is the same for 16"),
    ):
        assert words in ran.out
    ran = cli("export", trained.run, "--format", "safetensors", "-o", tmp_path)
    assert ran.code == 0 and "only weights" in ran.out and "check" not in ran.out and "input" not in ran.out


def test_whole_images_have_the_strides_of_their_shape(tmp_path):
    """Also along axes of length 1, which torch's resize would otherwise read beyond the end by."""
    exif = Image.Exif()
    exif[0x0112] = 5
    stored = np.arange(200, dtype=np.uint8)[None]
    Image.fromarray(stored).save(tmp_path / "line.png", exif=exif)
    dataset = FilesDataset(tmp_path, ["line.png"])
    (image,) = agreement._whole(dataset, torch.tensor([0]), 1)
    assert image.shape == (1, 1, 200, 1) and image.stride() == (200, 200, 1, 1)
    assert np.array_equal(image.flatten(), stored[0])


def test_counts_of_the_check(judged, honest, trained):
    right = judged(honest, trained.shards)
    assert right.agrees and right.top1 == right.samples == 12 and right.logits < 1e-5
    for by in (3, -3):  # the same probabilities
        shifted = judged(lambda batch, by=by: honest(batch) + by, trained.shards)
        assert shifted.agrees and shifted.logits == pytest.approx(3, abs=1e-4) and shifted.probabilities < 1e-5
    wrong = judged(lambda batch: honest(batch).roll(1, 1), trained.shards)
    assert not wrong.agrees and wrong.top1 == 0 and wrong.probabilities > 0.01
    scaled = judged(lambda batch: honest(batch) * 1.01, trained.shards)
    assert not scaled.agrees and scaled.top1 == 12 and 1e-4 < scaled.probabilities < 0.1
    nothing = judged(lambda batch: honest(batch) * float("nan"))
    assert not nothing.agrees and nothing.logits is None and nothing.probabilities is None


def test_one_differing_sample_is_enough(judged, honest, trained):
    seen = []

    def run(batch):
        seen.append(len(batch))
        logits = honest(batch)
        return logits.flip(1) if len(seen) == 4 else logits

    assert not judged(run, trained.images).agrees
    assert set(seen) > {1} and sum(seen) >= 36  # the exported size, two, is not tried


def test_at_most_64_samples_spread_over_the_data(judged, honest, tmp_path, encode):
    for number in range(100):
        (tmp_path / f"{number:03d}.jpg").write_bytes(encode((2 * number, 99, 99), seed=number))
    (tmp_path / "099.jpg").write_bytes(b"no image")
    found = judged(honest, tmp_path)
    assert (found.samples, found.unreadable, found.agrees) == (63, 1, True)
    assert judged(honest, tmp_path / "000.jpg").samples == 1


def test_a_file_that_disagrees(trained, tmp_path, monkeypatch, cli):
    forward = subject.Pixels.forward
    monkeypatch.setattr(subject.Pixels, "forward", lambda self, images: forward(self, images) * 1.01)
    flags = ("-o", tmp_path, "--check", "--check-data", trained.images)
    ran = cli("export", trained.run, "--format", "safetensors", *flags)
    assert ran.code == 1 and "does NOT agree with predict on 36 images" in ran.out and "Traceback" not in ran.err


def test_what_is_there_stays_unless_the_new_file_agrees(trained, tmp_path, monkeypatch, cli):
    flags = ("--format", "safetensors", "-o", tmp_path / "run.safetensors", "--check", "--overwrite")
    (tmp_path / "run.safetensors").write_bytes(b"precious")
    load = load_model

    def unreadable(file, *rest):
        if ".export-" in str(file):
            raise ValueError("no weights")
        return load(file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("fastimg.train.checkpoints.format.load_model", unreadable)
        ran = cli("export", trained.run, *flags)
        assert ran.code == 1 and f"{tmp_path}/run.safetensors: was written but cannot be loaded" in ran.err
    with monkeypatch.context() as patch:
        forward = subject.Pixels.forward
        patch.setattr(subject.Pixels, "forward", lambda self, images: forward(self, images) * 1.5)
        ran = cli("export", trained.run, *flags)
        assert ran.code == 1 and "does NOT agree" in ran.out and "stays as it was" in ran.out
        assert json.loads(cli("export", trained.run, *flags, "--json").out)["stays"]
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("run.safetensors", b"precious")]
    ran = cli("export", trained.run, *flags)
    assert ran.code == 0 and "agrees with predict" in ran.out and "run.safetensors, " in ran.out
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"] and load(tmp_path / "run.safetensors")


@pytest.mark.parametrize("content", [b"", b"no image"])
def test_check_data_without_an_image(content, trained, written, monkeypatch, tmp_path, honest, cli):
    monkeypatch.setattr(graph, "open_pt2", lambda file, what: honest)
    data = tmp_path / "data"
    data.mkdir()
    if content:
        (data / "0.jpg").write_bytes(content)
    ran = cli("export", trained.run, "--format", "pt2", "-o", tmp_path, "--check", "--check-data", data)
    assert ran.code == 1 and str(data) in ran.err and "Traceback" not in ran.err
    assert ("not an image" if content else "no images in this folder") in ran.err
    ran = cli(
        "export", trained.run, "--format", "pt2", "-o", tmp_path / "a.pt2", "--check", "--check-data", data / "no"
    )
    assert ran.code == 1 and "no such file or folder" in ran.err
