"""TrivialAugment with its pass over the pixels launched in other ways: what a GPU other than an H200 may prefer."""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import measure
import torch
from bench import Bench, SkippedError
from gpu_augment import TRIVIAL, enqueued, natural
from gpu_clocks import clocks

from fastimg.augment import apply, draw


@dataclass(frozen=True)
class Way:
    """Threads of a program, pixels of a thread, and registers that it may have; None: as many as the compiler likes."""

    threads: int
    each: int
    registers: int | None = None

    def text(self) -> str:
        """A description for people."""
        limit = f", at most {self.registers} registers" if self.registers else ""
        return f"{self.threads} threads, {self.each} pixels each{limit}"


WAYS = [
    *(Way(128, 16), Way(128, 16, 40), Way(128, 16, 32), Way(128, 8), Way(128, 8, 40), Way(128, 24), Way(128, 24, 40)),
    *(Way(128, 32), Way(64, 16), Way(64, 16, 40), Way(64, 32)),
]


def tuning(bench: Bench) -> None:
    """Time the ways in turn, each of which gives the same bits. They are compiled beforehand, all at once."""
    bench.need_cuda()
    if not importlib.util.find_spec("triton"):
        raise SkippedError("needs Triton")
    command = [sys.executable, __file__]
    for process in [subprocess.Popen([*command, str(number)]) for number in range(len(WAYS))]:
        process.wait()
    count, device = bench.sizes.augment_batch, bench.device
    images, origin = natural(bench, count)
    plan = draw(TRIVIAL, torch.arange(count), 0, 0)
    launched = Launched(WAYS[0])

    def call() -> torch.Tensor:
        return apply(plan, images, TRIVIAL, torch.bfloat16)

    expected = call()
    found: dict[Way, list[float]] = {way: [] for way in WAYS}
    for number in range(1 + max(1, 4 * (bench.sizes.repeats - 1))):
        for way in WAYS:
            launched.way = way
            if number:
                found[way].append(enqueued(call, device).milliseconds)
            elif not torch.equal(call(), expected):
                raise RuntimeError(f"{way.text()}: other bits than {WAYS[0].text()}")
    rows: list[dict[str, Any]] = [
        {"what": way.text(), "milliseconds": measure.Spread.of(times), **launched.compiled[way]}
        for way, times in found.items()
    ]
    rows[0] |= {"images": origin, **clocks(device)}
    bench.report(f"TrivialAugment, {count} images of {bench.sizes.crop} pixels, uint8 -> bf16", rows)


class Launched:
    """Stands for the kernel of the pass over the pixels, and launches it in a `way`."""

    def __init__(self, way: Way) -> None:
        self.way, self.compiled = way, dict[Way, dict[str, Any]]()
        launches = importlib.import_module("fastimg.augment.fused.launches")
        self.kernel, launches._pixels = launches._pixels, self

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*given: Any, **named: Any) -> None:
            way = self.way
            pixels = named["HEIGHT"] * named["WIDTH"]
            images = grid[0] // -(-pixels // (named["EACH"] * named["THREADS"]))
            named |= {"THREADS": way.threads, "EACH": way.each, "num_warps": way.threads // 32}
            if way.registers:
                named["maxnreg"] = way.registers
            blocks = images * -(-pixels // (way.each * way.threads))
            made = self.kernel[(blocks,)](*given, **named)
            self.compiled[way] = {"registers": made.n_regs, "spills": made.n_spills}

        return launch


def _compile(number: int) -> None:
    """Compile a way in this process; Triton keeps what it made for others."""
    images = torch.zeros(64, 224, 224, 3, dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    Launched(WAYS[number])
    apply(draw(TRIVIAL, torch.arange(64), 0, 0), images, TRIVIAL, torch.bfloat16)
    torch.cuda.synchronize()


if __name__ == "__main__":
    _compile(int(sys.argv[1]))
