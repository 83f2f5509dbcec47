"""`--decode`: refused if impossible, recorded in the run, and images that the GPU refuses are named."""

import json
import re
import shutil

import pytest

from fastimg.config.commands import Train
from fastimg.config.yaml_file import load
from fastimg.errors import UsageError
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.extras import install
from fastimg.train.choices import refusals


def test_a_gpu_is_needed(trained, tmp_path, fast, cli):
    ran = cli("train", trained.shards, *fast, "--output", tmp_path, "--device", "cpu", "--decode", "gpu")
    assert ran.code == 2 and "--decode gpu: the run is on cpu" in ran.err and "leave --decode out" in ran.err
    assert not list(tmp_path.iterdir())


def test_the_extra_is_needed(monkeypatch):
    monkeypatch.setattr(nvcodec, "installed", lambda: False)
    with pytest.raises(UsageError, match=f"needs nvImageCodec.*{re.escape(install('gpu'))}"):
        refusals.check_device(Train(decode="gpu"), "cuda")
    for decode in ("auto", "cpu"):
        refusals.check_device(Train(decode=decode), "cuda")
    monkeypatch.setattr(nvcodec, "installed", lambda: True)
    refusals.check_device(Train(decode="gpu"), "cuda")


def test_auto_is_the_cpu_and_is_recorded(trained, tmp_path, fast, cli):
    ran = cli("train", trained.shards, *fast, "--output", tmp_path, "--name", "run", "--dry-run")
    assert ran.code == 0 and "JPEGs decoded on the CPU" in ran.out
    assert load(trained.run / "config.yaml", Train).decode == "cpu"


def test_resuming_keeps_the_decoder(trained, tmp_path, fast, cli):
    """The pixels differ, so it would be a different training."""
    run = tmp_path / "run"
    shutil.copytree(trained.run, run, symlinks=True)
    text = (run / "config.yaml").read_text()
    assert "decode: cpu" in text
    (run / "config.yaml").write_text(text.replace("decode: cpu", "decode: gpu"))
    ran = cli("train", "--config", trained.run / "config.yaml", "--resume", run)
    assert ran.code == 2 and "decode was gpu and is cpu" in ran.err


class Refusing:
    """A GPU decoder that refuses every image."""

    def parse(self, jpeg):
        return jpeg

    def decode(self, parsed, stream):
        return [None] * len(parsed)


def test_images_that_the_gpu_refuses_are_trained_on_and_named(image_folder, tmp_path, fast, cli, monkeypatch):
    """All of them, so that no kernel has to run: the training equals that with --decode cpu bit for bit."""
    pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
    from fastimg.loaders.backends import gpu_decode, ragged_ring

    def on(device, images, threads):
        assert threads == 1  # --workers: ranks share the cores
        return gpu_decode.DeviceDecode(images, Refusing(), threads)

    monkeypatch.setattr(refusals, "check_device", lambda config, device: None)
    monkeypatch.setattr(nvcodec, "installed", lambda: True)
    monkeypatch.setattr(gpu_decode.DeviceDecode, "on", on)
    monkeypatch.setattr(ragged_ring, "resize", lambda places, tables, out: None)
    records = {}
    for decode in ("cpu", "gpu"):
        ran = cli("train", image_folder, *fast, "--output", tmp_path / "runs", "--name", decode, "--decode", decode)
        assert ran.code == 0, ran.err
        log = (tmp_path / "runs" / decode / "metrics.jsonl").read_text().splitlines()
        records[decode] = [(r["kind"], r["step"], r["loss"], r["top1"]) for r in map(json.loads, log) if "loss" in r]
    assert records["gpu"] == records["cpu"]
    assert "JPEGs decoded by nvImageCodec and resized on the GPU" in ran.out
    assert load(tmp_path / "runs" / "gpu" / "config.yaml", Train).decode == "gpu"
    # A quarter of the images are PNGs, which the GPU never sees.
    assert "training images were decoded by fastimg: the GPU's decoder refused it" in ran.out
    assert "validation image was decoded by fastimg: the GPU's decoder refused it" in ran.out
    named = [line for line in ran.out.splitlines() if line.startswith("  ") and line.rstrip().endswith(".jpg")]
    assert len(named) >= 6 and not [line for line in ran.out.splitlines() if line.startswith("  ") and ".png" in line]
