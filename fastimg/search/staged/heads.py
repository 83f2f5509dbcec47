"""The first stage: frozen encoders embed once, and many classifiers are tried on what they kept."""

from collections.abc import Iterator, Sequence
from typing import Any

from fastimg.search.pool import Job
from fastimg.search.records import TrialRecord
from fastimg.system.progress import duration
from fastimg.wording import plural

from .drawing import HeadDraws
from .encoders import MeasuredEncoder
from .rungs import head_epochs, next_head
from .trials import Trials

_EMBEDDING = 0.7  # of the stage's time, at most: the rest is for trials
_FIRST_TRIAL = 2.0  # seconds that a trial may take, before one was timed
_SLACK = 1.25  # embedding reads and decodes, too


def embedding_seconds(measured: MeasuredEncoder, trials: Trials) -> float:
    """Seconds until an encoder has embedded both parts of the data: what is kept already takes no time."""
    missing = measured.missing
    return _SLACK * (trials.data.train + trials.data.val if missing is None else missing) / measured.rate


def chosen(encoders: Sequence[MeasuredEncoder], trials: Trials, budget: float) -> list[MeasuredEncoder]:
    """The frozen encoders that embed in the time of the stage, the cheapest first, which is one of them in any case."""
    found: list[MeasuredEncoder] = []
    spent = 0.0
    for each in sorted(encoders, key=lambda each: embedding_seconds(each, trials)):
        needs = embedding_seconds(each, trials)
        if not found or spent + needs <= budget * _EMBEDDING:
            spent += needs
            found.append(each)
        else:
            trials.say(
                f"skipped     {each.candidate.name}: would embed for about {duration(needs)}, more than is left of "
                "this stage"
            )
    return found


def search_heads(encoders: Sequence[MeasuredEncoder], trials: Trials, until: float) -> dict[str, TrialRecord]:
    """The best trial of each encoder that has one. Ends at `until`, by the journal's clock, or when enough is tried."""
    names = {each.candidate.name: each for each in encoders}
    asked = trials.asked
    pairs = "text_arch" in asked.shared
    draws = {
        name: HeadDraws(each.head_rates, asked.seed, trials.metric, asked.shared, pairs) for name, each in names.items()
    }
    heights: dict[str, list[float]] = {name: [] for name in names}
    needs = {name: embedding_seconds(each, trials) + _FIRST_TRIAL for name, each in names.items()}
    best: dict[str, TrialRecord] = {}

    def jobs() -> Iterator[Job]:
        while (name := next_head(heights)) is not None:
            if trials.journal.now() + needs[name] > until:
                return
            drawn = draws[name].ask()
            settings = {**names[name].candidate.settings, **fixed(trials), **drawn}
            yield trials.job("heads", {"encoder": name, **drawn}, settings)

    for record in trials.run(jobs(), until):
        drawn = dict(record.parameters)
        name = drawn.pop("encoder")
        height = trials.height(record)
        draws[name].tell(drawn, height)
        # The first trial of an encoder embeds, too; the second one is the first to tell what a trial costs.
        needs[name] = record.seconds if heights[name] else _FIRST_TRIAL
        heights[name].append(height)
        if record.values and (name not in best or trials.place(record) > trials.place(best[name])):
            best[name] = record
    return best


def fixed(trials: Trials) -> dict[str, Any]:
    """What all classifiers on kept embeddings share."""
    return {"freeze": "backbone", "epochs": head_epochs(trials.data.train)}


def told(encoders: Sequence[MeasuredEncoder], trials: Trials, budget: float) -> str:
    """The line that announces the stage."""
    each = ", ".join(
        f"{m.candidate.name}: kept already"
        if m.missing == 0
        else f"{m.candidate.name} in about {duration(embedding_seconds(m, trials))}"
        for m in encoders
    )
    return (
        f"heads       up to {duration(budget)}: the data is embedded once by {plural(len(encoders), 'frozen encoder')} "
        f"({each}); then a trial trains only a classifier, which takes a moment"
    )
