"""The GPU benchmark in tests: where its modules are, and what it has recorded."""

import json
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
STEP = {"section", "arch", "dtype", "compile", "batch", "images_per_second", "ms", "n", "memory_mib", "gpu", "torch"}


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
