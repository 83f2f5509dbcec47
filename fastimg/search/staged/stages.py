"""A search within a time: what to compare, the three stages, the leaderboard. Each of them is told in a line.

A function of its records and its clock: interrupted and started again, it asks for the same trials, which the journal
knows, and goes on where it was.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastimg.config.commands import Train
from fastimg.config.yaml_file import fitted
from fastimg.errors import UsageError
from fastimg.search.leaderboard import TOP, Contender, Leaderboard, firsts, ordered, reasons, write
from fastimg.search.pool import Job, Report
from fastimg.search.probing import missing_embeddings
from fastimg.search.records import TIME_OVER, TrialRecord
from fastimg.search.speed import prediction_speed
from fastimg.system.progress import duration
from fastimg.train.tasks.score import lower_is_better
from fastimg.wording import plural

from . import encoders as candidates
from .encoders import Candidate, DataFacts, MeasuredEncoder
from .fine_tuning import Entrant, announced, entrants, halve, train_winner
from .heads import chosen as embeddable
from .heads import embedding_seconds, fixed, search_heads
from .heads import told as heads_told
from .journal import TrialJournal
from .rungs import Arm, affordable, epoch_guess, shares
from .studies import StageStudies, opened
from .trials import Say, StagedSearch, Trials

_LOOKING = 0.1  # of the time may go into measuring encoders
_WORTH = 0.1  # of the time: what is left unused is then for more classifiers
_TRIAL = 3.0  # seconds that a trial takes at least, before one was timed


class Workers(Protocol):
    """What runs trials, as `TrialPool` does. deadline: when those that run are to end, by the monotonic clock."""

    deadline: float | None

    def probe(self, settings: Mapping[str, Any]) -> str:
        """The metric of trials with these settings, by which it compares from here on."""
        ...

    def run(self, jobs: Iterable[Job], report: Report) -> Iterator[TrialRecord]:
        """The records of jobs as they end."""
        ...


def search_by_stages(
    asked: StagedSearch,
    workers: Workers,
    say: Say,
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
) -> Leaderboard:
    """Find the best model within a time. Writes the leaderboard, and FOLDER/best, also where it is interrupted.

    An interrupt before the metric is known writes neither: nothing could be put in order. The time counts from
    `began`, by the clock; by default from now.

    Raises UsageError for a time that is too short for one trial, with what is needed, and where no trial ends well.
    """
    asked.folder.mkdir(parents=True, exist_ok=True)

    def limit(seconds: float) -> None:
        workers.deadline = clock() + seconds

    if asked.storage is not None:
        asked = replace(asked, storage=opened(asked.storage))  # refused at once, if it is
    journal = TrialJournal(asked.folder, workers.run, clock, limit, began)
    data = candidates.facts(asked.data, asked.shared, asked.seed)
    say(_data_told(data))
    reader, words = candidates.text_reader(data, asked.shared, bool(asked.archs or asked.weights), asked.archs)
    if words:
        say(f"texts       {words}")
    asked = replace(asked, shared={**asked.shared, **reader})
    trials = Trials(asked, data, journal, say)
    found = _found(trials)
    trials.compared_by(workers.probe(trials.settings({**found[0].settings, "name": "probe"})))
    try:
        measured = [_with_kept(each, trials) for each in _measure(found, trials)]
        _refuse_short(measured, trials)
        _shown_to_optuna(found, trials)
        _stages(measured, trials)
    except (KeyboardInterrupt, SystemExit):
        write(_board(trials, _known_speed), asked.folder)
        raise
    board = _board(trials, _speed)
    if board.winner is None:
        if not board.records:
            raise _too_short(measured, trials)
        reason = next(iter(board.pruned))
        more = "; give more --max-time, and the search goes on" if reason.startswith(TIME_OVER) else ""
        raise UsageError(f"search: no trial ended well: {reason}{more}")
    write(board, asked.folder)
    trials.settle(board.winner.run, {row.kind: row.images_per_second for row in board.rows[:TOP]})
    board = trials.models.marked(board)
    write(board, asked.folder)
    if trials.models.bytes:
        say(f"deleted     {trials.models.told()}")
    return board


def _shown_to_optuna(found: Sequence[Candidate], trials: Trials) -> None:
    """From here on trials are added to studies, which begin with those of the journal."""
    asked, journal = trials.asked, trials.journal
    names = [candidate.name for candidate in found]
    studies = StageStudies(asked.folder, asked.storage, names, trials.metric, not lower_is_better(trials.metric))
    studies.agree(journal.records)
    journal.listener = studies.add


def _stages(measured: Sequence[MeasuredEncoder], trials: Trials) -> None:
    """The three stages, each with its share of the time; what one leaves over is the next one's."""
    frozen = [each for each in measured if each.candidate.tuned]
    cheapest = min(epoch_guess(each.rate, trials.data.train, trials.data.val) for each in measured)
    tuning = shares(bool(frozen), affords_tuning=True)["fine-tuning"] * trials.left()
    parts = shares(bool(frozen), bool(affordable([Arm(encoder="", seconds=cheapest)], tuning)))
    whole = trials.left()
    heads: dict[str, TrialRecord] = {}
    if "fine-tuning" not in parts:
        trials.say(
            f"fine-tuning left out: an epoch takes about {duration(cheapest)} here, which leaves no time to compare; "
            "all of the time is for classifiers"
        )
    if "heads" in parts:
        budget = whole * parts["heads"]
        frozen = embeddable(frozen, trials, budget)
        trials.say(heads_told(frozen, trials, budget))
        heads = search_heads(frozen, trials, trials.journal.now() + budget)
    if "fine-tuning" in parts:
        _tuned(measured, heads, trials, parts["fine-tuning"] / (parts["fine-tuning"] + parts["final"]))
        if heads and trials.left() > whole * _WORTH:
            trials.say(f"heads       goes on: nothing else fits in the {duration(trials.left())} that are left")
            search_heads(frozen, trials, trials.end)


def _tuned(measured: Sequence[MeasuredEncoder], heads: Mapping[str, TrialRecord], trials: Trials, share: float) -> None:
    """The second stage, with a share of the time that is left, and the third."""
    budget = trials.left() * share
    best = _fine_tune(measured, heads, trials, budget)
    trials.in_play = set() if best is None or best.last is None else {str(best.last.run)}
    if best is not None:
        train_winner(best, trials)


def _fine_tune(
    measured: Sequence[MeasuredEncoder], heads: Mapping[str, TrialRecord], trials: Trials, budget: float
) -> Entrant | None:
    """The arm that did best; None where there is no time for any."""
    entered = entrants(measured, heads, trials)
    arms = affordable([each.arm for each in entered], budget)
    fitting = [each for each in entered if each.arm in arms]
    if not fitting:
        cheapest = min(each.arm.seconds for each in entered)
        words = f"an epoch takes about {duration(cheapest)}, and this stage has {duration(budget)}"
        trials.say(f"fine-tuning left out: {words}")
        return None
    trials.say(announced(fitting, budget))
    return halve(fitting, trials, trials.journal.now() + budget)


def _found(trials: Trials) -> list[Candidate]:
    """The encoders to compare; those that are left out are named."""
    asked = trials.asked
    found = candidates.find(asked.archs, asked.weights, trials.data, asked.shared, asked.gpu)
    trials.say(f"encoders    {plural(len(found.candidates), 'candidate')}: {found.words}")
    for skipped in found.skipped:
        trials.say(f"skipped     {skipped.name}: {skipped.reason}")
    return found.candidates


def _measure(found: Sequence[Candidate], trials: Trials) -> list[MeasuredEncoder]:
    """Measure each encoder, the first in any case, and as many as there is time for."""
    asked = trials.asked
    measured: list[MeasuredEncoder] = []
    for candidate in found:
        if measured and trials.journal.now() > asked.seconds * _LOOKING:
            trials.say(f"skipped     {candidate.name}: there is no time to measure it")
            continue

        def plain(each: Candidate = candidate) -> Any:
            return candidates.as_json(candidates.measure(each, asked.shared, asked.device))

        measured.append(candidates.from_json(trials.journal.fact(f"measured {candidate.name}", plain)))
    return measured


def _with_kept(measured: MeasuredEncoder, trials: Trials) -> MeasuredEncoder:
    """With the number of embeddings that are not kept already: an earlier run, or search, may have made some.

    Once a trial has ended, it is what it was before, so that a search that goes on asks for the same trials.
    """
    name = measured.candidate.name
    if not measured.candidate.tuned:
        return measured
    journal = trials.journal
    if journal.ended:
        missing = journal.known(f"embeddings {name}")
    else:
        settings = {**measured.candidate.settings, **fixed(trials), "name": "probe", "device": trials.asked.device}
        config = Train(**fitted(trials.settings(settings), Train))
        missing = journal.fact(f"embeddings {name}", lambda: missing_embeddings(config), anew=True)
    whole = trials.data.train + trials.data.val
    if missing is not None and missing < whole:
        trials.kept[name] = whole - missing
        trials.say(f"embeddings  {name}: {whole - missing:,} of {whole:,} are kept, and are not computed again")
    return replace(measured, missing=missing)


def _refuse_short(measured: Sequence[MeasuredEncoder], trials: Trials) -> None:
    """Raises UsageError where no encoder could finish one trial."""
    if min(_least(each, trials) for each in measured) > trials.left():
        raise _too_short(measured, trials)


def _too_short(measured: Sequence[MeasuredEncoder], trials: Trials) -> UsageError:
    """What to say where not one trial can be run in what is left of the time."""
    needs = {each.candidate.name: _least(each, trials) for each in measured}
    name = min(needs, key=lambda each: needs[each])
    need = trials.journal.now() + needs[name] * 1.2
    rounded = f"{round(need) + 1}s" if need < 120 else f"{round(need / 60) + 1}m"
    return UsageError(
        f"--max-time: {duration(trials.asked.seconds)} is too short for one trial: the fastest candidate, {name}, "
        f"needs about {duration(need)} here; give --max-time {rounded} or more"
    )


def _least(each: MeasuredEncoder, trials: Trials) -> float:
    """Seconds until the first trial of an encoder has ended."""
    if each.candidate.tuned:
        return embedding_seconds(each, trials) + _TRIAL
    return epoch_guess(each.rate, trials.data.train, trials.data.val) + _TRIAL


def _board(trials: Trials, speed: Callable[[Contender, Trials], float | None]) -> Leaderboard:
    """The leaderboard of all trials that have ended; the best ten with what their checkpoints say, and their speed."""
    records = trials.journal.records
    rows = trials.models.rows(records, trials.metric)
    speeds: dict[tuple[str, int], float | None] = {}
    took = 0.0
    for row in firsts(rows):
        before = trials.journal.now()
        if row.freed:
            speeds[row.kind] = row.images_per_second
        elif not speeds or before + took < trials.asked.seconds:
            speeds[row.kind] = speed(row, trials)
            took = max(took, trials.journal.now() - before)
    top = [replace(row, images_per_second=speeds.get(row.kind)) for row in rows[:TOP]]
    rows = [*ordered(top, trials.metric), *rows[TOP:]]
    return Leaderboard(
        metric=trials.metric, rows=rows, pruned=reasons(records), records=records, kept_embeddings=trials.kept
    )


def _known_speed(row: Contender, trials: Trials) -> float | None:
    """As it was measured in an earlier part of the search. Who interrupts one does not wait for a measurement."""
    known: float | None = trials.journal.known(_speed_name(row))
    return known


def _speed(row: Contender, trials: Trials) -> float:
    asked = trials.asked
    run = asked.folder / row.run
    split = trials.data.val_split
    measured = trials.journal.fact(
        _speed_name(row), lambda: round(prediction_speed(run, asked.data, split, asked.device), 1)
    )
    return float(measured)


def _speed_name(row: Contender) -> str:
    """What its speed is called in the journal."""
    return f"speed {row.arch} {row.size}"


def _data_told(data: DataFacts) -> str:
    """What trains, what validates, and what is never read."""
    noun = "text" if data.content == "text" else "image"
    words = (
        f"data        {plural(data.train, noun)} to train on; trials are compared on {data.val:,}: {data.validation}"
    )
    if data.untouched:
        return f"{words}; the {data.untouched} split is not read by any trial, and can judge the winner"
    return f"{words}; no split is left that no trial saw, so new {noun}s will do a little worse"
