"""A run that waits for its data is told so: in one line while it trains, and in the summary."""

from dataclasses import replace
from pathlib import Path

import torch
from rich.markup import escape

from fastimg.data.datasets import center_crop, chosen_backend, train_crop
from fastimg.loaders import ImageDecoder, LoaderConfig
from fastimg.loaders.backends import nvcodec
from fastimg.loaders.containers.datasets import is_plain_folder
from fastimg.loaders.crop import Crop, sized
from fastimg.loaders.decode import MAX_PIXELS
from fastimg.system.progress import Display
from fastimg.train import trial
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.choices import resolution as effective
from fastimg.train.probe import probe
from fastimg.train.run import Run

from . import accounting
from .accounting import TrainingTime, overall
from .hints import LIMIT, Facts, Hint, hint, started_slowly
from .report import shown


def tell(run: Run, display: Display) -> None:
    """Say the verdict, once, as soon as the run is seen to wait. Rank 0 calls it after each window.

    Where a trial is to come, `try_native` says it.
    """
    evidence = run.account.evidence()
    if evidence is None or run.told or (trial.possible(run) and not run.asked):
        return
    _say(run, display, evidence)


def try_native(run: Run, display: Display) -> None:
    """After the first epoch with another loader than the native one, on a CPU: try that, and say the verdict."""
    steady = run.account.steady
    if run.asked or not trial.possible(run) or steady.seconds < accounting.SETTLED:
        return
    run.asked = True
    if trial.worth_it(run, steady):
        display.note(f"trying --loader native for {trial.SECONDS:.0f} s")
        try:
            run.tried = trial.native_rate(run) / steady.speed
        except trial.Failed as error:
            display.say(escape(f"--loader native could not be tried: {error}"))
    _say(run, display, steady)


def _say(run: Run, display: Display, window: TrainingTime) -> None:
    found = _judged(run, window)
    if found is not None:
        run.told = True
        display.say(escape(found.text))
        run.account.skip()  # it took a moment to find out


def verdict(run: Run) -> str | None:
    """On all of the run. None where it waited little, or not long enough to tell."""
    whole, steady = overall(rundir.train_records(run.directory)), run.account.steady
    found = _judged(run, steady) if accounting.settled(steady) or run.tried is not None else None
    if found is not None:
        alike = f"{steady.wait_share:.0%}" == f"{whole.wait_share:.0%}"
        return found.text if alike else f"{found.text}; epochs' first batches are not counted here"
    return _slow_starts(run)


def _slow_starts(run: Run) -> str | None:
    """Of epochs after the first, where enough of them were seen, which wait for their first batches and then do not."""
    steady, starting, starts = run.account.steady, run.account.starting, run.account.starts
    later = steady + starting
    if starts < accounting.STARTS or later.seconds < accounting.LONG:
        return None
    if not steady.wait_share <= LIMIT < later.wait_share:
        return None
    facts = replace(_facts(run, steady), wait=later.wait_share)
    return None if facts.backend == "synthetic" else started_slowly(facts, starting.wait / starts).text


def _judged(run: Run, window: TrainingTime) -> Hint | None:
    facts = _facts(run, window)
    found = hint(facts)
    if found is None or not facts.encoded:
        return found
    if run.probed is None:
        run.probed = probe(run.loader, _images(run), run.config.seed)
    return hint(replace(facts, probe=run.probed))


def _facts(run: Run, window: TrainingTime) -> Facts:
    config, data = run.config, run.config.data or Path()
    encoded = run.embedding is None and run.model.text is None
    return Facts(
        wait=window.wait_share,
        speed=window.speed,
        data=shown(data),
        backend=chosen_backend(config.loader) if encoded else "native",
        unit=run.unit,
        encoded=encoded,
        ranks=run.ranks.world_size,
        workers=run.loader.workers,
        cores=run.ranks.cpus,
        threads=torch.get_num_threads(),
        prefetch=config.prefetch or LoaderConfig.prefetch,
        cuda=run.ranks.device.type == "cuda",
        folder=is_plain_folder(data),
        order=config.order,
        decode="gpu" if config.decode == "gpu" else "cpu",
        gpu_decoder=nvcodec.installed(),
        busy=window.busy_share,
        read=window.read_share,
        copy=window.copy_share,
        tried=None if run.tried is None else run.tried * window.speed,
    )


def _images(run: Run) -> ImageDecoder:
    """As the native loader would decode what this run trains on now."""
    config, pre = replace(run.config, loader="native"), run.preprocessing
    crop: Crop = center_crop(pre) if config.no_aug else train_crop(pre, config.scale, config.ratio)
    if run.progressive is not None:
        crop = sized(crop, run.progressive.size(run.epoch))
    return ImageDecoder(crop, config.max_pixels or MAX_PIXELS, effective.scales(config))
