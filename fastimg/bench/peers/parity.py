"""Parity: checks, before timing, that loaders do the same work: pixels of centre crops, and boxes of random crops."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastimg.loaders.decode import read_header
from fastimg.wording import plural

from .data import Sources
from .pipelines import Workload
from .processes import PeerError, Remote


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The epochs to compare: `centre` reads each file once, `boxes` reads gradients."""

    centre: Workload
    boxes: Workload


def check(remotes: Mapping[str, Remote], checks: Checks, base: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Compare each loader's pixels and boxes with those of `base`. Returns the results, and the faults of loaders.

    Pixels are compared by the mean absolute difference on 0-255, over images that are stored upright (None if there are
    none). Images with an EXIF orientation are compared separately: a large difference tells that a loader ignores it.
    Boxes are compared by the largest distance between the two distributions (Kolmogorov-Smirnov); two samples from one
    distribution exceed `ks_limit` once in 1,000 times. Raises PeerError if `base` fails.
    """
    upright = _stored_upright(checks.centre.sources)
    rows: dict[str, dict[str, Any]] = {}
    faults: dict[str, str] = {}
    ours = remotes[base].images(checks.centre)
    our_boxes = remotes[base].boxes(checks.boxes)
    for name, remote in remotes.items():
        try:
            if name == base:
                images = ours
                boxes = our_boxes
            else:
                images = remote.images(checks.centre)
                boxes = remote.boxes(checks.boxes)
            if images.shape != ours.shape or boxes.shape != our_boxes.shape:
                counts = (
                    f"{len(images)} of {plural(len(ours), 'image')} and {len(boxes)} of {plural(len(our_boxes), 'box')}"
                )
                raise PeerError(f"returned {counts}")
        except PeerError as error:
            faults[name] = str(error)
            continue
        difference = np.abs(images.astype(np.int16) - ours).mean(axis=(1, 2, 3))  # of each image
        area, aspect, x, _, mirrored = boxes.T
        rows[name] = {
            "mean_difference": _of(np.mean, difference[upright]),
            "median_image": _of(np.median, difference[upright]),
            "worst_image": _of(np.max, difference[upright]),
            "exif_turned_difference": _of(np.mean, difference[~upright]),
            "mean_area": float(area.mean()),
            "mean_log_aspect": _mean_log(aspect),
            "mirrored": float(mirrored.mean()),
            "ks_area": _distance(area, our_boxes[:, 0]),
            "ks_aspect": _distance(aspect, our_boxes[:, 1]),
            "ks_centre_x": _distance(x, our_boxes[:, 2]),
            "ks_limit": 1.95 * float(np.sqrt(2 / len(area))),
            "images": int(upright.sum()),
            "exif_turned_images": int((~upright).sum()),
            "boxes": len(boxes),
        }
    return rows, faults


def _of(statistic: Any, values: npt.NDArray[np.float64]) -> float | None:
    return float(statistic(values)) if len(values) else None


def _mean_log(aspect: npt.NDArray[np.float64]) -> float:
    with np.errstate(all="ignore"):  # for pixels that show no box
        return float(np.log(aspect).mean())


def _stored_upright(sources: Sources) -> npt.NDArray[np.bool_]:
    """Which files have no EXIF orientation to undo, bool [N]."""

    def upright(file: Path) -> bool:
        return read_header(file.read_bytes()).orientation == 1

    return np.array([upright(file) for file in sources.files])


def _distance(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """The largest difference between the two empirical distribution functions."""
    places = np.concatenate((a, b))
    ours, theirs = (np.searchsorted(np.sort(v), places, side="right") / len(v) for v in (a, b))
    return float(np.abs(ours - theirs).max())
