"""Check that a model accepts images of a size, and reads all of their pixels.

A process that trains many times remembers what passes over blank inputs have shown.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from fastimg.errors import UsageError, reason_of

from .registry import Model

_MIN_PATCH = 4  # pixels of stride; a smaller stride is that of an ordinary convolution, which may drop a row

_T = TypeVar("_T")
_shown: dict[Any, Any] | None = None  # None: every model is asked anew


def remember() -> None:
    """From here on `once` asks each model once in this process, however often it is built."""
    global _shown
    _shown = {}


def once(model: Model, what: object, find: Callable[[], _T]) -> _T:
    """What a pass over a blank input shows of a model, which does not depend on its weights."""
    if _shown is None:
        return find()
    weights = sum(parameter.numel() for parameter in model.module.parameters())
    key = (model.arch, repr(model.kwargs), model.blurpool, model.head, model.classifier, weights, what)
    if key not in _shown:
        _shown[key] = find()
    found: _T = _shown[key]
    return found


class _Patches(NamedTuple):
    """How the first layer splits an image: squares of `side` pixels, one every `stride` pixels."""

    side: int
    stride: int

    def left_over(self, size: int) -> int:
        """The number of rows and columns at the end of an image that no patch covers."""
        return (size - self.side) % self.stride if size >= self.side else size

    def nearest(self, size: int) -> str:
        """A phrase that names the sizes around `size` that patches cover completely."""
        below = size - self.left_over(size)
        sizes = [str(side) for side in ([below, below + self.stride] if below >= self.side else [self.side])]
        return f"the nearest size{' is' if len(sizes) == 1 else 's are'} {' and '.join(sizes)}"


def check_input(model: Model, size: int, num_classes: int, flag: str) -> None:
    """Run the model once on a blank image [1, channels, size, size].

    Raises UsageError if the model does not accept that size, or its patches would leave out rows and columns.
    """
    once(model, ("input", size, num_classes, flag), lambda: _check_input(model, size, num_classes, flag))


def _check_input(model: Model, size: int, num_classes: int, flag: str) -> None:
    was_training = model.module.training
    stem = _stem(model)
    ignored: list[int] = []
    handle = None if stem is None else stem.register_forward_hook(lambda *call: ignored.append(_ignored(*call)))
    model.module.eval()
    try:
        with torch.inference_mode():
            logits = model.module(model.example(size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UsageError(_refusal(model, stem, size, flag, error)) from error
    finally:
        model.module.train(was_training)
        if handle is not None:
            handle.remove()
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, num_classes):
        raise UsageError(f"--arch {model.arch}: does not return one score per class; choose a classification model")
    if stem is not None and ignored and ignored[0] > 0 and size != model.native_size:
        patches = _patches(stem)
        raise UsageError(
            f"{flag} {size}: {model.arch} splits images into patches of {patches.side} pixels and would ignore the "
            f"last {_rows(ignored[0])}; {patches.nearest(size)}"
        )


def _rows(count: int) -> str:
    return "row and column" if count == 1 else f"{count} rows and columns"


def _stem(model: Model) -> nn.Conv2d | None:
    """The convolution that splits images into patches; None if the first convolution does something else."""
    first = next((layer for layer in model.module.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is None or first.in_channels != model.preprocessing.channels or first.padding not in ((0, 0), "valid"):
        return None
    square = first.stride[0] == first.stride[1] and first.kernel_size[0] == first.kernel_size[1]
    return first if square and first.stride[0] >= _MIN_PATCH else None


def _patches(stem: nn.Conv2d) -> _Patches:
    return _Patches(stem.kernel_size[0], stem.stride[0])


def _ignored(stem: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> int:
    """The number of rows at the end of its input that the stem did not read; 0 if the model pads its input."""
    assert isinstance(stem, nn.Conv2d)
    side, stride = _patches(stem)
    return max(0, inputs[0].shape[-1] - ((output.shape[-1] - 1) * stride + side))


def _refusal(model: Model, stem: nn.Conv2d | None, size: int, flag: str, error: Exception) -> str:
    """Why a size is not accepted, and which sizes are."""
    reason = reason_of(error)
    because = f" ({reason})" if reason else ""
    ways = [f"its own size is {model.native_size}"]
    if stem is not None and _patches(stem).left_over(size):
        ways = [_patches(stem).nearest(size), *ways]
    elif not model.convolutional:
        ways = [*ways, "many of timm's ViTs accept others with --model-kwargs dynamic_img_size=True"]
    return f"{flag} {size}: {model.arch} does not accept images of {size} pixels{because}; {', and '.join(ways)}"
