"""torchrun with two ranks on one machine (gloo): training as in one process, gradients, and errors."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastimg import cli
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.metrics import Requests

from .rank_commands import arguments, command


def losses(run: Path) -> list[tuple[str, int, float, int]]:
    return [(r["kind"], r["step"], r["loss"], r["samples"]) for r in rundir.read_log(run) if "loss" in r]


MIXED = (
    "--aa",
    "trivial",
    "--rotate",
    "15",
    "--contrast",
    "0.5",
    "2",
    "--reprob",
    "0.3",
    "--mixup",
    "1",
    "--cutmix",
    "1",
)


@pytest.mark.slow
def test_two_ranks_train_like_one_process(
    make_image_folder: Callable[[int], Path], two_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    """In float32: accumulation or mixing without batch norm; shared statistics with batch norm; and patience."""
    data = make_image_folder(9)
    kinds = {
        "flips": ("test_vit", (), ("--batch-size", "2", "--grad-accum-steps", "2")),
        "mixed": ("test_vit", MIXED, ()),
        "norms": ("test_efficientnet", ("--opt", "sgd", "--lr", "0.01"), ("--sync-bn",)),
    }
    trainings = []
    for name, (arch, augmentation, share) in kinds.items():
        assert cli.run([*arguments(data, tmp_path / f"{name}-one", arch, 8), *augmentation]) == 0
        trainings.append([*arguments(data, tmp_path / f"{name}-two", arch, 4), *share, *augmentation])
    still = ("--lr", "1e-12", "--sched", "constant", "--epochs", "9", "--patience", "1", "--patience-metric", "top1")
    done = two_ranks(*trainings, [*arguments(data, tmp_path / "patient", "test_vit", 4), *still])
    assert done.out.count("stopped: no better for ") == 1  # printed by rank 0; ranks that disagree would hang
    validations = [r for r in rundir.read_log(tmp_path / "patient/run") if r["kind"] == "val"]
    assert len(validations) < 9
    for name in kinds:
        balanced, balanced2 = (
            [r["balanced_accuracy"] for r in rundir.read_log(tmp_path / f"{name}-{n}/run") if r["kind"] == "val"]
            for n in ("one", "two")
        )
        assert balanced == pytest.approx(balanced2) and len(balanced) == 2
        one, two = losses(tmp_path / f"{name}-one/run"), losses(tmp_path / f"{name}-two/run")
        assert [r[:2] for r in one] == [r[:2] for r in two]
        assert [r[3] for r in one] == [r[3] for r in two]  # every sample is counted once, in both
        np.testing.assert_allclose([r[2] for r in one], [r[2] for r in two], rtol=2e-5)
        weights, weights2 = (load_file(tmp_path / f"{name}-{n}/run/last/model.safetensors") for n in ("one", "two"))
        assert weights.keys() == weights2.keys()
        for tensor in weights:
            torch.testing.assert_close(weights[tensor], weights2[tensor], rtol=1e-3, atol=2e-4)
    assert done.out.count("last checkpoint") == len(kinds) + 1  # only rank 0 prints
    assert "Warning" not in done.err.replace("OMP_NUM_THREADS", "")


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_one_process_resumes(
    make_image_folder: Callable[[int], Path], python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_image_folder(9)
    flags = [*arguments(data, tmp_path / "runs", "test_resnet", 4), "--epochs", "12"]
    run = tmp_path / "runs/run"
    process = subprocess.Popen(command(python, *flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(12000):
            if process.poll() is not None or len(rundir.read_log(run)) >= 5:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "stopped after step" in out, out
    saved = torch.load(run / "last/training.pt", weights_only=True)
    assert 0 < saved["step"] < 12 * 3
    assert cli.run([*flags, "--resume"]) == 0
    said = capsys.readouterr().out
    assert f"after step {saved['step']} of 36" in said
    assert "--resume: 4 images x 2 accumulated on each of 1 rank, which keeps the number of images per step" in said
    steps = [r["step"] for r in rundir.read_log(run) if r["kind"] == "train"]
    assert steps == list(range(1, 37))  # no duplicates, none missing
    weights = load_file(run / "last/model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


AS_ON_GPUS = """
import os, signal, sys
from fastimg import cli
from fastimg.train import loop
from fastimg.train.metrics import Requests
from fastimg.train.reporting import lines

made, step = Requests.__init__, loop.optimiser_step

def behind(self, device):
    made(self, device)
    self._lag = Requests.LAG

def signalled(run, *rest):
    request = step(run, *rest)
    if os.environ["RANK"] == "1" and run.progress.step == 9:
        os.kill(os.getpid(), signal.SIGTERM)
    return request

Requests.__init__, loop.optimiser_step, lines.behind = behind, signalled, lambda device: True
code = cli.run(sys.argv[1:])
print(f"rank {os.environ['RANK']} ends with {code}", flush=True)
"""


@pytest.mark.slow
def test_a_signal_to_a_rank_on_gpus_takes_a_few_steps(
    make_image_folder: Callable[[int], Path], python: str, tmp_path: Path
) -> None:
    """Requests are read some steps later, and lines one line later, which is too late for torchrun: it waits 30 s."""
    script = tmp_path / "as_on_gpus.py"
    script.write_text(AS_ON_GPUS)
    flags = [*arguments(make_image_folder(16), tmp_path / "runs", "test_vit", 1), "--epochs", "1"]
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(script), *flags, "--log-interval", "1000", "--grad-accum-steps", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.count("ends with 143") == 2, done.stdout + done.stderr
    saved = torch.load(tmp_path / "runs/run/last/training.pt", weights_only=True)
    assert saved["step"] == 9 + 1 + Requests.LAG < 20


@pytest.mark.slow
def test_what_only_rank_0_finds_wrong_is_one_line(
    make_image_folder: Callable[[int], Path], python: str, tmp_path: Path
) -> None:
    """Rank 0 builds the model first, while rank 1 waits at a barrier. The rest of the output is torchrun's report."""
    flags = arguments(make_image_folder(2), tmp_path / "runs", "no_such_model", 4)
    done = subprocess.run(command(python, *flags), capture_output=True, text=True, timeout=300)
    ours, reported, _ = done.stderr.partition("ChildFailedError")
    assert done.returncode == 1 and reported
    assert ours.count("fastimg: error: --arch no_such_model: timm has no such model") == 1
    assert "fastimg/cli.py" not in done.stderr and "please report" not in done.stderr
    assert "exitcode  : 2" in done.stderr and "exitcode  : 1 " not in done.stderr
    assert not (tmp_path / "runs").exists()


GRADIENTS = """
import copy, json, sys, warnings
import timm, torch
import torch.distributed as dist
from fastimg.models.ranks import accumulate, start, wrap

warnings.simplefilter("error")  # of strides, say
found = {}

def gradients(module, images, **options):
    wrapped = wrap(copy.deepcopy(module), ranks, **options) if options else copy.deepcopy(module)
    for step in range(3):
        wrapped.zero_grad(set_to_none=True)
        parts = images.chunk(2) if "halves" in name else [images]
        for number, part in enumerate(parts, 1):
            with accumulate(wrapped, last=number == len(parts)):
                wrapped(part).square().mean().backward()
    own = wrapped.module if options else wrapped
    assert all(p.grad.stride() == p.stride() for p in own.parameters()) or not options
    return torch.cat([p.grad.flatten() for p in own.parameters()])

with start("cpu") as ranks:
    torch.set_num_threads(1)
    for arch in ("test_efficientnet", "test_resnet"):
        for layout in (torch.contiguous_format, torch.channels_last):
            for accumulated in ("", " halves"):
                name = f"{arch} {layout}{accumulated}"
                torch.manual_seed(0)
                module = timm.create_model(arch, num_classes=3).to(memory_format=layout)
                torch.manual_seed(ranks.rank)
                images = torch.randn(8, 3, 32, 32).contiguous(memory_format=torch.channels_last)
                mean = ranks.sum(gradients(module, images)) / 2
                plain = gradients(module, images, static_graph=False)
                ways = {"plain": plain}
                if not accumulated:
                    ways["static"] = gradients(module, images, static_graph=True)
                for dtype in ("bf16", "fp16"):
                    ways[dtype] = gradients(module, images, static_graph=not accumulated, compression=dtype)
                far = {way: float((one - mean).norm() / mean.norm()) for way, one in ways.items()}
                if not accumulated:
                    far["static is plain"] = torch.equal(ways["static"], plain)
                others = [torch.empty_like(mean) for _ in range(2)]
                for one in ways.values():
                    dist.all_gather(others, one)
                    assert torch.equal(*others)  # ranks agree, bit for bit
                found[name] = far
    if ranks.first:
        print(json.dumps(found))
"""


@pytest.mark.slow
def test_gradients_of_two_ranks(tmp_path: Path, python: str) -> None:
    """No warnings about strides in either layout; a static graph gives the same result, compression nearly the same."""
    script = tmp_path / "gradients.py"
    script.write_text(GRADIENTS)
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, str(script)], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 8
    for name, far in found.items():
        assert far["plain"] < 1e-6, name
        assert 1e-5 < far["bf16"] < 1e-2 and 1e-6 < far["fp16"] < 2e-3, name  # rounded, but not by more
        assert far.get("static is plain", True), name


@pytest.mark.slow
def test_compressed_gradients_train_and_resume(
    make_image_folder: Callable[[int], Path], two_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    """With accumulation, clipping and shared statistics: near the uncompressed run; resuming gives the same bits."""
    data = make_image_folder(9)
    shared = ("--sync-bn", "--opt", "sgd", "--lr", "0.01", "--verbose", "--checkpoint-hist", "9")
    flags = [*arguments(data, tmp_path / "plain", "test_efficientnet", 2), *shared]
    compressed = [*arguments(data, tmp_path / "bf16", "test_efficientnet", 2), *shared]
    compressed += ["--grad-accum-steps", "2", "--grad-compression", "bf16"]
    done = two_ranks([*flags, "--grad-accum-steps", "2"], compressed, [*flags, "--name", "static"])
    assert "ddp: its graph may change (--grad-accum-steps 2); gradients are exchanged as bf16" in done.out
    assert "ddp: its graph is static; gradients are exchanged as float32" in done.out
    plain, rounded = (losses(tmp_path / name / "run") for name in ("plain", "bf16"))
    assert len(plain) == len(rounded) and plain != rounded
    np.testing.assert_allclose([r[2] for r in plain], [r[2] for r in rounded], rtol=2e-2)
    run = tmp_path / "bf16/run"
    whole = load_file(run / "last/model.safetensors")
    steps = sorted((run / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(steps) > 1
    checkpoint.point(run, "last", steps[0])
    two_ranks([*compressed, "--resume", "auto"])
    resumed = load_file(run / "last/model.safetensors")
    assert (run / "last").resolve() != steps[0].resolve()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
