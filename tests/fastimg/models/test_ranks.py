"""torchrun with two ranks on one machine (gloo) against one process."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fastimg import cli
from fastimg.errors import UsageError
from fastimg.models.ranks import (
    Ranks,
    agree_on_buffers,
    agreed_buffers,
    check_strategy,
    choose_device,
    take_buffers,
)
from fastimg.train.checkpoints import run_directory as rundir


def command(ranks: int, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, "-m", "fastimg", *arguments]


def arguments(data: Path, output: Path, arch: str, batch_size: int) -> list[str]:
    """22 training and 5 validation images: neither a multiple of the batch, so both are padded."""
    flags = ["--arch", arch, "--img-size", "32", "-b", str(batch_size), "--epochs", "2", "--val-fraction", "0.2"]
    extra = ["--no-amp", "--log-interval", "1", "--workers", "1", "--lr", "1e-3", "--clip-grad", "1.0"]
    return ["train", str(data), *flags, *extra, "--output", str(output), "--name", "run"]


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
    """In float32, without batch norm: flips, accumulated by the two ranks; and augmentation that mixes within a batch,
    which is not. With batch norm where ranks share its statistics. And patience."""
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
    assert done.out.count("stopped: no better for ") == 1  # said by rank 0; ranks that disagreed would hang
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
        assert [r[3] for r in one] == [r[3] for r in two]  # every sample counted once, in both
        np.testing.assert_allclose([r[2] for r in one], [r[2] for r in two], rtol=2e-5)
        weights, weights2 = (load_file(tmp_path / f"{name}-{n}/run/last/model.safetensors") for n in ("one", "two"))
        assert weights.keys() == weights2.keys()
        for tensor in weights:
            torch.testing.assert_close(weights[tensor], weights2[tensor], rtol=1e-3, atol=2e-4)
    assert done.out.count("last checkpoint") == len(kinds) + 1  # only rank 0 speaks
    assert "Warning" not in done.err.replace("OMP_NUM_THREADS", "")


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_one_process_goes_on(
    make_image_folder: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_image_folder(9)
    flags = [*arguments(data, tmp_path / "runs", "test_resnet", 4), "--epochs", "12"]
    run = tmp_path / "runs/run"
    process = subprocess.Popen(command(2, *flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
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
    assert steps == list(range(1, 37))  # none twice, none missing
    weights = load_file(run / "last/model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


@pytest.mark.slow
def test_what_only_rank_0_finds_wrong_is_one_line(make_image_folder: Callable[[int], Path], tmp_path: Path) -> None:
    """Rank 0 builds the model first, while rank 1 waits at a barrier. The rest is torchrun's own report."""
    flags = arguments(make_image_folder(2), tmp_path / "runs", "no_such_model", 4)
    done = subprocess.run(command(2, *flags), capture_output=True, text=True, timeout=300)
    ours, reported, _ = done.stderr.partition("ChildFailedError")
    assert done.returncode == 1 and reported
    assert ours.count("fastimg: error: --arch no_such_model: timm has no such model") == 1
    assert "fastimg/cli.py" not in done.stderr and "please report" not in done.stderr
    assert "exitcode  : 2" in done.stderr and "exitcode  : 1 " not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_one_process_has_nothing_to_agree_on() -> None:
    ranks = Ranks(0, 1, 1, torch.device("cpu"), None)
    norm = torch.nn.BatchNorm1d(2)
    norm.running_mean = torch.tensor([1.0, 2.0])
    agree_on_buffers(norm, ranks)
    assert norm.running_mean.tolist() == [1.0, 2.0]
    assert ranks.sum(torch.ones(2)).tolist() == [1.0, 1.0]
    assert ranks.broadcast("x") == "x"


@dataclass(frozen=True)
class TwoRanks(Ranks):
    """This process and another one, whose tensors are known."""

    other: tuple[float, ...] = ()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.add_(torch.tensor(self.other))

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor, torch.tensor(self.other)])


def test_running_statistics_become_the_mean_over_ranks() -> None:
    norm = torch.nn.BatchNorm1d(2)
    norm.running_mean, norm.running_var = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])
    agree_on_buffers(norm, TwoRanks(0, 2, 2, torch.device("cpu"), "gloo", other=(3.0, 2.0, 2.0, 5.0)))
    assert norm.running_mean.tolist() == [2.0, 2.0]
    assert norm.running_var.tolist() == [1.5, 4.0]


def test_a_checkpoint_has_the_means_and_the_run_goes_on_with_its_own() -> None:
    """Of running statistics and of their moving averages; and what each rank had is stated."""
    norm = torch.nn.BatchNorm1d(1)
    averages = {"weight": torch.tensor([7.0]), "running_mean": torch.tensor([4.0])}
    ranks = TwoRanks(0, 2, 2, torch.device("cpu"), "gloo", other=(2.0, 3.0, 6.0))
    with agreed_buffers(norm, ranks, averages) as each:
        assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([1.0], [2.0])
        assert averages["running_mean"].tolist() == [5.0] and averages["weight"].tolist() == [7.0]
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([0.0], [1.0])
    assert averages["running_mean"].tolist() == [4.0]
    assert each["buffers"]["running_mean"].tolist() == [[0.0], [2.0]]
    assert each["averages"]["running_mean"].tolist() == [[4.0], [6.0]]
    second = replace(ranks, rank=1)
    take_buffers(each, norm, second, averages)
    assert (norm.running_mean.tolist(), norm.running_var.tolist()) == ([2.0], [3.0])
    assert averages["running_mean"].tolist() == [6.0]
    take_buffers(each, norm, replace(ranks, world_size=3), averages)  # other ranks than then: the means are taken
    assert norm.running_mean.tolist() == [2.0]
    with agreed_buffers(norm, second.alone(), averages) as each:
        assert each == {} and norm.running_mean.tolist() == [2.0]


@pytest.mark.parametrize(
    ("backend", "dtype", "sync_bn", "words"),
    [
        (None, None, False, "run torchrun --nproc-per-node N"),
        ("nccl", torch.float16, False, "use --amp-dtype bf16 or --no-amp"),
        ("nccl", None, True, "leave --sync-bn out"),
    ],
)
def test_what_fsdp_does_not_go_with(backend: str | None, dtype: torch.dtype | None, sync_bn: bool, words: str) -> None:
    ranks = Ranks(0, 2, 2, torch.device("cpu"), backend)
    with pytest.raises(UsageError, match=words):
        check_strategy("fsdp", ranks, dtype, sync_bn)
    check_strategy("ddp", ranks, dtype, sync_bn)
    check_strategy("fsdp", Ranks(0, 1, 1, torch.device("cpu"), "gloo"), torch.bfloat16, False)


@pytest.mark.parametrize("name", ["mps", "nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--device"):
        choose_device(name)
