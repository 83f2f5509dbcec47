"""A uint8 batch on the device -> the model's input."""

from .apply import apply
from .mix import mix
from .plan import Plan, draw
from .policy import Policy, operation

__all__ = ["Plan", "Policy", "apply", "draw", "mix", "operation"]
