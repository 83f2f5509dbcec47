"""Steps as CUDA graphs against steps that launch each kernel, on a batch that is on the GPU.

    python benchmarks/step_graphs.py

The step is the trainer's own, with its augmentation. Variants of a model are interleaved in one process: `memory_mib`
is the peak while all of them are there. `host_ms` is processor time of the thread that launches.
"""

import argparse
import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from rich.console import Console

from fastimg.bench.rig import Rig, build, on_device
from fastimg.config.commands import Train
from fastimg.loaders import FilesDataset
from fastimg.models.ranks import start
from fastimg.train.augment_stream import AugmentStream
from fastimg.train.step import optimiser_step
from fastimg.train.wrapping import compile_ahead

VARIANTS: dict[str, dict[str, Any]] = {
    "each kernel": {"cuda_graphs": "off"},
    "graphs": {"cuda_graphs": "auto"},
    "compiled": {"cuda_graphs": "off", "compile": "default"},
    "compiled, graphs": {"cuda_graphs": "auto", "compile": "default"},
}
CLASSES = 1000


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["resnet18", "resnet50"])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--amp-dtype", choices=["bf16", "fp16"], default="bf16")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=20, help="timed together, per repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "step_graphs.jsonl")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("CUDA graphs need a CUDA device")

    console, environment = Console(), measure.environment()
    for arch in args.arch:
        torch.cuda.reset_peak_memory_stats()
        rigs = {name: rig_of(args, arch, VARIANTS[name]) for name in args.variants}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in rigs}
        for _ in range(args.repeats):
            for name, rig in rigs.items():
                found[name].append(timed(rig, args.steps))
        rows = []
        for name, times in found.items():
            step = measure.Spread.of([device for device, _ in times])
            host = measure.Spread.of([host for _, host in times])
            row = {"arch": arch, "variant": name}
            rows.append({**row, **step.columns("ms"), "host ms": round(host.median, 3)})
            setting = {"batch_size": args.batch_size, "size": args.size, "dtype": args.amp_dtype, "steps": args.steps}
            memory = {"memory_mib": round(torch.cuda.max_memory_allocated() / 2**20)}
            record = {"benchmark": "step_graphs", **row, **step.fields("ms"), **host.fields("host_ms"), **setting}
            measure.append(args.out, {**record, **memory, "environment": environment})
        measure.show(console, f"{arch}, batch {args.batch_size}, {args.size} px, {args.amp_dtype}", rows)
        for rig in rigs.values():
            rig.close()


def rig_of(args: argparse.Namespace, arch: str, changes: dict[str, Any]) -> Rig:
    """A run on random pixels, compiled and recorded where it will be."""
    samples = args.batch_size * 4
    names = tuple(f"class {number}" for number in range(CLASSES))
    nothing = FilesDataset(Path("synthetic"), [""] * samples, names, (np.arange(samples) % CLASSES).tolist())
    plain = Train(arch=arch, batch_size=args.batch_size, img_size=args.size, loader="synthetic", workers="1")
    config = replace(
        plain, amp_dtype=args.amp_dtype, lr=1e-4, val_fraction=0.0, opt="sgd", weight_decay=5e-5, **changes
    )
    with start("cuda") as ranks:
        rig = build(config, nothing, np.arange(samples), ranks)
        compile_ahead(rig.run, lambda words: None)
        timed(rig, rig.run.progress.work.warm)
    return rig


def timed(rig: Rig, steps: int) -> tuple[float, float]:
    """(Milliseconds of a step on the device, of its launches on the host), the mean over some steps."""
    source = itertools.repeat(on_device(rig))
    stream = AugmentStream(rig.device, rig.config.augment_stream)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    measure.synchronise(rig.device)
    first.record()
    began = time.thread_time()
    for _ in range(steps):
        optimiser_step(rig.run, source, 1, stream)
    host = time.thread_time() - began
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / steps, 1000 * host / steps


if __name__ == "__main__":
    main()
