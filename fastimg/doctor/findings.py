"""The facts found by `doctor`, as rows of a table."""

from collections.abc import Iterator
from typing import NamedTuple

from fastimg.system.disks import SCATTERED_PIECE, Disk
from fastimg.system.hardware import Cpu, Cuda, Folder
from fastimg.system.packages import Compiled, Compiler, Package, Pillow
from fastimg.wording import plural

from .remedies import PER_THREAD, MachineFacts, Unknown, size


class Row(NamedTuple):
    """A row of the table."""

    section: str
    name: str
    value: str


# Packages that decode or read images; the others are listed under the versions.
_DECODERS = ("simplejpeg", "ffcv", "nvidia-dali", "nvimgcodec", "webdataset")
_SHOWN = ("torch", "torchvision", "timm", "numpy", "numba")


def rows(facts: MachineFacts) -> Iterator[Row]:
    """In sections: versions, GPU, decoders, in use, machine, disk, caches."""
    for section, lines in (
        ("versions", _versions(facts)),
        ("GPU", _gpu(facts)),
        ("decoders", _decoders(facts)),
        ("in use", _in_use(facts)),
        ("machine", _machine(facts)),
        ("disk", _disk(facts.disk)),
        ("caches", _caches(facts)),
    ):
        for name, value in lines:
            yield Row(section, name, value)


def _versions(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    commit = facts.commit
    suffix = f" (commit {unknown(commit)})" if isinstance(commit, Unknown) else f" ({commit})" if commit else ""
    yield "fastimg", facts.fastimg + suffix
    yield "python", facts.python
    if isinstance(facts.packages, Unknown):
        yield "packages", unknown(facts.packages)
        return
    build = ""
    if isinstance(facts.cuda, Cuda):
        build = f" (CUDA {facts.cuda.build})" if facts.cuda.build else " (CPU build)"
    for name, package in facts.packages.items():
        if name in _SHOWN or package.fault or package.oldest:
            yield name, _package(package) + (build if name == "torch" and not package.fault else "")
    rest = {n: p for n, p in facts.packages.items() if n not in (*_DECODERS, *_SHOWN, "pillow", "triton")}
    installed = [f"{n} {p.version}" for n, p in rest.items() if p.version and not (p.fault or p.oldest)]
    yield "others", ", ".join(installed) or "none"
    missing: dict[str, list[str]] = {}
    for name, package in rest.items():
        if package.version is None and not package.needed:
            missing.setdefault(package.install, []).append(name)
    for install, names in missing.items():
        yield ", ".join(names), f"not installed; `{install}`"


def _gpu(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    cuda = facts.cuda
    if isinstance(cuda, Unknown):
        yield "CUDA", unknown(cuda)
    else:
        yield "driver", cuda.driver or "none"
        yield "CUDA", (cuda.build or "none") + ("" if cuda.available else f", not available: {cuda.reason}")
        for number, gpu in enumerate(cuda.gpus):
            kind = "bf16" if gpu.bf16 else "no bf16, so fp16"
            yield f"GPU {number}", f"{gpu.name}, {size(gpu.memory)}, compute capability {gpu.capability}, {kind}"
        if cuda.build is not None:
            yield "cuDNN, NCCL", f"{cuda.cudnn or 'none'}, {cuda.nccl or 'none'}"
    if not isinstance(facts.packages, Unknown):
        yield "triton", _package(facts.packages["triton"])
    yield "C compiler", _compiler(facts.compiler)


def _decoders(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    pillow = facts.pillow
    if isinstance(pillow, Pillow):
        jpeg = f"libjpeg-turbo {pillow.libjpeg_turbo}" if pillow.libjpeg_turbo else "another libjpeg"
        kind = "Pillow-SIMD" if pillow.simd else "without SIMD, which matters only for `--loader torch`"
        yield "pillow", f"{pillow.version} ({kind}), {jpeg}"
    else:
        yield "pillow", unknown(pillow)
    if not isinstance(facts.packages, Unknown):
        for name in _DECODERS:
            yield name, _package(facts.packages[name])
    compiled = facts.compiled
    if isinstance(compiled, Unknown):
        yield "fastimg's own", unknown(compiled)
    else:
        yield "fastimg's own", _compiled(compiled)


def _in_use(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    used = facts.in_use
    if isinstance(used, Unknown):
        yield "settings", unknown(used)
        return
    yield "device", f"{used.device}, {used.precision}"
    yield "loader", f"{used.loader}, JPEGs decoded on {used.decode}"
    yield "augmentation", used.augmentation
    for sentence in used.faster:
        yield "faster", sentence


def _machine(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    if isinstance(facts.cpu, Unknown):
        yield "CPU", unknown(facts.cpu)
    else:
        yield from _cpu(facts.cpu)
        if isinstance(facts.cuda, Cuda) and facts.cuda.gpus:
            yield "loader threads", _per_rank(facts.cpu, len(facts.cuda.gpus))
    memory = facts.memory
    if isinstance(memory, Unknown):
        yield "memory", unknown(memory)
    else:
        limit = f", {size(memory.limit)} for this container or job" if memory.limit is not None else ""
        yield "memory", f"{size(memory.total)}{limit}, {size(memory.available)} available"
    copying = facts.copying
    if isinstance(copying, Unknown):
        yield "memory copied", unknown(copying)
    else:
        yield "memory copied", f"{_rate(copying.one_thread)} by one thread, {_rate(copying.all_cores)} by all cores"
    shared = facts.shared_memory
    yield (
        "/dev/shm",
        unknown(shared) if isinstance(shared, Unknown) else f"{size(shared.total)}, {size(shared.free)} free",
    )
    files = facts.open_files
    yield (
        "open files",
        unknown(files) if isinstance(files, Unknown) else f"{files:,}" if files is not None else "no limit",
    )


def _cpu(cpu: Cpu) -> Iterator[tuple[str, str]]:
    physical = f", {cpu.physical} physical" if cpu.physical is not None else ""
    yield "CPU", f"{cpu.model}; {', '.join(cpu.instructions) or 'none of the relevant vector instructions'}"
    limits = []
    if cpu.affinity != cpu.logical:
        limits.append(f"{cpu.affinity} for this process")
    if cpu.quota is not None:
        lower = ", which is lower" if cpu.quota < cpu.affinity else ""
        limits.append(f"the container's quota is {cpu.quota:g}{lower}")
    limited = "".join(f"; {limit}" for limit in limits)
    yield "cores", f"{cpu.cores} to use: {cpu.logical} logical{physical}{limited}; load {cpu.load:g}"


def _per_rank(cpu: Cpu, gpus: int) -> str:
    """The threads that decode for each GPU if all of them train, and about what they allow."""
    threads = max(1, cpu.cores // gpus)
    rate = round(threads * PER_THREAD, -2)
    words = f"{plural(cpu.cores, 'core')} over {plural(gpus, 'GPU')} are {plural(threads, 'thread')} a rank"
    source = (
        f"{threads} x {PER_THREAD:,} of benchmarks/results/loaders.jsonl, tiled photographs of 110 KB at 224 pixels"
    )
    return f"{words}: about {rate:,} img/s each (an estimate: {source}; `fastimg bench DATA` measures)"


def _disk(disk: Disk | Unknown) -> Iterator[tuple[str, str]]:
    if isinstance(disk, Unknown):
        yield "reading", unknown(disk)
        return
    yield "folder", f"{disk.folder} ({disk.filesystem or 'file system unknown'}), {size(disk.free)} free"
    yield "measured on", disk.measured_on
    if disk.cold is None:
        yield "cold", f"unknown: {disk.why}"
    else:
        yield "cold", f"{_rate(disk.cold.bytes_per_second)} in order"
    if (scattered := disk.scattered) is not None:
        each = f"{SCATTERED_PIECE >> 10} KiB"
        rate = (
            f"{_rate(scattered.bytes_per_second)}, {plural(round(scattered.reads_per_second), 'read')} of "
            f"{each} per second"
        )
        yield "cold, scattered", f"{rate}, one at a time"
    elif disk.cold is not None:
        yield "cold, scattered", f"unknown: {disk.why}"
    yield "from memory", f"{_rate(disk.warm.bytes_per_second)} in order"


def _caches(facts: MachineFacts) -> Iterator[tuple[str, str]]:
    for name, folder in facts.caches.items():
        yield name, _folder(folder)
    if isinstance(facts.compiled, Compiled):
        kept = facts.compiled.folder
        yield "numba", f"{kept}, writable" if kept else "no writable folder: every process compiles again"


def _folder(folder: Folder | Unknown) -> str:
    if isinstance(folder, Unknown):
        return unknown(folder)
    state = "writable" if folder.writable else f"not writable: {folder.reason}"
    return f"{folder.path}, {state}, {size(folder.free)} free"


def _package(package: Package) -> str:
    if package.version is None:
        return f"not installed; `{package.install}`"
    if package.fault:
        return f"{package.version}, cannot be imported: {package.fault}"
    return package.version + (f", older than {package.oldest}" if package.oldest else "")


def _compiler(compiler: Compiler | Unknown) -> str:
    if isinstance(compiler, Unknown):
        return unknown(compiler)
    if compiler.command is None:
        return "none that Triton finds" + (f"; {compiler.other} is installed" if compiler.other else "")
    return compiler.command + (" ($CC)" if compiler.cc else "") + ("" if compiler.headers else "; Python.h is missing")


def _compiled(compiled: Compiled) -> str:
    made = [command for command, cached in compiled.made.items() if cached]
    later = [command for command, cached in compiled.made.items() if not cached]
    parts = [f"compiled for {', '.join(made)}"] * bool(made)
    parts += [f"to be compiled at first use: {', '.join(later)}"] * bool(later)
    return "; ".join(parts)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"


def unknown(value: Unknown) -> str:
    """The text shown for a fact that could not be determined."""
    return f"unknown: {value.reason}"
