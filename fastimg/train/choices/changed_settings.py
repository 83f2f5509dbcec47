"""Settings of a run that is resumed which are not those that it had: refused, or said and kept.

Which are which is in `config.rule_tables.resuming`.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fastimg.config.commands import Train
from fastimg.config.rule_tables import resuming
from fastimg.config.rules import flag
from fastimg.config.yaml_file import dump, load
from fastimg.errors import UsageError, printable
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.remote.stores import shown
from fastimg.train.checkpoints.run_directory import CONFIG
from fastimg.train.patience import DEFAULT_METRIC

_KEPT = resuming.MAY_CHANGE | resuming.LENGTH
_NAMES = tuple(field.name for field in fields(Train))
_COMPARED = tuple(name for name in _NAMES if name not in resuming.OF_A_COMMAND | resuming.OF_A_STEP | _KEPT)
_BEFORE: dict[str, Any] = {"warmup_lr": 0.0, "in_chans": 3, "patience_metric": DEFAULT_METRIC}  # what runs were without


def check(run: Path, effective: Train, ranks: int) -> str | None:
    """What to say of the settings that change with this resume, None if none does.

    Raises UsageError if `effective` would train differently than the run did. Both are resolved.
    """
    before = load(run / CONFIG, Train)
    differing = [name for name in _COMPARED if _setting(before, name) != _setting(effective, name)]
    if ranks == 1 or before.strategy == "auto":  # one process needs no exchange to see the whole batch of a step
        differing = [name for name in differing if name != "sync_bn"]
    if differing:
        changes = ", ".join(_change(before, effective, name, "{} was {} and is {}") for name in differing)
        raise UsageError(
            f"--resume: {run} was trained with other settings: {changes}; --resume {run} alone keeps the run's own, "
            f"and --weights {run} without --resume starts a new run from its weights"
        )
    changed = [name for name in _NAMES if name in resuming.MAY_CHANGE and _differs(before, effective, name)]
    if not changed:
        return None
    return f"--resume: from here on {', '.join(_change(before, effective, name, '{} {} -> {}') for name in changed)}"


def keep(run: Path, effective: Train) -> None:
    """Write what changed into the run's config.yaml, whose other settings stay as they are."""
    before = load(run / CONFIG, Train)
    changed = {name: getattr(effective, name) for name in _KEPT if _differs(before, effective, name)}
    if changed:
        replace_file(run / CONFIG, dump(replace(before, **changed)).encode())


def _differs(before: Train, effective: Train, name: str) -> bool:
    return bool(getattr(before, name) != getattr(effective, name))


def _setting(config: Train, name: str) -> Any:
    """One setting, as it is compared: runs from before some settings were there can be resumed."""
    value = getattr(config, name)
    return value or _BEFORE[name] if name in _BEFORE else value


def _change(before: Train, effective: Train, name: str, words: str) -> str:
    return words.format(flag(name), *(_shown(_setting(config, name)) for config in (before, effective)))


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return printable(shown(value)) if isinstance(value, str | Path) else str(value)
