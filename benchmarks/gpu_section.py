"""One section of `gpu.py`, in this process: `gpu_section.py TASK`, started by `gpu.py`, where TASK is JSON."""

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from gpu_plan import SECTIONS, missing

# Exit statuses in addition to 0 and 1 (something failed, and is recorded).
LOST, NO_CUDA = 3, 4
_MARGIN = 2.0  # seconds before its limit in which a section starts nothing


@dataclass(frozen=True, kw_only=True)
class Task:
    """The arguments of a section's process."""

    section: str  # a name, or "prepare"
    device: str
    quick: bool
    folder: str  # of images
    shards: str  # folder for shards of them
    data_name: str
    made: int  # number of images to make in the folder; 0 if they exist
    out: str
    run: str
    status: str
    seconds: float  # until it is stopped
    skip: tuple[str, ...] = ()  # items that an earlier process has begun
    rows: tuple[str, ...] = ()  # of steps, instead of all
    cifar: str = ""  # folder of CIFAR-10
    width: int = 140  # columns

    def command(self) -> list[str]:
        """The command line of the process."""
        return [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(self))]


def main() -> int:
    """Run the section. Returns the exit status."""
    began = time.monotonic()
    task = Task(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles the signal
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if task.section == "prepare":
        return _prepare(task)
    return _run(task, began)


def _run(task: Task, began: float) -> int:
    before = time.perf_counter()
    import torch

    seconds = round(time.perf_counter() - before, 2)
    from bench import Bench, DeviceLostError, Sizes, SkippedError
    from rich.console import Console

    section = SECTIONS[task.section]
    device = torch.device(task.device, 0) if task.device == "cuda" else torch.device("cpu")
    if task.device == "cuda":
        if not torch.cuda.is_available():
            return NO_CUDA
        torch.cuda.set_device(device)
        torch.cuda.init()
        torch.backends.cudnn.benchmark = True  # the same settings as in the trainer
        torch.set_float32_matmul_precision("high")
    elif task.quick:
        torch.set_num_threads(1)  # on a busy machine, threads that wait for each other spend most of the time spinning
    bench = Bench(
        device=device,
        sizes=Sizes.choose(device, task.quick),
        quick=task.quick,
        folder=Path(task.folder),
        shards=Path(task.shards),
        data_name=task.data_name,
        out=Path(task.out),
        console=Console(width=task.width, markup=False, highlight=False),
        environment=environment(),
        section=section.record_as or section.name,
        run=task.run,
        status=Path(task.status),
        deadline=began + task.seconds - _MARGIN,
        skip=frozenset(task.skip),
        rows=tuple(task.rows),
        cifar=Path(task.cifar) if task.cifar else None,
        torch_seconds=seconds,
    )
    module, _, name = section.function.partition(":")
    try:
        function: Callable[[Bench], None] = getattr(importlib.import_module(module), name)
        function(bench)
        bench.check_device()
    except SkippedError as reason:
        bench.console.print(f"{section.name}: skipped: {reason}")
        bench.keep({"skipped": str(reason)})
    except DeviceLostError:
        return LOST
    except Exception as error:  # noqa: BLE001 - recorded, shown, and reflected in the exit status
        bench.fail(error, {})
    return 1 if bench.failed else 0


def environment() -> dict[str, object]:
    """Hardware and versions, for every record. Contains no paths."""
    import measure
    import torch

    found = measure.environment()
    try:
        from triton import __version__ as triton
    except ImportError:
        triton = None
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    return {**found, "triton": triton, "cudnn": cudnn}


def _prepare(task: Task) -> int:
    """Make JPEGs and shards, and compile their decoder, while sections run that measure nothing on the CPU."""
    os.nice(10)
    import torch
    from bench import QUICK, Sizes
    from images import dataset, untiled_beside, write_photographs, write_shard

    from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop
    from fastimg.loaders.jpeg.decoding.crops import compile_for
    from fastimg.loaders.runtime.cpus import available_cpus

    sizes = Sizes.choose(torch.device(task.device), task.quick)
    folder = Path(task.folder)
    if task.made:
        size = QUICK.photograph if task.quick else sizes.photograph
        untiled = untiled_beside(folder)
        untiled.mkdir()
        write_photographs(folder, task.made, size, available_cpus(), untiled)
    if not missing(["xxhash"]):
        write_shard(folder, Path(task.shards))
    for scaling in (True, False):
        decoder = ImageDecoder(RandomResizedCrop(size=sizes.crop), dct_scaling=scaling)
        loader = Loader(dataset(folder, 8), decoder, LoaderConfig(batch_size=4), torch.device("cpu"))
        for _ in loader:
            pass
        loader.close()
    if task.made:
        compile_for((untiled_beside(folder) / "000000.jpg").read_bytes())
    return 0


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end_with_parent() -> None:
    """The pipe closes when the process that started this one ends, however it ends."""
    os.read(0, 1)  # not sys.stdin, whose lock would still be held when this process ends
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
