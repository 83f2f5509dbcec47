"""The cost of the time accounting, and whether the speed-up that `fastimg bench` predicts is reached.

    python benchmarks/accounting.py --data FOLDER              # FOLDER has images by class
    python benchmarks/accounting.py --data FOLDER --promise    # the predicted speed-up against the measured one

Cost: CPU time for epochs of the native loader over tiled shards (the case with the least time per image), with and
without its counters, interleaved. The statements of the counters and of `Account` are also timed in loops. `share` is
the counters' share of an image's time, computed from the medians of the loops, since the difference between epochs is
smaller than their spread.

Promise: `fastimg train` with `--loader torch`, and with the first flag that the verdict of `fastimg bench --loader
torch` names, each in its own process, interleaved, from tiled shards. The predicted factor is compared with the
measured ratio of images per second over whole epochs (medians of all epochs but the first).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from images import list_images
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders import loader as native
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.pool import Pool
from fastimg.loaders.runtime.times import Tally, Waits
from fastimg.train.reporting.accounting import Account

_LOOPS = 200_000


class Uncounted(Pool):
    """The pool without counters."""

    def _try_rows(self, number: int, chunk: Any, scratch: Any) -> BaseException | None:
        slot, job = chunk.slot, chunk.job
        rows = {name: slot.arrays[name][chunk.start : chunk.stop] for name in job.blanks}
        ids = slot.arrays["ids"][chunk.start : chunk.stop].tolist()
        try:
            job.decoder.fill(UncountedReader(self._dataset, job.is_cancelled), ids, chunk.draws, rows, scratch)
        except BaseException as error:  # noqa: BLE001 - passed to the consumer
            return error
        return None


class UncountedReader(SampleReader):
    """The reader without counters."""

    def read(self, index: int, scratch: Any) -> memoryview:
        """Read a sample."""
        return self.dataset.read(index, scratch)


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of images by class")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--promise", action="store_true", help="measure the speed-up that bench predicts instead of the costs"
    )
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--img-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--duration", default="12ep", help="epochs of each run")
    parser.add_argument("--flags", nargs="*", default=[], help="further flags of train, without the leading dashes")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "accounting.jsonl")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fastimg-accounting-") as scratch:
        some = _links(args.data, Path(scratch) / "images", args.images)
        tiled = Path(scratch) / "tiled"
        convert(Convert(src=some, dst=tiled), Console(quiet=True))
        records = [promised(args, tiled, Path(scratch))] if args.promise else [loading(args, tiled), account()]
    shared = {"benchmark": "accounting", "data": args.data.resolve().name, "images": args.images}
    environment = measure.environment()
    for record in records:
        measure.append(args.out, {**shared, **measure.flat(record), "environment": environment})
        shown = {key: value.text() if isinstance(value, measure.Spread) else value for key, value in record.items()}
        measure.show(Console(width=150), "", [{"": key, "value": value} for key, value in shown.items()])


def _links(data: Path, folder: Path, count: int) -> Path:
    """Create links to about `count` images, spread evenly over the classes."""
    names = list_images(data)
    for name in names[:: max(1, len(names) // count)][:count]:
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((data / name).resolve())
    return folder


def loading(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Epochs with and without counters."""

    def epoch(pool: type[Pool]) -> Callable[[], float]:
        native.Pool = pool  # type: ignore[misc]
        loader = Loader(
            open_dataset(folder, "train"),
            ImageDecoder(RandomResizedCrop(size=224)),
            LoaderConfig(batch_size=64, workers=args.workers),
        )

        def run() -> float:
            native.Pool = pool  # type: ignore[misc]
            began = time.process_time()
            count = 0
            for batch in loader:
                count += batch.samples
            return 1e6 * (time.process_time() - began) / count

        return run

    costs = measure.interleaved({"counted": epoch(Pool), "uncounted": epoch(Uncounted)}, args.repeats, warmups=2)
    own = measure.Spread.of([_each(_sample) for _ in range(args.repeats)])
    batch = measure.Spread.of([_each(_batch) for _ in range(args.repeats)])
    return {
        "what": "native loader",
        "workers": args.workers,
        "counted_cpu_microseconds_per_image": costs["counted"],
        "uncounted_cpu_microseconds_per_image": costs["uncounted"],
        "ratio": costs["counted"].median / costs["uncounted"].median,
        "counters_microseconds_per_image": own,
        "waits_microseconds_per_batch": batch,
        "share": own.median / costs["uncounted"].median,
    }


def _each(call: Callable[[int], object], loops: int = _LOOPS) -> float:
    """Microseconds per iteration of the loop in `call`."""
    began = time.perf_counter()
    call(loops)
    return 1e6 * (time.perf_counter() - began) / loops


def _sample(loops: int) -> None:
    """The statements that counting adds per sample and per chunk of one sample."""
    tally = Tally(2)
    number = 1
    clock = time.perf_counter
    reading = tally.read
    for _ in range(loops):
        start = time.perf_counter()
        began = clock()
        reading[number] += clock() - began
        tally.busy[number] += time.perf_counter() - start


def _batch(loops: int) -> None:
    import torch

    waits = Waits(torch.device("cpu"))
    for _ in range(loops):
        waits.begin()
        waits.end()


def account() -> dict[str, Any]:
    """The cost of `Account` per step and per progress line."""
    tally = Tally(16)
    waits = 0.0

    from fastimg.loaders.runtime.times import LoaderTimes

    def spent() -> LoaderTimes:
        return LoaderTimes(waits, 0.0, sum(tally.read), sum(tally.busy))

    def steps(loops: int) -> None:
        book = Account(spent, 16)
        book.begin()
        for _ in range(loops):
            book.add(32)

    def lines(loops: int) -> None:
        book = Account(spent, 16)
        book.begin()
        book.add(32)
        book.add(32)
        for _ in range(loops):
            book.read().record()
            book.evidence()

    return {
        "what": "Account",
        "microseconds_per_batch": measure.Spread.of([_each(steps) for _ in range(5)]),
        "microseconds_per_line": measure.Spread.of([_each(lines, _LOOPS // 20) for _ in range(5)]),
    }


def promised(args: argparse.Namespace, data: Path, scratch: Path) -> dict[str, Any]:
    """Compare runs that use torch's loader with runs that follow the advice given for them."""
    slow = []
    promises = []
    fast = []
    flags = set()
    for pair in range(args.pairs):
        before = _train(args, data, scratch / f"torch-{pair}", ["--loader", "torch", "--workers", "1"])
        change, factor = _bench(args, data)
        advised = change.split()
        kept = [] if advised[0] == "--workers" else ["--workers", "1"]
        fast.append(_train(args, data, scratch / f"advised-{pair}", [*advised, *kept]))
        slow.append(before)
        promises.append(factor)
        flags.add(change)
    gains = [after / before for after, before in zip(fast, slow, strict=True)]
    gain = measure.Spread.of(gains)
    promise = measure.Spread.of(promises)
    each = measure.Spread.of([reached / said for reached, said in zip(gains, promises, strict=True)])
    return {
        "what": "promise of bench",
        "arch": args.arch,
        "img_size": args.img_size,
        "batch_size": args.batch_size,
        "more": " ".join(args.flags),
        "advised": ", ".join(sorted(flags)),
        "before_images_per_second": measure.Spread.of(slow),
        "after_images_per_second": measure.Spread.of(fast),
        "promised_factor": promise,
        "reached_factor": gain,
        "reached_over_promised": gain.median / promise.median,
        "reached_over_promised_of_pairs": each,
    }


def _bench(args: argparse.Namespace, data: Path) -> tuple[str, float]:
    """(flag, factor) of the first advice that `fastimg bench` tried."""
    flags = [
        "--loader",
        "torch",
        "--workers",
        "1",
        "--stages",
        "none",
        "--json",
        "--full",
        "--loaders",
        "none",
        "--workers-curve",
        "none",
    ]
    done = _fastimg("bench", data, *_model(args), *flags)
    advice = json.loads(done.stdout)["training"][0]["verdict"]["advice"]
    for item in advice:
        if item["tried"] and item["change"].startswith("--"):
            return item["change"], item["factor"]
    raise SystemExit(f"bench gave no advice that it has measured: {advice}")


def _model(args: argparse.Namespace) -> list[str]:
    return [
        *("--arch", args.arch, "--img-size", str(args.img_size), "--batch-size", str(args.batch_size), "--no-amp"),
        *(f"--{flag}" for flag in args.flags),
    ]


def _train(args: argparse.Namespace, data: Path, output: Path, flags: list[str]) -> float:
    """Images per second of a run, without its first epoch."""
    run = ["--duration", args.duration, "--val-fraction", "0", "--output", str(output), "--name", "run"]
    _fastimg("train", data, *_model(args), *run, *flags)
    lines = (output / "run" / "metrics.jsonl").read_text().splitlines()
    epochs = [record for record in map(json.loads, lines) if record["kind"] == "epoch"]
    return statistics.median(args.images / record["train_seconds"] for record in epochs[1:])


def _fastimg(command: str, data: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-W", "ignore", "-m", "fastimg", command, str(data), *flags]
    environment = {**os.environ, "COLUMNS": "400"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done


if __name__ == "__main__":
    main()
