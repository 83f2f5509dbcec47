"""What training could start from: weights that are given, published ones at hand, or random ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.searching import Suggest
from fastimg.config.training import HF_PREFIX
from fastimg.errors import UsageError, UserError
from fastimg.models.ranks import Ranks
from fastimg.models.registry import OWN_PREFIX
from fastimg.train.choices import weights_at_hand as at_hand
from fastimg.train.choices.stated_weights import adopted
from fastimg.train.opening import build_model

from .machine import Machine
from .survey import Survey

TINY = 40  # pixels of the shorter side, up to which a picture is seen whole by a network for 32 pixels
SMALL_NET = "test_resnet"  # of the demo: the smallest of timm's, for few tiny pictures
TRIED = 3  # encoders at hand that are measured, at most
_ENOUGH = 10_000  # tiny pictures, from which the recipe for CIFAR-10 has ten steps in an epoch
_DEFAULT = {"cpu": "resnet18", "cuda": intent.ARCH}  # where nothing names a model; bench's, too


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model and the weights that it starts from; `why` is for the file."""

    arch: str | None  # None: the one that the weights state
    why: str
    weights: Path | None = None
    pretrained: bool = False
    recipe: str | None = None
    model_kwargs: tuple[str, ...] = ()
    asked: bool = False  # by a flag: what is wrong with it is an error

    @property
    def trained(self) -> bool:
        """Whether it has learned something before."""
        return self.weights is not None or self.pretrained or (self.arch or "").startswith(HF_PREFIX)

    def settings(self) -> dict[str, Any]:
        """The fields of Train that say so."""
        fields: dict[str, Any] = {
            "recipe": self.recipe,
            "arch": self.arch,
            "weights": self.weights,
            "pretrained": self.pretrained or None,
            "model_kwargs": self.model_kwargs or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Network:
    """What is known of a start once it is built."""

    arch: str
    native: int  # pixels; 0 for texts
    convolutional: bool
    parameters: int
    tokens: int = 0  # that a text encoder reads at most


def starts(config: Suggest, survey: Survey, machine: Machine, hub: bool | None = None) -> Iterator[Start]:
    """What could be trained, the best first, as far as can be said without measuring; the last is a last resort.

    `hub`: whether published weights can be downloaded; by default it is asked, if that matters.
    Raises UsageError for texts without an encoder.
    """
    if config.weights is not None or config.arch is not None:
        yield _asked(config, survey, hub)
        return
    if survey.content == "text":
        found = at_hand.of_texts()
        if not found:
            raise UsageError(
                f"{survey.path}: holds texts, and no text encoder is at hand; give one that transformers can load, as "
                "--arch hf:NAME or --arch hf:FOLDER"
            )
        for weights in found[-TRIED:][::-1]:
            yield Start(arch=weights.arch, why=_at_hand(weights, len(found)))
        return
    tiny = survey.sizes is not None and survey.sizes.shorter <= TINY
    found = [] if tiny else at_hand.of_images()
    for weights in found[-TRIED:][::-1]:
        yield Start(arch=weights.arch, pretrained=True, why=_at_hand(weights, len(found)))
    if not tiny and not found and (at_hand.hub_answers() if hub is None else hub):
        arch = _DEFAULT[machine.device]
        yield Start(arch=arch, pretrained=True, why=f"published weights, which are downloaded; train's {arch}")
    yield from_scratch(survey, machine)


def from_scratch(survey: Survey, machine: Machine) -> Start:
    """A model that learns from nothing, by the size and number of the pictures."""
    assert survey.sizes is not None
    if survey.sizes.shorter > TINY:
        arch = _DEFAULT[machine.device]
        return Start(arch=arch, why=f"from random weights, since none are at hand; usual on a {machine.device.upper()}")
    size = survey.sizes.shorter
    if survey.train >= _ENOUGH:
        return Start(
            arch=None,
            recipe="cifar-fast",
            why=f"{survey.train:,} pictures of {size} pixels: the network and schedule of the fastest training of "
            "CIFAR-10 (`fastimg recipe show cifar-fast`)",
        )
    return Start(
        arch=SMALL_NET,
        why=f"{survey.train:,} pictures of {size} pixels: a small network learns them in little time, and weights for "
        "photographs would want them enlarged, which adds no detail",
    )


def network(start: Start, survey: Survey, ranks: Ranks) -> Network:
    """Build the model once, on the CPU. Raises UsageError and UserError, also for weights that do not fit."""
    from fastimg.config import yaml_file

    config, stated, _ = adopted(yaml_file.combined(start.settings()))
    classes = survey.classes or ("one", "two")
    model, _ = build_model(config, ranks, classes, stated)
    return Network(
        arch=model.arch,
        native=stated.image_size() or model.native_size,
        convolutional=model.convolutional,
        parameters=sum(parameter.numel() for parameter in model.module.parameters()),
        tokens=0 if model.text is None else model.text.tokenizer.length,
    )


def _asked(config: Suggest, survey: Survey, hub: bool | None) -> Start:
    """What the flags name."""
    reads_text = (config.arch or "").startswith(HF_PREFIX)
    if config.weights is None and reads_text != (survey.content == "text"):
        holds = "texts; give a text encoder, as hf:NAME or hf:FOLDER" if not reads_text else "images; give a timm model"
        raise UsageError(f"--arch {config.arch}: {survey.path} holds {holds}")
    start = Start(
        arch=config.arch, weights=config.weights, model_kwargs=config.model_kwargs, asked=True, why="as asked for"
    )
    if config.weights is not None or reads_text or (config.arch or "").startswith(OWN_PREFIX):
        return start
    known = {weights.arch for weights in at_hand.of_images()}
    cached = any(config.arch in (arch, arch.split(".")[0]) for arch in known)
    if cached:
        return Start(arch=config.arch, pretrained=True, asked=True, why="as asked for; its published weights are here")
    if at_hand.hub_answers() if hub is None else hub:
        why = "as asked for; its published weights are downloaded"
        return Start(arch=config.arch, pretrained=True, model_kwargs=config.model_kwargs, asked=True, why=why)
    return Start(
        arch=config.arch,
        model_kwargs=config.model_kwargs,
        asked=True,
        why="as asked for, from random weights: its published ones are not at hand",
    )


def _at_hand(weights: at_hand.TrainedWeights, count: int) -> str:
    of = "the only published weights at hand" if count == 1 else f"of the {count} published weights at hand"
    return f"{of}, {weights.nbytes / 1e6:,.0f} MB"


