"""Names from `fastimg.system.measurement`, the checkout's root, and the folder for benchmark results."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fastimg.system.measurement import (
    Spread,
    append,
    environment,
    flat,
    interleaved,
    seconds,
    show,
    synchronise,
    wall_seconds,
)

__all__ = [
    "RESULTS",
    "ROOT",
    "Spread",
    "append",
    "append_sections",
    "drop_pages",
    "environment",
    "flat",
    "interleaved",
    "seconds",
    "seconds_in_turn",
    "show",
    "synchronise",
    "wall_seconds",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

os.environ.setdefault("FASTIMG_BACKGROUND", "0")  # nothing is compiled beside what is measured


def drop_pages(folder: Path) -> None:
    """Drop all files of a folder from the page cache."""
    os.sync()  # pages that are not written yet stay
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def seconds_in_turn(
    heads: Mapping[str, Callable[[], object]], repeats: int, before: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Seconds on the CPU that each function takes, called in turn; two rounds before those that count warm up.

    `before` is called before each of them, and not timed.
    """
    import torch  # takes seconds, and not every benchmark needs it

    taken: dict[str, list[float]] = {head: [] for head in heads}
    for turn in range(2 + repeats):
        for head, call in heads.items():
            before()
            second = wall_seconds(call, torch.device("cpu"))
            if turn >= 2:
                taken[head].append(second)
    return taken


def append_sections(path: Path, benchmark: str, found: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Add the records of a benchmark's sections, each with its section and the environment."""
    here = environment()
    for section, records in found.items():
        for record in records:
            append(path, {"benchmark": benchmark, "section": section, **flat(record), "environment": here})
