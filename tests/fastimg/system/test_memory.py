"""Memory that runs out in training ends in a sentence that names the flags."""

import pytest
import torch

import fastimg.train.step as training_step
from fastimg.config.commands import Train
from fastimg.system.memory import advice, available, ran_out


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("shape mismatch"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_what_counts(error, expected):
    assert ran_out(error) is expected


def test_torch_says_it_so_on_this_machine():
    with pytest.raises(Exception) as caught:
        torch.empty(1 << 62, dtype=torch.uint8)
    assert ran_out(caught.value)


def test_what_there_is():
    assert 2**20 < available() < 2**50


def test_advice_names_what_is_not_in_use_yet():
    plain = advice(Train())
    assert "--batch-size (64, or auto)" in plain and "--grad-accum-steps" in plain and "--grad-checkpointing" in plain
    saving = advice(Train(grad_checkpointing=True, strategy="fsdp", amp=False))
    assert "--grad-checkpointing" not in saving and "fsdp" not in saving and "--no-amp" in saving


def test_a_run_that_does_not_fit(trained, fast, tmp_path, cli, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(training_step, "forward_backward", full)
    ran = cli("train", trained.shards, *fast, "-o", tmp_path / "runs")
    assert ran.code == 1
    assert "out of memory on cpu in step 1, with batches of 8 images of 32 pixels: lower --batch-size" in ran.err
    assert "Traceback" not in ran.err and not (tmp_path / "runs").exists()
