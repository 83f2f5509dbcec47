"""Advice on what would be faster: changes that fit the verdict, tried end to end where that takes only seconds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from fastimg.config import intent
from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert
from fastimg.loaders import Dataset, ImageError, open_dataset
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.decode import read_header
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.system import hardware
from fastimg.train.choices import step_rates
from fastimg.train.choices.machine_profile import device_name
from fastimg.train.graphs import why_not
from fastimg.train.reporting.hints import larger_launches

from .dataset import Images
from .raw_pixels import RawPixels, as_raw_pixels
from .rig import Rig, with_loader
from .verdict import Advice, Measured, Verdict, judge, together

MAX_SIZE = 500  # pixels of the longer side, ImageNet's usual
_MIN_GAIN = 1.05  # a change that gains less is not advised
_CONVERTED = 512  # number of images converted for a trial
_ROUNDS = 2  # of a trial; the median of their ratios counts


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to try: `open_` returns a rig with it and a rig without it, on the same images."""

    description: str
    open_: Callable[[], tuple[Rig, Rig]]
    note: str = ""
    gain: float | None = None  # of the loader alone, measured elsewhere


def advise(
    images: Images,
    rig: Rig,
    count: int,
    measured: Measured,
    scratch: Path,
    rate: Callable[[Rig], float],
    say: Callable[[str], None],
) -> tuple[list[Advice], list[Advice]]:
    """(advice worth giving, best first; everything that was tried), according to what limits in `measured`.

    `rate` measures a rig end to end, in images per second.
    """
    tried: list[Advice] = []
    for change in _changes(images, rig, count, judge(measured), scratch):
        say(f"trying {change.description}")
        with_it, without = change.open_()
        try:
            ratios = []
            for _ in range(_ROUNDS):
                before = rate(without)
                ratios.append(rate(with_it) / before)
            tried.append(Advice(change=change.description, factor=median(ratios), tried=True, note=change.note))
        finally:
            with_it.close()
            if without is not rig:
                without.close()
    return _worthwhile([*tried, *_estimates(images, rig, measured)]), tried


def suggest(images: Images, rig: Rig, count: int, measured: Measured, scratch: Path) -> list[Advice]:
    """The same advice, without trying it."""
    untried = [
        Advice(
            change=change.description,
            factor=None if change.gain is None else _gain(measured, decode=change.gain * measured.decode),
            tried=False,
            note=change.note,
        )
        for change in _changes(images, rig, count, judge(measured), scratch)
    ]
    return _worthwhile([*untried, *_estimates(images, rig, measured)])


def _worthwhile(advice: list[Advice]) -> list[Advice]:
    worthwhile = [item for item in advice if (item.factor or _MIN_GAIN) >= _MIN_GAIN]
    return sorted(worthwhile, key=lambda item: -(item.factor or 0.0))


def _changes(images: Images, rig: Rig, count: int, verdict: Verdict, scratch: Path) -> Iterator[Change]:
    config, ids = rig.config, images.epoch(count)
    device = rig.device

    def other(**changes: Any) -> Callable[[], tuple[Rig, Rig]]:
        return lambda: (with_loader(rig, images.dataset, ids, **changes), rig)

    if verdict.kind in ("decode-bound", "balanced", "storage-bound") and config.loader != "native":
        yield Change(
            description="--loader native", open_=other(loader="native", prefetch=None, decode="cpu", on_error="skip")
        )
        return  # further advice depends on the native loader's own verdict
    if verdict.kind in ("decode-bound", "balanced"):
        cores = available_cpus()
        if rig.loader.workers < cores:
            yield Change(description=f"--workers {cores}", open_=other(workers=str(cores)))
        if images.jpegs > 0 and images.tiled < images.jpegs / 2:
            yield Change(
                description=f"fastimg convert {images.path.name} DST, which tiles JPEGs",
                open_=lambda: _converted(images, rig, scratch / "tiled", {}),
                note="lossless",
            )
        if (raw := _raw_pixels(images)) is not None:
            yield Change(
                description=f"fastimg convert {images.path.name} DST {raw.flags}",
                open_=lambda: _converted(images, rig, scratch / "raw", raw.options),
                note=f"all pixels take {raw.nbytes / 1e6:,.0f} MB, which memory holds",
                gain=raw.gain,
            )
        if images.longer_side > 1.25 * MAX_SIZE:
            yield Change(
                description=f"fastimg convert --max-size {MAX_SIZE}",
                open_=lambda: _converted(images, rig, scratch / "small", {"max_size": MAX_SIZE}),
                note="images are stored smaller",
            )
        if device.type == "cuda" and config.decode != "gpu" and nvcodec.installed():
            yield Change(description="--decode gpu", open_=other(decode="gpu"), note="pixels differ slightly")


def _raw_pixels(images: Images) -> RawPixels | None:
    return as_raw_pixels(
        len(images.dataset),
        images.area,
        images.longer_side,
        images.largest,
        images.jpegs,
        images.tiled,
        images.pngs,
        hardware.memory().available,
    )


def _estimates(images: Images, rig: Rig, measured: Measured) -> Iterator[Advice]:
    """What is not tried here: for lack of another disk, or since it changes the model's side."""
    kind, config = judge(measured).kind, rig.config
    if kind == "storage-bound" and measured.storage is not None:
        if images.folder:
            change = f"fastimg convert {images.path.name} DST, whose shards are read in large blocks"
            yield Advice(change=change, factor=None, tried=False)
        elif intent.order(config) == "random":
            yield Advice(change="--order quasi-random, which reads adjacent samples together", factor=None, tried=False)
        if images.longer_side > 1.25 * MAX_SIZE:
            fewer = (images.longer_side / MAX_SIZE) ** 2
            change = f"fastimg convert --max-size {MAX_SIZE}"
            yield Advice(change=change, factor=_gain(measured, storage=measured.storage * fewer), tried=False)
    if kind == "network-bound":
        yield Advice(change="a --cache-limit that holds all of the data", factor=None, tried=False)
    if kind == "copy-bound" and measured.copy is not None:
        preprocessing = rig.run.setup.input.preprocessing
        raw = preprocessing.channels * preprocessing.train_size**2
        if nvcodec.installed() and config.decode != "gpu" and images.mean_bytes < raw:
            gain = _gain(measured, copy=measured.copy * raw / images.mean_bytes)
            yield Advice(change="--decode gpu, which copies JPEGs to the device", factor=gain, tried=False)
        yield Advice(change="a smaller --img-size", factor=None, tried=False)
    if kind == "augment-bound" and measured.step is not None:
        factor = _gain(measured, synthetic=measured.step)
        yield Advice(change="less augmentation (the factor is for none at all)", factor=factor, tried=False)
    if kind == "launch-bound":
        graphs = not why_not(rig.run.setup)  # only a GPU is launch-bound
        for change in larger_launches(config.compile, config.grad_accum_steps > 1, graphs):
            plain = Advice(change=change, factor=None, tried=False)
            yield _compiling(rig) if change.startswith("--compile,") else plain
    if kind == "compute-bound":
        if not config.amp and rig.device.type == "cuda":
            yield Advice(change="leave --no-amp out", factor=None, tried=False)
        if config.compile is None:
            yield _compiling(rig)
        yield Advice(change="a smaller --arch or --img-size", factor=None, tried=False)


def _compiling(rig: Rig) -> Advice:
    """--compile, with the gain that was measured on such a GPU. It is not tried, since compiling takes a minute."""
    setup = rig.run.setup
    gpu = device_name(rig.device)
    found = step_rates.compile_gain(rig.config, setup.precision, setup.model, gpu)
    if found is None:
        return Advice(change="--compile", factor=None, tried=False)
    flag, gain = found
    return Advice(change=flag, factor=gain.ratio, tried=False, note=f"measured {gain.about}")


def _gain(measured: Measured, **changes: float) -> float:
    """The factor by which the whole would gain if these parts changed."""
    after = Measured(**{**vars(measured), **changes})
    return together(after) / together(measured)


def _converted(images: Images, rig: Rig, folder: Path, options: dict[str, Any]) -> tuple[Rig, Rig]:
    """Rigs over some of the images, converted and original."""
    chosen = images.ids[:_CONVERTED]
    readable = _write(images.dataset, chosen, folder / "source")
    settings: dict[str, Any] = {"no_shuffle": True, "workers": str(available_cpus()), **options}
    convert(Convert(src=folder / "source", dst=folder / "converted", **settings), Console(quiet=True))
    dataset = open_dataset(folder / "converted")
    batch = rig.loader.config.batch_size
    count = max(1, len(readable) // batch) * batch
    with_it = with_loader(rig, dataset, np.resize(np.arange(len(dataset)), count))
    return with_it, with_loader(rig, images.dataset, np.resize(readable, count))


def _write(dataset: Dataset, ids: "np.ndarray[Any, np.dtype[np.int64]]", folder: Path) -> "np.ndarray[Any, Any]":
    """Write the encoded images as files of one class. Returns the ids of those that could be read."""
    (folder / "images").mkdir(parents=True)
    scratch = Scratch()
    readable: list[int] = []
    for index in ids.tolist():
        try:
            data = dataset.read(index, scratch)
            extension = read_header(data).extension
        except ImageError:
            continue
        (folder / "images" / f"{len(readable):06d}.{extension}").write_bytes(data)
        readable.append(index)
    return np.array(readable, np.int64)
