"""Defaults of flags: the batch size by device, the type by measured rates, and hints after a run."""

import io
import shutil
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from fastimg.bench import advice
from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.models.precision import Precision
from fastimg.models.ranks import Ranks
from fastimg.predict.inference import Inference
from fastimg.train import setup
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.choices import machine_profile, step_rates
from fastimg.train.choices.resumption import with_batch
from fastimg.train.choices.step_rates import Gain
from fastimg.train.reporting import report, summary
from fastimg.train.wrapping import changing_graph

CPU, CUDA = (Ranks(0, 1, 1, torch.device(name), None) for name in ("cpu", "cuda"))
BF16 = Precision("cuda", torch.bfloat16, "bf16 autocast")


def test_few_photographs_for_random_weights(make_image_folder, cli):
    """One remark, with the flag that helps; not for small pictures, and not where there are weights."""
    flags = ("--device", "cpu", "--dry-run", "--workers", "1", "--no-amp")
    images = make_image_folder(3)
    for more, remarks in ((("--arch", "test_resnet"), 1), (("--arch", "test_resnet", "--img-size", "32"), 0)):
        ran = cli("train", images, *flags, *more)
        words = "images are few to learn from random weights; --pretrained starts from trained ones"
        assert (ran.code, ran.out.count(words)) == (0, remarks), ran.err


@pytest.mark.parametrize(
    ("asked", "ranks", "expected"),
    [
        (None, CPU, (64, True)),
        (None, CUDA, (256, True)),
        (8, CUDA, (8, False)),
        (64, CUDA, (64, False)),  # also if it is a default elsewhere
        ("auto", CUDA, ("auto", False)),
    ],
)
def test_the_batch_of_a_device(asked, ranks, expected):
    config, left_out = with_batch(Train(batch_size=asked), None, ranks, Console(quiet=True))
    assert (config.batch_size, left_out) == expected


def test_a_resumed_run_keeps_its_batch(tmp_path):
    """Also a run from before defaults by device; a flag changes it as before."""
    rundir.begin(tmp_path / "run", Train(batch_size=64))
    said = io.StringIO()
    config, left_out = with_batch(Train(), tmp_path / "run", CUDA, Console(file=said, width=200))
    assert (config.batch_size, left_out) == (64, False) and "64 images x 1 accumulated" in said.getvalue()
    config, left_out = with_batch(Train(batch_size=32), tmp_path / "run", CUDA, Console(quiet=True))
    assert (config.batch_size, left_out) == (32, False)


def test_resuming_without_the_flag(trained, tmp_path, cli):
    """Its batch size is 8: neither device's default."""
    shutil.copytree(trained.run, tmp_path / "runs/run", symlinks=True)
    flags = ("--arch", "test_resnet", "--img-size", "32", "--workers", "1", "--no-amp", "--epochs", "2", "--lr", "3e-3")
    place = ("--no-aug", "--output", tmp_path / "runs", "--name", "run", "--resume", "auto")
    ran = cli("train", trained.images, *flags, *place)
    assert ran.code == 0, ran.err
    assert "--resume: 8 images x 1 accumulated" in ran.out
    assert "after step 6 of 6\nnothing is left to train; a higher --epochs" in ran.out


def test_the_batch_is_explained_on_a_gpu():
    run = SimpleNamespace(
        batch_size=256,
        global_batch=256,
        true_batch=256,
        unit="images",
        ranks=CUDA,
        config=Train(),
        data=SimpleNamespace(samples=2000),
    )
    assert report._batch(run, True) == "256 (--batch-size left out: 256 on a GPU)"
    assert report._batch(run, False) == "256"
    run.data.samples = 600
    assert report._batch(run, True).endswith(", over 20% of the images: smaller batches give more steps")
    run.ranks = CPU
    assert report._batch(run, True) == "256"


def test_other_commands_take_the_default_of_the_device(trained, tmp_path, cli, monkeypatch):
    sizes = []
    whole = Inference.loader

    def loader(self, dataset, batch_size, *arguments, **options):
        sizes.append(batch_size)
        return whole(self, dataset, batch_size, *arguments, **options)

    monkeypatch.setattr(Inference, "loader", loader)
    monkeypatch.setitem(intent.BATCH, "cpu", 7)
    plot = ("--output", tmp_path / "plot.png", "--overwrite")
    picture = next((trained.images / "val/red").iterdir())
    assert cli("eval", trained.run, trained.shards, "--no-amp", *plot).code == 0
    assert cli("predict", trained.run, picture, "--no-amp").code == 0
    assert cli("eval", trained.run, trained.shards, "--no-amp", *plot, "-b", "5").code == 0
    assert sizes == [7, 7, 5]
    bench = ("--arch", "test_resnet", "--img-size", "32", "--stages", "none", "--images", "14", "--repeats", "1")
    ran = cli("bench", trained.shards, *bench, "--json")
    assert ran.code == 0 and '"batch_size": 7,' in ran.out, ran.err


@pytest.mark.parametrize("resuming", [False, True])
def test_a_run_uses_the_measured_rates(monkeypatch, resuming):
    asked = []

    def precision(rule, config, model, gpu, scaled):
        asked.append((rule, model, gpu, scaled))
        return "chosen"

    monkeypatch.setattr(step_rates, "precision", precision)
    monkeypatch.setattr(machine_profile, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(rundir, "scaled_before", lambda directory: directory == "the run")
    checked = SimpleNamespace(precision=BF16, config=Train())
    opened = SimpleNamespace(checked=checked, resuming=resuming, directory="the run")
    assert setup._precision(opened, "model", CUDA) == "chosen"
    assert asked == [(BF16, "model", "NVIDIA H200", True if resuming else None)]
    checked.precision = Precision("cpu", None, "float32")
    assert setup._precision(opened, "model", CPU) is checked.precision and len(asked) == 1


def test_a_run_of_bf16_goes_on_where_there_is_none(monkeypatch):
    """As on a GPU before Ampere: in fp16, with a scaler that begins, and the report says so."""
    monkeypatch.setattr(rundir, "scaled_before", lambda directory: False)
    rule = Precision("cuda", torch.float16, "fp16 autocast with a gradient scaler")
    opened = SimpleNamespace(checked=SimpleNamespace(precision=rule, config=Train()), resuming=True, directory="run")
    chosen = setup._precision(opened, "model", CUDA)
    assert chosen.dtype is torch.float16 and chosen.reason.endswith("the run began without: its scale starts anew")


def test_whether_a_run_scaled_its_gradients(trained, tmp_path):
    assert rundir.scaled_before(trained.run) is False and rundir.scaled_before(tmp_path) is None
    saved = tmp_path / "checkpoints/step"
    saved.mkdir(parents=True)
    torch.save({"scaler": torch.amp.GradScaler("cpu").state_dict()}, saved / "training.pt")
    (tmp_path / "last").symlink_to(saved)
    assert rundir.scaled_before(tmp_path) is True


def test_gains_are_reported_but_not_applied(monkeypatch):
    gain = ("--compile", Gain(1.5, "for resnet50 on NVIDIA H200, torch 2.11"))
    for module in (summary, advice):
        monkeypatch.setattr(module, "device_name", lambda device: "NVIDIA H200")
    data = SimpleNamespace(embedding=None)
    run = SimpleNamespace(setup=SimpleNamespace(config=Train(), precision=BF16, model="m", ranks=CUDA, data=data))
    monkeypatch.setattr(step_rates, "compile_gain", lambda config, precision, model, gpu: gain)
    words = "1.50x for resnet50 on NVIDIA H200, torch 2.11 (measured)"
    assert summary._faster(run) == f"with --compile: {words}; it compiles before the first step"
    rig = SimpleNamespace(run=run, config=Train(), device=CUDA.device)
    told = advice._compiling(rig).text()
    assert told == "--compile (1.50x, an estimate; measured for resnet50 on NVIDIA H200, torch 2.11)"
    monkeypatch.setattr(step_rates, "compile_gain", lambda *_: None)
    assert summary._faster(run) is None and advice._compiling(rig).text() == "--compile (not tried)"
    run.setup.ranks = CPU
    monkeypatch.setattr(step_rates, "compile_gain", lambda *_: gain)
    assert summary._faster(run) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Train(), ""),
        (Train(grad_checkpointing=True, sync_bn=True), ""),
        (Train(freeze="2"), "--freeze 2"),
        (Train(freeze="backbone", freeze_epochs=1), "--freeze backbone"),
        (Train(grad_accum_steps=2), "--grad-accum-steps 2"),
        (Train(compile="default"), "--compile default"),
    ],
)
def test_where_the_graph_may_change(config, reason):
    assert changing_graph(config) == reason
