"""The second stage and the third: arms trained by successive halving, then the winner's settings to the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastimg.config.commands import Train
from fastimg.config.rule_tables.training import TRAIN
from fastimg.config.rules import Excludes, Range
from fastimg.config.yaml_file import fitted
from fastimg.search.pool import Job
from fastimg.search.records import TrialRecord
from fastimg.system.progress import duration
from fastimg.wording import plural

from .encoders import MeasuredEncoder
from .rungs import Arm, Rung, epoch_guess, final_epochs, interleaved, rungs, variations
from .trials import Trials

MOST_ENCODERS = 3  # of those that did best in the first stage
# Steps so far have the same rates whatever the run's length, so that a longer run goes on exactly.
_LENGTHLESS = {"sched": "constant", "warmup": "0.3ep"}
_LEAST_EPOCHS = 2  # of the winner's training


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """An arm on its way up: what it starts from, and its last trial.

    settings: of Train, but for what changes from rung to rung. epochs: of its run so far, at that run's size.
    """

    arm: Arm
    settings: Mapping[str, Any]
    tuned: bool
    last: TrialRecord | None = None
    epochs: int = 0
    full: bool = False


def entrants(encoders: Sequence[MeasuredEncoder], heads: Mapping[str, TrialRecord], trials: Trials) -> list[Entrant]:
    """The arms of the best encoders in the order of their promise.

    Encoders whose classifier was searched start with that classifier (Kumar et al., 2022: a random one would distort
    the features), and with its label smoothing.
    """
    ranked = [each for each in encoders if each.candidate.name in heads or not each.candidate.tuned]
    ranked = ranked or list(encoders)
    ranked.sort(key=lambda each: _standing(each, heads, trials), reverse=True)
    columns: list[list[Entrant]] = []
    for measured in ranked[:MOST_ENCODERS]:
        candidate = measured.candidate
        start = dict(candidate.settings)
        head = heads.get(candidate.name)
        if head is not None:
            start["weights"] = trials.run_of(head)
            start |= {name: head.settings[name] for name in ("smoothing", "head", "combiner") if name in head.settings}
        column = []
        for varied in _possible(measured, start, trials):
            arm = Arm(
                encoder=candidate.name,
                parameters=varied,
                seconds=epoch_guess(measured.rate, trials.data.train, trials.data.val),
                side=measured.side,
                small=measured.small,
            )
            column.append(Entrant(arm=arm, settings={**start, **varied}, tuned=candidate.tuned))
        columns.append(column)
    return interleaved(columns)


def _possible(measured: MeasuredEncoder, start: Mapping[str, Any], trials: Trials) -> list[dict[str, Any]]:
    """The variations of an encoder that `train` takes, beside what the user has set for all trials."""
    shared = trials.asked.shared
    found: list[dict[str, Any]] = []
    tuned, text = measured.candidate.tuned, trials.data.content == "text"
    for varied in variations(tuned, text, measured.learning_rate):
        idle = "layer_decay" if "text_arch" in shared else ""  # models of images and texts have none
        left = {name: value for name, value in varied.items() if name not in shared and name != idle}
        config = Train(**fitted({**start, **shared, **left}, Train))
        faults = [rule.fault(config) for rule in TRAIN if isinstance(rule, Range | Excludes)]
        if left not in found and not any(faults):
            found.append(left)
    return found


def _standing(measured: MeasuredEncoder, heads: Mapping[str, TrialRecord], trials: Trials) -> tuple[float, float]:
    head = heads.get(measured.candidate.name)
    return (float("-inf"), float("-inf")) if head is None else trials.place(head)


def halve(entered: Sequence[Entrant], trials: Trials, until: float) -> Entrant | None:
    """Successive halving. Returns the arm that did best on the highest rung that was reached; None where none did."""
    left = list(entered)
    best: Entrant | None = None
    for rung in rungs(len(left)):
        left = left[: rung.arms]
        if best is not None:
            left = _in_time(left, rung, until - trials.journal.now())
            if not left:
                trials.say("fine-tuning ends here: no arm can train for longer in what is left of this stage")
                return best
            trials.say(_told(left, rung))
            trials.in_play = {str(_last(each).run) for each in left}
            trials.free()
        climbed = _climb(left, rung, trials, until)
        if not climbed:
            return best
        left = sorted(climbed, key=lambda each: trials.place(_last(each)), reverse=True)
        best = left[0]
    return best


def _in_time(left: Sequence[Entrant], rung: Rung, seconds: float) -> list[Entrant]:
    """Those of the best arms that a rung has the time for, by what their epochs have taken."""
    found: list[Entrant] = []
    for each in left:
        seconds -= rung.epochs * each.arm.epoch_seconds(rung.full)
        if seconds < 0:
            break
        found.append(each)
    return found


def _climb(left: Sequence[Entrant], rung: Rung, trials: Trials, until: float) -> list[Entrant]:
    """Train each arm for the epochs of a rung. Returns those that validated, with their trials and measured epochs."""
    places = {_key(each.arm): each for each in left}
    done: list[Entrant] = []
    for record in trials.run(trials.prepared(_job(each, rung, trials) for each in left), until):
        each = places[_key_of(record.parameters)]
        if not record.values:
            continue
        seconds = record.seconds / rung.epochs
        arm = each.arm
        full = arm.small is None or rung.full
        if not full and arm.small is not None:
            seconds *= (arm.side / arm.small) ** 2
        before = each.epochs if _goes_on(each, rung) else 0
        done.append(
            replace(each, arm=replace(arm, seconds=seconds), last=record, epochs=before + rung.epochs, full=full)
        )
    return done


def _goes_on(each: Entrant, rung: Rung) -> bool:
    """Whether the arm's run is made longer: only its epochs grow, so that this is exact."""
    return each.last is not None and (each.arm.small is None or each.full == rung.full)


def _job(each: Entrant, rung: Rung, trials: Trials) -> Job:
    arm = each.arm
    size = None if not arm.side else arm.side if rung.full or arm.small is None else arm.small
    settings = {**each.settings, **_LENGTHLESS, "img_size": size, "epochs": rung.epochs}
    if each.last is not None and _goes_on(each, rung):
        settings |= {"epochs": each.epochs + rung.epochs, "name": Path(trials.run_of(each.last)).name}
    elif each.last is not None:
        settings["weights"] = trials.run_of(each.last)
    return trials.job("fine-tuning", {"encoder": arm.encoder, **arm.parameters}, settings)


def train_winner(best: Entrant, trials: Trials) -> TrialRecord | None:
    """Train the best arm's settings to the end, in the time that is left; None where that is too little."""
    seconds = trials.left()
    epoch = best.arm.epoch_seconds(full=True)
    epochs = final_epochs(seconds, epoch, best.tuned)
    if epochs < _LEAST_EPOCHS:
        trials.say(
            f"final       left out: an epoch takes about {duration(epoch)}, and {duration(max(seconds, 0))} are left"
        )
        return None
    starts = "from random weights"
    if best.tuned:
        starts = "from its best classifier" if best.settings.get("weights") else "from its weights"
    trials.say(
        f"final       up to {duration(seconds)}: {best.arm.encoder} {starts}, {plural(epochs, 'epoch')}, as many as "
        "there is time for, with a learning rate that falls to 0"
    )
    settings = {**best.settings, "img_size": best.arm.side or None, "epochs": epochs}
    job = trials.job("final", {"encoder": best.arm.encoder, **best.arm.parameters}, settings)
    return next(iter(trials.run(trials.prepared([job]), trials.end)), None)


def announced(chosen: Sequence[Entrant], budget: float) -> str:
    """The line that announces the second stage."""
    arms = len(chosen)
    names = list(dict.fromkeys(each.arm.encoder for each in chosen))
    if arms == 1:
        return (
            f"fine-tuning up to {duration(budget)}: {names[0]} with the usual settings, for an epoch; there is no time "
            "to compare others"
        )
    steps: list[str] = []
    for rung in rungs(arms):
        kept = f"{rung.arms} for {plural(rung.epochs, 'epoch')}"
        steps.append(kept if not steps else f"the best {kept} more")
    small = sorted({each.arm.small for each in chosen if each.arm.small is not None})
    sizes = ""
    if small:
        sizes = f"; first with images of {', '.join(map(str, small))} pixels, since those train faster"
    return (
        f"fine-tuning up to {duration(budget)}: {plural(arms, 'setting')} of {', '.join(names)} by successive halving: "
        f"{', then '.join(steps)}{sizes}"
    )


def _told(left: Sequence[Entrant], rung: Rung) -> str:
    """How the arms of a rung begin."""
    exact = sum(_goes_on(each, rung) for each in left)
    words = []
    if exact:
        words.append(f"{exact} {'resumes' if exact == 1 else 'resume'} exactly")
    if exact < len(left):
        sizes = sorted({each.arm.side for each in left if not _goes_on(each, rung)})
        grown = len(left) - exact
        words.append(
            f"{grown} {'starts' if grown == 1 else 'start'} from the weights reached, since images grow to "
            f"{', '.join(map(str, sizes))} pixels"
        )
    return f"fine-tuning the best {len(left)} for {plural(rung.epochs, 'epoch')} more: {'; '.join(words)}"


def _last(each: Entrant) -> TrialRecord:
    assert each.last is not None
    return each.last


def _key(arm: Arm) -> str:
    return _key_of({"encoder": arm.encoder, **arm.parameters})


def _key_of(parameters: Mapping[str, Any]) -> str:
    return repr(sorted(parameters.items(), key=lambda item: item[0]))
