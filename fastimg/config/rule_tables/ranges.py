"""Which values of single flags are in their range."""

from collections.abc import Callable
from typing import Any

from fastimg.config.rules import Check
from fastimg.config.yaml_values import MOST, MOST_WHOLE


def at_least(least: float) -> Callable[[Any], bool]:
    return lambda value: bool(least <= value <= (MOST_WHOLE if isinstance(value, int) else MOST))


def is_above_zero(value: float) -> bool:
    return 0 < value <= (MOST_WHOLE if isinstance(value, int) else MOST)


def is_share(value: float) -> bool:
    return 0 <= value <= 1


def is_share_above_zero(value: float) -> bool:
    return 0 < value <= 1


def is_share_below_one(value: float) -> bool:
    return 0 <= value < 1


def is_size(pixels: int) -> bool:
    return 1 <= pixels <= 16384


def check_device_name(config: Any) -> str | None:
    """What to write for a GPU as other programs call it: 0, gpu, 0,1."""
    name = config.device
    numbers = [part.strip() for part in name.split(",")]
    if not all(part.isascii() and part.isdigit() for part in numbers):
        return "write cuda" if name in ("gpu", "gpus") else None
    if len(numbers) == 1:
        return f"write cuda:{name}"
    return (
        "a process uses one GPU; start one for each, as in `CUDA_VISIBLE_DEVICES="
        f"{','.join(numbers)} torchrun --nproc-per-node {len(numbers)} -m fastimg train DATA`"
    )


DEVICE = Check("device", check_device_name)


def are_views(text: str) -> bool:
    return text == "off" or (text.isascii() and text.isdigit() and int(text) >= 1)


def is_pos_weight(text: str) -> bool:
    try:
        return text == "balanced" or is_above_zero(float(text))
    except ValueError:
        return False
