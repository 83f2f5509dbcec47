"""Windows of crops in compiled code: the same numbers as `RandomResizedCrop`, `CenterCrop` and `RandomCrop` give."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.crop import CenterCrop, CropRule, RandomCrop, RandomResizedCrop, pair, shape_of
from fastimg.loaders.runtime.compiled import compiled

_RANDOM, _CENTER, _PADDED = 0.0, 1.0, 2.0


def compiled_rule(crop: CropRule, padded: bool = False) -> npt.NDArray[np.float64] | None:
    """A rule as `find_window` takes it; None for other rules, and for subclasses, which may have windows of their own.

    That is float64 [9]: its kind, the width and the height of its output, and its other settings. `padded`: also of a
    RandomCrop, whose windows reach beyond the picture.
    """
    if type(crop) is RandomResizedCrop or type(crop) is CenterCrop or (padded and type(crop) is RandomCrop):
        return _settings(crop)
    return None


def compiled_rules(
    crops: Sequence[CropRule], padded: bool = False
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None:
    """Several rules [n, 9], and where the numbers of each begin among those of all [n]; None if one is not known."""
    rules = [compiled_rule(crop, padded) for crop in crops]
    known = [rule for rule in rules if rule is not None]
    begins = np.cumsum([0, *(crop.draws for crop in crops)])[:-1]
    return (np.array(known), begins.astype(np.int64)) if len(known) == len(rules) else None


@functools.lru_cache(maxsize=64)
def _settings(crop: RandomResizedCrop | CenterCrop | RandomCrop) -> npt.NDArray[np.float64]:
    tall, wide = shape_of(crop)
    if isinstance(crop, RandomResizedCrop):
        (low, high), (narrow, broad) = crop.scale, crop.ratio
        least = math.log(narrow)
        return np.array([_RANDOM, wide, tall, low, high - low, narrow, broad, least, math.log(broad) - least])
    if isinstance(crop, RandomCrop):
        return np.array([_PADDED, wide, tall, wide, tall, crop.padding, 0, 0, 0], np.float64)
    height, width = pair(crop.resize)
    return np.array([_CENTER, wide, tall, width, height, 0, 0, 0, 0], np.float64)


@compiled
def find_window(width: int, height: int, numbers: Any, rule: Any, jobs: Any, max_pixels: int) -> bool:
    """Fill the window of `jobs[0]`, of an upright picture of `width` x `height`, by the numbers that were drawn.

    False if it has more than `max_pixels` pixels once it is resized, or reaches beyond what was resized.
    """
    place_window(width, height, numbers, rule, jobs)
    return is_small(jobs, max_pixels) and is_inside(jobs, int(rule[1]), int(rule[2]))


@compiled
def is_small(jobs: Any, max_pixels: int) -> bool:
    """Whether the picture of `jobs[0]` has at most `max_pixels` pixels once it is resized."""
    return bool(jobs[0].resized_width * jobs[0].resized_height <= max_pixels)


@compiled
def is_inside(jobs: Any, wide: int, tall: int) -> bool:
    """Whether the window of `jobs[0]`, of `wide` x `tall` pixels, lies in what was resized."""
    job = jobs[0]
    if job.at_x < 0 or job.at_y < 0:
        return False
    return bool(job.at_x + wide <= job.resized_width and job.at_y + tall <= job.resized_height)


@compiled
def place_window(width: int, height: int, numbers: Any, rule: Any, jobs: Any) -> None:
    """Fill the window of `jobs[0]` as `find_window` does, wherever it lies."""
    job = jobs[0]
    wide, tall = int(rule[1]), int(rule[2])
    if rule[0] == _RANDOM:
        _find_random(width, height, numbers, rule, job)
        job.resized_width, job.resized_height = wide, tall
        job.at_x, job.at_y = 0, 0
    else:
        job.x, job.y, job.width, job.height = 0, 0, width, height
        least_width, least_height = int(rule[3]), int(rule[4])
        if width * least_height <= height * least_width:
            job.resized_width, job.resized_height = least_width, int(least_width * height / width)
        else:
            job.resized_width, job.resized_height = int(least_height * width / height), least_height
        if rule[0] == _PADDED:
            padding = int(rule[5])
            job.at_x = int(numbers[0] * (job.resized_width + 2 * padding - wide + 1)) - padding
            job.at_y = int(numbers[1] * (job.resized_height + 2 * padding - tall + 1)) - padding
        else:
            job.at_x = round((job.resized_width - wide) / 2.0)
            job.at_y = round((job.resized_height - tall) / 2.0)


@compiled
def _find_random(width: int, height: int, numbers: Any, rule: Any, job: Any) -> None:
    for i in range(0, 20, 2):
        area = width * height * (rule[3] + rule[4] * numbers[i])
        aspect = math.exp(rule[7] + rule[8] * numbers[i + 1])
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            job.x, job.y = int(numbers[20] * (width - w + 1)), int(numbers[21] * (height - h + 1))
            job.width, job.height = w, h
            return
    w, h = width, height
    if width / height < rule[5]:
        h = max(1, round(width / rule[5]))
    elif width / height > rule[6]:
        w = max(1, round(height * rule[6]))
    job.x, job.y, job.width, job.height = (width - w) // 2, (height - h) // 2, w, h
