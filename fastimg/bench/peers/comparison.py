"""Compares loaders: the same images, the same distribution of crops, a process each, epochs in turn.

    DATA -> decodable samples -> each loader's input -> parity of pixels and boxes -> timed epochs

Everything runs on the CPU, from encoded images in a warm page cache to uint8 batches [B, 3, S, S].
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
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.content import samples_of
from fastimg.system.measurement import Spread
from fastimg.wording import agreeing, plural

from .data import Sources, write_gradients
from .parity import Checks, check
from .pipelines import BASE, PEERS, Peer, Workload
from .processes import Epoch, PeerError, Remote, remotes
from .results import Comparison, LoaderRow, Setting
from .samples import Samples, choose

PIXELS = 256  # maximum number of images whose centre crops are compared
BOXES = 600  # random crops whose boxes are compared
_TARS = 16  # minimum number of tars, if there are as many images


def names(text: str, peers: Mapping[str, Peer] = PEERS) -> tuple[str, ...]:
    """Parse `all`, or names separated by commas; the native loader is always included, and comes first.

    Raises UsageError for an unknown name.
    """
    given = [name.strip() for name in text.split(",") if name.strip()]
    if not given:
        raise UsageError(f"--loaders {text!r}: give all, or names separated by commas, from {', '.join(peers)}")
    for name in given:
        if name not in ("all", *peers):
            near = nearest(name, peers) or f"; choose from {', '.join(peers)}, or all"
            raise UsageError(f"--loaders {text}: there is no loader {name!r}{near}")
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
    """Measure loaders on a dataset, which is the `split` of `source`, or a FilesDataset.

    Files are written to a folder below `scratch` (None: the system's), which is deleted at the end. A loader that fails
    is recorded in `faults`, and the others continue. Raises UserError for data without images or a full disk, DataError
    for damaged data, and PeerError if the native loader itself fails.
    """
    if dataset.content != "images":
        raise UserError(
            f"{source}: contains {samples_of(dataset.content)}, but --loaders compares image loaders; give images"
        )
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
        comparison = Comparison(
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
                _measure(opened, sets, comparison, lambda text: status.update(text))
        except PeerError as error:
            if error.of_data:
                raise UserError(f"{BASE}: {error}") from error
            raise
    return comparison


@contextmanager
def _room(scratch: Path | None) -> Iterator[None]:
    """Turn OSError, such as from a full disk, into UserError."""
    try:
        yield
    except OSError as error:
        where = scratch or tempfile.gettempdir()
        reason = error.strerror or str(error)
        raise UserError(f"{where}: {reason}; give --scratch a folder with room for copies of the images") from error


def _about(dataset: Dataset, samples: Samples, base: Peer) -> dict[str, str]:
    """The descriptions of loaders whose setup depends on the kind of DATA."""
    beton = isinstance(dataset, BetonDataset)
    kind = "files" if samples.original is None else ".beton" if beton else "tar shards"
    tiled = (
        f"{samples.tiled:,} of {plural(len(samples.files), 'sample')} {agreeing(samples.tiled, 'is')} "
        f"{'a tiled JPEG' if samples.tiled == 1 else 'tiled JPEGs'}"
    )
    about = {BASE: f"{base.about}; DATA itself: {kind}, {tiled}"}
    return about | ({"ffcv": "DATA itself, a .beton; os_cache, threads"} if beton else {})


@dataclass(frozen=True, kw_only=True)
class _Sets:
    """The sets of images that every loader reads."""

    photographs: Sources  # for timing
    each: Sources  # up to PIXELS of them, once each, for comparing pixels
    gradients: Sources  # for comparing boxes


def _measure(opened: dict[str, Remote], sets: _Sets, comparison: Comparison, tell: Callable[[str], object]) -> None:
    """Check parity, then measure speed, into `comparison`."""
    setting = comparison.setting
    faults = comparison.faults

    def work(sources: Sources, crop: Literal["random", "centre"], threads: int) -> Workload:
        return Workload(sources=sources, crop=crop, batch_size=setting.batch_size, size=setting.size, workers=threads)

    make(opened, dict.fromkeys((sets.photographs, sets.each, sets.gradients)), BASE, faults, tell)
    tell("comparing pixels and boxes")
    first = setting.threads[0]
    checks = Checks(centre=work(sets.each, "centre", first), boxes=work(sets.gradients, "random", first))
    decoding = {name: remote for name, remote in opened.items() if remote.peer.decodes}
    comparison.parity, others = check(decoding, checks, BASE)
    for name, fault in others.items():
        drop(opened, name, PeerError(fault), BASE, faults)
    for threads in setting.threads:
        comparison.rows += in_turn(
            opened, work(sets.photographs, "random", threads), setting.repeats, BASE, faults, tell
        )


def make(
    opened: dict[str, Remote],
    sets: Iterable[Sources],
    base: str,
    faults: dict[str, str],
    tell: Callable[[str], object] = lambda text: None,
) -> None:
    """Let each loader write its input. A loader that fails is treated as in `in_turn`."""
    for name, remote in list(opened.items()):
        tell(f"{name}: writing its input")
        try:
            for sources in sets:
                remote.make(sources)
        except PeerError as error:
            drop(opened, name, error, base, faults)


def in_turn(
    opened: dict[str, Remote],
    work: Workload,
    repeats: int,
    base: str,
    faults: dict[str, str],
    tell: Callable[[str], object] = lambda text: None,
    before: Callable[[], object] = lambda: None,
) -> list[LoaderRow]:
    """Run epochs of all loaders in turn, `repeats` times, after one round of warming up; `before` each, call it.

    A loader that fails is closed and removed from `opened`, and its error is put into `faults`. Raises PeerError if
    that loader is `base`.
    """
    epochs: dict[str, list[Epoch]] = {name: [] for name in opened}
    for number in range(1 + repeats):
        for name, remote in list(opened.items()):
            stage = f"round {number} of {repeats}" if number else "warming up"
            tell(f"{plural(work.workers, 'thread')}, {stage}: {name}")
            before()
            try:
                epochs[name].append(remote.epoch(work))
            except PeerError as error:
                drop(opened, name, error, base, faults)
    rows = []
    for name in opened:
        counted = epochs[name][1:]
        busy = [epoch.processor / epoch.images * 1e6 for epoch in counted if epoch.processor is not None]
        speed = Spread.of([epoch.images / epoch.seconds for epoch in counted])
        rows.append(LoaderRow(name=name, threads=work.workers, speed=speed, busy=Spread.of(busy) if busy else None))
    return rows


def drop(opened: dict[str, Remote], name: str, error: PeerError, base: str, faults: dict[str, str]) -> None:
    """Close a loader that failed, as described for `in_turn`."""
    if name == base:
        raise error
    faults[name] = str(error)
    opened.pop(name).close(0)
