"""--strategy fsdp: the same training as one process, checkpoints for any number of ranks, and ranks that fail."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fastimg import cli
from fastimg.errors import UsageError, UserError
from fastimg.models.blocks import repeated
from fastimg.models.ranks import Ranks, accumulate, clip_gradients, local_shards, scale_gradients, wrap
from fastimg.models.registry import Preprocessing, build
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints import saving, sharded
from fastimg.train.checkpoints.format import Card

STEPS = 4  # 2 epochs of 24 images: 20, and then 4


def arguments(data: Path, output: Path, *more: str) -> list[str]:
    flags = ["--arch", "test_vit", "--img-size", "32", "--epochs", "2", "--lr", "1e-3", "--clip-grad", "1", "--no-amp"]
    extra = ["--workers", "1", "--log-interval", "1", "--save-interval", "1", "--checkpoint-hist", "9"]
    return ["train", str(data), *flags, *extra, "--output", str(output), "--name", "run", *more]


SHARED = ("--strategy", "fsdp", "--batch-size", "5", "--grad-accum-steps", "2")


def torchrun(python: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Two ranks."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(launcher, capture_output=True, text=True, timeout=600, env=environment)


def losses(run: Path) -> list[tuple[str, int, int, float]]:
    return [(r["kind"], r["step"], r["samples"], r["loss"]) for r in rundir.read_log(run) if "loss" in r]


def assert_alike(a: Path, b: Path) -> None:
    one, two = losses(a), losses(b)
    assert [r[:3] for r in one] == [r[:3] for r in two]
    np.testing.assert_allclose([r[3] for r in one], [r[3] for r in two], rtol=2e-5)
    weights, weights2 = (load_file(run / "last/model.safetensors") for run in (a, b))
    assert weights.keys() == weights2.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], weights2[name], rtol=1e-3, atol=2e-4)


@pytest.fixture(scope="module")
def whole(trained: Any, python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks, with a checkpoint of every step."""
    output = tmp_path_factory.mktemp("whole")
    done = torchrun(python, "-m", "fastimg", *arguments(trained.images, output, *SHARED))
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr.replace("OMP_NUM_THREADS", "")
    return output / "run"


@pytest.mark.slow
def test_shards_train_like_one_process(whole: Path, trained: Any, tmp_path: Path) -> None:
    assert cli.run(arguments(trained.images, tmp_path, "--batch-size", "20")) == 0
    assert_alike(tmp_path / "run", whole)
    files = {path.name for path in (whole / "last/sharded").iterdir()}
    assert files == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert cli.run(["eval", str(whole), str(trained.images)]) == 0


@pytest.mark.slow
def test_one_rank_resumes_a_run_of_two(
    whole: Path, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole, tmp_path / "run", symlinks=True)
    checkpoint.point(tmp_path / "run", "last", tmp_path / "run/checkpoints/00000003")  # in the middle of an epoch
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    announced = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in announced.items():  # as torchrun does
        monkeypatch.setenv(name, value)
    assert cli.run([*arguments(trained.images, tmp_path, *SHARED), "--resume"]) == 0
    assert f"after step 3 of {STEPS}" in capsys.readouterr().out
    assert torch.load(tmp_path / "run/last/training.pt", weights_only=True)["global_batch"] == 20
    assert_alike(tmp_path / "run", whole)


@pytest.mark.slow
def test_one_process_resumes_a_run_of_shards(
    whole: Path, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run = shutil.copytree(whole, tmp_path / "run", symlinks=True)
    checkpoint.point(run, "last", run / "checkpoints/00000003")
    assert cli.run(["train", "--resume", str(run)]) == 0
    said = capsys.readouterr().out
    assert "--resume: one process goes on without the run's --strategy fsdp" in said
    assert "--resume: from here on --strategy fsdp -> auto" in said
    assert_alike(run, whole)
    assert not (run / "last/sharded").exists()


@pytest.mark.slow
def test_two_ranks_resume_a_run_of_one_process_in_shards_and_one_of_shards_without(
    whole: Path, trained: Any, tmp_path: Path, two_ranks: Callable[..., Any]
) -> None:
    assert cli.run(arguments(trained.images, tmp_path, "--batch-size", "20")) == 0
    run = tmp_path / "run"
    checkpoint.point(run, "last", run / "checkpoints/00000002")
    other = shutil.copytree(whole, tmp_path / "other", symlinks=True)
    checkpoint.point(other, "last", other / "checkpoints/00000002")
    two_ranks(["train", "--resume", run, "--strategy", "fsdp"], ["train", "--resume", other, "--strategy", "ddp"])
    assert (run / "last/sharded").exists() and not (other / "last/sharded").exists()
    assert_alike(run, whole)
    assert_alike(other, whole)


KILLED = """
import os, signal, sys
from fastimg.system import rank_exchange
from fastimg.train.checkpoints import sharded; from fastimg import cli

write, saves = sharded.save_shards, []

def write_and_die(*arguments, **options):
    write(*arguments, **options)
    saves.append(1)
    if len(saves) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    rank_exchange.BEAT, rank_exchange.PATIENCE = 0.2, 6.0  # torchrun would kill the other rank after 30 seconds
    if os.environ["RANK"] == "1":
        sharded.save_shards = write_and_die
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_rank_killed_while_it_saves_is_started_again_by_torchrun(
    whole: Path, trained: Any, python: str, tmp_path: Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    flags = arguments(trained.images, tmp_path, *SHARED)
    done = torchrun(python, "--max-restarts", "1", str(script), *flags, "--resume", "auto")
    assert done.returncode == 0, done.stderr
    assert f"after step 2 of {STEPS}" in done.stdout  # the third checkpoint never existed
    assert losses(tmp_path / "run") == losses(whole)
    weights, weights2 = (load_file(run / "last/model.safetensors") for run in (tmp_path / "run", whole))
    assert all(torch.equal(weights[name], weights2[name]) for name in weights)
    assert not list((tmp_path / "run/checkpoints").glob(".*"))


def test_without_torchrun_it_is_refused(trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments(trained.images, tmp_path, *SHARED)) == 2
    assert "torchrun --nproc-per-node N -m fastimg train" in " ".join(capsys.readouterr().err.split())


PRE = Preprocessing(
    train_size=32, val_size=32, val_resize=36, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
)


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """A process group with only this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Ranks(0, 1, 1, torch.device("cpu"), "gloo")
    dist.destroy_process_group()


def trainee(ranks: Ranks, arch: str, seed: int, trained_part: str = "") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = build(arch, 4, img_size=32).module
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(trained_part))
    wrap(module, ranks, "fsdp", blocks=repeated(module))
    return module, torch.optim.AdamW(module.parameters(), lr=1e-2)


def step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    torch.manual_seed(seed)
    loss: torch.Tensor = module(torch.randn(4, 3, 32, 32)).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def card(arch: str) -> Card:
    return Card(
        arch=arch, kwargs={}, classes=("a",), num_classes=4, preprocessing=PRE, step=2, epoch=0, metrics={"top1": 0.5}
    )


@pytest.mark.parametrize(("arch", "trained_part"), [("test_vit", ""), ("test_resnet", ""), ("test_vit", "head")])
def test_resuming_from_shards_equals_an_uninterrupted_run(
    arch: str, trained_part: str, alone: Ranks, tmp_path: Path
) -> None:
    """Including batch norms, and weights that begin to train later."""
    module, optimizer = trainee(alone, arch, 0, trained_part)
    for seed in (0, 1):
        step(module, optimizer, seed)
    averages = {name: p.detach() * 0.5 for name, p in module.named_parameters()}
    saved = sharded.save_sharded(tmp_path, card(arch), module, optimizer, {"step": 2}, alone, averages)
    module.requires_grad_(True)
    expected = [step(module, optimizer, seed) for seed in (2, 3)]
    again, optimizer2 = trainee(alone, arch, 1, trained_part)
    averages2 = {name: torch.zeros_like(average) for name, average in averages.items()}
    training = checkpoint.load_training(saved)
    sharded.load_sharded(saved, training, again, optimizer2, alone, averages2)
    again.requires_grad_(True)
    assert [step(again, optimizer2, seed) for seed in (2, 3)] == expected
    for name, average in averages.items():
        assert average.full_tensor().equal(averages2[name].full_tensor())
    plain, _ = checkpoint.load_model(saved)  # the averages
    for name, parameter in plain.module.named_parameters():
        assert parameter.equal(averages[name].full_tensor())


def bare(arch: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same, of whole tensors."""
    torch.manual_seed(seed)
    module = build(arch, 4, img_size=32).module.to(memory_format=torch.channels_last)
    return module, torch.optim.AdamW(module.parameters(), lr=1e-2)


@pytest.mark.parametrize("arch", ["test_vit", "test_resnet"])
def test_shards_are_read_whole_and_whole_tensors_in_shards(arch: str, alone: Ranks, tmp_path: Path) -> None:
    """Weights, moments and averages; whole ones are channels-last, and shards are not."""
    for begun, resumed in ((trainee(alone, arch, 0), bare(arch, 1)), (bare(arch, 0), trainee(alone, arch, 1))):
        module, optimizer = begun
        for seed in (0, 1):
            step(module, optimizer, seed)
        averages = {name: p.detach() * 0.5 for name, p in module.named_parameters()}
        in_shards = isinstance(next(module.parameters()), DTensor)
        if in_shards:
            saved = sharded.save_sharded(tmp_path, card(arch), module, optimizer, {}, alone, averages)
        else:
            stated = {"optimizer": optimizer.state_dict()}
            saved = checkpoint.save(tmp_path, card(arch), module.state_dict(), stated, averages)
        again, optimizer2 = resumed
        averages2 = {name: torch.zeros_like(p.detach()) for name, p in again.named_parameters()}
        training = checkpoint.load_training(saved)
        if in_shards:
            sharded.load_sharded(saved, training, again, optimizer2, alone, averages2, apart=False)
        else:
            saving.load_whole(saved, training, again, optimizer2, averages2)
        for name, average in averages.items():
            one, other = (t.full_tensor() if isinstance(t, DTensor) else t for t in (average, averages2[name]))
            assert torch.equal(one, other), name
        expected = [step(module, optimizer, seed) for seed in (2, 3)]
        np.testing.assert_allclose([step(again, optimizer2, seed) for seed in (2, 3)], expected, rtol=1e-5)


def test_what_learns_beside_the_module_is_resumed(alone: Ranks, tmp_path: Path) -> None:
    """A parameter of the loss, which every rank has whole: the optimiser's moments of it."""

    def fresh() -> tuple[nn.Module, nn.Parameter, torch.optim.Optimizer]:
        module, beside = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))
        wrap(module, alone, "fsdp")
        return module, beside, torch.optim.AdamW([{"params": [*module.parameters()]}, {"params": [beside]}], fused=True)

    module, beside, optimizer = fresh()
    (module(torch.ones(1, 3)) * beside.exp()).sum().backward()
    optimizer.step()
    saved = sharded.save_sharded(tmp_path, card("x"), module, optimizer, {}, alone, beside=[beside])
    again, beside2, optimizer2 = fresh()
    sharded.load_sharded(saved, checkpoint.load_training(saved), again, optimizer2, alone, beside=[beside2])
    for name, value in optimizer.state[beside].items():
        assert value.any() and torch.equal(optimizer2.state[beside2][name], value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), "cannot be read"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "bytes instead of"),
        (lambda file: file.write_bytes(b"\0" + file.read_bytes()[1:]), "is damaged"),
    ],
)
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_damaged_shards_are_named(
    name: str, damage: Callable[[Path], None], words: str, alone: Ranks, tmp_path: Path
) -> None:
    module = nn.Linear(3, 2)
    wrap(module, alone, "fsdp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    saved = sharded.save_sharded(tmp_path, card("x"), module, optimizer, {}, alone)
    damage(saved / "sharded" / name)
    with pytest.raises(UserError, match=rf"sharded/{name}: .*{words}.*resume from another"):
        sharded.load_sharded(saved, checkpoint.load_training(saved), module, optimizer, alone)


@pytest.mark.parametrize(
    ("module_of", "fails"), [(sharded, "save_shards"), (checkpoint, "save_file"), (sharded, "sync_folder")]
)
def test_a_crash_while_saving_leaves_no_complete_checkpoint(
    module_of: ModuleType, fails: str, alone: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Linear(3, 2)
    wrap(module, alone, "fsdp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def crash(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(module_of, fails, crash)
    with pytest.raises(OSError, match="full"):
        sharded.save_sharded(tmp_path, card("x"), module, optimizer, {}, alone)
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))
    monkeypatch.undo()
    saved = sharded.save_sharded(tmp_path, card("x"), module, optimizer, {}, alone)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [saved.name]


def test_blocks_are_gathered_one_by_one_and_batch_norms_in_float32(alone: Ranks) -> None:
    for arch, dtype in (("test_vit", torch.bfloat16), ("test_resnet", torch.float32)):
        module = build(arch, 4, img_size=32).module.to(memory_format=torch.channels_last)
        blocks = repeated(module)
        wrap(module, alone, "fsdp", blocks=blocks, dtype=torch.bfloat16)
        assert {m for m in module.modules() if isinstance(m, FSDPModule)} == {module, *blocks}
        seen = []
        blocks[0].register_forward_pre_hook(lambda m, _, seen=seen: seen.extend(p.dtype for p in m.parameters()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            module(torch.zeros(2, 3, 32, 32, dtype=torch.bfloat16)).sum().backward()
        assert set(seen) == {dtype}
        assert all(p.grad.dtype == torch.float32 for p in module.parameters())


def test_an_evaluation_keeps_the_shards(alone: Ranks) -> None:
    module, optimizer = trainee(alone, "test_vit", 0)
    with torch.inference_mode():
        module.eval()(torch.zeros(1, 3, 32, 32))
    assert all(isinstance(p, DTensor) for p in module.parameters())
    step(module.train(), optimizer, 0)


def test_gradients_of_shards_are_scaled_and_clipped_like_others(alone: Ranks) -> None:
    images = torch.randn(4, 3)
    plain, sharded = nn.Linear(3, 2), nn.Linear(3, 2)
    sharded.load_state_dict(plain.state_dict())
    wrap(sharded, alone, "fsdp")
    norms = []
    for module in (plain, sharded):
        for last in (False, True):
            with accumulate(module, last):
                module(images).square().sum().backward()
            assert last or module is plain or all(p.grad is None for p in module.parameters())
        scale_gradients(module.parameters(), torch.tensor(0.5))
        norms.append(clip_gradients(list(module.parameters()), 0.1))
    torch.testing.assert_close(norms[0], norms[1])
    for one, two in zip(plain.parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close([one.grad], local_shards([two.grad]))


def test_scalar_weights_are_refused(alone: Ranks) -> None:
    module = nn.Linear(3, 2)
    module.gain = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UsageError, match=r"scalar weights \(gain\); use --strategy ddp"):
        wrap(module, alone, "fsdp")
