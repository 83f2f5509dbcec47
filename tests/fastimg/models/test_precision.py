"""Mixed precision: which type, and why."""

import pytest
import torch

from fastimg.errors import UsageError
from fastimg.models import precision
from fastimg.models.precision import choose

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("native", "dtype", "word"), [(True, torch.bfloat16, "bf16"), (False, None, "no bf16 instructions")]
)
def test_a_cpu_follows_its_instructions(native, dtype, word, monkeypatch):
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


def test_autocast_is_what_was_chosen():
    x, layer = torch.ones(2, 2), torch.nn.Linear(2, 2)
    with choose(CPU, True, "bf16").autocast():
        assert layer(x).dtype is torch.bfloat16
    with choose(CPU, False, "auto").autocast():
        assert layer(x).dtype is torch.float32


def test_a_cpu_does_not_train_in_fp16():
    with pytest.raises(UsageError, match="--amp-dtype fp16"):
        choose(CPU, True, "fp16")
