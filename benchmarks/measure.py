"""`fastimg.system.measurement`, and where the results of benchmarks are kept."""

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
