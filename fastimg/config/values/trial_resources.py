"""What a trial or a rank takes of a Ray cluster: gpu=0.5,cpu=2; and how many ranks may train: 2:8."""

import math
from collections.abc import Mapping

from fastimg.errors import UsageError

KNOWN = {"gpu": "GPU", "cpu": "CPU", "memory": "memory"}  # as Ray names them; other names are its custom resources


def parse(text: str, name_of_flag: str = "--resources-per-trial", user: str = "trial") -> dict[str, float]:
    """The amounts by Ray's names. Raises UsageError. A `user` is a trial, or a rank, which has a whole GPU."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, amount = (piece.strip() for piece in part.partition("="))
        name = KNOWN.get(name.lower(), name)
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        flag = f"{name_of_flag} {text}"
        if not name or not math.isfinite(value) or value <= 0:
            raise UsageError(f"{flag}: give names and amounts above 0, as in gpu=0.5,cpu=2")
        if name in found:
            raise UsageError(f"{flag}: {name} stands there twice")
        if name == "GPU" and value > 1:
            raise UsageError(f"{flag}: a {user} trains on one GPU; give gpu=1{' or less' if user == 'trial' else ''}")
        if name == "GPU" and value < 1 and user == "rank":
            raise UsageError(f"{flag}: ranks cannot share a GPU; give gpu=1")
        if value > 1 and value != int(value):
            raise UsageError(f"{flag}: Ray gives out whole numbers above 1; {part.strip()} is none")
        found[name] = value
    return found


def parse_range(text: str) -> tuple[int, int]:
    """The fewest and the most ranks, of --elastic. Raises UsageError."""
    fewest, _, most = text.partition(":")
    if not (fewest.isdecimal() and most.isdecimal() and 1 <= int(fewest) <= int(most)):
        raise UsageError(f"--elastic {text}: give the fewest and the most ranks, as in 2:8")
    return int(fewest), int(most)


def written(amounts: Mapping[str, float]) -> str:
    """The inverse of `parse`."""
    names = {theirs: ours for ours, theirs in KNOWN.items()}
    return ",".join(f"{names.get(name, name)}={amount:.12g}" for name, amount in amounts.items())
