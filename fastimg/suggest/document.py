"""The file and the JSON that a suggestion becomes."""

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from fastimg import notebook
from fastimg.bench.budget import short
from fastimg.config import yaml_file
from fastimg.data.elsewhere import as_given
from fastimg.errors import printable
from fastimg.inspect.summaries import plain
from fastimg.wording import plural

from .decision import Decision
from .drafts import Suggestion
from .machine import Machine
from .survey import Survey

MARK = "# fastimg suggest"
_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Advised:
    """Everything that was found, measured and decided."""

    survey: Survey
    machine: Machine
    decision: Decision
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...]
    command: str

    def settings(self) -> dict[str, Any]:
        """The keys of the YAML file."""
        return {suggestion.name: suggestion.value for suggestion in self.suggestions}

    def _repr_html_(self) -> str:
        chosen = ((each.name, each.value, each.why) for each in self.suggestions)
        return notebook.page(
            *map(notebook.line, facts(self.survey)),
            notebook.table(("setting", "value", "why"), chosen),
            *(notebook.line(f"note: {note}") for note in self.notes),
            notebook.facts({"expected": f"about {short(self.decision.seconds)}", "train with": self.command}),
        )


def facts(survey: Survey) -> list[str]:
    """What the data is, a line each."""
    noun = survey.noun
    held = f", {survey.val:,} for validation ({survey.val_origin})" if survey.val else ", none for validation"
    lines = [f"{survey.train:,} {noun} for training{held}"]
    counts = [count for count in survey.counts if count]
    if counts:
        spread = f"{min(counts):,} to {max(counts):,}" if min(counts) != max(counts) else f"{counts[0]:,}"
        lines.append(f"{plural(len(counts), 'class')} of {spread} {noun}")
    if survey.targets:
        lines.append("targets: " + ", ".join(f"{name} ({kind})" for name, kind in survey.targets.items()))
    if survey.sizes is not None:
        sizes = survey.sizes
        kinds = ", ".join(survey.formats)
        spread = f", the median ({sizes.smallest} to {sizes.largest})" if sizes.smallest < sizes.largest else ""
        lines.append(f"{sizes.width} x {sizes.height} pixels{spread}, {survey.mean_bytes / 1e3:,.1f} KB each, {kinds}")
    if survey.words is not None:
        lines.append(f"a median of {survey.words.median:,} words, 95% have at most {survey.words.p95:,}")
    return lines


def as_yaml(advised: Advised) -> str:
    """The file: what it is for, what was found, and each setting below its reason."""
    survey, machine, decision = advised.survey, advised.machine, advised.decision
    timing = decision.option.timing
    lines = [MARK, *_comment(f"Train with: {advised.command}"), "#"]
    for fact in facts(survey):
        lines += _comment(fact)
    lines += _comment(f"on {machine.name}, {plural(machine.cores, 'core')}")
    lines += [
        "#",
        *_comment(
            f"Expected: about {short(decision.seconds)}, measured on this machine as busy as it was: "
            f"{short(timing.before(survey.train, survey.val))} until the first epoch, "
            f"{short(timing.epoch(survey.train, survey.val))} for each with its validation"
        ),
    ]
    for note in advised.notes:
        lines += ["#", *_comment(note)]
    for suggestion in advised.suggestions:
        lines += ["", *_comment(suggestion.why), _line(suggestion)]
    lines += [
        "",
        *_comment(
            "Everything else is left to train, which prints what it chooses: learning rate, schedule and warmup by "
            "model and batch, precision and workers by the machine. `fastimg train --help-all` lists all settings."
        ),
    ]
    return "\n".join(lines) + "\n"


def as_json(advised: Advised, file: str) -> dict[str, Any]:
    """The same for programs."""
    survey = advised.survey
    found = plain(survey) | {"path": printable(as_given(survey.path)), "copies": plain(survey.copies)}
    return {
        "file": file,
        "command": advised.command,
        "kind": advised.decision.option.draft.kind,
        "expected_seconds": round(advised.decision.seconds, 2),
        "settings": advised.settings(),
        "reasons": {suggestion.name: suggestion.why for suggestion in advised.suggestions},
        "notes": list(advised.notes),
        "data": found,
        "machine": asdict(advised.machine),
        "timing": asdict(advised.decision.option.timing),
    }


def _line(suggestion: Suggestion) -> str:
    """A setting in YAML, a list in brackets."""
    if isinstance(suggestion.value, list):
        return f"{suggestion.name}: {json.dumps(suggestion.value)}"
    return yaml_file.dump({suggestion.name: suggestion.value}).rstrip("\n")


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(printable(text), _WIDTH, break_on_hyphens=False)]
