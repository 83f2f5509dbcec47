"""What could be trained from a start, setting by setting with its reason; how long is decided once it is measured."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from fastimg.config import intent, yaml_file
from fastimg.config.commands import Train
from fastimg.wording import plural

from .machine import Machine
from .starts import SMALL_NET, Network, Start
from .survey import SMALL, Survey

Kind = Literal["head", "fine-tuning", "scratch"]

FEW_EACH = 50  # training samples of a class, below which a whole network would learn them by heart
_STEPS = 12  # in an epoch, at least, where the batch can be made smaller for it
_SMALLEST_BATCH = 8
_ENLARGED = 0.6  # of the size that weights were made for: pictures of less need not be enlarged to it
_LEAST = 0.5  # of that size: in fewer pixels a network sees little of what it knows
_SMALL_NET_RATE = 4e-3  # that `fastimg demo` trains it with, at batch 64
_GLYPHS = {*"0123456789", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}
_SIDES = re.compile(r"(?:^|[^a-z])(left|right)(?:[^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Suggestion:
    """A setting of `train`, with YAML's value, and why."""

    name: str
    value: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What could be trained, without its length. `notes` say what cannot be known, or was left at its default."""

    kind: Kind
    network: Network
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...] = field(default=())

    def settings(self) -> dict[str, Any]:
        """The fields of Train that it sets."""
        return {suggestion.name: suggestion.value for suggestion in self.suggestions}

    def train(self) -> Train:
        """As `train --config` would read it. Raises UsageError."""
        return yaml_file.combined(yaml_file.fitted(self.settings(), Train))


def drafts(start: Start, network: Network, survey: Survey, machine: Machine) -> list[Draft]:
    """The ways to train from a start: of a trained one its head alone, and all of it."""
    if not start.trained:
        return [_scratch(start, network, survey, machine)]
    head = _head(start, network, survey, machine)
    if few(survey):
        return [head]
    return [_tuned(start, network, survey, machine), head]


def few(survey: Survey) -> bool:
    """Whether there are too few samples to train a whole network on."""
    return survey.train < SMALL or survey.each < FEW_EACH


def mirrors(survey: Survey) -> str:
    """Why mirror images would be wrong, by the names of the classes; empty where nothing says so."""
    names = [name.lower() for name in survey.classes]
    if names and all(name in _GLYPHS or len(name) == 1 for name in names):
        return (
            f"the classes are called {', '.join(survey.classes[:3])}, ...: mirrored, such a sign is another one or none"
        )
    sided = next((name for name in survey.classes if _SIDES.search(name)), None)
    return f"a class is called {sided}, which its mirror image is not" if sided else ""


def _head(start: Start, network: Network, survey: Survey, machine: Machine) -> Draft:
    millions = f"{network.parameters / 1e6:.1f} million weights"
    reason = f"training all {millions} would take too long here, as is said above"
    if few(survey):
        reason = f"{survey.train:,} {survey.noun}, {survey.each:,} of a class, are too few to train {millions} on"
    once = f"the frozen encoder runs once over all {survey.noun}"
    suggestions = [
        *_model(start, network),
        Suggestion("freeze", "backbone", f"only a new classifier learns: {reason}; {once}"),
        Suggestion(
            "head",
            "mlp",
            "two layers; one alone was less accurate on the three data sets where fastimg compared them "
            "(docs/embeddings-and-text.md)",
        ),
        *_size(start, network, survey),
        *_batch(survey, machine),
        *_common(survey),
    ]
    return Draft(kind="head", network=network, suggestions=tuple(suggestions), notes=_length_note(network, survey))


def _tuned(start: Start, network: Network, survey: Survey, machine: Machine) -> Draft:
    suggestions = [
        *_model(start, network),
        *_size(start, network, survey),
        *_batch(survey, machine),
        *_mirroring(survey),
        *_common(survey),
    ]
    notes = (*_mirroring_note(survey), *_length_note(network, survey))
    return Draft(kind="fine-tuning", network=network, suggestions=tuple(suggestions), notes=notes)


def _scratch(start: Start, network: Network, survey: Survey, machine: Machine) -> Draft:
    assert survey.sizes is not None
    suggestions = _model(start, network)
    shorter = survey.sizes.shorter
    if start.recipe is None:
        size = min(network.native or 224, max(32, _multiple(shorter, 32)))
        enlarged = "enlarged only to what the network needs" if shorter < size else "no larger than the pictures are"
        suggestions.append(
            Suggestion("img_size", size, f"the shorter sides have a median of {shorter} pixels: {enlarged}")
        )
        if shorter <= 64:
            suggestions += [
                Suggestion("crop_pct", 1.0, "small pictures are seen whole: nothing of them is cut off in validation"),
                Suggestion("scale", [0.6, 1.0], "crops of at least 60% of the picture: in less, little is left to see"),
            ]
        suggestions += _batch(survey, machine)
        if start.arch == SMALL_NET and not start.asked:
            suggestions += [
                Suggestion("batch_size", 64, "as in `fastimg demo`, for whose batch the rate below is"),
                Suggestion("lr", _SMALL_NET_RATE, "as in `fastimg demo`; so small a network takes large steps"),
            ]
    suggestions += [*_mirroring(survey, recipe=start.recipe is not None), *_common(survey)]
    last = {suggestion.name: suggestion for suggestion in suggestions}  # of a name the last one counts
    return Draft(
        kind="scratch", network=network, suggestions=tuple(last.values()), notes=tuple(_mirroring_note(survey))
    )


def _model(start: Start, network: Network) -> list[Suggestion]:
    about = f"{start.why}; {network.parameters / 1e6:.1f} million weights"
    found: list[Suggestion] = []
    for name, value in start.settings().items():
        plain = str(value) if name == "weights" else list(value) if name == "model_kwargs" else value
        why = {"weights": "what it has learned before", "model_kwargs": "as asked for"}.get(name, about)
        found.append(Suggestion(name, plain, why if found or name in ("arch", "recipe") else about))
    return found


def _size(start: Start, network: Network, survey: Survey) -> list[Suggestion]:
    """The size of the pictures, where weights for another one would see them enlarged."""
    if survey.sizes is None or not network.convolutional or not network.native:
        return []
    shorter = survey.sizes.shorter
    if shorter >= _ENLARGED * network.native:
        return []
    size = min(network.native, max(_multiple(shorter, 32), _multiple(int(_LEAST * network.native), 32)))
    return [
        Suggestion(
            "img_size",
            size,
            f"the shorter sides have a median of {shorter} pixels, and the weights were made for {network.native}: "
            f"{size} takes {(size / network.native) ** 2:.0%} of the time and shows as much",
        )
    ]


def _batch(survey: Survey, machine: Machine) -> list[Suggestion]:
    usual = intent.BATCH[machine.device]
    batch = usual
    while batch > _SMALLEST_BATCH and survey.train < _STEPS * batch:
        batch //= 2
    if batch == usual:
        return []
    steps, fewer = -(-survey.train // batch), -(-survey.train // usual)
    why = f"{plural(steps, 'step')} in an epoch of {survey.train:,} {survey.noun}; the usual {usual} would make {fewer}"
    return [Suggestion("batch_size", batch, why)]


def _mirroring(survey: Survey, recipe: bool = False) -> list[Suggestion]:
    reason = mirrors(survey) if survey.content == "images" else ""
    if not reason:
        return []
    also = [Suggestion("alternating_flip", False, "goes with mirror images")] if recipe else []
    return [Suggestion("hflip", 0.0, reason), *also]


def _mirroring_note(survey: Survey) -> tuple[str, ...]:
    if survey.content != "images" or mirrors(survey):
        return ()
    return (
        "Half of the training pictures are mirrored. No file tells whether left and right matter in them: write "
        "`hflip: 0` if they do, as with writing, road signs or X-rays.",
    )


def _common(survey: Survey) -> list[Suggestion]:
    """What goes with every way to train."""
    found = []
    if survey.val_fraction is not None:
        found.append(
            Suggestion(
                "val_fraction",
                survey.val_fraction,
                f"there is no validation split, and a tenth of so few {survey.noun} would tell little: {survey.val:,} "
                "are held out. `fold: 0/5` and `stratify: true` instead, five runs, validate on every one of them",
            )
        )
    if (rare := survey.rare) is not None:
        least, fewest, most, many = rare
        found.append(
            Suggestion(
                "logit_adjust",
                1.0,
                f"{least} has {fewest:,} of them and {most} {many:,}: without this rare classes are hardly ever named. "
                "The most accurate of seven ways where fastimg compared them (docs/imbalance.md)",
            )
        )
    return found


def _length_note(network: Network, survey: Survey) -> tuple[str, ...]:
    """How much of the texts is read."""
    if survey.words is None or not network.tokens:
        return ()
    words = survey.words
    return (
        f"The texts have a median of {words.median:,} words, 95% of them at most {words.p95:,}. The encoder reads "
        f"the first {plural(network.tokens, 'token')} of each, about {int(network.tokens / 1.3):,} English words.",
    )


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of
