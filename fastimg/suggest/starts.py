"""What training could start from: weights that are given, published ones at hand, or random ones."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm

from fastimg.config import intent, yaml_file
from fastimg.config.searching import Suggest
from fastimg.config.training import HF_PREFIX, HUB_PREFIX
from fastimg.errors import UsageError
from fastimg.models.ranks import Ranks
from fastimg.models.registry import OWN_PREFIX
from fastimg.train.checkpoints.stored_models import local_model
from fastimg.train.choices.stated_weights import adopted
from fastimg.train.choices.weights_at_hand import ON_CPUS, PUBLISHED, KeptWeights, fetched, kept_images, kept_texts
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
    recipe: str | None = None
    model_kwargs: tuple[str, ...] = ()
    asked: bool = False  # by a flag: what is wrong with it is an error

    @property
    def trained(self) -> bool:
        """Whether it has learned something before."""
        return self.weights is not None or (self.arch or "").startswith(HF_PREFIX)

    def settings(self) -> dict[str, Any]:
        """The fields of Train that say so."""
        fields: dict[str, Any] = {
            "recipe": self.recipe,
            "arch": self.arch,
            "weights": self.weights,
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


def starts(config: Suggest, survey: Survey, machine: Machine) -> list[Start]:
    """What could be trained, the largest network first; the last is the last resort. Raises UsageError and UserError.

    Weights are downloaded only where none are at hand, and the hub answers.
    """
    if config.weights is not None or config.arch is not None:
        return [_asked(config, survey)]
    if survey.content == "text":
        texts = kept_texts()
        if not texts:
            raise UsageError(
                f"{survey.path}: holds texts, and no text encoder is at hand; give one that transformers can load, as "
                "--arch hf:NAME or --arch hf:FOLDER"
            )
        return [_of_kept(kept, "at hand") for kept in texts[:TRIED]]
    assert survey.sizes is not None
    if survey.sizes.shorter <= TINY:
        return [from_scratch(survey, machine)]
    kept = sorted(kept_images(), key=_nbytes)
    origin = "at hand"
    if not kept:
        kept, _ = fetched((PUBLISHED if machine.device == "cuda" else PUBLISHED[:ON_CPUS])[-TRIED:])
        kept, origin = sorted(kept, key=_nbytes), "downloaded"
    return [*(_of_kept(each, origin) for each in kept[-TRIED:][::-1]), from_scratch(survey, machine)]


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


def _asked(config: Suggest, survey: Survey) -> Start:
    """What the flags name."""
    arch = config.arch
    reads_text = (arch or "").startswith(HF_PREFIX)
    if config.weights is None and reads_text != (survey.content == "text"):
        holds = "images; give a timm model" if reads_text else "texts; give a text encoder, as hf:NAME or hf:FOLDER"
        raise UsageError(f"--arch {arch}: {survey.path} holds {holds}")
    start = Start(arch=arch, model_kwargs=config.model_kwargs, asked=True, why="as asked for")
    if config.weights is not None:
        weights = local_model(config.weights, config)
        return replace(start, weights=weights if weights.is_absolute() else weights.resolve())
    if arch is None or reads_text or arch.startswith(OWN_PREFIX):
        return start
    kept = [each for each in kept_images() if arch in (each.arch, each.arch.split(".")[0])]
    if not kept and (arch.startswith(HUB_PREFIX) or (timm.is_model(arch) and timm.is_model_pretrained(arch))):
        kept, _ = fetched((arch,))
    if kept:
        return replace(start, arch=kept[0].arch, weights=kept[0].file, why="as asked for, with its published weights")
    return replace(start, why="as asked for, from random weights: its published ones are not at hand")


def _of_kept(kept: KeptWeights, origin: str) -> Start:
    return Start(arch=kept.arch, weights=kept.file, why=f"its published weights are {origin}")


def _nbytes(kept: KeptWeights) -> int:
    return 0 if kept.file is None else kept.file.stat().st_size
