"""`fastimg suggest`: look at the data and the machine, measure a few steps, and write a configuration with reasons.

survey    what the data is, what is damaged, and what is there twice
starts    weights at hand; drafts: what could be trained with them, setting by setting
timing    what each draft costs here, with the trainer's own steps
decision  which one, for how long; document: the file
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from fastimg.bench.budget import short
from fastimg.config.commands import Train
from fastimg.config.rule_tables.reading import SUGGEST
from fastimg.config.rules import refuse
from fastimg.config.searching import Suggest, check
from fastimg.data.elsewhere import as_given, with_local_data
from fastimg.errors import UsageError, UserError, printable
from fastimg.loaders.containers.atomic import replace_file
from fastimg.loaders.errors import not_written
from fastimg.loaders.remote.stores import shown
from fastimg.models.ranks import Ranks, start
from fastimg.predict.result_places import result_place
from fastimg.system.progress import Status
from fastimg.system.terminal import say
from fastimg.train.checkpoints.stored_models import setting_of
from fastimg.train.reporting.hints import LIMIT
from fastimg.train.tasks.selection import choose
from fastimg.wording import plural

from .decision import PATIENCE, ROOM, Option, decide, lengths
from .document import Advised, as_json, as_yaml, facts
from .drafts import Draft, Suggestion, drafts
from .machine import Machine, machine
from .notes import about_data, about_machine
from .starts import network, starts
from .survey import Survey, Surveyed, survey
from .timing import Timing, timed

_RESIDENT_SHARE = 0.25  # of free memory, that all pictures together may take
_GAIN = 0.95  # of the seconds of a step: a change that leaves more than this gains nothing


def suggest(config: Suggest, out: Console, err: Console) -> Advised:
    """Write the file, and print what it says. Raises UsageError, UserError and DataError."""
    seconds = check(config)
    refuse(config, SUGGEST)
    with result_place("--output", config.output, config, overwrite=config.overwrite) as place:
        advised = _advised(with_local_data(config, partial(say, err)), seconds, out, err)
        assert place.path is not None
        write(place.path, as_yaml(advised))
    if config.json:
        print(json.dumps(as_json(advised, shown(config.output))))
    else:
        _print(advised, shown(config.output), out)
    return advised


def _advised(config: Suggest, seconds: float | None, out: Console, err: Console) -> Advised:
    """What is found, measured and decided, of which the data and the machine are printed at once."""
    with ExitStack() as stack:
        ranks = stack.enter_context(start(config.device))
        if ranks.world_size > 1:
            raise UsageError("suggest measures a single process; start it without torchrun")
        found = survey(config, err, stack)
        choose(Train(), config.data, found.train, found.val)  # refuses data that nothing can be learned from
        here = machine(ranks.device)
        if not config.json:
            for line in facts(found.survey):
                say(out, f"data        {line}")
            say(out, f"machine     {here.name}, {plural(here.cores, 'core')}")
        status = Status(err)
        stack.callback(status.end)
        options, skipped = measured(config, found, here, ranks, status, seconds)
        decision = decide(options, found.survey, seconds)
        resident = _resident(decision.option, found, here, ranks, status)
        if resident is not None:
            option, suggestion = resident
            decision = replace(decide([option], found.survey, seconds), notes=decision.notes)
            extra = [suggestion]
        else:
            extra = []
        if seconds is not None:
            extra.append(
                Suggestion("max_time", config.max_time, "ends the run, with a checkpoint, if it takes longer after all")
            )
    draft, timing = decision.option
    return Advised(
        survey=found.survey,
        machine=here,
        decision=decision,
        suggestions=(*map(_written_down, _with_batch(draft, timing)), decision.length, *extra),
        notes=(
            *about_data(found.survey, timing, draft.kind == "head" or resident is not None, here.host_free),
            *about_machine(here),
            *draft.notes,
            *decision.notes,
            *skipped,
        ),
        command=f"fastimg train {shlex.quote(as_given(config.data))} --config {shlex.quote(shown(config.output))}",
    )


def measured(
    config: Suggest, found: Surveyed, here: Machine, ranks: Ranks, status: Status, seconds: float | None
) -> tuple[list[Option], list[str]]:
    """Measure starts until one can be trained in the time, or all are measured; and what was left out, in sentences.

    Raises UserError for a model or weights that were asked for and do not fit.
    """
    options: list[Option] = []
    skipped: list[str] = []
    candidates = starts(config, found.survey, here)
    for number, candidate in enumerate(candidates):
        if options and not candidate.trained:
            break  # trained weights that are slow are worth more than random ones
        try:
            net = network(candidate, found.survey, ranks)
        except UserError as error:
            if candidate.asked or number == len(candidates) - 1:
                raise
            skipped.append(f"{candidate.arch} was left out: {error}")
            continue
        for draft in drafts(candidate, net, found.survey, here):
            status(f"measuring {net.arch}, {_WORDS[draft.kind]}")
            options.append(Option(draft, _timed(draft, found, ranks)))
        if _fast_enough(options, found.survey, seconds):
            break
    return options, skipped


_WORDS = {"head": "its classifier on kept embeddings", "fine-tuning": "all of it", "scratch": "from random weights"}


def _fast_enough(options: list[Option], survey: Survey, seconds: float | None) -> bool:
    draft, timing = options[-1]
    most = PATIENCE if seconds is None else ROOM * seconds
    epochs = lengths(draft, survey).usual if seconds is None else 1
    return timing.run(survey.train, survey.val, epochs) <= most


def _timed(draft: Draft, found: Surveyed, ranks: Ranks, **changes: object) -> Timing:
    config: Train = replace(draft.train(), **changes)  # type: ignore[arg-type]
    return timed(config, found.survey.path, found.train, found.val, ranks)


def _resident(
    option: Option, found: Surveyed, here: Machine, ranks: Ranks, status: Status
) -> tuple[Option, Suggestion] | None:
    """The option with all pictures in memory, where they fit and that is faster."""
    survey = found.survey
    draft, timing = option
    if draft.kind == "head" or survey.sizes is None or timing.waits < LIMIT or draft.train().resident:
        return None
    nbytes = 3 * survey.sizes.width * survey.sizes.height * (survey.train + survey.val)
    if nbytes > _RESIDENT_SHARE * min(here.free, here.host_free):
        return None
    status(f"measuring {draft.network.arch}, with all pictures in memory")
    faster = _timed(draft, found, ranks, resident=True)
    if faster.sample > _GAIN * timing.sample:
        return None
    why = (
        f"all pictures, about {nbytes / 1e6:,.1f} MB as pixels, are decoded once: {faster.sample * 1e3:.2f} ms for "
        f"each in a step instead of {timing.sample * 1e3:.2f}"
    )
    return Option(draft, faster), Suggestion("resident", True, why)


def _written_down(suggestion: Suggestion) -> Suggestion:
    """Weights that were fetched are named by their URL."""
    if suggestion.name != "weights":
        return suggestion
    return replace(suggestion, value=shown(setting_of(Path(str(suggestion.value)))))


def _with_batch(draft: Draft, timing: Timing) -> Iterator[Suggestion]:
    """The draft's settings, with the batch that was found to fit into memory."""
    if timing.shrunk:
        yield from (each for each in draft.suggestions if each.name != "batch_size")
        yield Suggestion("batch_size", timing.batch, f"{2 * timing.batch} did not fit into the device's memory")
    else:
        yield from draft.suggestions


def write(file: Path, text: str) -> None:
    """Write the file as a whole. Raises UserError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text.encode())
    except OSError as error:
        raise UserError(f"--output {file}: {not_written(error, 'give a file that can be written')}") from error


def _print(advised: Advised, file: str, out: Console) -> None:
    for suggestion in advised.suggestions:
        say(out, f"{suggestion.name:<15} {suggestion.value}", style="bold")
        say(out, f"                {printable(suggestion.why)}")
    for note in advised.notes:
        say(out, f"note        {printable(note)}", style="yellow")
    say(out, f"expected    about {short(advised.decision.seconds)}")
    say(out, f"written     {file}; train with `{advised.command}`")
