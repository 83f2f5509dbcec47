"""Augmentation and normalisation: a uint8 batch on the device -> the model's input.

In: a batch, a policy, ids, a seed. Out: augmented and normalised images. Must not know: loaders, the application.
"""

from .apply import apply
from .mix import mix
from .plan import Plan, draw
from .policy import Policy, operation

__all__ = ["Plan", "Policy", "apply", "draw", "mix", "operation"]
