"""Speed and peak memory of the trainer with each technique, compared with a plain run, each in its own process.

    python benchmarks/train.py                        every technique on random pixels (CPU: two models, batch 8)
    python benchmarks/train.py --real --data FOLDER   also from JPEG files, next to a plain torchvision-style loop

Each variant is `fastimg train` with its flags; variants are interleaved. Speed is the median over the run's records
after the first. Memory is the process's peak (resident on a CPU, allocated on a GPU).
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import measure
import torch
from images import write_photographs
from rich.console import Console
from train_reference import train_plainly

PLAIN = ("--no-amp", "--no-channels-last")
TECHNIQUES: dict[str, tuple[str, ...]] = {
    "plain": PLAIN,
    "channels-last": ("--no-amp",),
    "bf16": ("--amp-dtype", "bf16", "--no-channels-last"),
    "bf16, channels-last": ("--amp-dtype", "bf16"),
    "compile": (*PLAIN, "--compile"),
    "EMA": (*PLAIN, "--model-ema"),
    "2 accumulated halves": (*PLAIN, "--grad-accum-steps", "2"),
    "ghost norm, halves": (*PLAIN, "--ghost-bn", "HALF"),
    "checkpointing": (*PLAIN, "--grad-checkpointing"),
    "foreach optimiser": (*PLAIN, "--opt-impl", "foreach"),
}
ON_GPU = ("resnet50", "resnet18", "vit_small_patch16_224", "vit_base_patch16_224")
ON_CPU = ("resnet50", "vit_tiny_patch16_224")


def main() -> int:
    """Measure, print, and append the results. Returns the exit status."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=ON_GPU if on_gpu else ON_CPU)
    parser.add_argument("--batch-size", type=int, default=256 if on_gpu else 8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=40 if on_gpu else 4, help="timed steps, after 2 warm-up steps")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=TECHNIQUES, default=list(TECHNIQUES), help="techniques to run, besides plain"
    )
    parser.add_argument(
        "--real", action="store_true", help="train from JPEG files, and compare with a plain torchvision-style loop"
    )
    parser.add_argument("--data", type=Path, help="folder of images by class; default: generated JPEGs")
    parser.add_argument("--images", type=int, default=1024 if on_gpu else 16, help="how many JPEGs to make")
    parser.add_argument("--workers", default="auto")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "train.jsonl")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(_work(json.loads(args.worker))))
        return 0
    if args.data is not None and not args.real:
        parser.error("--data has no effect without --real")

    console = Console(width=None if sys.stdout.isatty() else 140)
    environment = measure.environment()
    with tempfile.TemporaryDirectory(prefix="fastimg-train-") as folder:
        data = args.data or Path(folder) / "images"
        if args.data is None:
            _write_images(data, args.images, (args.steps + 2) * args.batch_size)
        failed = [arch for arch in args.arch if not _measure(arch, data, args, console, environment)]
    return 1 if failed else 0


def _write_images(folder: Path, images: int, samples: int) -> None:
    """Write two classes with `samples` links to `images` JPEGs in all, so that one epoch lasts for the whole run."""
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        write_photographs(folder / name, images // 2, (500, 375))
        made = sorted((folder / name).iterdir())
        for number in range(len(made), -(-samples // 2)):
            os.link(made[number % len(made)], folder / name / f"{number:06d}.jpg")


def _measure(arch: str, data: Path, args: argparse.Namespace, console: Console, environment: dict[str, Any]) -> bool:
    """Run all variants of one model. Returns whether all of them succeeded."""
    variants = {name: list(TECHNIQUES[name]) for name in dict.fromkeys(["plain", *args.only])}
    jobs = {name: _job(arch, data, args, "synthetic", flags) for name, flags in variants.items()}
    if args.real:
        flags = list(TECHNIQUES["bf16, channels-last"])
        jobs = {
            "random pixels": _job(arch, data, args, "synthetic", flags),
            "fastimg, JPEGs": _job(arch, data, args, "native", flags),
            "plain loop, JPEGs": {**_job(arch, data, args, "native", flags), "reference": True},
        }
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    peaks: dict[str, list[float]] = {name: [] for name in jobs}
    errors: dict[str, str] = {}
    for _ in range(args.repeats):
        for name, job in jobs.items():
            if name in errors:
                continue
            found = _run(job)
            if "error" in found:
                errors[name] = found["error"]
                continue
            speeds[name].append(found["images_per_second"])
            peaks[name].append(found["peak_mib"])
    first = next(iter(jobs))
    rows = []
    for name in jobs:
        row: dict[str, Any] = {"variant": name}
        if name in errors:
            rows.append({**row, "skipped": errors[name]})
        else:
            speed = measure.Spread.of(speeds[name])
            peak = measure.Spread.of(peaks[name])
            ratio = round(speed.median / statistics.median(speeds[first]), 2)
            memory = round(peak.median / statistics.median(peaks[first]), 2)
            row |= {**speed.columns("img/s"), "ratio": ratio, "peak MiB": round(peak.median), "of plain's": memory}
            rows.append(row)
        setting = {"arch": arch, "batch_size": args.batch_size, "size": args.size, "steps": args.steps}
        record = {"benchmark": "train", "real": args.real, **setting, "variant": name}
        if name in errors:
            record["skipped"] = errors[name]
        else:
            record |= {**speed.fields("images_per_second"), **peak.fields("peak_mib"), "ratio": ratio}
        measure.append(args.out, {**record, "environment": environment})
    measure.show(console, f"{arch}, batch {args.batch_size}, {args.size} px", rows)
    return all("no batch norm" in error for error in errors.values())


def _job(arch: str, data: Path, args: argparse.Namespace, loader: str, flags: list[str]) -> dict[str, Any]:
    """The arguments of a process."""
    accumulated = 2 if "--grad-accum-steps" in flags else 1
    flags = [str(args.batch_size // 2) if flag == "HALF" else flag for flag in flags]
    if loader == "native":
        flags += ["--workers", args.workers]
    return {
        "arch": arch,
        "data": str(data),
        "batch_size": args.batch_size // accumulated,
        "size": args.size,
        "steps": args.steps,
        "workers": args.workers,
        "reference": False,
        "flags": [*flags, "--loader", loader],
    }


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in its own process. Returns its speed and peak memory, or the reason for its failure."""
    command = [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no error message"])[-1]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _work(job: dict[str, Any]) -> dict[str, Any]:
    """Train in this process."""
    import resource

    from fastimg import cli
    from fastimg.train.checkpoints import run_directory as rundir

    speed = 0.0
    if job["reference"]:
        speed = train_plainly(job["arch"], Path(job["data"]), job["batch_size"], job["size"], job["steps"])
    else:
        with tempfile.TemporaryDirectory(prefix="fastimg-run-") as folder:
            size = ["--img-size", str(job["size"]), "-b", str(job["batch_size"])]
            steps = ["--duration", f"{job['steps'] + 2}ba", "--log-interval", "2", "--val-fraction", "0"]
            flags = ["--opt", "sgd", "--lr", "0.01", *job["flags"], "-o", folder, "--name", "run"]
            with redirect_stdout(io.StringIO()):
                code = cli.run(["train", job["data"], "--arch", job["arch"], *size, *steps, *flags])
            if code:
                sys.exit(code)
            records = [r["images_per_second"] for r in rundir.read_log(Path(folder) / "run") if r["kind"] == "train"]
        speed = statistics.median(records[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
    return {"images_per_second": speed, "peak_mib": peak / 2**20}


if __name__ == "__main__":
    sys.exit(main())
