"""The encoders that a search compares: which have weights at hand, which of those fit, and what each of them costs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import timm

from fastimg.config import intent
from fastimg.config.commands import Train
from fastimg.config.training import HF_PREFIX, HUB_PREFIX
from fastimg.config.values.folds import parse as parse_fold
from fastimg.config.yaml_file import fitted
from fastimg.data.datasets import filled_splits, names_targets, open_parts
from fastimg.errors import UsageError, UserError
from fastimg.loaders import DataError, Dataset, open_dataset
from fastimg.loaders.captions.captions import captions_of
from fastimg.loaders.opening import open_image
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.models.registry import Model, build, parse_kwargs, read_metadata, weights_file
from fastimg.search.leaderboard import short
from fastimg.search.speed import model_speed
from fastimg.train.checkpoints.stored_models import setting_of, with_local_models
from fastimg.train.choices.resolution import rate_at
from fastimg.train.choices.stated_weights import adopted
from fastimg.train.choices.weights_at_hand import ON_CPUS, PUBLISHED, KeptWeights, fetched, kept_images, kept_texts
from fastimg.train.pairs import joined, text_side
from fastimg.train.reporting.report import shown

from .drawing import HEADS
from .rungs import small_side

_PROBES = 64  # images whose sizes are looked at
_SMALL_IMAGES = 48  # pixels; up to that, networks for images of 32 pixels are the ones to train


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What a search needs to know of its data.

    train, val: numbers of samples. side: the median of the shorter sides of some images; 0 of texts. settings: those of
    Train that choose what validates; validation: what that is in words; val_split: the split that it is of. untouched:
    the test split; empty where there is none. captions: whether there are texts beside the images.
    """

    content: Literal["images", "text"]
    train: int
    val: int
    side: int
    settings: Mapping[str, Any]
    validation: str
    val_split: str
    untouched: str
    captions: bool = False


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An encoder to be compared. settings: of Train, with YAML's values. tuned: whether it starts from weights."""

    name: str
    settings: Mapping[str, Any]
    tuned: bool
    origin: str


@dataclass(frozen=True, kw_only=True)
class MeasuredEncoder:
    """What was measured of a candidate.

    rate: samples per second at prediction, without reading them. learning_rate: what `train` chooses for all of it,
    with the batch of the trials; head_rates: and for its classifier alone, by the kind of this. missing: how many
    embeddings of the data are not kept; None: all.
    """

    candidate: Candidate
    rate: float
    parameters: int
    side: int
    small: int | None
    learning_rate: float
    head_rates: Mapping[str, float]
    missing: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """An encoder that is left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """The encoders of a search, those that were left out, and where they are from, in a sentence."""

    candidates: list[Candidate] = field(default_factory=list)
    skipped: list[LeftOut] = field(default_factory=list)
    words: str = ""


def facts(data: Path, shared: Mapping[str, Any], seed: int) -> DataFacts:
    """Look at the data. What validates is never the test split, unless it was asked for.

    Raises UsageError and UserError.
    """
    config = Train(**fitted(shared, Train))
    splits = filled_splits(data, config.classes)
    settings: dict[str, Any] = {}
    asked = config.val_split is not None or config.val_fraction is not None or config.fold is not None
    if not asked and "test" in splits and "val" not in splits:
        with closing(open_dataset(data, config.train_split, config.classes)) as dataset:
            settings = {"fold": "0/10", "stratify": not names_targets(dataset)}
    config = replace(config, **settings)
    fold = None if config.fold is None else parse_fold(config.fold, config.group, config.stratify)
    parts = open_parts(data, config.train_split, config.val_split, config.val_fraction, seed, config.classes, fold)
    train, val = parts
    with closing(train.dataset):
        if val is None or len(val) == 0:
            raise UsageError("search: nothing validates the trials with --val-fraction 0; leave it out")
        with closing(val.dataset):
            used = val.split or config.train_split
            return DataFacts(
                content=train.dataset.content,
                train=len(train),
                val=len(val),
                side=_side(train.dataset),
                settings=settings,
                validation=val.origin,
                val_split=used,
                untouched="test" if "test" in splits and used != "test" else "",
                captions=captions_of(data, train.dataset) is not None,
            )


def text_reader(
    data: DataFacts, shared: Mapping[str, Any], chosen: bool, archs: Sequence[str] = ()
) -> tuple[dict[str, Any], str]:
    """Settings that read the texts beside images, and what to say of it; neither where there are none, or it is set.

    `chosen`: whether the user has named encoders, of which `archs` are some. Otherwise one that is at hand reads the
    texts. Encoders of texts alone read them, and no images.
    """
    alone = bool(archs) and all(arch.startswith(HF_PREFIX) for arch in archs)
    if not data.captions or "text_arch" in shared or alone:
        return {}, ""
    kept = [] if chosen else kept_texts()
    if kept:
        return {"text_arch": kept[0].arch}, f"those beside the images are read by {kept[0].name}, which is at hand"
    why = "" if chosen else ": no encoder of texts is at hand"
    return {}, f"those beside the images are not read{why}; --text-arch hf:NAME behind `--` reads them"


def find(archs: Sequence[str], weights: Sequence[Path], data: DataFacts, shared: Mapping[str, Any], gpu: bool) -> Found:
    """The encoders to compare: those that were asked for, else those whose weights are at hand, else new ones."""
    if archs or weights:
        return _asked(archs, weights, shared)
    kept = kept_texts() if data.content == "text" else kept_images()
    words = f"weights at hand: {', '.join(each.name for each in kept)}"
    skipped: list[LeftOut] = []
    if not kept and data.content == "images":
        wanted = PUBLISHED if gpu else PUBLISHED[:ON_CPUS]
        kept, why = fetched(wanted)
        words = f"published weights: {', '.join(each.name for each in kept)}"
        there = [each.arch for each in kept]
        skipped = [LeftOut(arch, f"could not be downloaded ({why})") for arch in wanted if arch not in there]
    found = [_of_kept(each) for each in kept]
    fits = [(candidate, misfit(candidate, shared)) for candidate in found]
    skipped += [LeftOut(candidate.name, reason) for candidate, reason in fits if reason]
    candidates = [candidate for candidate, reason in fits if not reason]
    if candidates:
        return Found(candidates=candidates, skipped=skipped, words=words)
    if data.content == "text":
        raise UsageError("search: no text encoder is at hand; give one with --arch hf:NAME or --arch hf:FOLDER")
    new = untrained(data.side)
    words = f"no weights at hand, so small models learn from random weights: {', '.join(c.name for c in new)}"
    return Found(candidates=new, skipped=skipped, words=words)


def untrained(side: int) -> list[Candidate]:
    """Small models to train from random weights, by the size of the images: none is enlarged much."""
    if side <= _SMALL_IMAGES:
        sized: list[tuple[str, int | None]] = [("fastimg/airnet", None), ("resnet18", 64)]
    else:
        size = 128 if side < 192 else 160
        sized = [("mobilenetv3_small_100", size), ("resnet18", size)]
    return [
        Candidate(
            name=arch,
            settings={"arch": arch} if size is None else {"arch": arch, "img_size": size},
            tuned=False,
            origin="random weights",
        )
        for arch, size in sized
    ]


def _asked(archs: Sequence[str], weights: Sequence[Path], shared: Mapping[str, Any]) -> Found:
    """What --arch and --weights name: each file with the architecture that it states, or the first one that it fits."""
    candidates: list[Candidate] = []
    skipped: list[LeftOut] = []
    for path in weights:
        candidate, reason = _with_weights(path, archs, shared)
        if candidate is not None:
            candidates.append(candidate)
        else:
            skipped.append(LeftOut(shown(path), reason))
    covered = {str(candidate.settings["arch"]) for candidate in candidates}
    left = [arch for arch in archs if arch not in covered]
    at_hand, why = _at_hand(left)
    for arch in left:
        plain = Candidate(
            name=short(arch),
            settings={"arch": arch},
            tuned=arch.startswith(HF_PREFIX),
            origin="--arch" if arch.startswith(HF_PREFIX) else f"random weights: {why or 'none are published'}",
        )
        candidate = _of_kept(at_hand[arch]) if arch in at_hand else plain
        reason = misfit(candidate, shared)
        if reason:
            skipped.append(LeftOut(short(arch), reason))
        else:
            candidates.append(candidate)
    if not candidates:
        raise UsageError("search: no encoder is left: " + "; ".join(f"{each.name}: {each.reason}" for each in skipped))
    return Found(candidates=_named_apart(candidates), skipped=skipped, words="as --arch and --weights say")


def _at_hand(archs: Sequence[str]) -> tuple[dict[str, KeptWeights], str]:
    """The weights of architectures that have some in a cache, or that can be fetched; and why others could not be."""
    if not archs:
        return {}, ""
    kept = {each.arch: each for each in kept_images() if each.arch in archs}
    left = (arch for arch in archs if arch not in kept)
    published = tuple(arch for arch in left if arch.startswith(HUB_PREFIX) or timm.is_model_pretrained(arch))
    if not published:
        return kept, ""
    more, why = fetched(published)
    return {**kept, **{each.arch: each for each in more}}, f"they could not be downloaded ({why})" if why else ""


def _with_weights(path: Path, archs: Sequence[str], shared: Mapping[str, Any]) -> tuple[Candidate | None, str]:
    """The candidate that a file of weights makes, or why it makes none."""
    try:
        config = with_local_models(Train(**fitted({**_store(shared), "weights": shown(path)}, Train)))
        assert config.weights is not None
        read_metadata(weights_file(config.weights))
        stated = adopted(config)[1].arch
    except (UserError, DataError) as error:
        return None, str(error)
    reasons = []
    for arch in archs or ((stated,) if stated else ()):
        candidate = Candidate(
            name=arch, settings={"arch": arch, "weights": shown(setting_of(path))}, tuned=True, origin=shown(path)
        )
        reason = misfit(candidate, shared)
        if not reason:
            return candidate, ""
        reasons.append(reason)
    if not reasons:
        return None, "states no architecture, and --arch names none"
    return None, reasons[0] if len(reasons) == 1 else f"does not fit {', '.join(archs)}"


def _store(shared: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of Train for what is at a URL."""
    return {name: shared[name] for name in ("cache_dir", "storage_option") if name in shared}


def misfit(candidate: Candidate, shared: Mapping[str, Any]) -> str:
    """Why a model cannot be built with its weights; empty where it can."""
    if "text_arch" in shared and str(candidate.settings["arch"]).startswith(HF_PREFIX):
        return "reads texts, as --text-arch does; give models of images beside it"
    try:
        built(candidate, shared, classes=2)
    except UserError as error:
        return str(error)
    return ""


def built(candidate: Candidate, shared: Mapping[str, Any], classes: int) -> Model:
    """A candidate's model, on the CPU. Raises UsageError and UserError."""
    config, stated, _ = adopted(_config(candidate, shared))
    assert config.arch is not None
    return build(
        config.arch,
        classes,
        weights=config.weights,
        kwargs=parse_kwargs(config.model_kwargs),
        img_size=config.img_size or stated.image_size(),
        blurpool=config.blurpool,
        max_length=config.max_length,
        text=stated.text,
    )


def _config(candidate: Candidate, shared: Mapping[str, Any]) -> Train:
    return with_local_models(Train(**fitted({**shared, **candidate.settings}, Train)))


def measure(candidate: Candidate, shared: Mapping[str, Any], device: str) -> MeasuredEncoder:
    """Build a candidate and measure it."""
    model = built(candidate, shared, classes=2)
    config, stated, _ = adopted(_config(candidate, shared))
    texts = None if config.text_arch is None else text_side(config, stated)
    speed = 1 / sum(1 / model_speed(each, device) for each in (model, texts) if each is not None)
    batch = _batch(config, next(model.module.parameters()).device.type)  # where its speed was measured
    if texts is not None:
        model = joined(config, model, texts, 2, ("", " "), stated)
    side = 0 if model.text is not None else model.preprocessing.val_size
    fixed = model.text is not None or not model.convolutional or "img_size" in shared
    return MeasuredEncoder(
        candidate=candidate,
        rate=speed,
        parameters=sum(each.numel() for each in model.module.parameters()),
        side=side,
        small=None if fixed else small_side(side),
        learning_rate=rate_at(config, model, batch),
        head_rates={head: rate_at(replace(config, freeze="backbone", head=head), model, batch) for head in HEADS},
    )


def _batch(config: Train, device: str) -> int:
    """The samples of an optimiser step of a trial, which is one process. That of `auto` is not known: the default."""
    batch = intent.batch(config, device)
    return (intent.BATCH[device] if batch == "auto" else batch) * config.grad_accum_steps


def as_json(measured: MeasuredEncoder) -> dict[str, Any]:
    """For a journal."""
    return asdict(measured)


def from_json(plain: Mapping[str, Any]) -> MeasuredEncoder:
    """The inverse of `as_json`."""
    return MeasuredEncoder(**{**plain, "candidate": Candidate(**plain["candidate"])})


def _of_kept(kept: KeptWeights) -> Candidate:
    settings = {"arch": kept.arch} if kept.file is None else {"arch": kept.arch, "weights": str(kept.file)}
    return Candidate(name=kept.name, settings=settings, tuned=True, origin="at hand")


def _named_apart(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The same candidates; those of one architecture are named after their weights, too."""
    candidates = list(candidates)
    names = [candidate.name for candidate in candidates]
    return [
        replace(each, name=f"{each.name} ({Path(each.settings['weights']).stem})")
        if names.count(each.name) > 1 and "weights" in each.settings
        else each
        for each in candidates
    ]


def _side(dataset: Dataset) -> int:
    """The median of the shorter sides of some images, in pixels; 0 of texts, and where none can be read."""
    if dataset.content == "text":
        return 0
    scratch = Scratch()
    sides = []
    for index in range(0, len(dataset), max(1, len(dataset) // _PROBES)):
        try:
            with open_image(dataset.read(index, scratch)) as image:
                sides.append(min(image.size))
        except Exception:  # noqa: BLE001 - an image that cannot be read has no size; training reports it
            continue
    return round(statistics.median(sides)) if sides else 0
