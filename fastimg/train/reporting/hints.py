"""Turns where a run's time went into one sentence: what it waits for, what could be gained, and which flag gains it.

Everything here is arithmetic on `WaitingFacts`. Any rate that is promised is an estimate, and the sentence says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fastimg.system.progress import UNITS
from fastimg.wording import number, plural

Kind = Literal[
    "network-bound", "storage-bound", "decode-bound", "copy-bound", "loader-bound", "start-up", "launch-bound"
]

LIMIT = 0.1  # share of the time: less waiting than this is not reported
READING = 0.5  # share of the loader's work: with more reading than this, the storage is the bottleneck
BUSY = 0.8  # share of the loader threads' time: below this, the threads are waiting too
COPYING = 0.9  # share of the time
DRAINED = 0.5  # share of the steps: with more than these, a GPU that hardly waits for data waits for the host
IDLE = 0.5  # share of the loader threads' time: with less work than this, fewer of them would do
GAIN = 1.1  # a change with a smaller estimated gain is not suggested


@dataclass(frozen=True, kw_only=True)
class WaitingFacts:
    """What is known about a run that waits. Rates are per rank; None means not known.

    More than 12 fields: these are all the inputs of one calculation, and every part of it reads some of them.
    """

    wait: float  # share of the time
    speed: float  # samples per second
    data: str  # as a person types it
    backend: str = "native"
    unit: str = "images"
    encoded: bool = True  # samples have to be decoded; tokens and embeddings do not
    ranks: int = 1
    workers: int = 1
    cores: int = 1  # that this process may use
    threads: int = 1  # threads that compute, when training on a CPU
    prefetch: int = 3
    cuda: bool = False
    folder: bool = False  # one file per sample
    order: str = "random"
    decode: str = "cpu"
    gpu_decoder: bool = False  # whether one is available
    busy: float | None = None  # share of the loader threads' time
    read: float | None = None  # share of the loader threads' time
    copy: float | None = None  # share of the time
    network: float | None = None  # share of the loader threads' time; None: the data is on this machine
    drained: float | None = None  # share of the steps in which the GPU had nothing left to do; None on a CPU
    compile: str | None = None  # the mode of --compile
    accumulates: bool = False  # --grad-accum-steps above 1
    graphs: bool = False  # whether whole steps are CUDA graphs


@dataclass(frozen=True)
class Hint:
    """A verdict. `promised` is the estimated rate over all ranks with the first remedy."""

    kind: Kind
    text: str
    promised: float | None = None  # None: no estimate


class Remedy(NamedTuple):
    """Something to try, and the estimated rate of one rank with it."""

    words: str
    rate: float | None = None


def hint(facts: WaitingFacts) -> Hint | None:
    """The verdict; None if the run hardly waits, for data or for launches.

    For pixels that are not read from anywhere only launches count.
    """
    if facts.wait <= LIMIT or facts.backend in ("synthetic", "resident"):
        return _launching(facts)
    kind, waits_for, remedies = _cause(facts)
    unit = UNITS[facts.unit]
    words = [f"{kind}: {facts.wait:.0%} of the time was spent waiting for {waits_for}"]
    words.append(f"without waiting {number(_computing(facts) * facts.ranks)} {unit}")
    if remedies:
        words.append("try " + ", or ".join(_estimated(remedy, facts, unit) for remedy in remedies))
    first = remedies[0].rate if remedies else None
    return Hint(kind, "; ".join(words), None if first is None else first * facts.ranks)


def larger_launches(compile_mode: str | None, accumulates: bool, graphs: bool = False) -> list[str]:
    """What makes a GPU wait less for launches."""
    found = ["a larger --batch-size"]
    if compile_mode is None:
        found.append("--compile, which launches fewer kernels")
    if compile_mode in (None, "default", "max-autotune-no-cudagraphs") and not accumulates and not graphs:
        found.append("--compile reduce-overhead, which launches a whole pass at once")
    return found


def _launching(facts: WaitingFacts) -> Hint | None:
    if facts.drained is None or facts.drained <= DRAINED:
        return None
    remedies = larger_launches(facts.compile, facts.accumulates, facts.graphs)
    when = "while the host was still launching the backward pass"
    if facts.graphs:
        when = "when the host launched their graphs"
    fewer = facts.workers // 2
    if facts.backend == "native" and facts.encoded and fewer and (facts.busy or 1.0) < IDLE:
        remedies.append(f"--workers {fewer}: threads that decode take Python's lock from the one that launches")
    return Hint(
        "launch-bound",
        f"launch-bound: in {facts.drained:.0%} of the steps the GPU had nothing left to do {when}, so the host's speed "
        f"decides; try {', or '.join(remedies)}",
    )


def started_slowly(facts: WaitingFacts, each: float) -> Hint:
    """The verdict on a run that only waits for the first batches of its epochs, for `each` seconds per epoch."""
    return Hint(
        "start-up",
        f"start-up: not counting the first epoch's start, {facts.wait:.0%} of the time was spent waiting for data, "
        f"nearly all of it for the first batches of each epoch ({each:.1f} s per epoch); it matters less with longer "
        "epochs",
    )


def _estimated(remedy: Remedy, facts: WaitingFacts, unit: str) -> str:
    if remedy.rate is None:
        return remedy.words
    factor = remedy.rate / max(facts.speed, 1e-9)
    return f"{remedy.words} (estimate: {factor:.1f}x, {number(remedy.rate * facts.ranks)} {unit})"


def _cause(facts: WaitingFacts) -> tuple[Kind, str, Sequence[Remedy]]:
    """What is slow, what the run waits for in words, and what to try, most promising first."""
    if not facts.encoded:
        more = _more_workers(facts) if (facts.busy or 0.0) >= BUSY else []
        return "loader-bound", "data that needs no decoding", [*more, _prefetch(facts)]
    if facts.backend != "native":
        return "loader-bound", _other_loader(facts), [_native(facts)]
    if facts.cuda and facts.copy is not None and facts.copy > COPYING:
        return "copy-bound", f"copies to the GPU, which take {facts.copy:.0%} of it", _smaller_copies(facts)
    busy = facts.busy or 0.0
    read = facts.read or 0.0
    if busy < BUSY and facts.decode == "gpu":
        waits_for = f"data that the GPU decodes; the {_threads(facts)} busy for {busy:.0%} of it"
        return "decode-bound", waits_for, [Remedy("--decode cpu")]
    if busy < BUSY:
        waits_for = f"data, though the {_threads(facts)} busy for {busy:.0%} of it only, for want of free slots"
        return "loader-bound", waits_for, [_prefetch(facts)]
    if (facts.network or 0.0) > READING * busy:
        waits_for = (
            f"data, and waiting for the object store is {(facts.network or 0.0) / busy:.0%} of the loader's work"
        )
        return "network-bound", waits_for, [Remedy("a larger --cache-limit, which keeps shards for the next epoch")]
    if read > READING * busy:
        waits_for = f"data, and reading is {read / busy:.0%} of the loader's work"
        return "storage-bound", waits_for, _faster_storage(facts)
    waits_for = f"data, while the {_threads(facts)} busy for {busy:.0%} of it"
    return "decode-bound", waits_for, _faster_decoding(facts)


def _other_loader(facts: WaitingFacts) -> str:
    """On a CPU the waiting is not the whole cost of another library's loader: its workers slow the computing too."""
    return f"the {facts.backend} loader" if facts.cuda else f"the {facts.backend} loader, which also competes for cores"


def _native(facts: WaitingFacts) -> Remedy:
    """Advice without an estimate: what this library's counters do not see, only a measurement tells."""
    command = f"fastimg bench {facts.data} --loaders native,{facts.backend}"
    return Remedy(f"--loader native; `{command}` compares the two on this machine")


def _threads(facts: WaitingFacts) -> str:
    return "loader's thread is" if facts.workers == 1 else f"loader's {plural(facts.workers, 'thread', 'is')}"


def _faster_storage(facts: WaitingFacts) -> list[Remedy]:
    """Larger reads, more of them at a time, another disk."""
    others = [Remedy(f"--workers {2 * facts.workers}: more reads at a time"), Remedy("a faster disk")]
    if facts.folder:
        return [Remedy(f"`fastimg convert {facts.data} DST`: a few large files"), *others]
    if facts.order == "random":
        return [Remedy("--order quasi-random: neighbours are read together"), *others]
    return others


def _faster_decoding(facts: WaitingFacts) -> list[Remedy]:
    """More workers if there are cores for them, the GPU's decoder, tiled JPEGs, smaller images."""
    remedies = _more_workers(facts)
    if facts.cuda and facts.gpu_decoder and facts.decode != "gpu":
        remedies.append(Remedy("--decode gpu"))
    if facts.folder:
        return [*remedies, Remedy(f"`fastimg convert {facts.data} DST`: a crop of a tiled JPEG decodes fewer pixels")]
    return [*remedies, Remedy(f"`fastimg convert --max-size N {facts.data} DST`: smaller images, and tiled JPEGs")]


def _smaller_copies(facts: WaitingFacts) -> list[Remedy]:
    remedies = [Remedy("--decode gpu, which copies JPEGs instead of pixels")] if facts.gpu_decoder else []
    return [*remedies, Remedy("a smaller --img-size")]


def _prefetch(facts: WaitingFacts) -> Remedy:
    return Remedy(f"--prefetch {2 * facts.prefetch}")


def _more_workers(facts: WaitingFacts) -> list[Remedy]:
    """As many workers as there are cores, if that is estimated to be faster."""
    if facts.workers >= facts.cores:
        return []
    expected = with_workers(facts, _each(facts), facts.cores)
    return [Remedy(f"--workers {facts.cores}", expected)] if expected >= GAIN * facts.speed else []


def _computing(facts: WaitingFacts) -> float:
    """Samples per second if the run never waited."""
    return facts.speed / max(1.0 - facts.wait, 1e-3)


def _cores(some: int, others: int, cores: int) -> float:
    """Cores that `some` threads get next to `others` that are as busy, if the scheduler is fair."""
    return some * min(1.0, cores / (some + others))


def _each(facts: WaitingFacts) -> float:
    """Samples per second of one worker on a core of its own. All workers are busy, or nothing would wait."""
    if facts.cuda:
        return facts.speed / min(facts.workers, facts.cores)
    alone = min(facts.workers, facts.cores)
    beside = _cores(facts.workers, facts.threads, facts.cores)
    return facts.speed / (facts.wait * alone + (1 - facts.wait) * beside)


def with_workers(facts: WaitingFacts, rate: float, workers: int) -> float:
    """Samples per second of training with this many workers, each doing `rate` on a core of its own.

    On a GPU, the slower of loading and computing. On a CPU both share the cores, which the scheduler divides evenly
    among all threads that have work; while training waits for data, its own threads have none.
    """
    compute = _computing(facts)
    alone = min(workers, facts.cores)
    if facts.cuda:
        return min(compute, rate * alone)
    # Core-seconds per sample. Computing has the cores that it has now, next to workers that are always busy.
    work = _cores(facts.threads, facts.workers, facts.cores) / compute
    decoding = 1 / rate
    beside = _cores(workers, facts.threads, facts.cores)
    computing = _cores(facts.threads, workers, facts.cores)
    # All workers are busy: part of the time alone, the rest of the time next to computing.
    waiting = alone / (decoding + (alone - beside) * work / computing)
    if waiting * work <= computing:
        return waiting
    whole = min(facts.threads, facts.cores)  # idle workers leave their cores to computing
    return whole / (work + decoding * (whole - computing) / beside)
