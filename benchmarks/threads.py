"""The loader with more threads than there are cores: what is left of its speed when they wait for Python's lock (GIL).

    python benchmarks/threads.py FOLDER                     JPEGs in a folder, the same tiled, and converted
    python benchmarks/threads.py FOLDER --before CHECKOUT   another checkout as well, with its environment in .venv
    python benchmarks/threads.py FOLDER --sources "fetched shards" ".beton"
    python benchmarks/threads.py FOLDER --sources "raw 32" "raw 192" "png 256" "digits 28" --threads 1 2 4 8 16
    python benchmarks/threads.py FOLDER --step              beside a thread that trains, which needs the lock, too

Decoding and resizing are replaced by a sleep of --microseconds without the lock, as if each thread had a core of its
own; everything else is done as usual. By default JPEGs take 1,000, and other images what they take here. Images are
read, over and over, from the page cache. With a few threads the rate grows with their number, until they wait for each
other. `rest` is the processor time of everything else for an image, the most that the lock can take, and `share` its
part of the whole. `held` is the share of the time for which the lock was held, and `takings` how often it was taken
back for a batch, by all threads and by the `consumer` alone (by breakpoints, where the system has them: see `gil`). Of
"sleep alone" the threads run no Python at all: the most that is left to gain.

With --step the consumer trains a narrow ResNet-18 on two tiny pictures for each batch: as many of torch's calls, each
of which gives up the lock and takes it again, as launching the step of that model on a GPU. It is a simulation: only
ratios of one machine mean something.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gil
import measure
import numpy as np
import torch
from images import dataset, list_images
from numba import njit
from rich.console import Console

BATCH = 256
EPOCH = 4096  # images
THREADS = (1, 4, 8, 16, 32)
SOURCES = ("files", "tiled files", "tiled shards", "fetched shards", ".beton")  # fetched: in the cache of a store
ALONE = "sleep alone"
CROP = 224
PREFETCH = 6  # batches in host memory, as many as for a GPU


class Other(NamedTuple):
    """Images that are no JPEGs."""

    extension: str
    side: int  # the longer one
    crop: int
    microseconds: int  # without the lock, of an image
    images: int  # of an epoch
    raw: bool = False
    mode: str = "RGB"


OTHERS = {  # raw ones in a .beton, the rest in shards
    "raw 32": Other("bmp", 32, 32, 1, 16_384, raw=True),
    "raw 192": Other("bmp", 192, 160, 22, 2048, raw=True),
    "png 256": Other("png", 256, 160, 350, 1024),
    "digits 28": Other("png", 28, 28, 9, 8192, mode="L"),
}
SECONDS = 1.0  # of epochs that are measured, at least


def main() -> None:
    """Measure, print, and append the results."""
    args = _parsed()
    if args.one is not None:
        for row in _rates(args):
            print(json.dumps(row), flush=True)
        return
    checkouts = {"now": measure.ROOT, **({"before": args.before.resolve()} if args.before else {})}
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for _ in range(args.repeats):
        for name, checkout in checkouts.items():
            for row in _elsewhere(checkout, args):
                found.setdefault((name, row.pop("source"), row.pop("threads")), []).append(row)
    rows: list[dict[str, Any]] = []
    for (name, source, threads), measured in found.items():
        record = {"checkout": name, "source": source, "threads": threads, "microseconds": _native(source, args)}
        spreads = {key: measure.Spread.of([one[key] for one in measured]) for key in measured[0]}
        if not args.step:
            rest = [one["rest_microseconds"] for one in measured]
            spreads["share"] = measure.Spread.of([one / (one + _native(source, args)) for one in rest])
        rows.append({**record, **spreads})
    common = {"benchmark": "threads", "batch": BATCH, "data": args.folder.name}
    for row in rows:
        measure.append(args.out, {**common, **measure.flat(row), "environment": measure.environment()})
    shown = [{k: v.text() if isinstance(v, measure.Spread) else v for k, v in row.items()} for row in rows]
    measure.show(Console(width=150), "decoding simulated by a sleep without the lock", shown)


def _native(source: str, args: argparse.Namespace) -> int:
    """Microseconds that an image sleeps."""
    if args.microseconds is not None:
        return int(args.microseconds)
    return OTHERS[source].microseconds if source in OTHERS else 1000


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="JPEGs")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--microseconds", type=int, help="of native work for each image (default: by source)")
    known = [*SOURCES, *OTHERS, ALONE]
    usual = [*SOURCES, ALONE]
    parser.add_argument("--sources", nargs="+", choices=known, default=usual, metavar="SOURCE", help=", ".join(known))
    parser.add_argument("--step", action="store_true", help="train beside the loader")
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "threads.jsonl")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        list_images(args.folder)
    except ValueError as error:
        parser.error(f"{error}; give a folder of JPEGs")
    if args.before is not None and not (args.before / ".venv" / "bin" / "python").exists():
        parser.error(f"--before {args.before}: no checkout with an environment in .venv")
    return args


def _elsewhere(checkout: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rates of a checkout, by this file, in a process that imports that checkout."""
    python = checkout / ".venv" / "bin" / "python"
    folder = args.folder.resolve()
    command = [str(python), __file__, str(folder), "--one", str(checkout)]
    command += [] if args.microseconds is None else ["--microseconds", str(args.microseconds)]
    command += ["--sources", *args.sources, *(["--step"] if args.step else []), "--threads", *map(str, args.threads)]
    paths = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=checkout, env=paths)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    yield from (json.loads(line) for line in done.stdout.splitlines())


def _rates(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each kind of source and number of threads, in this process."""
    from fastimg.loaders import CenterCrop, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop

    torch.set_num_threads(1)
    sampler = gil.Sampler()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        jpegs = [name for name in args.sources if name in SOURCES]
        sources = {name: _opened(name, args.folder, Path(folder), stack) for name in jpegs}
        sources |= {name: _other(name, args.folder, Path(folder), stack) for name in args.sources if name in OTHERS}
        ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: sleeps end in time, of threads that begin later
        if ALONE in args.sources and not args.step:
            for threads in args.threads:
                yield {"source": ALONE, "threads": threads, **_sleeping(threads, _native(ALONE, args), sampler)}
        if jpegs:
            _sleep_instead(_native(jpegs[0], args))
        for source, samples in sources.items():
            crop = RandomResizedCrop(size=CROP)
            if source in OTHERS:
                side, size = OTHERS[source].side, OTHERS[source].crop
                crop = CenterCrop(size=size, resize=side) if side == size else RandomResizedCrop(size=size)
                _others_sleep(_native(source, args))
            for threads in args.threads:
                config = LoaderConfig(batch_size=BATCH, workers=threads, prefetch=PREFETCH)
                decoder = ImageDecoder(crop, channels=1 if source == "digits 28" else 3)
                with Loader(samples, decoder, config, torch.device("cpu")) as loader:
                    loader.compile()  # the rest: what is replaced by a sleep is not compiled
                    for _ in range(2):  # warm up: from the second epoch on, a .beton is in memory
                        sum(batch.samples for batch in loader)
                    measured = _beside(loader) if args.step else _alone(loader, sampler)
                    yield {"source": source, "threads": threads, **measured}


def _alone(loader: Any, sampler: gil.Sampler) -> dict[str, float]:
    began, worked, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < began + SECONDS:
        count += sum(batch.samples for batch in loader)
    rate = count / (time.perf_counter() - began)
    rest = 1e6 * (time.process_time() - worked) / count
    held, _, _ = sampler.share(lambda: sum(batch.samples for batch in loader))
    return {"images_per_second": round(rate, 1), "rest_microseconds": rest, "held": held, **_takings(loader)}


def _takings(loader: Any) -> dict[str, float]:
    """How often the lock was taken back for a batch; nothing where that cannot be counted."""
    try:
        with gil.takings() as taken, gil.takings(others=False) as by_consumer, loader.another() as other:
            sum(batch.samples for batch in other)
            before, before_by_consumer = taken(), by_consumer()
            batches = sum(1 for _ in other)
            consumer = (by_consumer() - before_by_consumer) / batches
            return {"takings": (taken() - before) / batches, "consumer": consumer}
    except OSError:
        return {}


def _sleeping(threads: int, microseconds: int, sampler: gil.Sampler) -> dict[str, float]:
    """Threads that sleep as long as for groups of 16 images, in one call each."""
    sleep = ctypes.CDLL(None).usleep
    sleep.argtypes, sleep.restype = (ctypes.c_uint,), ctypes.c_int
    group = 16
    groups = int(SECONDS * 1e6) // (group * microseconds)

    @njit(nogil=True)
    def work() -> None:
        for _ in range(groups):
            sleep(group * microseconds)

    def run() -> None:
        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    work.compile(())
    count = threads * groups * group
    began, worked = time.perf_counter(), time.process_time()
    run()
    rate = count / (time.perf_counter() - began)
    rest = 1e6 * (time.process_time() - worked) / count
    return {"images_per_second": round(rate, 1), "rest_microseconds": rest, "held": sampler.share(run)[0]}


def _beside(loader: Any) -> dict[str, float]:
    """Images per second, and milliseconds of a step: beside the loader, and alone."""
    import timm

    model = (
        timm.create_model("resnet18", num_classes=10, channels=(8, 8, 8, 8))
        .to(memory_format=torch.channels_last)
        .train()
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    pictures = torch.zeros(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)

    def step() -> float:
        began = time.perf_counter()
        model(pictures).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
        return 1000 * (time.perf_counter() - began)

    for _ in range(10):
        step()
    alone = statistics.median(step() for _ in range(20))
    steps = []
    began = time.perf_counter()
    count = 0
    for batch in loader:
        count += batch.samples
        steps.append(step())
    rate = count / (time.perf_counter() - began)
    beside = round(statistics.median(steps), 2)
    return {"images_per_second": round(rate, 1), "step_ms": beside, "step_alone_ms": round(alone, 2)}


def _opened(source: str, images: Path, folder: Path, stack: contextlib.ExitStack) -> Any:
    """The images as one of SOURCES, repeated to about an epoch."""
    from fastimg.loaders import open_dataset
    from fastimg.loaders.jpeg.rewriting.tiles import tile

    if source == "files":
        return dataset(images, EPOCH)
    if source == "tiled files":
        tiled = folder / "tiled"
        tiled.mkdir()
        for number, name in enumerate(list_images(images)):
            (tiled / f"{number:05d}.jpg").write_bytes(tile((images / name).read_bytes()).jpeg)
        return dataset(tiled, EPOCH)
    converted = _converted(images, folder, "beton" if source == ".beton" else "tar")
    if source == "fetched shards":
        return stack.enter_context(contextlib.closing(open_dataset(converted.as_uri(), cache_dir=folder / "cache")))
    return stack.enter_context(contextlib.closing(open_dataset(converted)))


def _converted(images: Path, folder: Path, container: str) -> Path:
    """The images in tiled shards or in a .beton, repeated to about an epoch."""
    from fastimg.cli import run

    made = folder / container
    if made.exists():
        return made
    names = list_images(images)
    source = folder / f"source-{container}" / "all"
    source.mkdir(parents=True)
    for number in range(EPOCH):
        (source / f"{number:05d}.jpg").symlink_to(images / names[number % len(names)])
    with contextlib.redirect_stdout(sys.stderr):
        if run(["convert", str(source.parent), str(made), "--format", container]):
            raise SystemExit("conversion failed")
    return made


def _other(source: str, images: Path, folder: Path, stack: contextlib.ExitStack) -> Any:
    """Images of one of OTHERS, made of the photographs, in one of `convert`'s containers."""
    from formats import Task, write_images

    from fastimg.cli import run
    from fastimg.loaders import open_dataset

    other = OTHERS[source]
    made, files = folder / source, folder / f"{source} files"
    square = other.side == other.crop
    write_images(files, images, Task(other.extension, other.side, other.crop, other.images, other.mode, square=square))
    flags = ["--format", "beton", "--raw-fraction", "1", "--originals", "drop"] if other.raw else []
    with contextlib.redirect_stdout(sys.stderr):
        if run(["convert", str(files), str(made), *flags]):
            raise SystemExit("conversion failed")
    return stack.enter_context(contextlib.closing(open_dataset(made)))


def _others_sleep(microseconds: int) -> None:
    """Replace the native work on stored pixels and on PNGs by a sleep."""
    sleep: Callable[[int], int] = ctypes.CDLL(None).usleep
    cuts: Any = importlib.import_module("fastimg.loaders.decoders.pixel_cuts")
    queue: Any = importlib.import_module("fastimg.loaders.decoders.picture_queue")

    def read(*given: Any) -> tuple[int, int]:
        filled = given[-2]
        sleep(microseconds * len(filled))
        filled[:] = True
        return len(filled), 0

    def decode(pictures: Any, jobs: Any, status: Any, *given: Any) -> int:
        sleep(microseconds * int((status == queue._WAITS).sum()))
        status[:] = queue._DONE
        return 0

    cuts._read, queue._decode = read, decode
    cuts.may_call = queue.may_call = queue.may_call_all = lambda *functions: True  # older checkouts have two of these


def _sleep_instead(microseconds: int) -> None:
    """Replace the native work by a sleep, in whatever modules this checkout has it."""
    import simplejpeg

    import fastimg.loaders.resample as resample

    sleep: Callable[[int], int] = ctypes.CDLL(None).usleep  # ctypes releases the lock
    decoding, resizing = microseconds * 6 // 7, microseconds // 7
    decode: Any = simplejpeg.decode_jpeg
    kept: dict[int, Any] = {}

    def decoded(data: Any, colours: str, **options: Any) -> Any:
        if len(data) not in kept:
            kept[len(data)] = np.zeros_like(decode(data, colours, strict=True))
        sleep(decoding)
        return kept[len(data)]

    def cropped(headers: Any, jobs: Any, *rest: Any) -> int:
        sleep(microseconds * len(jobs))
        jobs["status"] = -1
        return 0

    small = torch.zeros(1, 3, 8, 8, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)

    class Kernel:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def out(self, *given: Any, **options: Any) -> Any:
            sleep(resizing)
            return self._kernel(small, [4, 4], False, None, None)

    def resized(jobs: Any, *rest: Any) -> int:
        sleep(resizing * len(jobs))
        return 0

    for function in (cropped, resized):
        function.overloads = {(): None}  # what is asked of a compiled function that is ready
    replaced: Any = simplejpeg
    replaced.decode_jpeg = decoded
    if importlib.util.find_spec("fastimg.loaders.jpeg.decoding.crops"):
        replaced = importlib.import_module("fastimg.loaders.jpeg.decoding.crops")
        replaced._crop_tiled = replaced._crop_untiled = replaced._crop_progressive = cropped
        replaced.is_ready = lambda kind: True
    else:  # an older checkout, which leaves untiled JPEGs to simplejpeg
        replaced = importlib.import_module("fastimg.loaders.jpeg.decoding.tiled")
        replaced._crop_rows = cropped
    replaced = resample
    replaced._KERNELS = {name: Kernel(kernel) for name, kernel in resample._KERNELS.items()}
    if importlib.util.find_spec("fastimg.loaders.decoders.resize_queue"):  # an older checkout has none
        replaced = importlib.import_module("fastimg.loaders.decoders.resize_queue")
        replaced.resize_rows = resized


if __name__ == "__main__":
    main()
