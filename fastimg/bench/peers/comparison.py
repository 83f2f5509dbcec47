"""Loaders side by side: the same images, the same distribution of crops, a process each, epochs in turn.

    DATA -> samples that can be decoded -> what each loader reads -> parity of pixels and boxes -> epochs, timed

Everything happens on the CPU: encoded images on a disk whose cache is warm -> uint8 batches [B, 3, S, S].
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Literal

from rich.console import Console

from fastimg.errors import UsageError, UserError, nearest
from fastimg.loaders import Dataset
from fastimg.loaders.containers.beton_dataset import BetonDataset
from fastimg.loaders.containers.content import samples_of
from fastimg.system.measurement import Spread
from fastimg.wording import agreeing, plural

from .data import Sources, write_gradients
from .parity import Checks, check
from .pipelines import BASE, PEERS, Peer, Work
from .processes import Epoch, PeerError, Remote, remotes
from .results import Comparison, Row, Setting
from .samples import Samples, choose

PIXELS = 256  # images whose centre crops are compared, at most
BOXES = 600  # random crops whose boxes are compared
_TARS = 16  # at least, where there are so many images


def names(text: str, peers: Mapping[str, Peer] = PEERS) -> tuple[str, ...]:
    """The loaders that `all`, or names with commas between them, mean; the native one is always the first.

    Raises UsageError for a name that is none.
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    if not given:
        raise UsageError(f"--loaders {text!r}: give {', '.join(peers)}, some of them with commas between, or all")
    for name in given:
        if name not in ("all", *peers):
            near = nearest(name, peers) or f"; give {', '.join(peers)}, or all"
            raise UsageError(f"--loaders {text}: no loader {name!r}{near}")
    return tuple(name for name in peers if name == BASE or name in given or "all" in given)


def compare(
    dataset: Dataset,
    source: Path,
    names: Sequence[str],
    setting: Setting,
    scratch: Path | None,
    console: Console,
    split: str = "train",
    peers: Mapping[str, Peer] = PEERS,
) -> Comparison:
    """Measure those loaders over a dataset, which is the `split` of `source`, or a FilesDataset.

    What is written goes into a folder below `scratch` (None: the system's) that is deleted in the end. A loader that
    fails is named in `faults`, and the others go on. Raises UserError for data without an image or a folder without
    room, DataError for damaged data, PeerError where the native loader itself fails.
    """
    if dataset.content != "images":
        raise UserError(f"{source}: holds {samples_of(dataset.content)}, and --loaders compares loaders of images")
    wanted = {name: peers[name] for name in (BASE, *names) if peers[name].installed()}
    with ExitStack() as stack:
        with _room(scratch):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch, prefix="fastimg-loaders-")))
            count = max(1, setting.images // setting.batch_size) * setting.batch_size  # whole batches: no loader pads
            samples = choose(dataset, source, split, count, setting.seed, folder / "files", console)
            drawn = write_gradients(folder / "drawn")
        parts = lcm(*setting.threads)
        parts *= -(-_TARS // parts)
        photographs = samples.sources(folder / "photographs", count, parts)
        each = samples.sources(folder / "each", min(len(samples.files), PIXELS), parts)
        sets = _Sets(
            photographs=photographs,
            each=photographs if each.files == photographs.files else each,
            gradients=Samples(files=tuple(drawn), original=None, left_out={}, tiled=0).sources(
                folder / "gradients", BOXES, parts
            ),
        )
        found = Comparison(
            setting=setting,
            data=os.path.basename(os.path.abspath(source)) or "data",
            images=count,
            samples=len(samples.files),
            left_out=samples.left_out,
            about={name: peer.about for name, peer in wanted.items()} | _about(dataset, samples, wanted[BASE]),
            missing={name: peers[name].install for name in names if name not in wanted},
        )
        try:
            opened = stack.enter_context(remotes(wanted, max(setting.threads)))
            with console.status("starting the loaders") as status:
                _measure(opened, sets, found, lambda text: status.update(text))
        except PeerError as error:
            if error.of_data:
                raise UserError(f"{BASE}: {error}") from error
            raise
    return found


@contextmanager
def _room(scratch: Path | None) -> Iterator[None]:
    """Raises UserError where there is none."""
    try:
        yield
    except OSError as error:
        where = scratch or tempfile.gettempdir()
        reason = error.strerror or str(error)
        raise UserError(f"{where}: {reason}; give --scratch a folder with room for copies of the images") from error


def _about(dataset: Dataset, samples: Samples, base: Peer) -> dict[str, str]:
    """How loaders are set up that have to do with what DATA is."""
    beton = isinstance(dataset, BetonDataset)
    kind = "files" if samples.original is None else ".beton" if beton else "tar shards"
    tiled = (
        f"{samples.tiled:,} of {plural(len(samples.files), 'sample')} {agreeing(samples.tiled, 'has')} "
        "restart markers, as tiled JPEGs have"
    )
    about = {BASE: f"{base.about}; DATA as it is: {kind}, {tiled}"}
    return about | ({"ffcv": "DATA itself, a .beton; os_cache, threads"} if beton else {})


@dataclass(frozen=True, kw_only=True)
class _Sets:
    """Sets of images, for every loader."""

    photographs: Sources  # what is timed
    each: Sources  # samples of them, once, at most PIXELS
    gradients: Sources


def _measure(opened: dict[str, Remote], sets: _Sets, found: Comparison, tell: Callable[[str], object]) -> None:
    """Parity, then speed, into `found`."""
    setting, faults = found.setting, found.faults

    def work(sources: Sources, crop: Literal["random", "centre"], threads: int) -> Work:
        return Work(sources=sources, crop=crop, batch_size=setting.batch_size, size=setting.size, workers=threads)

    make(opened, dict.fromkeys((sets.photographs, sets.each, sets.gradients)), BASE, faults, tell)
    tell("comparing pixels and boxes")
    first = setting.threads[0]
    checks = Checks(centre=work(sets.each, "centre", first), boxes=work(sets.gradients, "random", first))
    decoding = {name: remote for name, remote in opened.items() if remote.peer.decodes}
    found.parity, others = check(decoding, checks, BASE)
    for name, fault in others.items():
        drop(opened, name, PeerError(fault), BASE, faults)
    for threads in setting.threads:
        found.rows += in_turn(opened, work(sets.photographs, "random", threads), setting.repeats, BASE, faults, tell)


def make(
    opened: dict[str, Remote],
    sets: Iterable[Sources],
    base: str,
    faults: dict[str, str],
    tell: Callable[[str], object] = lambda text: None,
) -> None:
    """What each loader reads of the images. See `in_turn` for one that fails."""
    for name, remote in list(opened.items()):
        tell(f"{name}: writing what it reads")
        try:
            for sources in sets:
                remote.make(sources)
        except PeerError as error:
            drop(opened, name, error, base, faults)


def in_turn(
    opened: dict[str, Remote],
    work: Work,
    repeats: int,
    base: str,
    faults: dict[str, str],
    tell: Callable[[str], object] = lambda text: None,
) -> list[Row]:
    """Epochs of all loaders in turn, `repeats` times round; the round before them does not count.

    A loader that fails is closed and taken out of `opened`, and what it said is put into `faults`. Raises PeerError
    where that is `base`.
    """
    found: dict[str, list[Epoch]] = {name: [] for name in opened}
    for number in range(1 + repeats):
        for name, remote in list(opened.items()):
            stage = f"round {number} of {repeats}" if number else "warming up"
            tell(f"{plural(work.workers, 'thread')}, {stage}: {name}")
            try:
                found[name].append(remote.epoch(work))
            except PeerError as error:
                drop(opened, name, error, base, faults)
    rows = []
    for name in opened:
        counted = found[name][1:]
        busy = [epoch.processor / epoch.images * 1e6 for epoch in counted if epoch.processor is not None]
        speed = Spread.of([epoch.images / epoch.seconds for epoch in counted])
        rows.append(Row(name=name, threads=work.workers, speed=speed, busy=Spread.of(busy) if busy else None))
    return rows


def drop(opened: dict[str, Remote], name: str, error: PeerError, base: str, faults: dict[str, str]) -> None:
    """See `in_turn`."""
    if name == base:
        raise error
    faults[name] = str(error)
    opened.pop(name).close(0)
