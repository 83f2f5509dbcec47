"""`fastimg bench`: where the time goes, what limits training, and what to change.

dataset      the images, and how many of them make an epoch
stage_table  each stage on its own, with the machine's ceilings
training     the loader alone, the step on synthetic data, and both together, with the trainer's own code (rig)
verdict      what limits; advice: what was tried against it
peers        other loaders on the same images
tuning       the best settings, for `train` to read
"""

import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastimg.bench.peers.comparison import compare
from fastimg.bench.peers.comparison import names as loader_names
from fastimg.bench.peers.results import Comparison, Setting
from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Augmenting, Train
from fastimg.config.intent import BATCH
from fastimg.config.rule_tables import BENCH
from fastimg.config.rules import refuse
from fastimg.config.training import HF_PREFIX
from fastimg.data.datasets import center_crop, check_backend, check_readable, chosen_backend, train_crop, worker_count
from fastimg.errors import UsageError, nearest
from fastimg.loaders import ImageDecoder
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models.ranks import Ranks, start
from fastimg.system.machine_load import LoadWatch
from fastimg.system.measurement import environment
from fastimg.system.progress import telling
from fastimg.system.terminal import say
from fastimg.train.choices import machine_profile as machine
from fastimg.train.choices import refusals
from fastimg.train.choices import resolution as effective
from fastimg.wording import plural

from . import tuning
from .dataset import Images, epoch_size, open_images
from .plots import check_file, plot_loaders
from .ranks_share import ranks_share
from .rig import Rig, build, with_loader
from .stage_table import NAMES, Stage, measure
from .stage_table import show as show_stages
from .training import Trained, loader_alone, measure_scaling, measure_training, show_training

_ARCH = {"cuda": "resnet50", "cpu": "resnet18"}  # where none is named


def bench(settings: Bench, console: Console, progress: Console) -> None:
    """Measure, and print tables on `console`, or JSON. Raises UsageError, UserError and DataError."""
    _check(settings)
    with ExitStack() as stack:
        stack.enter_context(_sigterm_exits())
        ranks = stack.enter_context(start(settings.device))
        settings = replace(settings, batch_size=settings.batch_size or BATCH[ranks.device.type])
        if ranks.world_size > 1:
            raise UsageError("bench measures a single process; start it without torchrun")
        refusals.check_device(_config(settings, ranks, ""), ranks.device.type)
        images = open_images(settings.data, settings.split, settings.seed)
        stack.callback(images.dataset.close)
        check_readable(chosen_backend(settings.loader), settings.data, images.dataset)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=settings.scratch, prefix="fastimg-bench-")))
        record = _measure(settings, images, ranks, scratch, console, progress)
    if settings.json:
        print(json.dumps(record, allow_nan=False))


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
            raise UsageError(f"--stages {name}: no such stage{near} choose from {', '.join(NAMES)}, or all, or none")
    if settings.loaders is not None:
        loader_names(settings.loaders)
    _threads(settings.threads)
    if settings.plot is not None and settings.loaders is None and settings.threads is None:
        raise UsageError("--plot has no effect without --loaders or --threads; add one of them")
    if settings.plot is not None:
        check_file(settings.plot)
    if settings.scratch is not None and not settings.scratch.is_dir():
        raise UsageError(f"--scratch {settings.scratch}: no such folder; create it, or leave it out")


def _stages(text: str) -> list[str]:
    if text in ("all", "none"):
        return list(NAMES) if text == "all" else []
    return [name.strip() for name in text.split(",") if name.strip()]


def _threads(text: str | None) -> tuple[int, ...]:
    """Parse `1,2,4` into numbers, without duplicates."""
    counts = [] if text is None else [count.strip() for count in text.split(",") if count.strip()]
    for count in counts:
        if not count.isdigit() or int(count) < 1:
            raise UsageError(f"--threads {text}: {count} is not a number of threads; write 1,2,4 for example")
    return tuple(dict.fromkeys(int(count) for count in counts))


def _config(settings: Bench, ranks: Ranks, arch: str) -> Train:
    """The same settings as a configuration of `train`."""
    augmenting = {flag.name: getattr(settings, flag.name) for flag in fields(Augmenting)}
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
        lr=1e-4,  # small, so that the weights stay finite; their values do not matter
        val_fraction=0.0,
        **augmenting,
    )


def _measure(
    settings: Bench, images: Images, ranks: Ranks, scratch: Path, console: Console, progress: Console
) -> dict[str, Any]:
    assert settings.batch_size is not None
    archs = [arch.strip() for arch in settings.arch.split(",")] if settings.arch else [_ARCH[ranks.device.type]]
    out = Console(quiet=True) if settings.json else console
    watch = LoadWatch()
    first = build(_config(settings, ranks, archs[0]), images.dataset, images.epoch(settings.batch_size), ranks)
    decoder = _decoder(first)
    threads = int(first.config.workers)
    with telling(progress, "choosing how many images to measure with"):
        cores = threads if settings.loader in ("auto", "native") else 1
        count = epoch_size(images, decoder, cores, settings.batch_size, settings.images)
    rig = with_loader(first, images.dataset, images.epoch(count))
    first.close()
    record: dict[str, Any] = {
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
    _head(out, record)
    _warn_of_unreadable(images, out)
    stages: list[Stage] = []
    if names := _stages(settings.stages):
        with telling(progress, f"measuring stages: {', '.join(names)}"):
            stages = measure(images, decoder, rig, names, count, threads, settings.repeats)
        record["stages"] = [stage.record() for stage in stages]
        show_stages(stages, threads, out)
    alone, noise = loader_alone(rig, settings.repeats, progress)
    record |= {"loader_alone": alone.fields("images_per_second"), "noise": noise}
    say(out, f"loader alone  {alone.text()} img/s; measured twice, it differs by {noise['difference']:.1%}")
    trained = []
    for arch in archs:
        arch_rig = (
            rig
            if arch == archs[0]
            else build(_config(settings, ranks, arch), images.dataset, images.epoch(count), ranks)
        )
        folder = scratch / arch.replace("/", "_")
        result = measure_training(settings, images, arch_rig, count, stages, alone, folder, progress, watch)
        trained.append(result)
        show_training(out, result)
        if arch_rig is not rig:
            arch_rig.close()
    load = watch.load()
    record["load"] = load.record()
    say(out, f"load      {load.text()}")
    _tell_share(record, ranks, alone.median / threads, trained[0], out)
    record["training"] = [result.record() for result in trained]
    record["real_over_synthetic"] = record["training"][0]["real_over_synthetic"]
    record["verdict"] = trained[0].verdict.sentence()
    records: list[dict[str, Any]] = []
    if several := _threads(settings.threads):
        record["scaling"] = measure_scaling(rig, images, count, several, settings.repeats, out, progress)
    if settings.loaders is not None:
        comparison = _compare(settings, images, count, several or (threads,), progress)
        comparison.show(out)
        records = comparison.records()
        record |= {"loaders": records, "missing": comparison.missing, "faults": comparison.faults}
        record["left_out"] = comparison.left_out
    if settings.plot is not None:
        scaling = [{"name": rig.config.loader, **row} for row in record.get("scaling", [])]
        plot_loaders(records or scaling, settings.plot)
        say(out, f"drawn in {settings.plot}")
    if settings.tune:
        with telling(progress, "tuning"):
            best = tuning.tune(rig, images, count, progress)
        file = machine.write(best.profile)
        record["tuned"] = {**best.record(), "profile": str(file)}
        tuning.show(best, file, out)
    rig.close()
    return record


def _tell_share(record: dict[str, Any], ranks: Ranks, per_thread: float, trained: Trained, out: Console) -> None:
    """On several GPUs: what the cores of each rank allow if all of them train."""
    gpus = torch.cuda.device_count() if ranks.device.type == "cuda" else 0
    if gpus > 1:
        shared = ranks_share(available_cpus(), gpus, per_thread, trained)
        record["ranks"] = shared.record()
        say(out, f"ranks     {shared.text()}")


def _warn_of_unreadable(images: Images, out: Console) -> None:
    """Name one of the sampled images that cannot be read."""
    if images.unreadable:
        name, reason = next(iter(images.unreadable.items()))
        warning = f"of the sampled images, {len(images.unreadable):,} cannot be read: {name}: {reason}"
        say(out, warning, style="yellow")


def _decoder(rig: Rig) -> ImageDecoder:
    """The native loader's, with which stages are taken apart."""
    config, preprocessing = rig.config, rig.run.setup.input.preprocessing
    if config.no_aug:
        return ImageDecoder(center_crop(preprocessing))
    crop = train_crop(preprocessing, config)
    return ImageDecoder(crop, dct_scaling=effective.scales(config))


def _compare(settings: Bench, images: Images, count: int, threads: tuple[int, ...], progress: Console) -> Comparison:
    assert settings.loaders is not None and settings.batch_size is not None
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


def _head(out: Console, record: dict[str, Any]) -> None:
    e = record["environment"]
    rows = {
        "data": f"{record['data']}: {record['about']}",
        "measured": f"{plural(record['images'], 'image')} a repeat, {plural(record['repeats'], 'repeat')}, batch "
        f"{record['batch_size']}, "
        f"{record['img_size']} px",
        "loader": record["loader"],
        "device": f"{record['device']} ({e['gpu'] or e['cpu']}), {record['precision']}; {plural(e['cores'], 'core')}",
        "load": f"load average {e['load']:.1f} on the machine's {plural(os.cpu_count() or 1, 'core')}, "
        "before measuring",
    }
    for name, text in rows.items():
        say(out, f"{name:<9} {text}")


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that temporary folders are deleted."""
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
