"""Which parameters learn: freezing parts of a model, and training mode for the rest."""

from torch import nn

from fastimg.errors import UsageError
from fastimg.wording import plural

from .blocks import blocks
from .registry.model import Model, head_prefixes


def freeze(model: Model, what: str) -> int:
    """Freeze the `backbone`, which is everything but the classifier, or the first N blocks, as `blocks` lists them.

    Of a model of images and texts, the `backbone` is both encoders; `image` or `text` freezes one of them.
    Returns the number of trainable parameters. Raises UsageError if there would be none, or `what` is neither.
    """
    if model.pair is not None:
        sides = {"backbone": ("image.", "text."), "image": ("image.",), "text": ("text.",)}
        if what not in sides:
            raise UsageError(f"--freeze {what}: with --text-arch, give backbone (both encoders), image or text")
        frozen = {name for name, _ in model.module.named_parameters() if name.startswith(sides[what])}
    elif what == "backbone":
        in_head = head_prefixes(model)
        frozen = {name for name, _ in model.module.named_parameters() if not name.startswith(in_head)}
    else:
        parts = blocks(model.module)
        most = len(parts) - 1
        if not (what.isdecimal() and 1 <= int(what) <= most):
            raise UsageError(
                f"--freeze {what}: {model.arch} has {plural(len(parts), 'block')}, stem and head included; give a "
                f"number from 1 to {most}, or backbone"
            )
        frozen = {name for block in parts[: int(what)] for name in block.parameters}
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_(name not in frozen and name not in fixed(model.module))
    count = sum(p.numel() for p in model.module.parameters() if p.requires_grad)
    if count == 0:
        raise UsageError(f"--freeze {what}: {model.arch} has no separate classifier layer; leave --freeze out")
    return count


def fixed(module: nn.Module) -> set[str]:
    """The names of the parameters that a model never trains, as some of ours say in a method `fixed`."""
    names = getattr(module, "fixed", None)
    return set(names()) if callable(names) else set()


def train_mode(module: nn.Module) -> None:
    """Set training mode, except for frozen modules.

    A module whose parameters are all frozen keeps its batch norm statistics, and its dropout stays off.
    """
    module.train()
    for child in module.modules():
        own = list(child.parameters())
        if own and not any(p.requires_grad for p in own):
            child.eval()
