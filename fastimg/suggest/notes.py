"""What the owner of the data should know: copies, leaks, damage, and what would be read faster."""

import shlex
from collections.abc import Iterator

from fastimg.bench.raw_pixels import RawPixels, as_raw_pixels
from fastimg.loaders.containers.content import singular
from fastimg.train.reporting.hints import LIMIT
from fastimg.wording import plural

from .machine import Machine
from .survey import Survey
from .timing import Timing

BUSY = 1.5  # load for each core, from which other programs slow a training down
_TOO_SMALL = 30  # validation samples: a percentage of fewer means little


def about_machine(machine: Machine) -> Iterator[str]:
    """What the measurement could not know."""
    if machine.load > BUSY * machine.cores:
        yield (
            f"Other programs were busy during the measurement (load {machine.load:g} on "
            f"{plural(machine.cores, 'core')}), "
            "so training may take less time than is expected here."
        )
    if machine.gpus > 1:
        yield (
            f"There are {plural(machine.gpus, 'GPU')}, and this is for one: `torchrun --nproc-per-node {machine.gpus} "
            "-m fastimg train ...` uses all."
        )


def about_data(survey: Survey, timing: Timing, once: bool, available: int) -> Iterator[str]:
    """What is wrong with the data, or would be read faster; `once`: a frozen encoder reads each sample just once.

    `available` is the free memory in bytes.
    """
    near, copies, noun, each = survey.near, survey.copies, survey.noun, singular(survey.content)
    if survey.looked_at < survey.train + survey.val:
        yield f"{survey.looked_at:,} of {survey.train + survey.val:,} {noun} were looked at, drawn by chance."
    if copies.leaked:
        names = " = ".join(name for _, name in copies.across[0].names[:2])
        yield (
            f"Of validation, {plural(copies.leaked, each, 'has')} the same bytes as one of training, which makes "
            f"validation too good: {names}. `fastimg inspect` lists them; remove them from one side."
        )
    if near.across:
        pairs = "; ".join(f"{one} and {other}" for one, other in near.examples)
        yield (
            f"Of validation, {plural(near.across, each, 'is')} nearly the same as one of training, which makes "
            f"validation too good: {pairs}. Remove them from one side, or keep such groups together with `fold` and "
            "`group`."
        )
    if near.within and not near.across:
        pairs = "; ".join(f"{one} and {other}" for one, other in near.examples)
        yield f"Of training, {plural(near.within, each, 'is')} nearly the same as another one: {pairs}."
    if copies.within:
        same = plural(copies.within, each, "has")
        yield f"{same} the same bytes as another one on its side; `fastimg inspect` lists them."
    if copies.conflicting:
        yield f"{plural(copies.conflicting, 'group')} of copies with several classes: some of the labels are wrong."
    if near.why_not:
        yield f"Only exact copies were looked for: {near.why_not}."
    if survey.unreadable:
        named = "; ".join(f"{name}: {reason}" for name, reason in survey.unreadable_names)
        yield f"Not readable, and left out of training: {plural(survey.unreadable, each)} ({named})."
    if survey.val < _TOO_SMALL:
        yield (
            f"Validation has only {survey.val:,} {noun}: its accuracy tells little. With so little data, five runs "
            "with `fold: 0/5` to `4/5` tell more, and `fastimg eval RUN RUN ...` adds them up."
        )
    if survey.folder and survey.content == "images":
        gain = "Here that gains little: the model takes nearly all of a step's time."
        if once:
            gain = "A frozen encoder reads each only once, so that it gains little speed here."
        elif timing.waits >= LIMIT:
            gain = f"Reading and decoding are {timing.waits:.0%} of a step here, the most that it could gain."
        yield (
            f"The data is a folder of files. `fastimg convert {shlex.quote(str(survey.path))} DST` checks each once, "
            f"and stores them so that a crop decodes only its own part. {gain}"
        )
    raw = None if once or timing.waits < LIMIT else _raw_pixels(survey, available)
    if raw is not None:
        yield (
            f"Reading and decoding are {timing.waits:.0%} of a step here. `fastimg convert "
            f"{shlex.quote(str(survey.path))} DST {raw.flags}` stores the images as raw pixels, about "
            f"{raw.nbytes / 1e6:,.0f} MB, which memory holds; a loader reads them about {raw.gain:.1f}x as fast."
        )


def _raw_pixels(survey: Survey, available: int) -> RawPixels | None:
    if survey.sizes is None:
        return None
    sizes, seen = survey.sizes, sum(survey.formats.values())
    jpegs, pngs = (survey.formats.get(name, 0) / seen for name in ("jpeg", "png"))
    return as_raw_pixels(
        survey.train + survey.val,
        sizes.width * sizes.height,
        max(sizes.width, sizes.height),
        sizes.largest**2,
        jpegs,
        survey.tiled,
        pngs,
        available,
    )
