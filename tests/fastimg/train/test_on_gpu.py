"""Training on a GPU: training, resuming, compiling, checkpoints, evaluation and several processes.

Results are compared with the CPU's or with another run on the GPU, not with constants.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fastimg
from fastimg import cli as command_line
from fastimg.augment import ahead
from fastimg.data import planning
from fastimg.loaders import Loader
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_model

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch's warnings about itself while it selects algorithms and compiles.
    pytest.mark.filterwarnings("ignore:Plan failed with a cudnnException:UserWarning"),
    pytest.mark.filterwarnings("ignore:Please use the new API settings to control TF32:UserWarning"),
]

# Without augmentation, in float32 except for TF32, whose products have 11 bits; small steps keep rounding errors small.
PLAIN = ("--no-aug", "--no-amp", "--opt", "sgd", "--lr", "1e-3", "--clip-grad", "1")
CLOSE = 0.03  # relative: differences of the loss between kernels


@pytest.fixture(scope="module")
def data(write_images: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 24 training images (three full batches) and 12 validation images, of three colours."""
    root = tmp_path_factory.mktemp("gpu")
    images = write_images(root / "images")
    assert command_line.run(["convert", str(images), str(root / "shards"), "--val-fraction", "0.34"]) == 0
    return root / "shards"


@pytest.fixture(autouse=True)
def switches() -> Any:
    """Restore process-wide settings of a run after it."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.benchmark = before[1]
    torch.use_deterministic_algorithms(deterministic)


def arguments(data: Path, output: Path, *more: object, device: str = DEVICE) -> list[str]:
    flags = ["--arch", "test_efficientnet", "--img-size", "32", "-b", "8", "--epochs", "2", "--workers", "2"]
    extra = ["--log-interval", "1", "--device", device, "--output", output, "--name", "run"]
    return [str(argument) for argument in ("train", data, *flags, *extra, *more)]


def losses(run: Path, kind: str = "train") -> list[float]:
    return [record["loss"] for record in rundir.read_log(run) if record["kind"] == kind]


def momentum(run: Path) -> torch.Tensor:
    """The sums of SGD's gradients over the run, for all weights."""
    training = torch.load(run / "last/training.pt", map_location="cpu", weights_only=True)
    return torch.cat([state["momentum_buffer"].flatten().float() for state in training["optimizer"]["state"].values()])


@pytest.fixture
def train(data: Path, tmp_path: Path, cli: Callable[..., Any]) -> Callable[..., tuple[Path, str]]:
    """`train(name, flags...)`: (the run, its output)."""

    def call(name: str, *flags: object, device: str = DEVICE) -> tuple[Path, str]:
        ran = cli(*arguments(data, tmp_path / name, *flags, device=device))
        assert ran.code == 0, ran.err
        return tmp_path / name / "run", ran.out

    return call


def test_it_trains_like_a_cpu(train: Callable[..., tuple[Path, str]]) -> None:
    """The same order, crops, weights and arithmetic, up to TF32: losses, and the direction of the last steps."""
    (gpu, said), (cpu, _) = train("gpu", *PLAIN), train("cpu", *PLAIN, device="cpu")
    assert "float32 (--no-amp)" in said
    assert len(losses(gpu)) == 2 * 3 and len(losses(gpu, "val")) == 2
    np.testing.assert_allclose(losses(gpu), losses(cpu), rtol=CLOSE)
    np.testing.assert_allclose(losses(gpu, "val"), losses(cpu, "val"), rtol=2 * CLOSE)
    one, two = (load_file(run / "last/model.safetensors") for run in (gpu, cpu))
    assert one.keys() == two.keys() and all(bool(weights.isfinite().all()) for weights in one.values())
    first, second = (momentum(run) for run in (gpu, cpu))
    assert float(torch.nn.functional.cosine_similarity(first, second, dim=0)) > 0.9


def test_plans_whose_words_came_with_the_batch(
    train: Callable[..., tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights as with plans that the trainer draws, and sends for each batch."""
    flags = ("--aa", "trivial", "--reprob", "0.2", "--mixup", "0.2", "--progressive", "32:64", "--deterministic")
    arrived = []
    inner = ahead.sent
    monkeypatch.setattr(planning, "sent", lambda plan, words: arrived.append(words.device.type) or inner(plan, words))
    (one, _) = train("threads", *flags, "--epochs", "12")
    assert len(arrived) == 12 * 3 and set(arrived) == {DEVICE}
    monkeypatch.setattr(Loader, "prepare", lambda self, preparation: None)
    (other, _) = train("trainer", *flags, "--epochs", "12")
    assert len(arrived) == 12 * 3
    first, second = (load_file(run / "last/model.safetensors") for run in (one, other))
    assert all(torch.equal(weights, second[name]) for name, weights in first.items())


def test_it_learns_with_everything_on(train: Callable[..., tuple[Path, str]]) -> None:
    """Augmentation, mixing, accumulation, clipping, averages, bf16 and growing crops, on separable colours."""
    mixed = ("--aa", "trivial", "--rotate", "10", "--reprob", "0.2", "--mixup", "0.2", "--cutmix", "0.2")
    steps = ("--grad-accum-steps", "2", "--clip-grad", "1", "--model-ema", "--model-ema-decay", "0.8", "--tta")
    growing = ("--progressive", "32:64", "--epochs", "12", "--lr", "3e-3", "-b", "7")
    run, said = train("run", *mixed, *steps, *growing, "--amp-dtype", "bf16")
    assert "bf16 autocast" in said
    found = losses(run, "val")
    assert np.isfinite(losses(run)).all() and len(found) == 12 and found[-1] < found[0]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_mixed_precision_and_the_scaler(dtype: str, train: Callable[..., tuple[Path, str]]) -> None:
    plain, _ = train("plain", *PLAIN)
    run, said = train(dtype, *(flag for flag in PLAIN if flag != "--no-amp"), "--amp-dtype", dtype)
    assert f"{dtype} autocast" in said
    np.testing.assert_allclose(losses(run), losses(plain), rtol=0.1)
    scaler = torch.load(run / "last/training.pt", map_location="cpu", weights_only=True)["scaler"]
    assert (scaler["scale"] >= 1.0) if dtype == "fp16" else scaler == {}
    assert all(tensor.dtype != torch.float16 for tensor in load_file(run / "last/model.safetensors").values())


# Dies in the middle of a step, as by kill -9.
DYING = """
import os, sys
from fastimg import cli
from fastimg.train import step

average = step.average_gradients

def dying(run, *rest):
    if run.progress.step == 4:
        os._exit(9)
    return average(run, *rest)

if sys.argv[1] == "dies":
    step.average_gradients = dying
code = cli.run(sys.argv[2:])
sys.stdout.flush()
os._exit(code)
"""


def process(script: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """A run in its own process."""
    call = [sys.executable, str(script), *map(str, command)]
    return subprocess.run(call, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("flags", "bound"),
    [
        (("--deterministic", "--amp-dtype", "bf16"), 0.0),  # the same bits
        (("--deterministic", "--amp-dtype", "fp16", "--aa", "trivial", "--mixup", "0.2", "--model-ema"), 0.0),
        (
            ("--no-amp", "--opt", "sgd", "--lr", "1e-3", "--clip-grad", "1"),
            0.05,
        ),  # atomic sums and cuDNN's choices differ between processes
    ],
    ids=["float and bf16", "everything", "not deterministic"],
)
def test_a_killed_run_resumes(flags: Sequence[str], bound: float, data: Path, tmp_path: Path) -> None:
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    every = (*flags, "--save-interval", "2", "--model-kwargs", "drop_rate=0.2")
    whole = process(script, "lives", *arguments(data, tmp_path / "whole", *every))
    assert whole.returncode == 0, whole.stderr
    died = process(script, "dies", *arguments(data, tmp_path / "halves", *every))
    assert died.returncode == 9, died.stderr
    resumed = process(script, "lives", *arguments(data, tmp_path / "halves", *every, "--resume", "auto"))
    assert resumed.returncode == 0, resumed.stderr
    assert "after step 4 of" in resumed.stdout
    one, two = (load_file(tmp_path / name / "run/last/model.safetensors") for name in ("whole", "halves"))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, atol=bound, rtol=bound, msg=name)
    np.testing.assert_allclose(losses(tmp_path / "halves/run"), losses(tmp_path / "whole/run"), rtol=bound, atol=0)
    first, second = (
        torch.load(tmp_path / name / "run/last/training.pt", map_location="cpu", weights_only=True)["optimizer"][
            "state"
        ]
        for name in ("whole", "halves")
    )
    assert first.keys() == second.keys()
    for index, state in first.items():
        for key, value in state.items():
            other = torch.as_tensor(second[index][key])
            torch.testing.assert_close(other, torch.as_tensor(value), atol=bound, rtol=bound, msg=f"{key} {index}")


def test_a_checkpoint_resumes_and_evaluates_on_any_device(
    train: Callable[..., tuple[Path, str]], data: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    run, _ = train("runs", *PLAIN, "--save-interval", "2")
    model, card = load_model(run)
    assert card.epoch in (1, 2)  # the best
    assert {parameter.device.type for parameter in model.module.parameters()} == {"cpu"}
    for device in (DEVICE, "cpu"):
        told = cli("eval", run / "last", data, "--no-amp", "--device", device, "--output", tmp_path / "p.png", "--json")
        assert told.code == 0, told.err
        assert json.loads(told.out)["loss"] == pytest.approx(losses(run, "val")[-1], rel=CLOSE)
    # Whether it is the last or not, a checkpoint made on one device is restored on the other.
    for device in ("cpu", DEVICE):
        ran = cli(*arguments(data, tmp_path / "runs", *PLAIN, "--resume", "auto", device=device))
        assert ran.code == 0 and "after step 6 of 6" in ran.out, ran.err


@pytest.mark.filterwarnings("default")  # warnings of compilers
@pytest.mark.parametrize(
    ("mode", "flags"),
    [("default", ()), ("reduce-overhead", ("--tta", "--model-ema")), ("max-autotune-no-cudagraphs", ())],
)
def test_a_compiled_run_trains_like_a_plain_one(
    mode: str, flags: Sequence[str], train: Callable[..., tuple[Path, str]]
) -> None:
    """Replayed graphs keep outputs, gradients and the averages' sources in their own memory."""
    torch._dynamo.reset()
    plain, _ = train("plain", *PLAIN, *flags)
    run, said = train("compiled", *PLAIN, *flags, "--compile", mode)
    torch._dynamo.reset()
    assert f"compiled    {mode}: " in said and set(re.findall(r"recompiled (\d+) time", said)) == {"0"}
    np.testing.assert_allclose(losses(run), losses(plain), rtol=2 * CLOSE)
    np.testing.assert_allclose(losses(run, "val"), losses(plain, "val"), rtol=2 * CLOSE)


@pytest.fixture(scope="module")
def trained_on_gpu(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that distinguishes the colours."""
    output = tmp_path_factory.mktemp("trained-on-gpu")
    assert command_line.run(arguments(data, output, "--no-aug", "--epochs", "12", "--lr", "3e-3")) == 0
    return output / "run"


def test_eval_equals_the_cpus(trained_on_gpu: Path, data: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    """With batches that do not divide the split; the last one is read after the loader has ended."""
    told = {}
    for device in (DEVICE, "cpu"):
        flags = (
            "--split",
            "train",
            "-b",
            "5",
            "--no-amp",
            "--tta",
            "--output",
            tmp_path / "plot.png",
            "--overwrite",
            "--json",
        )
        ran = cli("eval", trained_on_gpu, data, *flags, "--device", device)
        assert ran.code == 0, ran.err
        told[device] = json.loads(ran.out)
    gpu, cpu = told[DEVICE], told["cpu"]
    assert gpu["images"] == cpu["images"] == 24 and gpu["top1"] == pytest.approx(cpu["top1"], abs=1.1 / 24)
    assert gpu["loss"] == pytest.approx(cpu["loss"], rel=CLOSE, abs=CLOSE)
    assert [sum(row) for row in gpu["confusion"]] == [sum(row) for row in cpu["confusion"]] == [8, 8, 8]


def test_predict_equals_the_cpus(
    trained_on_gpu: Path, write_images: Callable[..., Path], tmp_path: Path, cli: Callable[..., Any]
) -> None:
    """With unreadable files, in the given order."""
    files = sorted(write_images(tmp_path / "images", 5).glob("*/*"))
    files.insert(7, tmp_path / "missing.jpg")
    answers = {}
    for device in (DEVICE, "cpu"):
        ran = cli("predict", trained_on_gpu, *files, "-b", "4", "--no-amp", "--json", "--topk", "2", "--device", device)
        assert ran.code == 0, ran.err
        answers[device] = [json.loads(line) for line in ran.out.splitlines()]
    assert [answer["file"] for answer in answers[DEVICE]] == [str(file) for file in files]
    for gpu, cpu in zip(answers[DEVICE], answers["cpu"], strict=True):
        assert (gpu["error"] is None) == (cpu["error"] is None) == ("missing" not in gpu["file"])
        assert gpu["probabilities"] == pytest.approx(cpu["probabilities"], abs=CLOSE)
        if cpu["error"] is None and cpu["probabilities"][0] - cpu["probabilities"][1] > 2 * CLOSE:
            assert gpu["classes"][0] == cpu["classes"][0]


def test_embed_equals_the_cpus(trained_on_gpu: Path, data: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    found = {}
    for device in (DEVICE, "cpu"):
        flags = ("--weights", trained_on_gpu, "--no-amp", "--dtype", "fp32", "--format", "npy", "--split", "train")
        cache = ("--cache-dir", tmp_path / f"cache-{device}", "--device", device)
        ran = cli("embed", data, tmp_path / device, *flags, *cache)
        assert ran.code == 0, ran.err
        found[device] = np.load(tmp_path / device / "train.npy")
    gpu, cpu = found[DEVICE], found["cpu"]
    assert gpu.shape == cpu.shape and len(gpu) == 24 and np.isfinite(gpu).all()
    norms = np.linalg.norm(gpu, axis=1) * np.linalg.norm(cpu, axis=1)
    assert ((gpu * cpu).sum(axis=1) / np.maximum(norms, 1e-12) > 0.999).all()


def test_a_head_learns_on_embeddings(train: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    frozen = ("--freeze", "backbone", "--no-aug", "--lr", "0.01", "--cache-dir", tmp_path / "cache")
    run, said = train("run", *frozen, "--epochs", "5")
    assert "36 made now" in said
    assert losses(run)[-1] < losses(run)[0]


def torchrun(ranks: int, *command: object) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [*launcher, "-m", "fastimg", *map(str, command)]
    return subprocess.run(call, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_rank_of_nccl_trains_like_one_process(
    strategy: str, train: Callable[..., tuple[Path, str]], data: Path, tmp_path: Path
) -> None:
    flags = (*PLAIN, "--arch", "test_vit", "--strategy", strategy)
    plain, _ = train("plain", *flags[:-2])
    done = torchrun(1, *arguments(data, tmp_path / "ranks", *flags))
    assert done.returncode == 0, done.stderr
    assert "destroy_process_group" not in done.stderr  # torch's warning about a process group that is not destroyed
    np.testing.assert_allclose(losses(tmp_path / "ranks/run"), losses(plain), rtol=CLOSE)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize(
    "flags",
    [
        ("--arch", "test_vit"),
        ("--arch", "test_efficientnet", "--sync-bn"),
        ("--arch", "test_vit", "--strategy", "fsdp"),
        ("--arch", "test_vit", "--compile"),
    ],
    ids=" ".join,
)
def test_two_ranks_of_nccl_train_like_one_process(
    flags: Sequence[str], train: Callable[..., tuple[Path, str]], data: Path, tmp_path: Path
) -> None:
    alone = [flag for flag in flags if flag in ("--arch", "test_vit", "test_efficientnet")]
    plain, _ = train("plain", *PLAIN, *alone)
    done = torchrun(2, *arguments(data, tmp_path / "ranks", *PLAIN, *flags, "-b", "4"))
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(losses(tmp_path / "ranks/run"), losses(plain), rtol=2 * CLOSE)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_ranks_of_nccl_search_for_a_batch_and_share_their_norms(data: Path, tmp_path: Path) -> None:
    done = torchrun(2, *arguments(data, tmp_path / "ranks", "--sync-bn", "-b", "auto"))
    assert done.returncode == 0, done.stderr
    assert "chosen" in done.stdout and np.isfinite(losses(tmp_path / "ranks/run")).all()


def test_a_model_in_memory_answers_from_any_thread(data: Path, train: Callable[..., tuple[Path, str]]) -> None:
    """A thread that has used no GPU yet, and a batch that stays on the device; close to the CPU's answers."""
    run, _ = train("run", *PLAIN)
    images = np.random.default_rng(0).integers(0, 256, (9, 40, 50, 3), dtype=np.uint8)
    gpu, cpu = (fastimg.load(run, device=device, amp=False, batch_size=4) for device in (DEVICE, "cpu"))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(gpu.predict(images)))
    thread.start()
    thread.join()
    shares = [dict(zip(answer.classes, answer.probabilities, strict=True)) for answer in (*found, *cpu.predict(images))]
    assert len(shares) == 18
    for one, other in zip(shares[:9], shares[9:], strict=True):
        assert one == pytest.approx(other, abs=0.01)
    inputs = gpu.inputs(images)
    assert inputs.is_cuda and inputs.shape == (9, 3, 32, 32)
    torch.testing.assert_close(inputs.cpu(), cpu.inputs(images))
