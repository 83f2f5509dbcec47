"""The cost of checkpoints during training: written by the training thread, or copied and written in the background.

    python benchmarks/checkpoints.py [--arch resnet50] [--optimisers sgd,adamw] [--repeats 5]

Each run takes --steps steps on random pixels, in float32 on the CPU, and saves once, after the second. `none` does not
save. `at once`: tensors are copied, written, synced and renamed before the next step. `beside`: tensors are copied into
a buffer that is reused, and a thread writes them, as in `fastimg train`. Runs are interleaved. Each ends when its
checkpoint is on the disk of the current folder.

`blocked_ms`: how long saving blocks the training thread. `lost_ms`: how much longer the steps take than those of `none`
in the same round; the last write is included only if training waits for it. On a CPU the writing thread shares the
cores with the steps. `write_ms` and `write_cpu_ms`: wall and CPU time of the writing thread. `share_200_steps`:
`blocked_ms` as a share of 200 such steps and one checkpoint; `share_10_minutes`: as a share of ten minutes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch
from rich.console import Console

from fastimg.models.registry import build
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.checkpoints import writer as writing
from fastimg.train.checkpoints.format import Card
from fastimg.train.checkpoints.writer import Snapshot, Writer
from fastimg.train.optimisers.construction import build_optimizer

CPU = torch.device("cpu")


class Training:
    """A model with random weights, its optimiser, and one batch."""

    def __init__(self, arch: str, optimiser: str, batch: int, size: int) -> None:
        torch.manual_seed(0)
        self.arch = arch
        model = build(arch, 1000)
        self.preprocessing = model.preprocessing
        self.module = model.module.to(memory_format=torch.channels_last).train()
        self.optimizer = build_optimizer(self.module, optimiser, lr=1e-4, weight_decay=1e-4, momentum=0.9)
        self.images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
        self.targets = torch.arange(batch)

    def step(self) -> None:
        """One optimiser step."""
        torch.nn.functional.cross_entropy(self.module(self.images), self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def card(self, step: int) -> Card:
        """The metadata of its checkpoint."""
        return Card(
            arch=self.arch,
            kwargs={},
            classes=(),
            num_classes=1000,
            preprocessing=self.preprocessing,
            step=step,
            epoch=0,
            metrics={},
        )

    @property
    def nbytes(self) -> int:
        """The size of the tensors in a checkpoint, in bytes."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.module.state_dict().values(), *(m for m in moments if isinstance(m, torch.Tensor))]
        return sum(tensor.nbytes for tensor in tensors)


def at_once(training: Training, folder: Path, step: int) -> None:
    """Write a checkpoint as versions without the writer thread did: copy every tensor, then write."""
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in training.module.state_dict().items()}
    made = checkpoint.save(folder, training.card(step), weights, {"optimizer": training.optimizer.state_dict()})
    checkpoint.point(folder, "last", made)
    checkpoint.prune(folder, 0)


def beside(training: Training, writer: Writer, step: int) -> None:
    """Copy the tensors and let the thread write them."""
    writer.settle()
    room = writer.room()
    tree = {"weights": training.module.state_dict(), "optimizer": training.optimizer.state_dict()}
    copied = room.take(tree)
    state = {"optimizer": copied["optimizer"]}
    made = Snapshot(
        card=training.card(step), weights=copied["weights"], training=state, averages=None, files=None, room=room
    )
    writer.put(made, ["last"])


def main() -> None:
    """Measure, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--optimisers", default="sgd,adamw")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "checkpoints.jsonl")
    args = parser.parse_args()
    environment = measure.environment()
    shown: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        for optimiser in args.optimisers.split(","):
            for record in rounds(args, optimiser, Path(name) / optimiser):
                row = {"benchmark": "checkpoints", **measure.flat(record), "environment": environment}
                measure.append(args.out, row)
                shown.append({key: _cell(record.get(key)) for key in _SHOWN})
    measure.show(Console(), "checkpoints", shown)


_SHOWN = ("optimiser", "variant", "blocked_ms", "lost_ms", "write_cpu_ms", "share_200_steps", "share_10_minutes")


def _cell(value: Any) -> str:
    if isinstance(value, measure.Spread):
        return value.text()
    return f"{value:.3%}" if isinstance(value, float) else str(value or "")


def rounds(args: argparse.Namespace, optimiser: str, folder: Path) -> list[dict[str, Any]]:
    """Run all variants, interleaved, after one warm-up round."""
    training = Training(args.arch, optimiser, args.batch, args.size)
    writer = Writer(folder / "beside", 0, CPU)
    variants: dict[str, Callable[[int], None]] = {
        "none": lambda step: None,
        "at once": lambda step: at_once(training, folder / "at once", step),
        "beside": lambda step: beside(training, writer, step),
    }
    times: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    writes: list[tuple[float, float]] = []
    write = writing.write

    def timed(*arguments: Any) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        write(*arguments)
        writes.append((1e3 * (time.perf_counter() - began), 1e3 * (time.thread_time() - cpu)))

    writing.write = timed
    step = 0
    for number in range(1 + args.repeats):
        for name, save in variants.items():
            step += 1
            found = run(training, save, writer, args.steps, step)
            if number:
                for key, value in found.items():
                    times[name].setdefault(key, []).append(value)
    writing.write = write
    records = []
    each = statistics.median(times["none"]["run_ms"]) / args.steps
    for name, values in times.items():
        shape = {"arch": args.arch, "optimiser": optimiser, "batch": args.batch, "size": args.size}
        shape |= {"threads": torch.get_num_threads(), "steps": args.steps, "checkpoint_mb": training.nbytes / 1e6}
        record: dict[str, Any] = {**shape, "variant": name}
        record |= {key: measure.Spread.of(found) for key, found in values.items()}
        if name != "none":
            lost = [a - b for a, b in zip(values["run_ms"], times["none"]["run_ms"], strict=True)]
            record["lost_ms"] = measure.Spread.of(lost)
            blocked = statistics.median(values["blocked_ms"])
            record["share_200_steps"] = blocked / (200 * each + blocked)
            record["share_10_minutes"] = blocked / 600e3
        if name == "beside":
            record["write_ms"] = measure.Spread.of([wall for wall, _ in writes[1:]])
            record["write_cpu_ms"] = measure.Spread.of([cpu for _, cpu in writes[1:]])
        records.append(record)
    return records


def run(training: Training, save: Callable[[int], None], writer: Writer, steps: int, number: int) -> dict[str, float]:
    """Milliseconds of a run's steps, of the saving call, and of waiting for the thread after the last step."""
    began = time.perf_counter()
    blocked = 0.0
    for step in range(steps):
        training.step()
        if step == 1:
            saving = time.perf_counter()
            save(number)
            blocked = time.perf_counter() - saving
    ended = time.perf_counter()
    writer.settle()
    waited = time.perf_counter() - ended
    return {"run_ms": 1e3 * (ended - began), "blocked_ms": 1e3 * blocked, "waited_ms": 1e3 * waited}


if __name__ == "__main__":
    main()
