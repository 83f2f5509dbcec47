"""Running out of memory: how to recognise it, how much memory is left, and which flags help."""

import contextlib
import ctypes
import gc
from typing import TYPE_CHECKING

from fastimg.config.commands import Train

from . import hardware

if TYPE_CHECKING:
    import torch

_TRIM_THRESHOLD = -1  # parameters of glibc's mallopt
_MMAP_THRESHOLD = -3
_KEPT = 2**31 - 1  # bytes
_MAPPED = 2**30  # bytes

# What torch's other errors say, in lower case, where the memory is not that of its own allocator for GPUs.
_WORDS = (
    "can't allocate memory",  # on the host: torch's allocator, the system, C++
    "cannot allocate memory",
    "std::bad_alloc",
    "cuda out of memory",  # an OutOfMemoryError that a compiler has wrapped
    "cuda error: out of memory",  # the CUDA runtime, for pinned memory of the host too (cudaHostAlloc)
    "cuda driver error: out of memory",
    "triton error [cuda]: out of memory",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_host_allocation_failed",  # cuDNN 9
    "cudnn_status_internal_error_device_allocation_failed",
    "cublas_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cufft_alloc_failed",
    "cuda failure 'out of memory'",  # NCCL; since 2.18 with the number
    "cuda failure 2 'out of memory'",
    "failed to cuda calloc",
    "failed to cuda malloc",
    "failed to cuda host alloc",
)
_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the host.

    Libraries beside torch's allocator have errors of their own: cuDNN for its workspace, cuBLAS for its handle, NCCL.
    """
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    accelerator = getattr(torch, "AcceleratorError", None)  # a RuntimeError
    if accelerator is not None and isinstance(error, accelerator):
        return getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY or _says_so(error)
    return isinstance(error, RuntimeError) and _says_so(error)


def _says_so(error: BaseException) -> bool:
    text = str(error).lower()
    return any(words in text for words in _WORDS)


def keep_freed() -> None:
    """Let glibc keep up to 2 GiB of freed memory, instead of mapping every activation anew, page by page.

    On a CPU, four forward passes of MobileNetV2 (64 images of 224 px) then take 9.2 s of processor time instead of 14.8
    (benchmarks/malloc.py, n = 3). Does nothing without glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)


def release(device: "torch.device") -> None:
    """Free unreferenced memory: after an error, tensors are kept alive by reference cycles through frames."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch._C._host_emptyCache()  # pinned memory: torch.accelerator.empty_host_cache, which 2.11 lacks
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def available() -> int:
    """Bytes of host memory that this process may still allocate, within the limit of its container."""
    return hardware.memory().available


def pinned(nbytes: int) -> int:
    """The bytes that a pinned block of so many takes: torch's allocator rounds them up to a power of two.

    So do torch 2.11 to 2.15 (`CachingHostAllocator.h`), unless their configuration sets a limit to that.
    """
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0


def advice(config: Train) -> str:
    """The flags that would reduce memory use, the most promising first."""
    batch = "" if config.batch_size == "auto" else f" ({config.batch_size}, or auto)"
    ways = [f"lower --batch-size{batch} and raise --grad-accum-steps by as much"]
    if not config.grad_checkpointing:
        ways.append("add --grad-checkpointing")
    if not config.amp:
        ways.append("leave out --no-amp")
    if config.strategy != "fsdp":
        ways.append("use --strategy fsdp on several devices")
    return "; or ".join([*ways, "or use smaller images with --img-size"]).replace("; or or", "; or")
