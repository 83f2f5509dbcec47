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
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fastimg import notebook
from fastimg.config.benchmarking import Bench
from fastimg.config.commands import Augmenting, Train
from fastimg.convert.slow_formats import try_slow_formats
from fastimg.data.datasets import center_crop, check_readable, chosen_backend, train_crop, worker_count
from fastimg.data.elsewhere import as_given, with_local_data
from fastimg.errors import UsageError
from fastimg.loaders import ImageDecoder
from fastimg.loaders.remote.fetched_files import fetched_files
from fastimg.loaders.remote.mirrors import mirror_at
from fastimg.loaders.remote.stores import shown
from fastimg.loaders.runtime.cpus import available_cpus
from fastimg.models.ranks import Ranks, start
from fastimg.predict.result_places import result_place
from fastimg.system.machine_load import LoadWatch
from fastimg.system.measurement import Spread, environment
from fastimg.system.memory import available
from fastimg.system.progress import telling
from fastimg.system.signals import sigterm_exits
from fastimg.system.terminal import say
from fastimg.train.choices import machine_profile as machine
from fastimg.train.choices import refusals
from fastimg.train.choices import resolution as effective
from fastimg.wording import plural

from . import tuning
from .budget import FULL, Effort, Probe, Timetable, about
from .dataset import Images, decoding_rate, epoch_size, open_images
from .peers.comparison import compare
from .peers.results import Comparison, Setting
from .plots import plot_loaders
from .ranks_share import ranks_share
from .request import BenchRequest, check, understand
from .rig import Rig, build, step_seconds, with_loader
from .stage_table import Stage, measure
from .stage_table import show as show_stages
from .training import (
    Trained,
    loader_alone,
    loader_on_all_cores,
    measure_scaling,
    measure_training,
    show_training,
    show_verdict,
)

_FIRST_BATCH = 8  # images of the first step, where the batch may become smaller than usual
_SMALLEST_BATCH = 4
_PATIENCE = 25.0  # seconds for which --quick may measure before it repeats less
_FEWER = 2


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured: `record` is what --json prints, with numbers of images per second."""

    record: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """What limits training, in a sentence."""
        return str(self.record["verdict"])

    @property
    def real_over_synthetic(self) -> float:
        """Training from the data as a share of training without reading any."""
        return float(self.record["real_over_synthetic"])

    def _repr_html_(self) -> str:
        record = self.record
        stages = (
            (row["stage"], f"{row['images_per_second']:,.0f}", row["note"])
            for row in record.get("stages", ())
            if "images_per_second" in row
        )
        rates = (
            (row["arch"], *(f"{row[f'{kind}_images_per_second']:,.0f}" for kind in ("synthetic", "real")))
            for row in record["training"]
        )
        return notebook.page(
            notebook.facts(
                {
                    "data": f"{record['data']}: {record['about']}",
                    "loader": record["loader"],
                    "device": record["device"],
                    "loader alone": f"{record['loader_alone']['images_per_second']:,.0f} img/s",
                }
            ),
            notebook.table(("stage", "img/s", ""), stages),
            notebook.table(("model", "img/s, synthetic data", "img/s, this data"), rates),
            notebook.line(self.verdict),
        )


def bench(settings: Bench, console: Console, progress: Console) -> Measurement:
    """Measure, and print tables on `console`, or JSON. Raises UsageError, UserError and DataError."""
    check(settings)
    with ExitStack() as stack:
        place = stack.enter_context(result_place("--output", settings.output, settings, overwrite=settings.overwrite))
        stack.enter_context(sigterm_exits())
        ranks = stack.enter_context(start(settings.device))
        request = understand(settings, ranks.device.type)
        for remark in request.remarks:
            say(progress, remark, style="yellow")
        if ranks.world_size > 1:
            raise UsageError("bench measures a single process; start it without torchrun")
        refusals.check_device(_config(request, ranks, ""), ranks.device.type)
        here = replace(with_local_data(settings), output=place.path)
        request = replace(request, settings=here)
        images = open_images(here.data, settings.split, settings.seed)
        for lease in images.leases:
            stack.callback(lease.close)
        stack.callback(images.dataset.close)
        if (files := fetched_files(images.dataset)) is not None:
            say(progress, f"{files.about()}; measured with the {plural(len(images.ids), 'image')} of its first shards")
        check_readable(chosen_backend(settings.loader), here.data, images.dataset)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=settings.scratch, prefix="fastimg-bench-")))
        record, trained = _measure(request, images, ranks, scratch, console, progress)
    if settings.json:
        print(json.dumps(record, allow_nan=False))
        return Measurement(record=record)
    if settings.output is not None:
        say(console, f"drawn in {shown(settings.output)}")
    for result in trained:  # last, since it is what one wants to know
        show_verdict(console, result, named=len(trained) > 1)
    return Measurement(record=record)


def _config(request: BenchRequest, ranks: Ranks, arch: str) -> Train:
    """The same settings as a configuration of `train`."""
    settings = request.settings
    augmenting = {flag.name: getattr(settings, flag.name) for flag in fields(Augmenting)}
    return Train(
        data=settings.data,
        arch=arch,
        model_kwargs=request.model_kwargs,
        batch_size=request.batch_size,
        img_size=request.img_size,
        loader=settings.loader,
        order=None if mirror_at(settings.data) is None else "quasi-random",  # as `train` of a URL
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


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The rig of the first model, and what a first look at the images and at a step has shown."""

    rig: Rig
    decoder: ImageDecoder
    probe: Probe
    whole: Probe  # as it would be with --full


def _prepare(request: BenchRequest, images: Images, ranks: Ranks) -> _Prepared:
    """Build the first model, and choose the batch and the number of images a repeat by a first look."""
    config = _config(request, ranks, request.archs[0])
    assert isinstance(config.batch_size, int)
    usual = config.batch_size
    shrinks = request.may_shrink_batch and ranks.device.type == "cpu"
    tried = min(usual, _FIRST_BATCH) if shrinks else usual
    first = build(replace(config, batch_size=tried), images.dataset, images.epoch(tried), ranks)
    decoder = _decoder(first)
    decoding = decoding_rate(images, decoder)
    step = step_seconds(first)
    batch = usual
    while shrinks and batch > _SMALLEST_BATCH and step * batch / tried > (request.budget.step or 0.0):
        batch //= 2
    threads = int(first.config.workers)
    native = chosen_backend(request.settings.loader) == "native"
    speed = decoding * (min(threads, available_cpus()) if native else 1)
    count = epoch_size(images, speed * request.budget.epoch, batch, request.settings.images)
    rig = with_loader(first, images.dataset, images.epoch(count), batch_size=batch)
    first.close()
    probe = Probe(
        images=count,
        mean_bytes=images.mean_bytes,
        dataset_bytes=images.nbytes,
        batch_size=batch,
        decoding=decoding,
        threads=threads,
        cores=available_cpus(),
        step=step * batch / tried,
        gpu=ranks.device.type == "cuda",
        native=native,
    )
    whole = replace(
        probe,
        images=epoch_size(images, speed * FULL.epoch, usual, request.settings.images),
        batch_size=usual,
        step=step * usual / tried,
    )
    return _Prepared(rig=rig, decoder=decoder, probe=probe, whole=whole)


def _measure(
    request: BenchRequest, images: Images, ranks: Ranks, scratch: Path, console: Console, progress: Console
) -> tuple[dict[str, Any], list[Trained]]:
    settings = request.settings
    out = Console(quiet=True) if settings.json else console
    watch = LoadWatch()
    with telling(progress, f"a first look at the images, and a step of {request.archs[0]}"):
        prepared = _prepare(request, images, ranks)
    rig, probe = prepared.rig, prepared.probe
    request = replace(request, batch_size=probe.batch_size)
    hurries = settings.repeats is None and not settings.full
    if hurries and sum(request.work().expected(request.budget, probe).values()) > _PATIENCE:
        request = replace(request, repeats=_FEWER)
    work = request.work()
    timetable = Timetable(expected=work.expected(request.budget, probe), progress=progress)
    effort = Effort(
        repeats=request.repeats,
        budget=request.budget,
        timetable=timetable,
        advice=work.advice,
        hurries=hurries,
    )
    record = _facts(request, images, ranks, rig, probe)
    _head(out, record, request)
    say(out, f"plan      {request.budget.flag}, {timetable.text()}")
    for line in _hints(request, ranks, prepared):
        say(out, f"          {line}")
    _warn_of_unreadable(images, out)
    slow = try_slow_formats(images.dataset, images.ids, prepared.decoder, partial(say, progress))
    if slow is not None:
        record["slow_formats"] = slow.record()
        say(out, f"decoding  {slow.sentence()}")
    stages = measure(images, prepared.decoder, rig, request.stages, probe.images, probe.threads, effort)
    if request.stages:
        record["stages"] = [stage.record() for stage in stages]
        show_stages(stages, probe.threads, out)
    alone, noise = loader_alone(rig, effort)
    record |= {"loader_alone": alone.fields("images_per_second"), "noise": noise}
    say(out, f"loader alone  {alone.rate()} img/s; measured twice, it differs by {noise['difference']:.1%}")
    parts = {"alone": alone, "decode": loader_on_all_cores(rig, images, probe.images, effort) or alone}
    parts |= _parts(stages, images)
    trained = []
    for arch in request.archs:
        config = _config(request, ranks, arch)
        own = rig if arch == request.archs[0] else build(config, images.dataset, images.epoch(probe.images), ranks)
        folder = scratch / arch.replace("/", "_")
        result = measure_training(images, own, probe.images, parts, folder, effort, watch)
        trained.append(result)
        show_training(out, result)
        if own is not rig:
            own.close()
    load = watch.load()
    record["load"] = load.record()
    say(out, f"load      {load.text()}")
    _tell_share(record, ranks, alone.median / probe.threads, trained[0], out)
    record["training"] = [result.record() for result in trained]
    record["real_over_synthetic"] = record["training"][0]["real_over_synthetic"]
    record["verdict"] = trained[0].verdict.sentence()
    _compare_all(request, images, rig, effort, record, out)
    rig.close()
    say(out, f"took      {timetable.outcome()}")
    record["plan"] = timetable.records()
    return record, trained


def _parts(stages: Sequence[Stage], images: Images) -> dict[str, Spread]:
    """The rates of those stages that the verdict is about, by their names in it."""
    rates = {stage.name: stage.rate for stage in stages if stage.rate is not None}
    parts: dict[str, Spread] = {name: rates[name] for name in ("copy", "augment", "step") if name in rates}
    fits = images.nbytes < available()
    storage = rates.get("read, warm" if fits else "read, cold") or rates.get("read, warm")
    files = fetched_files(images.dataset)
    if files is not None and "network" in rates and (files.by_ranges or files.size > files.mirror.cache.limit):
        parts["network"] = rates["network"]
    return parts if storage is None else {**parts, "storage": storage}


def _compare_all(
    request: BenchRequest, images: Images, rig: Rig, effort: Effort, record: dict[str, Any], out: Console
) -> None:
    """Compare numbers of threads, loaders and settings, as far as that is asked for."""
    settings, count = request.settings, record["images"]
    records: list[dict[str, Any]] = []
    if request.threads:
        record["scaling"] = measure_scaling(rig, images, count, request.threads, effort, out)
    if request.loaders:
        with effort.timetable.measuring("loaders"):
            comparison = _compare(request, images, count, record["threads"], effort.timetable.progress)
        comparison.show(out)
        records = comparison.records()
        record |= {"loaders": records, "missing": comparison.missing, "faults": comparison.faults}
        record["left_out"] = comparison.left_out
    if settings.output is not None:
        scaling = [{"name": rig.config.loader, **row} for row in record.get("scaling", [])]
        name = images.path.name if images.local else as_given(images.path)
        plot_loaders(records or scaling, settings.output, f"{name}: images per second of loaders")
    if settings.tune:
        with effort.timetable.measuring("tuning"):
            best = tuning.tune(rig, images, count, effort.timetable.progress)
        file = machine.write(best.profile)
        record["tuned"] = {**best.record(), "profile": str(file)}
        tuning.show(best, file, out)


def _facts(request: BenchRequest, images: Images, ranks: Ranks, rig: Rig, probe: Probe) -> dict[str, Any]:
    """What is measured, with what, for the record."""
    return {
        "data": images.path.name if images.local else as_given(images.path),
        "about": images.about(),
        "mode": request.budget.flag.removeprefix("--"),
        "model": {"arch": request.archs[0], "from": request.origin},
        "images": probe.images,
        "batch_size": probe.batch_size,
        "img_size": request.img_size,
        "loader": rig.loader.describe(),
        "threads": probe.threads,
        "repeats": request.repeats,
        "device": str(ranks.device),
        "precision": rig.run.setup.precision.reason,
        "environment": environment(),
    }


def _hints(request: BenchRequest, ranks: Ranks, prepared: _Prepared) -> Iterator[str]:
    """What --quick leaves out, and how long --full would take."""
    if request.settings.full:
        return
    batch, whole = prepared.probe.batch_size, prepared.whole
    full = understand(replace(request.settings, full=True, quick=False), ranks.device.type)
    seconds = sum(full.work().expected(full.budget, whole).values())
    yield f"--full, {about(seconds)}: also tries what would be faster, and compares loaders and numbers of threads"
    if whole.batch_size != batch:
        yield (
            f"batch {batch}, since a step with the usual {whole.batch_size} takes {about(whole.step)}; "
            f"-b {whole.batch_size} measures that one"
        )


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
        return ImageDecoder(center_crop(preprocessing), channels=preprocessing.channels)
    crop = train_crop(preprocessing, config)
    return ImageDecoder(crop, dct_scaling=effective.scales(config), channels=preprocessing.channels)


def _compare(request: BenchRequest, images: Images, count: int, threads: int, progress: Console) -> Comparison:
    settings = request.settings
    setting = Setting(
        batch_size=request.batch_size,
        size=request.img_size,
        threads=request.threads or (threads,),
        repeats=request.repeats,
        images=count,
        seed=settings.seed,
    )
    return compare(images.dataset, settings.data, request.loaders, setting, settings.scratch, progress, settings.split)


def _head(out: Console, record: dict[str, Any], request: BenchRequest) -> None:
    e = record["environment"]
    rows = {
        "data": f"{record['data']}: {record['about']}",
        "model": f"{', '.join(request.archs)} at {record['img_size']} px ({request.origin})",
        "measured": f"{plural(record['images'], 'image')} a repeat, {plural(record['repeats'], 'repeat')}, batch "
        f"{record['batch_size']}",
        "loader": record["loader"],
        "device": f"{record['device']} ({e['gpu'] or e['cpu']}), {record['precision']}; {plural(e['cores'], 'core')}",
        "load": f"load average {e['load']:.1f} on the machine's {plural(os.cpu_count() or 1, 'core')}, "
        "before measuring",
    }
    for name, text in rows.items():
        say(out, f"{name:<9} {text}")
