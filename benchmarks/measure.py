"""The names of `fastimg.system.measurement`, and the folder for results of benchmarks."""

from pathlib import Path

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
    "Spread",
    "append",
    "environment",
    "flat",
    "interleaved",
    "seconds",
    "show",
    "synchronise",
    "wall_seconds",
]

RESULTS = Path(__file__).resolve().parent / "results"
