"""`fastimg bench`: where the time goes, what limits, and what to change.

benchdata   the images, and how many of them an epoch has
stagebench  each stage alone, and what the machine allows
trainbench  the loader alone, the step on data that costs nothing, both together: the trainer's own code (rig)
verdict     what limits; advice, what was tried against it
comparison  other loaders on the same images; tuning, the best settings, for `train` to read
"""

import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from fastimg.bench.peers.comparison import compare
from fastimg.bench.peers.comparison import names as loader_names
from fastimg.bench.peers.results import Comparison, Setting
from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Augmenting, Train
from fastimg.config.rule_tables import BENCH
from fastimg.config.rules import refuse
from fastimg.config.training import HF_PREFIX
from fastimg.data.datasets import center_crop, check_backend, check_readable, chosen_backend, train_crop, worker_count
from fastimg.errors import UsageError, nearest, printable
from fastimg.loaders import ImageDecoder
from fastimg.models.ranks import Ranks, start
from fastimg.system.machine_load import Watch
from fastimg.system.measurement import environment
from fastimg.system.progress import telling
from fastimg.train.choices import machine_profile as machine
from fastimg.train.choices import refusals
from fastimg.train.choices import resolution as effective
from fastimg.wording import plural

from . import tuning
from .dataset import Images, epoch_size, open_images
from .plots import check_file, plot_loaders
from .rig import Rig, build, with_loader
from .stage_table import NAMES, Stage, measure
from .stage_table import show as show_stages
from .training import loader_alone, measure_scaling, measure_training, show_training

_ARCH = {"cuda": "resnet50", "cpu": "resnet18"}  # where none is named


def bench(settings: Bench, console: Console, progress: Console) -> None:
    """Measure, and print tables on `console`, or json. Raises UsageError, UserError and DataError, each a sentence."""
    _check(settings)
    with ExitStack() as stack:
        stack.enter_context(_told_to_end())
        ranks = stack.enter_context(start(settings.device))
        if ranks.world_size > 1:
            raise UsageError("bench measures one process; start it without torchrun")
        refusals.check_device(_config(settings, ranks, ""), ranks.device.type)
        images = open_images(settings.data, settings.split, settings.seed)
        stack.callback(images.dataset.close)
        check_readable(chosen_backend(settings.loader), settings.data, images.dataset)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=settings.scratch, prefix="fastimg-bench-")))
        found = _measure(settings, images, ranks, scratch, console, progress)
    if settings.json:
        print(json.dumps(found, allow_nan=False))


def _check(settings: Bench) -> None:
    refuse(settings, BENCH)
    check_backend(chosen_backend(settings.loader))
    for arch in (settings.arch or "").split(","):
        if arch.strip().startswith(HF_PREFIX):
            raise UsageError(
                f"--arch {arch.strip()}: reads texts, and bench measures images; give a model of timm's, say"
            )
    for name in _stages(settings.stages):
        if name not in NAMES:
            near = nearest(name, NAMES) or ";"
            raise UsageError(f"--stages {name}: no such stage{near} there are {', '.join(NAMES)}, or all, or none")
    if settings.loaders is not None:
        loader_names(settings.loaders)
    _threads(settings.threads)
    if settings.plot is not None and settings.loaders is None and settings.threads is None:
        raise UsageError("--plot has no effect without --loaders or --threads; add one of them")
    if settings.plot is not None:
        check_file(settings.plot)
    if settings.scratch is not None and not settings.scratch.is_dir():
        raise UsageError(f"--scratch {settings.scratch}: no such folder; make it, or leave it out")


def _stages(text: str) -> list[str]:
    if text in ("all", "none"):
        return list(NAMES) if text == "all" else []
    return [name.strip() for name in text.split(",") if name.strip()]


def _threads(text: str | None) -> tuple[int, ...]:
    """`1,2,4` as numbers, each once."""
    words = [] if text is None else [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not word.isdigit() or int(word) < 1:
            raise UsageError(f"--threads {text}: {word} is no number of threads; write 1,2,4 for example")
    return tuple(dict.fromkeys(int(word) for word in words))


def _config(settings: Bench, ranks: Ranks, arch: str) -> Train:
    """What `train` would be told."""
    augmenting = {one.name: getattr(settings, one.name) for one in fields(Augmenting)}
    return Train(
        data=settings.data,
        arch=arch,
        batch_size=settings.batch_size,
        img_size=settings.img_size,
        loader=settings.loader,
        workers=str(worker_count(settings.workers, ranks)),
        decode=settings.decode,
        amp=settings.amp,
        channels_last=settings.channels_last,
        device=settings.device,
        seed=settings.seed,
        lr=1e-4,  # the weights shall stay numbers; what they are matters to nobody
        val_fraction=0.0,
        **augmenting,
    )


def _measure(
    settings: Bench, images: Images, ranks: Ranks, scratch: Path, console: Console, progress: Console
) -> dict[str, Any]:
    archs = [arch.strip() for arch in settings.arch.split(",")] if settings.arch else [_ARCH[ranks.device.type]]
    out = Console(quiet=True) if settings.json else console
    watch = Watch()
    first = build(_config(settings, ranks, archs[0]), images.dataset, images.epoch(settings.batch_size), ranks)
    decoder = _decoder(first)
    threads = int(first.config.workers)
    with telling(progress, "choosing how many images to measure with"):
        cores = threads if settings.loader in ("auto", "native") else 1
        count = epoch_size(images, decoder, cores, settings.batch_size, settings.images)
    rig = with_loader(first, images.dataset, images.epoch(count))
    first.close()
    found: dict[str, Any] = {
        "data": images.path.name,
        "about": images.about(),
        "images": count,
        "batch_size": settings.batch_size,
        "img_size": settings.img_size,
        "loader": rig.loader.describe(),
        "threads": threads,
        "repeats": settings.repeats,
        "device": str(ranks.device),
        "precision": rig.run.setup.precision.reason,
        "environment": environment(),
    }
    _head(out, found)
    if images.unreadable:
        name, reason = next(iter(images.unreadable.items()))
        words = f"of the images that were looked at, {len(images.unreadable):,} cannot be read: {name}: {reason}"
        out.print(printable(words), style="yellow", highlight=False, markup=False, soft_wrap=True)
    stages: list[Stage] = []
    if names := _stages(settings.stages):
        with telling(progress, f"measuring stages: {', '.join(names)}"):
            stages = measure(images, decoder, rig, names, count, threads, settings.repeats)
        found["stages"] = [stage.record() for stage in stages]
        show_stages(stages, threads, out)
    alone, noise = loader_alone(rig, settings.repeats, progress)
    found |= {"loader_alone": alone.fields("images_per_second"), "noise": noise}
    line = f"loader alone  {alone.text()} img/s; measured against itself it differs by {noise['difference']:.1%}"
    out.print(line, highlight=False, soft_wrap=True)
    trained = []
    for arch in archs:
        here = (
            rig
            if arch == archs[0]
            else build(_config(settings, ranks, arch), images.dataset, images.epoch(count), ranks)
        )
        folder = scratch / arch.replace("/", "_")
        one = measure_training(settings, images, here, count, stages, alone, folder, progress, watch)
        trained.append(one)
        show_training(out, one)
        if here is not rig:
            here.close()
    load = watch.load()
    found["load"] = load.record()
    out.print(f"load      {load.text()}", highlight=False, markup=False, soft_wrap=True)
    found["training"] = [one.record() for one in trained]
    found["real_over_synthetic"] = found["training"][0]["real_over_synthetic"]
    found["verdict"] = trained[0].verdict.sentence()
    records: list[dict[str, Any]] = []
    if several := _threads(settings.threads):
        found["scaling"] = measure_scaling(rig, images, count, several, settings.repeats, out, progress)
    if settings.loaders is not None:
        comparison = _compare(settings, images, count, several or (threads,), progress)
        comparison.show(out)
        records = comparison.records()
        found |= {"loaders": records, "missing": comparison.missing, "faults": comparison.faults}
        found["left_out"] = comparison.left_out
    if settings.plot is not None:
        scaling = [{"name": rig.config.loader, **row} for row in found.get("scaling", [])]
        plot_loaders(records or scaling, settings.plot)
        out.print(f"drawn in {settings.plot}", highlight=False, markup=False, soft_wrap=True)
    if settings.tune:
        with telling(progress, "tuning"):
            best = tuning.tune(rig, images, count, progress)
        file = machine.write(best.profile)
        found["tuned"] = {**best.record(), "profile": str(file)}
        tuning.show(best, file, out)
    rig.close()
    return found


def _decoder(rig: Rig) -> ImageDecoder:
    """The native loader's, with which stages are taken apart."""
    config, preprocessing = rig.config, rig.run.setup.input.preprocessing
    if config.no_aug:
        return ImageDecoder(center_crop(preprocessing))
    crop = train_crop(preprocessing, config.scale, config.ratio)
    return ImageDecoder(crop, dct_scaling=effective.scales(config))


def _compare(settings: Bench, images: Images, count: int, threads: tuple[int, ...], progress: Console) -> Comparison:
    assert settings.loaders is not None
    setting = Setting(
        batch_size=settings.batch_size,
        size=settings.img_size,
        threads=threads,
        repeats=settings.repeats,
        images=count,
        seed=settings.seed,
    )
    wanted = loader_names(settings.loaders)
    return compare(images.dataset, settings.data, wanted, setting, settings.scratch, progress, settings.split)


def _head(out: Console, found: dict[str, Any]) -> None:
    e = found["environment"]
    rows = {
        "data": f"{found['data']}: {found['about']}",
        "measured": f"{plural(found['images'], 'image')} a repeat, {plural(found['repeats'], 'repeat')}, batch "
        f"{found['batch_size']}, "
        f"{found['img_size']} px",
        "loader": found["loader"],
        "device": f"{found['device']} ({e['gpu'] or e['cpu']}), {found['precision']}; {plural(e['cores'], 'core')}",
        "load": f"load average {e['load']:.1f} on the machine's {plural(os.cpu_count() or 1, 'core')}, "
        "before measuring",
    }
    for name, text in rows.items():
        out.print(f"{name:<9} {printable(text)}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: what is in temporary folders goes with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
