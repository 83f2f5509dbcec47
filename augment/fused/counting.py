"""The statistics pass in CUDA C++, `statistics.cu`: compiled at run time by NVRTC, launched by CUDA's driver.

Both are called through NVIDIA's cuda-bindings, which torch's wheels for CUDA bring. Where it or NVRTC is missing, or
does not know the GPU, `counter_of` says why, and the Triton pass counts.
"""

import ctypes
import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastimg.augment.ops import Op

THREADS = 256  # of a block, as in statistics.cu
SHARE = 16384  # pixels that a block counts, at most
SOURCE = Path(__file__).with_name("statistics.cu")
NAME = "statistics"
# counts, images, four strides, kinds, rows, words, luts, luts_step, pixels, width, groups, blocks, contrast, equalize
_P, _L, _I = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
TYPES: tuple[Any, ...] = (_P, _P, _L, _L, _L, _L, _P, _P, _I, _P, _I, _I, _I, _I, _I, _I, _I)


class CountingError(RuntimeError):
    """The statistics pass in CUDA C++ cannot be made here; the message says why."""


@dataclass(frozen=True)
class LevelCounter:
    """The kernel on a device, or why there is none."""

    function: Any = None  # of the driver
    missing: str | None = None

    @property
    def words(self) -> str:
        """What counts, as programs print it."""
        return "CUDA C++" if self.missing is None else f"Triton ({self.missing})"

    def launch(self, blocks: int, values: Sequence[int]) -> None:
        """Launch on torch's current stream of its current device."""
        stream = torch.cuda.current_stream().cuda_stream
        driver = importlib.import_module("cuda.bindings.driver")
        given = (tuple(values), TYPES)
        _checked(driver, driver.cuLaunchKernel(self.function, blocks, 1, 1, THREADS, 1, 1, 0, stream, given, 0))


def count(
    counter: LevelCounter,
    counts: torch.Tensor,
    images: torch.Tensor,
    kinds: torch.Tensor,
    rows: torch.Tensor,
    number: int,
    tables: torch.Tensor | None,
) -> None:
    """Add to counts int64 [B, 770] what `number` images need, those named by the first `rows`.

    `kinds`, int32 [B], and `rows` are columns of one tensor; `tables` uint8 [B, 768], any step apart, are looked up
    beforehand.
    """
    _, _, height, width = images.shape
    pixels, strides = height * width, images.stride()
    blocks = -(-pixels // SHARE)
    words = strides[1:] == (1, 3 * width, 3) and images.data_ptr() % 16 == strides[0] % 16 == 0
    values = (counts.data_ptr(), images.data_ptr(), *strides, kinds.data_ptr(), rows.data_ptr(), kinds.stride(0))
    looked = (0, 0) if tables is None else (tables.data_ptr(), tables.stride(0))
    groups = pixels // 16 if words else 0
    ops = int(Op.CONTRAST), int(Op.EQUALIZE)
    counter.launch(number * blocks, (*values, *looked, pixels, width, groups, blocks, *ops))


@functools.cache
def counter_of(device: torch.device) -> LevelCounter:
    """The kernel for a CUDA device, which is made the first time, and kept."""
    if device.type != "cuda" or torch.version.cuda is None:
        return LevelCounter(missing="no GPU with CUDA")
    try:
        return LevelCounter(_loaded(device))
    except (CountingError, ImportError, RuntimeError) as error:  # cuda-bindings raises RuntimeError for no NVRTC
        return LevelCounter(missing=str(error).strip().splitlines()[0])


def _loaded(device: torch.device) -> Any:
    major, minor = torch.cuda.get_device_capability(device)
    image = compiled(f"sm_{major}{minor}")
    driver = importlib.import_module("cuda.bindings.driver")
    with torch.cuda.device(device):
        _make_current(device)
        module = _checked(driver, driver.cuModuleLoadData(image))
        return _checked(driver, driver.cuModuleGetFunction(module, NAME.encode()))


def _make_current(device: torch.device) -> None:
    """Make the device's context this thread's, as every call of CUDA's runtime does; the driver's calls need it."""
    torch.zeros(1, device=device)


def compiled(architecture: str) -> bytes:
    """The machine code for an architecture such as sm_90; no GPU is needed. Raises CountingError with NVRTC's words."""
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), SOURCE.name.encode(), 0, [], []))
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status:
        said = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, said)
        words = said.rstrip(b"\0").decode().strip() or nvrtc.nvrtcGetErrorString(status)[1].decode()
        raise CountingError(f"NVRTC for {architecture}: {words}")
    image = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, image))
    _checked(nvrtc, nvrtc.nvrtcDestroyProgram(program))
    return bytes(image)


def _checked(library: Any, answer: Sequence[Any]) -> Any:
    """What a call answered behind its status. Raises CountingError for an error."""
    status, *values = answer
    if status:
        raise CountingError(f"{library.__name__.rpartition('.')[2]} answered {status!r}")
    return values[0] if values else None
