"""CPU time of forward and backward passes with glibc's defaults and with freed memory kept (`memory.keep_freed`).

    python benchmarks/malloc.py

Every repeat has its own process, since the setting is permanent; variants are interleaved. Measures user and system
seconds of four passes after one warm-up pass; the time of other processes is not included. Results:
benchmarks/results/malloc.jsonl.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import measure
import timm
import torch
from rich.console import Console

from fastimg.system.memory import keep_freed

PASSES = {"forward": ("mobilenetv2_100", 64, 224), "training": ("resnet18", 32, 160)}


def main() -> int:
    """Measure, print, and append the results. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "malloc.jsonl")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(_work(args.worker[0], args.worker[1] == "kept")))
        return 0
    rows = []
    environment = measure.environment()
    for kind, (arch, batch, size) in PASSES.items():
        found: dict[str, list[list[float]]] = {"as it is": [], "kept": []}
        for _ in range(args.repeats):
            for name, values in found.items():
                command = [sys.executable, "-W", "ignore", __file__, "--worker", kind, name]
                values.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        for name, values in found.items():
            user, system = (measure.Spread.of([value[i] for value in values]) for i in range(2))
            setting = {"pass": kind, "arch": arch, "batch": batch, "size": size, "freed memory": name}
            rows.append({**setting, "user s": user.text(), "system s": system.text()})
            record = {
                "benchmark": "malloc",
                **setting,
                **user.fields("user_seconds"),
                **system.fields("system_seconds"),
            }
            measure.append(args.out, {**record, "environment": environment})
    measure.show(Console(width=None if sys.stdout.isatty() else 140), "four passes", rows)
    return 0


def _work(kind: str, keep: bool) -> list[float]:
    """[user, system] seconds of four passes."""
    if keep:
        keep_freed()
    arch, batch, size = PASSES[kind]
    model = timm.create_model(arch, num_classes=10).to(memory_format=torch.channels_last)
    images = torch.zeros(batch, 3, size, size).to(memory_format=torch.channels_last)

    def once() -> None:
        if kind == "training":
            model(images).sum().backward()
            return
        with torch.inference_mode():
            model(images)

    model.train(kind == "training")
    once()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(4):
        once()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return [after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime]


if __name__ == "__main__":
    sys.exit(main())
