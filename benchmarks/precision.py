"""Training steps on the CPU: float32 or bf16 autocast, contiguous or channels-last.

    python benchmarks/precision.py

A step is forward, cross-entropy, backward and SGD, on one fixed batch. Variants are interleaved.
"""

import argparse
from pathlib import Path

import measure
import torch
from rich.console import Console
from step import Stepper

VARIANTS = {
    "float32, contiguous": (torch.float32, False),
    "float32, channels-last": (torch.float32, True),
    "bf16, contiguous": (torch.bfloat16, False),
    "bf16, channels-last": (torch.bfloat16, True),
}


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", default=["resnet50", "vit_tiny_patch16_224"])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=2, help="timed together, per repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "precision.jsonl")
    args = parser.parse_args()

    device = torch.device("cpu")
    environment = measure.environment()
    console = Console()
    for arch in args.arch:
        steppers = {
            name: Stepper(arch, device, dtype, channels_last, args.size)
            for name, (dtype, channels_last) in VARIANTS.items()
        }
        images = torch.randint(0, 256, (args.batch_size, 3, args.size, args.size), dtype=torch.uint8)
        targets = torch.arange(args.batch_size)

        def speed(stepper: Stepper, images: torch.Tensor = images, targets: torch.Tensor = targets) -> float:
            def run() -> None:
                for _ in range(args.steps):
                    stepper(images, targets)

            return float(args.steps * args.batch_size / measure.seconds(run, device))

        found = measure.interleaved({name: lambda s=s: speed(s) for name, s in steppers.items()}, args.repeats)
        base = found["float32, contiguous"].median
        rows = []
        for name, spread in found.items():
            row = {"arch": arch, "variant": name}
            rows.append({**row, **spread.columns("img/s"), "ratio": round(spread.median / base, 2)})
            setting = {"batch_size": args.batch_size, "size": args.size, "steps": args.steps}
            threads = {"threads": torch.get_num_threads()}
            record = {"benchmark": "precision", **row, **spread.fields("images_per_second"), **setting, **threads}
            measure.append(args.out, {**record, "environment": environment})
        measure.show(console, f"{arch}, batch {args.batch_size}, {args.size} px, {device}", rows)


if __name__ == "__main__":
    main()
