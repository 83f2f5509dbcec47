"""torchrun with two ranks on one machine (gloo), compared with one process."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from fastimg import cli
from fastimg.errors import UsageError
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models import ranks as parallel
from fastimg.models.ranks import (
    Ranks,
    agree_on_buffers,
    agreed_buffers,
    check_strategy,
    choose_device,
    gpu_addresses,
    start,
    take_buffers,
)
from fastimg.system.affinity import UNBOUND, Binding
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir


def command(python: str, *arguments: str) -> list[str]:
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*launcher, "-m", "fastimg", *arguments]


def arguments(data: Path, output: Path, arch: str, batch_size: int) -> list[str]:
    """22 training and 5 validation images: neither number is a multiple of the batch, so both are padded."""
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


# Ranks that take long. In the modes "blocks" and "slow" they go on once the other one waits for them, in an exchange:
# each writes what it waits for to the folder argv[1]. So no collective waits, which would end after the timeout.
IMPATIENT = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from fastimg import cli
from fastimg.embeddings import cache
from fastimg.models.ranks import start
from fastimg.system import rank_exchange
from fastimg.train import opening

rank, folder, mode = int(os.environ["RANK"]), Path(sys.argv[1]), sys.argv[2]
join, wait_for = rank_exchange.join, rank_exchange.RankExchange._wait_for

def joining(*args):
    global own
    own = join(*args)
    return own

def waiting(self, key):
    (folder / str(rank)).write_text(key)
    wait_for(self, key)

def until_the_other_waits():
    other, end = folder / str(1 - rank), time.monotonic() + 100
    while not other.exists() or other.read_text() != f"{own._turn} all":
        if time.monotonic() > end:
            os.write(2, b"the other rank does not wait in the exchange\\n")
            os._exit(1)
        time.sleep(0.005)

def slowly(function):
    def slow(*args, **kwargs):
        if rank == 0:
            until_the_other_waits()
        return function(*args, **kwargs)
    return slow

def killed(*args, **kwargs):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)

rank_exchange.join, rank_exchange.RankExchange._wait_for = joining, waiting
if mode == "blocks":
    with start("cpu") as ranks:
        for slow in (0, 1):
            with ranks.first_goes_first():
                if rank == slow:
                    until_the_other_waits()
            assert int(ranks.sum(torch.ones(1))) == 2
        said = []
        for exchange in (ranks.gather, ranks.broadcast, lambda value: ranks.agree(value == "0")):
            if rank == 0:
                until_the_other_waits()
            said.append(str(exchange(str(rank))))
        line = " ".join(said)
    os.write(1, f"rank {rank}: {line} {dist.is_initialized()}\\n".encode())  # one write: two ranks share the pipe
    sys.exit(0)
if mode == "slow":
    opening.open_parts = slowly(opening.open_parts)
    cache.sample_digests = slowly(cache.sample_digests)
else:
    rank_exchange.BEAT, rank_exchange.PATIENCE = 0.2, 3.0
    opening.open_parts = killed
code = cli.run(sys.argv[3:])
sys.stdout.flush()
os._exit(code)
"""


@pytest.fixture
def impatient(tmp_path: Path) -> list[str]:
    """A script and its folder."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    (tmp_path / "waits").mkdir()
    return [str(tmp_path / "impatient.py"), str(tmp_path / "waits")]


@pytest.mark.slow
def test_ranks_wait_in_no_collective(impatient: list[str], python: str) -> None:
    """For rank 0 within a block, for the others within theirs; and for the messages of each."""
    launcher = [*command(python)[:-2], *impatient, "blocks"]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: ['0', '1'] 0 False False" for rank in (0, 1)]


@pytest.mark.slow
def test_ranks_wait_in_no_collective_while_rank_0_scans_and_reads(
    make_image_folder: Callable[[int], Path], impatient: list[str], python: str, tmp_path: Path
) -> None:
    flags = [*arguments(make_image_folder(9), tmp_path / "runs", "test_vit", 4), "--freeze", "backbone", "--no-aug"]
    launcher = [*command(python)[:-2], *impatient, "slow", *flags, "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "last checkpoint" in done.stdout


@pytest.mark.slow
def test_a_rank_0_that_is_killed_while_others_wait_ends_them(
    make_image_folder: Callable[[int], Path], impatient: list[str], python: str, tmp_path: Path
) -> None:
    """If no torchrun ends them, and the store outlives rank 0: rank 0's silence is detected."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    flags = arguments(make_image_folder(2), tmp_path / "runs", "test_vit", 4)
    ranks = [
        subprocess.Popen(
            [python, *impatient, "killed", *flags],
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL, 1]
    assert "lost contact with another rank (rank 0 has given no sign of life for" in said[1]
    assert "Traceback" not in said[1]


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
    """This process and another one with known tensors."""

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
    """Of running statistics and their moving averages; the values of each rank are recorded."""
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
    take_buffers(each, norm, replace(ranks, world_size=3), averages)  # another number of ranks: the means are used
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
def test_settings_incompatible_with_fsdp(
    backend: str | None, dtype: torch.dtype | None, sync_bn: bool, words: str
) -> None:
    ranks = Ranks(0, 2, 2, torch.device("cpu"), backend)
    with pytest.raises(UsageError, match=words):
        check_strategy("fsdp", ranks, dtype, sync_bn)
    check_strategy("ddp", ranks, dtype, sync_bn)
    check_strategy("fsdp", Ranks(0, 1, 1, torch.device("cpu"), "gloo"), torch.bfloat16, False)


@pytest.mark.parametrize("name", ["mps", "nonsense", "cuda:99"])
def test_a_missing_device_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--device"):
        choose_device(name)


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


def test_compression_needs_several_ranks() -> None:
    with pytest.raises(UsageError, match="--grad-compression bf16: has no effect with one process"):
        check_strategy("ddp", Ranks(0, 1, 1, torch.device("cpu"), None), None, False, "bf16")
    check_strategy("ddp", Ranks(0, 2, 2, torch.device("cpu"), "gloo"), None, False, "bf16")


def test_addresses_of_the_gpus_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x1B, 0xC3)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    assert gpu_addresses("auto", 2) == gpu_addresses("cuda", 2) == ["0000:1b:00.0", "0000:c3:00.0"]
    assert gpu_addresses("cuda:1", 2) == ["0000:c3:00.0"] * 2  # they share it
    assert gpu_addresses("cuda", 3)[2] is None
    del gpus[1].pci_bus_id
    assert gpu_addresses("cuda", 2) == ["0000:1b:00.0", None]


@pytest.mark.parametrize("numa_binding", ["auto", "off"])
def test_a_rank_is_bound_to_cores_near_its_gpu_first(monkeypatch: pytest.MonkeyPatch, numa_binding: Any) -> None:
    done: list[str] = []
    bound = Binding((0,), "core 0 of NUMA node 0, beside cuda:0")

    def bind(addresses: list[str | None], local_rank: int, device: str) -> Binding:
        done.append(f"bind {addresses} {local_rank} {device}")
        return bound

    monkeypatch.setattr(parallel, "choose_device", lambda name, rank: torch.device("cuda", 0))
    monkeypatch.setattr(parallel, "gpu_addresses", lambda device, count: ["0000:1b:00.0"] * count)
    monkeypatch.setattr(parallel, "bind", bind)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append("set_device"))
    with start("cuda", numa_binding) as ranks:
        assert ranks.binding == (bound if numa_binding == "auto" else UNBOUND)
    assert done == [*(["bind ['0000:1b:00.0'] 0 cuda:0"] if numa_binding == "auto" else []), "set_device"]


def test_a_launcher_that_does_not_say_how_many_ranks_a_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    said = r"LOCAL_RANK is 3 and LOCAL_WORLD_SIZE not set: set LOCAL_WORLD_SIZE to the number of ranks"
    with pytest.raises(UsageError, match=said), start("cpu"):
        raise AssertionError
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with start("cpu") as ranks:
        assert ranks.local_world_size == 4


def test_the_cores_of_a_bound_rank_are_its_own() -> None:
    """They are not divided again among the ranks of the machine."""
    bound = Ranks(0, 64, 64, torch.device("cuda", 0), "nccl", Binding((0,), "core 0"))
    assert bound.cpus == available_cpus(1)
    assert Ranks(0, 64, 64, torch.device("cuda", 0), "nccl").cpus == 1
