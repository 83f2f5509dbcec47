"""Augmentation and normalisation: a uint8 batch on the device -> the model's input.

    policy = Policy(hflip=0.5, trivial=True)
    images = apply(draw(policy, batch.ids, seed=0, epoch=epoch), batch.inputs)  # float32 [B, 3, H, W], normalised

A `Policy` says what may happen, `draw` makes a `Plan` of it for the samples of a batch, `apply` carries it out. `mix`
does so where images are mixed, which changes the targets. `apply_masks`, `apply_boxes` and `apply_keypoints` move what
belongs to an image as the plan moves the image.

In: a batch, a policy, ids, a seed. Out: augmented and normalised images. Must not know: loaders, the application.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .policy import Policy, operation

if TYPE_CHECKING:
    from .backends import apply
    from .draws import draw
    from .geometry import MovedBoxes, apply_boxes, apply_keypoints, apply_masks
    from .mixing import mix
    from .plan import Plan

__all__ = [
    "MovedBoxes",
    "Plan",
    "Policy",
    "apply",
    "apply_boxes",
    "apply_keypoints",
    "apply_masks",
    "draw",
    "mix",
    "operation",
]

# Public name -> the module that defines it, imported at first use: these import torch, which takes seconds.
_MODULES = {
    **dict.fromkeys(("MovedBoxes", "apply_boxes", "apply_keypoints", "apply_masks"), "geometry"),
    "Plan": "plan",
    "apply": "backends",
    "draw": "draws",
    "mix": "mixing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
