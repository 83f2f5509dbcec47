"""A uint8 batch on the device -> the model's input."""

from .apply import apply
from .plan import Plan, draw
from .policy import Policy

__all__ = ["Plan", "Policy", "apply", "draw"]
