"""Before anything is timed: do the loaders do the same work? Pixels of centre crops, and the boxes of random ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from loader_data import Sources
from loader_peers import Work
from loader_processes import PeerError, Remote
from PIL import Image


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What is checked: `centre` is a work over each file once, `boxes` one over gradients."""

    centre: Work
    boxes: Work


def compare(remotes: Mapping[str, Remote], checks: Checks, base: str) -> dict[str, dict[str, Any]]:
    """Rows of what each loader's pixels and boxes are beside those of `base`; `fault` where it gives none.

    Mean absolute difference of pixels on 0-255, of images that are stored upright; who does not turn the others is
    told by their mean difference. For the boxes the largest distance between the two distributions
    (Kolmogorov-Smirnov); two samples of one distribution differ by more than `ks_limit` once in 1,000 times.
    """
    upright = _stored_upright(checks.centre.sources)
    rows: dict[str, dict[str, Any]] = {}
    ours = {"centre": remotes[base].ask("images", checks.centre), "boxes": remotes[base].ask("boxes", checks.boxes)}
    for name, remote in remotes.items():
        try:
            images, boxes = remote.ask("images", checks.centre), remote.ask("boxes", checks.boxes)
            if images.shape != ours["centre"].shape or boxes.shape != ours["boxes"].shape:
                raise PeerError(f"{name}: images of shape {images.shape}, boxes of {boxes.shape}")
        except PeerError as error:
            rows[name] = {"fault": str(error)}
            continue
        difference = np.abs(images.astype(np.int16) - ours["centre"]).mean(axis=(1, 2, 3))  # of each image
        area, aspect, x, _, mirrored = boxes.T
        rows[name] = {
            "mean_difference": float(difference[upright].mean()),
            "median_image": float(np.median(difference[upright])),
            "worst_image": float(difference[upright].max()),
            "exif_turned_difference": float(difference[~upright].mean()) if not upright.all() else None,
            "mean_area": float(area.mean()),
            "mean_log_aspect": float(np.log(aspect).mean()),
            "mirrored": float(mirrored.mean()),
            "ks_area": _distance(area, ours["boxes"][:, 0]),
            "ks_aspect": _distance(aspect, ours["boxes"][:, 1]),
            "ks_centre_x": _distance(x, ours["boxes"][:, 2]),
            "ks_limit": 1.95 * float(np.sqrt(2 / len(area))),
            "images": int(upright.sum()),
            "exif_turned_images": int((~upright).sum()),
            "boxes": len(boxes),
        }
    return rows


def _stored_upright(sources: Sources) -> np.ndarray:
    """Which files have no EXIF orientation to be undone [N]."""

    def orientation(file: Path) -> int:
        with Image.open(file) as image:
            return int(image.getexif().get(0x0112, 1))

    return np.array([orientation(file) == 1 for file in sources.files])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of the two empirical distribution functions."""
    places = np.concatenate((a, b))
    ours, theirs = (np.searchsorted(np.sort(v), places, side="right") / len(v) for v in (a, b))
    return float(np.abs(ours - theirs).max())
