"""Running out of memory in training ends with a sentence that names flags."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

import fastimg.train.step as training_step
from fastimg.config.commands import Train
from fastimg.system.memory import advice, available, pinned, ran_out, release
from fastimg.train.setup import _print_slots


def accelerator_error(code: int) -> RuntimeError:
    """torch's own class for CUDA runtime errors, with the error code that it sets."""
    error = torch.AcceleratorError("CUDA error: unknown")
    error.error_code = code
    return error


LOOK_UP = (
    "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api for more information."
)
MEANING_SO = {
    "torch's allocator": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "Python": MemoryError(),
    "torch's allocator on the host": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
    ),
    "the system": RuntimeError("unable to mmap 1024 bytes from file: Cannot allocate memory (12)"),
    "a compiler": RuntimeError(
        "backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    ),
    "CUDA, or its pinned memory": RuntimeError(f"CUDA error: out of memory\n{LOOK_UP}"),
    "CUDA, by its code": accelerator_error(2),
    "CUDA's driver": RuntimeError("CUDA driver error: out of memory"),
    "Triton": RuntimeError("Triton Error [CUDA]: out of memory"),
    "cuDNN": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cuDNN 9, host": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    "cuDNN 9, device": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cuSPARSE": RuntimeError("CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`"),
    "cuSOLVER": RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    "cuFFT": RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    "NCCL": dist.DistBackendError(
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'"
    ),
    "NCCL, older": dist.DistBackendError("NCCL error in: x.cpp:1\nLast error:\nFailed to CUDA malloc 6291456 bytes"),
    "NCCL, allocating": dist.DistBackendError(
        "NCCL error in: x.cpp:1\nLast error:\nFailed to CUDA calloc 6291456 bytes"
    ),
}
MEANING_SOMETHING_ELSE = {
    "a shape": RuntimeError("shape mismatch"),
    "no RuntimeError": ValueError("can't allocate memory"),
    "cuDNN: what it cannot do": RuntimeError(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."
    ),
    "cuDNN: a fault": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "cuBLAS: a fault": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    "CUDA: an assertion": RuntimeError("CUDA error: device-side assert triggered"),
    "CUDA, by its code": accelerator_error(710),
    "Triton: shared memory of a kernel": RuntimeError(
        "out of resource: shared memory, Required: 262144, limit: 232448"
    ),
    "NCCL: another rank": dist.DistBackendError("NCCL error in: x.cpp:1, remote process exited or network error"),
}


@pytest.mark.parametrize("error", MEANING_SO.values(), ids=MEANING_SO)
def test_errors_that_mean_out_of_memory(error):
    assert ran_out(error) is True


@pytest.mark.parametrize("error", MEANING_SOMETHING_ELSE.values(), ids=MEANING_SOMETHING_ELSE)
def test_errors_that_do_not_mean_out_of_memory(error):
    assert ran_out(error) is False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_says_it_so():
    """More memory than any machine has: on the device, and pinned on the host."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert ran_out(caught.value)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, pin_memory=True)
    assert ran_out(caught.value)
    release(torch.device("cuda"))
    assert float(torch.ones(3, device="cuda").sum()) == 3.0  # the device still works


def test_torchs_wording_on_this_machine():
    with pytest.raises(Exception) as caught:
        torch.empty(1 << 62, dtype=torch.uint8)
    assert ran_out(caught.value)


def test_available_memory():
    assert 2**20 < available() < 2**50


def test_advice_names_unused_flags():
    plain = advice(Train(batch_size=64))
    assert "--batch-size (64, or auto)" in plain and "--grad-accum-steps" in plain and "--grad-checkpointing" in plain
    saving = advice(Train(batch_size=64, grad_checkpointing=True, strategy="fsdp", amp=False))
    assert "--grad-checkpointing" not in saving and "fsdp" not in saving and "--no-amp" in saving


def test_a_run_that_does_not_fit(trained, fast, tmp_path, cli, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(training_step, "forward_backward", full)
    ran = cli("train", trained.shards, *fast, "-o", tmp_path / "runs")
    assert ran.code == 1
    assert "out of memory on cpu in step 1, with batches of 8 images of 32 pixels: lower --batch-size" in ran.err
    assert "Traceback" not in ran.err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("asked", "taken"), [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (154_140_672, 1 << 28)])
def test_pinned_blocks_are_powers_of_two(asked, taken):
    assert pinned(asked) == taken


@pytest.mark.parametrize(("kind", "words"), [("cpu", "288.0 MiB; scratch"), ("cuda", "384.0 MiB pinned, in powers of")])
def test_slots_are_printed_at_the_size_that_they_take(kind, words, capsys):
    loader = SimpleNamespace(slot_bytes=96 << 20, slots=3, workers=2, describe=lambda: "threads")
    setup = SimpleNamespace(
        config=Train(resident=False, loader="native"),
        data=SimpleNamespace(loader=loader, val_loader=None),
        ranks=SimpleNamespace(device=torch.device(kind)),
    )
    _print_slots(SimpleNamespace(setup=setup), Console(width=200))
    assert f"2 threads, 3 slots of 100,663,296 bytes, {words}" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_torch_takes_for_pinned_memory():
    torch._C._host_emptyCache()
    before = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    block = torch.empty(100_000_001, dtype=torch.uint8, pin_memory=True)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before == pinned(block.nbytes)
