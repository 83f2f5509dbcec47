"""What a trial takes of a Ray cluster: gpu=0.5,cpu=2."""

import math
from collections.abc import Mapping

from fastimg.errors import UsageError

KNOWN = {"gpu": "GPU", "cpu": "CPU", "memory": "memory"}  # as Ray names them; other names are its custom resources


def parse(text: str) -> dict[str, float]:
    """The amounts by Ray's names. Raises UsageError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, amount = (piece.strip() for piece in part.partition("="))
        name = KNOWN.get(name.lower(), name)
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        flag = f"--resources-per-trial {text}"
        if not name or not math.isfinite(value) or value <= 0:
            raise UsageError(f"{flag}: give names and amounts above 0, as in gpu=0.5,cpu=2")
        if name in found:
            raise UsageError(f"{flag}: {name} stands there twice")
        if name == "GPU" and value > 1:
            raise UsageError(f"{flag}: a trial trains on one GPU; give gpu=1 or less")
        if value > 1 and value != int(value):
            raise UsageError(f"{flag}: Ray gives out whole numbers above 1; {part.strip()} is none")
        found[name] = value
    return found


def written(amounts: Mapping[str, float]) -> str:
    """The inverse of `parse`."""
    names = {theirs: ours for ours, theirs in KNOWN.items()}
    return ",".join(f"{names.get(name, name)}={amount:.12g}" for name, amount in amounts.items())
