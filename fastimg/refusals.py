"""What commands refuse before torch is imported, which takes seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .config import searching
from .config.rules import Excludes, Range, refuse
from .errors import UsageError


def refuse_early(command: str, settings: Any) -> None:
    """Refuse what the settings of a command alone show to be wrong.

    Raises UsageError, UserError and DataError.
    """
    from .config.rule_tables import reading, training

    rules = {
        "demo": reading.DEMO,
        "train": training.TRAIN,
        "eval": reading.EVAL,
        "predict": reading.PREDICT,
        "embed": reading.EMBED,
        "bench": reading.BENCH,
        "export": reading.EXPORT,
        "push": reading.PUSH,
        "doctor": reading.DOCTOR,
        "inspect": reading.INSPECT,
        "verify": reading.VERIFY,
        "suggest": reading.SUGGEST,
        "convert": reading.CONVERT,
    }
    if command in rules and getattr(settings, "weights", None) is None:
        refuse(settings, rules[command])
    elif command in rules:  # weights may state further settings, on which other rules depend
        refuse(settings, [rule for rule in rules[command] if isinstance(rule, Range | Excludes)])
    if command == "export":
        _ = settings.chosen_format  # refused where nothing names one
    if command in ("eval", "predict", "export", "push"):
        from .loaders.remote.stores import url_of
        from .train.checkpoints.model_files import find

        for run in settings.runs if command == "eval" else (settings.checkpoint,):
            if url_of(run) is None:
                find(run)
    if command == "suggest":
        searching.check(settings)
    if command not in ("convert", "embed"):  # which check what they take themselves
        _refuse_url(command, [getattr(settings, name, None) for name in ("src", "dst")])
    if command in ("suggest", "train", "eval", "embed", "bench") and settings.data is not None:
        from .loaders.containers.datasets import refuse_no_folder
        from .loaders.remote.stores import url_of

        data = settings.dataset if command == "eval" else settings.data
        if url_of(data) is None:
            refuse_no_folder(data)


def _refuse_url(command: str, paths: Sequence[Path | None]) -> None:
    """Raises UsageError for a URL where a command reads or writes only what is on this machine."""
    from .loaders.remote.stores import url_of

    for path in paths:
        if isinstance(path, Path) and (url := url_of(path)) is not None:  # not push's hub://
            raise UsageError(
                f"{command} {url}: a URL is read as DATA alone, by train, eval, verify, inspect, embed, bench, "
                "suggest, search and predict; use a folder here"
            )
