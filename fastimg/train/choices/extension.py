"""A resumed run of another length: what its learning rate does, and whether it equals a run that began so."""

from dataclasses import replace
from typing import Any

from fastimg.config.commands import Train
from fastimg.config.yaml_file import load
from fastimg.errors import UsageError
from fastimg.train.checkpoints.run_directory import CONFIG
from fastimg.train.choices.resolution import schedule
from fastimg.train.run import Setup
from fastimg.wording import plural

_NOTHING = "nothing is left to train"


def extended(setup: Setup, training: dict[str, Any]) -> str | None:
    """What to say of a run that is resumed with another --epochs or --duration, or at its end; else None.

    The rule: from the step reached on, rates are those of the new length, as if the run had been begun with it. Where
    the steps so far had the same rates under both, and nothing else depends on the length, it is that run exactly.
    Raises UsageError for a length that the run has passed, for a run that ended within an epoch, and for one that
    --patience would end at once.
    """
    config = setup.config
    before = load(setup.directory / CONFIG, Train)
    step: int = training["step"]
    per_epoch = setup.optimisation.steps_per_epoch
    new = setup.optimisation.schedule
    if (before.epochs, before.duration) == (config.epochs, config.duration):
        if step < new.steps:
            return None
        whole = step >= training["epoch"] * per_epoch
        return f"{_NOTHING}; a higher --epochs makes the run longer" if whole else _NOTHING
    as_before = replace(config, epochs=before.epochs, duration=before.duration)
    old = schedule(as_before, per_epoch, setup.ranks, setup.data.samples)
    if step < training["epoch"] * per_epoch:
        raise UsageError(
            f"--resume: {setup.directory} ended within an epoch, after step {step}, and cannot be made longer; give "
            f"--duration {before.duration} again, or start a new run with --weights {setup.directory}"
        )
    if new.steps < step:
        raise UsageError(
            f"--resume: {setup.directory} has done {plural(step, 'step')}, and this would be a run of {new.steps}; "
            "give more"
        )
    words = f"resumed with {plural(new.steps, 'step')} instead of {old.steps}"
    if new.steps == step:
        return f"{words}: {_NOTHING}"
    if config.patience is not None and training["stale"] >= config.patience:
        stale = plural(training["stale"], "validation")
        raise UsageError(
            f"--resume: {setup.directory} was ended by --patience {config.patience}, not by its length: its last "
            f"{stale} brought no improvement, and {words.removeprefix('resumed with ')} alone would end it again at "
            f"once; give a --patience above {training['stale']}, too"
        )
    changed = next((s for s in range(step) if old(s) != new(s)), None)
    length_counts = config.lookahead is not None or config.progressive is not None
    if changed is None and not length_counts:
        run = f"the weights are those of a run that begins with {plural(new.steps, 'step')}"
        return f"{words}: the same rates so far, so {run}"
    others = "; --lookahead and --progressive go by the new length, too" if length_counts else ""
    return (
        f"{words}: the steps so far had the rates of the old length; from here on they are those of the new one, "
        f"{old(max(step - 1, 0)):.3g} -> {new(step):.3g}{others}"
    )
