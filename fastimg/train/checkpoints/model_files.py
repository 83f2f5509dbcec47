"""Which file a path to a model means. Imports nothing that takes time."""

from pathlib import Path

from fastimg.errors import UserError

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
