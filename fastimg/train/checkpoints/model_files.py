"""Which file a path to a model means. Imports nothing that takes time."""

import os
from collections.abc import Sequence
from pathlib import Path

from fastimg.errors import UsageError, UserError

MODEL = "model.safetensors"


def find(path: Path) -> Path:
    """The model file that a path means: a run (its best checkpoint, else its last), a checkpoint, or the file."""
    if path.is_file():
        return path
    for candidate in (path / "best" / MODEL, path / "last" / MODEL, path / MODEL):
        if candidate.is_file():
            return candidate
    reason = "no checkpoint in it" if path.exists() else "no such file or folder"
    raise UserError(f"{path}: {reason}; give a run directory or a model.safetensors")


def run_name(path: Path) -> str:
    """What a model is called in pictures: the run, else the checkpoint's folder or its file."""
    file = find(path)
    folder = file.parent
    named = folder.parent if folder.name in ("best", "last") else folder if file.name == MODEL else file
    return named.resolve().name


def refuse_swapped(command: str, models: Sequence[Path], data: Sequence[Path]) -> None:
    """Raises UsageError where a path that should be a model is none, and one that should be data is a model.

    Whatever else is wrong is told by those who open these paths.
    """
    wrong = [path for path in models if not _is_model(path)]
    if not wrong or not any(map(_is_model, data)):
        return
    order = [str(path).replace("hub:/", "hub://") for path in sorted([*models, *data], key=_is_no_model)]
    raise UsageError(
        f"{command}: {order[-1]} stands where a run or checkpoint is expected, which {order[0]} is; write "
        f"`fastimg {command} {' '.join(order)}`"
    )


def refuse_swapped_data(command: str, src: Path, dst: Path, own: str) -> None:
    """Raises UsageError where what should be read is not there, and what would be written is data.

    own: the file that an earlier run of the command left in its destination, to which data may be added.
    """
    there = os.path.lexists(src) or ":" in str(src)  # URLs, and names such as torchvision:CIFAR10
    if there or not (dst.is_file() or (dst.is_dir() and not (dst / own).exists() and any(dst.iterdir()))):
        return
    raise UsageError(
        f"{command}: {src} stands where the data is expected and does not exist, and {dst} does; write "
        f"`fastimg {command} {dst} {src}`"
    )


def _is_model(path: Path) -> bool:
    """Whether a path is certainly a run or a checkpoint: `find` also takes files of any other name."""
    if path.is_file():
        return path.suffix == Path(MODEL).suffix
    return any((path / name).is_file() for name in (f"best/{MODEL}", f"last/{MODEL}", MODEL))


def _is_no_model(path: Path) -> bool:
    return not _is_model(path)
