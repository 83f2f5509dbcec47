"""Which of the measured drafts to train, and for how long: arithmetic on seconds, nothing is measured here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastimg.bench.budget import short
from fastimg.config import recipes
from fastimg.errors import UserError
from fastimg.wording import plural

from .drafts import Draft, Suggestion
from .survey import Survey
from .timing import Timing

PATIENCE = 600.0  # seconds: all of a network is trained if that takes no longer, where no time is given
ROOM = 0.85  # of the time that is given is planned with: the rest is for what differs from the measurement
_FEWEST = 2  # epochs of fine-tuning, below which its schedule has no room
_SEEN = 50_000  # samples that a network from random weights sees, at least


class EpochCounts(NamedTuple):
    """Epochs of a kind of training: the usual number, and the most that are of use."""

    usual: int
    most: int
    why: str


class Option(NamedTuple):
    """A draft, and what its parts take."""

    draft: Draft
    timing: Timing


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The draft to train, how long, and what that is expected to take in seconds."""

    option: Option
    length: Suggestion
    seconds: float
    notes: tuple[str, ...] = ()


def lengths(draft: Draft, survey: Survey) -> EpochCounts:
    """How many epochs a draft takes."""
    settings = draft.settings()
    if draft.kind == "head":
        return EpochCounts(
            20, 50, "an epoch on kept embeddings costs little, and after these a classifier hardly changes"
        )
    if draft.kind == "fine-tuning":
        usual = recipes.finetune_cnn()["epochs"]
        return EpochCounts(usual, 20, "as in `fastimg recipe show finetune-cnn`; trained weights need few")
    if "recipe" in settings:
        return EpochCounts(recipes.settings(settings["recipe"])["epochs"], 100, f"the recipe's, {settings['recipe']}")
    usual = min(100, max(10, -(-_SEEN // survey.train)))
    return EpochCounts(
        usual, 300, f"{usual * survey.train:,} {survey.noun} are seen: from random weights it takes many"
    )


def decide(options: Sequence[Option], survey: Survey, limit: float | None) -> Decision:
    """Choose among `options`, the more thorough ones first, by the seconds that there are.

    Raises UserError if the time is too short for any of them; the message says what is needed.
    """
    fitting = [option for option in options if _fits(option, survey, limit)]
    heads = [option for option in options if option.draft.kind == "head"]
    chosen = fitting[0] if fitting else min(heads or options, key=lambda option: _least(option, survey))
    timing = chosen.timing
    draft = chosen.draft
    usual, most, why = lengths(draft, survey)
    epoch, before = timing.epoch(survey.train, survey.val), timing.before(survey.train, survey.val)
    notes = _others(options, chosen, survey, limit)
    if limit is None:
        length = Suggestion("epochs", usual, why)
        return Decision(option=chosen, length=length, seconds=before + usual * epoch, notes=notes)
    within = int((ROOM * limit - before) / epoch)
    if within >= 1:
        epochs = min(within, most)
        told = f"{short(before)} until the first epoch, then {short(epoch)} for each: {plural(within, 'epoch')} fit"
        if within > most:
            told += f" into the time, and more than {most} are of little use; `fastimg search` can use the rest"
        return Decision(
            option=chosen, length=Suggestion("epochs", epochs, told), seconds=before + epochs * epoch, notes=notes
        )
    return replace(_part_of_an_epoch(chosen, survey, limit), notes=notes)


def _fits(option: Option, survey: Survey, limit: float | None) -> bool:
    """Whether a draft makes sense within the time: fine-tuning needs a few epochs, all others one."""
    draft, timing = option
    if limit is None:
        return timing.run(survey.train, survey.val, lengths(draft, survey).usual) <= PATIENCE
    least = _FEWEST if draft.kind == "fine-tuning" else 1
    return timing.run(survey.train, survey.val, least) <= ROOM * limit


def _least(option: Option, survey: Survey) -> float:
    """Seconds of one epoch with all that comes before it."""
    return option.timing.run(survey.train, survey.val, 1)


def _part_of_an_epoch(option: Option, survey: Survey, limit: float) -> Decision:
    """As many samples as fit into the time, without a whole epoch. Raises UserError where not even a step does."""
    timing = option.timing
    before = timing.before(survey.train, survey.val)
    after = survey.val * timing.val + timing.save
    samples = int((ROOM * limit - before - after) / timing.sample)
    batch = min(timing.batch, survey.train)
    head = option.draft.kind == "head"
    if head or samples < batch:
        least = before + after + (survey.train if head else batch) * timing.sample
        once = "in which the encoder sees everything once" if head else f"of one step with {batch:,} {survey.noun}"
        raise UserError(
            f"--max-time {limit:g}s is too short: on this machine {before:.1f} s pass before the first step, and the "
            f"shortest training, {once}, takes about {short(least)}; give --max-time {math.ceil(least / ROOM)}s or more"
        )
    whole = short(survey.train * timing.sample)
    why = f"a whole epoch of {survey.train:,} {survey.noun} would take {whole}; so many of them fit into the time"
    length = Suggestion("duration", f"{samples}sp", why)
    return Decision(option=option, length=length, seconds=before + after + samples * timing.sample)


def _others(options: Sequence[Option], chosen: Option, survey: Survey, limit: float | None) -> tuple[str, ...]:
    """What was measured and not chosen, and what it would have taken."""
    notes = []
    for option in options:
        if option is chosen:
            continue
        draft, timing = option
        usual = lengths(draft, survey).usual
        seconds = timing.run(survey.train, survey.val, usual)
        if draft.kind == "fine-tuning":
            there = "there is time" if limit else short(PATIENCE)
            same = chosen.draft.network.arch == draft.network.arch
            notes.append(
                f"Training all of {draft.network.arch} ({plural(usual, 'epoch')}) would take about {short(seconds)}, "
                f"longer than {there}.{' Without freeze and head in this file it is what you get.' * same}"
            )
        elif chosen.draft.kind == "fine-tuning" and draft.network.arch == chosen.draft.network.arch:
            notes.append(
                f"Training only a classifier on the frozen encoder would take about {short(seconds)}: "
                "`freeze: backbone`, `head: mlp`. On data like that of the weights it is as accurate."
            )
        else:
            notes.append(f"{draft.network.arch} would take about {short(seconds)}.")
    return tuple(notes)
