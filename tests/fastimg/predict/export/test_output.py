"""`fastimg export`: names, formats and flags, and what is refused before a file is replaced."""

import errno
import importlib.util
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

from fastimg.loaders.extras import install
from fastimg.models.registry import build
from fastimg.predict.exporting import graph
from fastimg.predict.exporting import interface as subject
from fastimg.train.checkpoints.format import find, read_card

from .exports import FORMATS, GRAPHS


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_follows_from_the_output_name(name, trained, tmp_path, written, cli):
    ran = cli("export", trained.run, "-o", tmp_path / f"a.{name}", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["format"] == name and (tmp_path / f"a.{name}").exists()


@pytest.mark.parametrize("output", [(), ("-o", "a.bin"), ("-o", ".")])
def test_an_unknown_format(output, trained, cli):
    ran = cli("export", trained.run, *output)
    assert ran.code == 2 and "export: which format? give --format onnx, pt2 or safetensors, or an --output" in ran.err


@pytest.mark.parametrize("checkpoint", ["", "best", "last", "checkpoints/*", "best/model.safetensors"])
def test_the_default_name_survives_the_checkpoint(checkpoint, trained, tmp_path, written, monkeypatch, cli):
    shutil.copytree(trained.run, tmp_path / "my run", symlinks=True)
    path = sorted(tmp_path.glob(f"my run/{checkpoint}"))[0]
    ran = cli("export", path, "--format", "onnx")
    assert (
        ran.code == 0
        and (tmp_path / "my run" / "my run.onnx").exists()
        and str(tmp_path / "my run.onnx") not in ran.out
    )
    monkeypatch.chdir(path if path.is_dir() else path.parent)
    ran = cli("export", "." if path.is_dir() else path.name, "--format", "pt2", "--json")
    assert os.path.samefile(json.loads(ran.out)["file"], tmp_path / "my run" / "my run.pt2")


def test_the_default_name_of_a_lone_file(trained, tmp_path, written, cli):
    lone = tmp_path / "digits.v2.safetensors"
    shutil.copy(find(trained.run), lone)
    assert cli("export", lone, "--format", "onnx").code == 0 and (tmp_path / "digits.v2.onnx").exists()
    before = lone.read_bytes()
    ran = cli("export", lone, "--format", "safetensors", "--overwrite")
    assert ran.code == 2 and "is the checkpoint itself" in ran.err and lone.read_bytes() == before


def test_an_existing_file(trained, tmp_path, cli):
    file = tmp_path / "a.safetensors"
    file.write_text("precious")
    ran = cli("export", trained.run, "--format", "safetensors", "-o", file)
    assert ran.code == 2 and "--overwrite" in ran.err and file.read_text() == "precious"
    assert cli("export", trained.run, "--format", "safetensors", "-o", file, "--overwrite").code == 0
    assert file.read_bytes() == find(trained.run).read_bytes()


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("--check-data", "x"), 2, "--check-data x: has no effect without --check"),
        (("-o", "x.pt2"), 2, "ends in .onnx"),
        (("-o", "no/x.onnx"), 1, "the folder no does not exist"),
    ],
)
def test_flags_that_make_no_sense(flags, code, text, trained, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    ran = cli("export", trained.run, "--format", "onnx", *flags)
    assert ran.code == code and text in ran.err and ran.out == "" and not list(tmp_path.iterdir())


def test_missing_packages(trained, monkeypatch, tmp_path, written, cli):
    real = importlib.util.find_spec
    lost = {"onnxruntime"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in lost else real(name, *rest))
    arguments = ("export", trained.run, "--format", "onnx", "-o", tmp_path)
    assert cli(*arguments).code == 0  # only needed for --check
    ran = cli(*arguments, "--overwrite", "--check")
    assert (
        ran.code == 2
        and f"--format onnx --check: needs onnxruntime, which is not installed; `{install('export')}`" in ran.err
    )
    lost |= {"onnx", "onnxscript"}
    ran = cli(*arguments, "--overwrite")
    assert (
        ran.code == 2 and "needs onnx and onnxscript, which are not installed" in ran.err and "Traceback" not in ran.err
    )
    assert cli("export", trained.run, "--format", "pt2", "-o", tmp_path).code == 0


class Exotic(torch.nn.Module):
    """Its control flow depends on the pixels, which no graph can express."""

    def forward(self, images):
        return images.flatten(1)[:, :3].float() if images.sum() > 3 else images.flatten(1)[:, 3:6].float()


class Fixed(torch.nn.Module):
    """Accepts only batches of two."""

    def forward(self, images):
        return images.flatten(1)[:, :3].float().view(2, 3)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("module", [Exotic, Fixed])
def test_models_that_cannot_be_traced(module, kind, trained, tmp_path, monkeypatch, cli):
    monkeypatch.setattr(subject, "Pixels", lambda model, card: module())
    ran = cli("export", trained.run, "--format", kind, "-o", tmp_path)
    assert ran.code == 1 and "Traceback" not in ran.err and len(ran.err.splitlines()) == 1 and ran.out == ""
    assert f"test_resnet cannot be exported as {kind} (" in ran.err and "--format safetensors" in ran.err
    assert "dynamic" in ran.err if module is Fixed else "data-dependent" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_onnx(trained, tmp_path, monkeypatch, cli):
    monkeypatch.setattr(graph, "ONNX_LIMIT", 10_000)
    ran = cli("export", trained.run, "--format", "onnx", "-o", tmp_path)
    assert ran.code == 1 and "use --format pt2 or safetensors" in ran.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["pt2", "safetensors"])
def test_a_full_disk_keeps_the_old_file(kind, trained, tmp_path, monkeypatch, cli):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / f"a.{kind}"
    file.write_text("precious")
    monkeypatch.setattr(os, "fsync", full)
    ran = cli("export", trained.run, "--format", kind, "-o", file, "--overwrite")
    assert ran.code == 1 and "no space left on the disk" in ran.err and str(file) in ran.err
    assert file.read_text() == "precious" and list(tmp_path.iterdir()) == [file]


def test_unnamed_outputs_are_cut_off(trained):
    model, card = build("test_resnet", 7), read_card(find(trained.run))
    what = subject.of(model, replace(card, num_classes=7))
    assert not what.module.training
    assert graph.open_module(what)(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 3)


def test_not_a_checkpoint(tmp_path, cli):
    ran = cli("export", tmp_path, "--format", "pt2")
    assert ran.code == 1 and "no checkpoint in it" in ran.err
