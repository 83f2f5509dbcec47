"""The facts found by `doctor`, and the advice that follows from them: a pure function of the facts."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fastimg.errors import UserError
from fastimg.system.disks import Disk
from fastimg.system.hardware import Cpu, Cuda, Folder, Memory, Space
from fastimg.system.packages import Compiled, Compiler, Package, Pillow, said
from fastimg.wording import plural

T = TypeVar("T")

_GIB = 1 << 30
_SLOW = 200e6  # bytes per second
_CORES = 2  # minimum per GPU
# Images per second of one thread of the loader where all cores decode, tiled photographs of 110 KB to crops of 224
# pixels: half the median (3,533, n = 6) of the records "loader gil" with two workers on two cores of an AMD EPYC in
# benchmarks/results/loaders.jsonl.
PER_THREAD = 1770
_FILES = 1024


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be determined."""

    reason: str


def probe(call: Callable[[], T]) -> T | Unknown:
    """A fact, or why it could not be determined."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except UserError as error:
        return Unknown(str(error))
    except Exception as error:  # noqa: BLE001 - the other facts can still be determined
        return Unknown(said(error))


@dataclass(frozen=True, kw_only=True)
class Copying:
    """Bytes of memory copied per second: each is read and written once."""

    one_thread: float
    all_cores: float


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What fastimg uses on this machine by default."""

    loader: str
    decode: str
    augmentation: str
    precision: str
    device: str
    faster: tuple[str, ...] = ()  # what flags gain on this GPU, measured


@dataclass(frozen=True, kw_only=True)
class MachineFacts:  # more than 12 fields: a section of the report each
    """Everything that `doctor` checks."""

    fastimg: str
    commit: str | Unknown | None  # None outside a checkout
    python: str
    packages: dict[str, Package] | Unknown
    pillow: Pillow | Unknown
    cuda: Cuda | Unknown
    compiler: Compiler | Unknown
    in_use: InUse | Unknown
    cpu: Cpu | Unknown
    memory: Memory | Unknown
    copying: Copying | Unknown
    shared_memory: Space | Unknown
    open_files: int | Unknown | None  # None: unlimited
    disk: Disk | Unknown
    compiled: Compiled | Unknown
    caches: dict[str, Folder | Unknown]


def unusable(facts: MachineFacts) -> list[str]:
    """The required packages that cannot be imported."""
    if isinstance(facts.packages, Unknown):
        return []
    return [name for name, package in facts.packages.items() if package.needed and package.fault]


def advice(facts: MachineFacts) -> list[str]:
    """What to fix, the most severe first: sentences with the commands to run. Empty if everything is fine."""
    return [sentence for rule in RULES for sentence in rule(facts)]


def packages(facts: MachineFacts) -> Iterator[str]:
    """Packages that are missing, broken or too old."""
    if isinstance(facts.packages, Unknown):
        return
    torch = facts.packages["torch"].fault
    for name, package in facts.packages.items():
        if torch and name != "torch" and package.fault == torch:  # torch is the cause
            continue
        if package.fault and package.needed and package.version is None:
            yield f"{name}, which fastimg needs, is not installed: `{package.install}`"
        elif package.fault and name == "torchvision":
            yield (
                f"torchvision {package.version} cannot be imported ({package.fault}); if it does not match the "
                "installed torch: `pip install --upgrade torch torchvision`"
            )
        elif package.fault:
            again = package.install.replace("pip install", "pip install --force-reinstall --no-deps", 1)
            if name == "torch":  # with the libraries that it depends on
                again = "pip install --force-reinstall torch torchvision"
            remedy = f"`{again if package.needed else package.install}`"
            yield f"{name} {package.version} is installed but cannot be imported ({package.fault}): {remedy}"
        elif package.oldest:
            yield f"{name} {package.version} is older than {package.oldest}, which fastimg needs: `{package.install}`"


def two_pillows(facts: MachineFacts) -> Iterator[str]:
    """Pillow and Pillow-SIMD overwrite each other's files."""
    if isinstance(facts.pillow, Pillow) and len(facts.pillow.distributions) > 1:
        imported = "Pillow-SIMD" if facts.pillow.simd else "Pillow without SIMD"
        yield (
            f"pillow and pillow-simd are both installed and overwrite each other's files; {imported} is imported now: "
            "`pip uninstall pillow pillow-simd`, then `pip install` the one you want"
        )


def gpu_unused(facts: MachineFacts) -> Iterator[str]:
    """There is a driver, but torch sees no GPU."""
    cuda = facts.cuda
    if isinstance(cuda, Unknown) or cuda.available or cuda.driver is None:
        return
    if cuda.build is None:
        yield (
            f"there is an NVIDIA driver ({cuda.driver}), but this torch is a CPU build: `pip uninstall torch "
            "torchvision`, then `pip install torch torchvision` without a package index for CPU builds"
        )
    elif cuda.hidden:
        yield "CUDA_VISIBLE_DEVICES hides every GPU from this process: `unset CUDA_VISIBLE_DEVICES`"
    else:
        yield (
            f"there is an NVIDIA driver ({cuda.driver}), but torch, built for CUDA {cuda.build}, sees no GPU: "
            f"{cuda.reason.rstrip('.')}; check `nvidia-smi`; start a container with `docker run --gpus all`; if the "
            "driver is too old, update it or install a torch for its CUDA version"
        )


def gpus(facts: MachineFacts) -> Iterator[str]:
    """GPUs that this torch cannot use, alone or together."""
    if isinstance(facts.cuda, Unknown):
        return
    for gpu in facts.cuda.gpus:
        if not gpu.supported:
            yield (
                f"this torch has no code for {gpu.name} (compute capability {gpu.capability}): install one that "
                "has; `python -c 'import torch; print(torch.cuda.get_arch_list())'` shows which GPUs this one supports"
            )
    if len(facts.cuda.gpus) > 1 and facts.cuda.nccl is None:
        yield (
            f"this torch has no NCCL, which training on {plural(len(facts.cuda.gpus), 'GPU')} needs: "
            "`pip install --force-reinstall torch torchvision`"
        )


def c_compiler(facts: MachineFacts) -> Iterator[str]:
    """Triton compiles small C programs at run time, so it needs a compiler."""
    if isinstance(facts.packages, Unknown) or isinstance(facts.compiler, Unknown):
        return
    triton = facts.packages.get("triton")
    if triton is None or triton.version is None:
        return
    compiler = facts.compiler
    needs = "which Triton needs at run time for the augmentation on a GPU and for --compile"
    if compiler.command is None:
        if compiler.cc is not None:
            ways = (
                f"`unset CC`: {compiler.other} is installed"
                if compiler.other
                else "`apt-get install gcc`, and `unset CC`"
            )
            yield f"CC={compiler.cc!r} does not name a program, {needs}: {ways}"
        elif compiler.other is not None:
            yield f"Triton looks for gcc and clang, not for {compiler.other}: `export CC={compiler.other}`"
        else:
            yield f"there is no C compiler, {needs}: `apt-get install gcc`"
    elif not compiler.headers and isinstance(facts.cuda, Cuda) and facts.cuda.available:
        yield (
            "Python's C headers (Python.h) are missing, which Triton needs at run time: `apt-get install python3-dev`, "
            "or the package for your Python"
        )


def few_cores(facts: MachineFacts) -> Iterator[str]:
    """Every GPU needs enough cores for its loader."""
    if isinstance(facts.cpu, Unknown) or isinstance(facts.cuda, Unknown) or not facts.cuda.gpus:
        return
    cpu, count = facts.cpu, len(facts.cuda.gpus)
    cores = cpu.affinity if cpu.quota is None else min(cpu.affinity, cpu.quota)
    if cores / count >= _CORES:
        return
    have = f"{cores:g} {'core' if cores == 1 else 'cores'} for {plural(count, 'GPU')}"
    if cpu.quota is not None and cpu.quota < cpu.affinity:
        yield f"{have}, by the container's quota: decoding will slow down training; raise it (`docker run --cpus N`)"
    else:
        yield f"{have}: decoding will slow down training; provide more (`docker run --cpuset-cpus`, `taskset`)"


def busy(facts: MachineFacts) -> Iterator[str]:
    """Other programs use the processors."""
    if isinstance(facts.cpu, Cpu) and facts.cpu.load >= facts.cpu.logical:
        yield (
            f"{facts.cpu.load:g} {'process' if facts.cpu.load == 1 else 'processes'} competed for "
            f"{plural(facts.cpu.logical, 'core')} during the last minute, so measurements are slower than on an "
            "idle machine; `top` shows them"
        )


def small_limits(facts: MachineFacts) -> Iterator[str]:
    """Resources that containers often have too little of."""
    if isinstance(facts.shared_memory, Space) and facts.shared_memory.total < _GIB:
        yield (
            f"/dev/shm has {size(facts.shared_memory.total)}, and the processes of `--loader torch` pass batches "
            "through it: `docker run --shm-size 8g`, or `mount -o remount,size=8g /dev/shm`"
        )
    if isinstance(facts.open_files, int) and facts.open_files < _FILES:
        yield f"a process may open {plural(facts.open_files, 'file')} only, but shards stay open: `ulimit -n 65536`"


def slow_disk(facts: MachineFacts) -> Iterator[str]:
    """200 MB/s are 1,800 photographs of 110 KB per second: about what a GPU trains on."""
    if isinstance(facts.disk, Unknown):
        return
    reading = facts.disk.cold or facts.disk.warm
    if reading.bytes_per_second < _SLOW:
        yield (
            f"{facts.disk.folder} is read at {reading.bytes_per_second / 1e6:.0f} MB/s: keep data on a local disk, as "
            "shards (`fastimg convert SRC DST`), and train with `--order quasi-random`, which reads neighbours together"
        )


def caches(facts: MachineFacts) -> Iterator[str]:
    """Caches that cannot be written: their content is made or downloaded again every time."""
    if isinstance(facts.compiled, Compiled) and facts.compiled.folder is None:
        yield (
            "numba finds no writable cache folder, so every process compiles fastimg's code again: "
            "`export NUMBA_CACHE_DIR=FOLDER`, a writable folder"
        )
    for name, folder in facts.caches.items():
        if isinstance(folder, Unknown):
            continue
        what, variable = CACHES[name]
        if not folder.writable:
            yield f"{what} cannot be cached ({folder.reason}): `export {variable}=FOLDER`, a writable folder"
        elif folder.free < _GIB:
            yield (
                f"{folder.path}, the cache for {what}, has {size(folder.free)} left: free some space, or "
                f"`export {variable}=FOLDER`"
            )


# What each cache holds, and the variable that moves it to another folder.
CACHES = {
    "fastimg": ("data derived by fastimg", "XDG_CACHE_HOME"),
    "huggingface": ("downloads from the Hugging Face hub (timm's weights too)", "HF_HOME"),
    "torch": ("downloads of torch's hub", "TORCH_HOME"),
    "triton": ("code compiled by Triton", "TRITON_CACHE_DIR"),
    "temporary": ("temporary files", "TMPDIR"),
}

RULES: tuple[Callable[[MachineFacts], Iterator[str]], ...] = (
    *(packages, two_pillows, gpu_unused, gpus, c_compiler, few_cores, small_limits, slow_disk, caches, busy),
)


def size(nbytes: float) -> str:
    """Bytes in MiB or GiB, as memory is counted."""
    return f"{nbytes / _GIB:.1f} GiB" if nbytes >= _GIB else f"{nbytes / (1 << 20):.0f} MiB"
