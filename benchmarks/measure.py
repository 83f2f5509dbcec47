"""Names from `fastimg.system.measurement`, the checkout's root, and the folder for benchmark results."""

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
    "ROOT",
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

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
