"""Precision: torch's switches for float32 and kernels, and mixed precision: the choice of a type, with its reason."""

import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from fastimg.errors import UsageError

PrecisionName = Literal["float32", "bf16", "fp16"]
_NAMES: dict[torch.dtype | None, PrecisionName] = {None: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Precision:
    """The autocast type for a device, None for plain float32, and the reason for the choice."""

    device_type: str
    dtype: torch.dtype | None
    reason: str

    def autocast(self) -> AbstractContextManager[object]:
        """The context for a forward pass."""
        return torch.autocast(self.device_type, dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None)

    @property
    def name(self) -> PrecisionName:
        """What checkpoints state."""
        return _NAMES[self.dtype]

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of normalised images."""
        return self.dtype or torch.float32

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler for fp16; it does nothing for other types."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype == torch.float16)


def set_backends(device: torch.device, deterministic: bool = False) -> None:
    """Set torch's global switches, for training as for everything that runs a model later.

    On a GPU: TF32 for what is left in float32, and the fastest of cuDNN's algorithms, which it measures, as batches
    have one shape; with `deterministic`, only algorithms that always give the same bits.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not deterministic
        torch.set_float32_matmul_precision("high")
    if device.type == "cuda" and deterministic:  # without it torch refuses cuBLAS; it is read at the first call
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)


_WITHOUT_FIXED_BITS = re.compile(r"(\w+) does not have a deterministic implementation")


def refused_operation(error: BaseException) -> str | None:
    """The operation that torch refused because `set_backends` said `deterministic`; None for other errors."""
    found = _WITHOUT_FIXED_BITS.search(str(error)) if isinstance(error, RuntimeError) else None
    return found and found[1]


def choose(device: torch.device, amp: bool, amp_dtype: str) -> Precision:
    """Choose bf16 if the device supports it, else fp16 on GPUs and float32 on CPUs. Raises UsageError."""
    if not amp:
        return Precision(device.type, None, "float32 (--no-amp)")
    if device.type == "cuda":
        if amp_dtype == "fp16" or (amp_dtype == "auto" and not torch.cuda.is_bf16_supported(including_emulation=False)):
            return Precision("cuda", torch.float16, "fp16 autocast with a gradient scaler")
        return Precision("cuda", torch.bfloat16, "bf16 autocast")
    if amp_dtype == "fp16":
        raise UsageError("--amp-dtype fp16: not supported on CPUs; use --amp-dtype bf16 or --no-amp")
    if amp_dtype == "bf16" or _cpu_has_bf16():
        return Precision("cpu", torch.bfloat16, "bf16 autocast")
    return Precision("cpu", None, "float32 (this CPU has no bf16 instructions)")


def choose_trained(device: torch.device, amp: bool | None, trained: PrecisionName | None) -> Precision:
    """The precision for a trained model: what `amp` says, else that of its training, where the device has it.

    fp16 becomes float32 on CPUs, and bf16 what `choose` takes in its place; the reason says so. Of models that state
    nothing, as checkpoints of earlier versions, `choose` decides.
    """
    if amp is not None or trained is None:
        return choose(device, amp is not False, "auto")
    if trained == "float32" or (trained == "fp16" and device.type == "cpu"):
        why = "as in training" if trained == "float32" else "the model was trained in fp16, which CPUs do not have"
        return Precision(device.type, None, f"float32 ({why})")
    if trained == "fp16":
        return Precision(device.type, torch.float16, "fp16 autocast (as in training)")
    chosen = choose(device, True, "auto")
    if chosen.name == trained:
        return replace(chosen, reason=f"{chosen.reason} (as in training)")
    return replace(chosen, reason=f"{chosen.name} (the model was trained in {trained}, which this device lacks)")


def _cpu_has_bf16() -> bool:
    """Whether the CPU has AVX-512 BF16 or AMX; emulated bf16 is slower than float32."""
    probes = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(probe() for probe in probes if probe is not None)
