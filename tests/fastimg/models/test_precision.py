"""Mixed precision: the choice of the type and its reason; and torch's own switches."""

import os
from types import SimpleNamespace

import pytest
import torch

from fastimg.errors import UsageError
from fastimg.models import precision
from fastimg.models.precision import choose, choose_trained, set_backends

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("native", "dtype", "word"), [(True, torch.bfloat16, "bf16"), (False, None, "no bf16 instructions")]
)
def test_a_cpus_type_depends_on_its_instructions(native, dtype, word, monkeypatch):
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: native)
    chosen = choose(CPU, True, "auto")
    assert chosen.dtype is dtype and word in chosen.reason
    assert chosen.input_dtype is (dtype or torch.float32)
    assert choose(CPU, True, "bf16").dtype is torch.bfloat16  # asked for


@pytest.mark.parametrize("native", [True, False])
def test_a_gpu_without_bf16_takes_fp16(native, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert choose(CUDA, True, "auto").dtype is (torch.bfloat16 if native else torch.float16)
    assert choose(CUDA, True, "fp16").dtype is torch.float16


def test_off():
    chosen = choose(CUDA, False, "auto")
    assert chosen.dtype is None and chosen.input_dtype is torch.float32
    assert not choose(CPU, False, "auto").scaler().is_enabled()


@pytest.mark.parametrize(
    ("device", "native", "amp", "trained", "chosen", "words"),
    [
        (CPU, True, None, "float32", "float32", "as in training"),
        (CUDA, True, None, "float32", "float32", "as in training"),
        (CPU, True, None, "bf16", "bf16", "as in training"),
        (CPU, False, None, "bf16", "float32", "trained in bf16, which this device lacks"),
        (CUDA, False, None, "bf16", "fp16", "trained in bf16, which this device lacks"),
        (CUDA, True, None, "fp16", "fp16", "as in training"),
        (CPU, True, None, "fp16", "float32", "trained in fp16, which CPUs do not have"),
        (CPU, True, True, "float32", "bf16", "bf16 autocast"),
        (CPU, True, False, "bf16", "float32", "--no-amp"),
        (CPU, True, None, None, "bf16", "bf16 autocast"),  # of an earlier version
    ],
)
def test_a_model_is_used_in_the_precision_of_its_training(device, native, amp, trained, chosen, words, monkeypatch):
    monkeypatch.setattr(precision, "_cpu_has_bf16", lambda: native)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    found = choose_trained(device, amp, trained)
    assert found.name == chosen and words in found.reason


def test_autocast_uses_the_chosen_type():
    x, layer = torch.ones(2, 2), torch.nn.Linear(2, 2)
    with choose(CPU, True, "bf16").autocast():
        assert layer(x).dtype is torch.bfloat16
    with choose(CPU, False, "auto").autocast():
        assert layer(x).dtype is torch.float32


def test_a_cpu_does_not_train_in_fp16():
    with pytest.raises(UsageError, match="--amp-dtype fp16"):
        choose(CPU, True, "fp16")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_switches_of_torch(device, deterministic, monkeypatch):
    """They can be set without a GPU."""
    set_ = {}
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "so that it is as before after the test")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(benchmark=None))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda name: set_.update(matmul=name))
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on: set_.update(deterministic=on))
    set_backends(torch.device(device), deterministic)
    cuda = device == "cuda"
    assert set_ == {"deterministic": deterministic} | ({"matmul": "high"} if cuda else {})
    assert torch.backends.cudnn.benchmark is (not deterministic if cuda else None)
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if cuda and deterministic else None)


@pytest.mark.parametrize("command", ["eval", "predict", "embed"])
def test_every_command_that_runs_a_model_sets_them(command, trained, tmp_path, cli, monkeypatch):
    calls = []
    for module in ("fastimg.predict.inference", "fastimg.predict.embedding"):
        monkeypatch.setattr(f"{module}.set_backends", lambda device, deterministic=False: calls.append(device.type))
    arguments = {
        "eval": (trained.run, trained.shards, "--output", tmp_path / "plot.png", "--overwrite"),
        "predict": (trained.run, next((trained.images / "val" / "red").iterdir())),
        "embed": (trained.shards, tmp_path / "out", "--weights", trained.run, "--cache-dir", tmp_path / "cache"),
    }
    ran = cli(command, *arguments[command], "--device", "cpu")
    assert ran.code == 0, ran.err
    assert calls == ["cpu"]


def test_training_names_what_has_no_deterministic_implementation(tmp_path, cli, monkeypatch):
    """torch's own words, of an operation that has none on a CPU either."""

    def step(*_, **__):
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))

    monkeypatch.setattr("fastimg.train.loop.optimiser_step", step)
    flags = ("--arch", "test_resnet", "--img-size", "32", "--epochs", "1", "--workers", "1", "-o", tmp_path)
    ran = cli("train", "--device", "cpu", *flags, "--deterministic")
    assert ran.code == 1 and "Traceback" not in ran.err
    assert "--deterministic: torch's put_, which this model needs, gives other bits in each run on cpu" in " ".join(
        ran.err.split()
    )
