"""From where the time of a run went to one sentence: what it waits for, what is to be gained, and which flag gains it.

Everything here is arithmetic on `Facts`. What is promised is an estimate, and is called so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fastimg.system.progress import UNITS
from fastimg.wording import plural

Kind = Literal["storage-bound", "decode-bound", "copy-bound", "loader-bound", "start-up"]

LIMIT = 0.1  # of the time: less waiting is not spoken of
READING = 0.5  # of the loader's work: more, and the storage is what is slow
BUSY = 0.8  # of the time of its threads: less, and they wait too
COPYING = 0.9  # of the time
TILED = 0.5  # of the samples: fewer, and converting is worth it
GAIN = 1.1  # a change that is estimated to gain less is not worth a try


class Probe(NamedTuple):
    """What one thread of the native loader does with samples of the run."""

    rate: float  # samples per second
    reading: float  # share of the time
    tiled: float  # share of the samples


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run that waits. Rates are those of one rank. None: not known."""

    wait: float  # share of the time
    speed: float  # samples per second
    data: str  # as a person types it
    backend: str = "native"
    unit: str = "images"
    encoded: bool = True  # there is something to decode; not in tokens and embeddings
    ranks: int = 1
    workers: int = 1
    cores: int = 1  # that this process may use
    threads: int = 1  # that compute, where the CPU does
    prefetch: int = 3
    cuda: bool = False
    folder: bool = False  # a file a sample
    order: str = "random"
    decode: str = "cpu"
    gpu_decoder: bool = False  # there is one
    busy: float | None = None  # share of the time of the loader's threads
    read: float | None = None  # the same
    copy: float | None = None  # share of the time
    probe: Probe | None = None
    tried: float | None = None  # samples per second with the native loader, where that was tried


@dataclass(frozen=True)
class Hint:
    """A verdict. `promised` is the rate over all ranks that its first remedy is estimated to give."""

    kind: Kind
    text: str
    promised: float | None = None  # None: no estimate


class _Try(NamedTuple):
    """A remedy, and the rate of one rank with it."""

    words: str
    rate: float | None = None


def hint(facts: Facts) -> Hint | None:
    """The verdict; None where there is next to no waiting, and for pixels that nobody reads."""
    if (facts.wait <= LIMIT and not _gains(facts, facts.tried)) or facts.backend == "synthetic":
        return None
    kind, waits_for, remedies = _cause(facts)
    unit, best = UNITS[facts.unit], _computing(facts)
    words = [f"{kind}: {facts.wait:.0%} of the time was spent waiting for {waits_for}"]
    if facts.tried is None:
        words.append(f"without waiting {number(best * facts.ranks)} {unit}")
    if remedies:
        words.append("try " + ", or ".join(_estimated(one, facts, unit) for one in remedies))
    first = remedies[0].rate if remedies else None
    return Hint(kind, "; ".join(words), None if first is None else first * facts.ranks)


def started_slowly(facts: Facts, each: float) -> Hint:
    """The verdict on a run whose waiting is that for the first batches of its epochs: `each` time so many seconds."""
    return Hint(
        "start-up",
        f"start-up: {facts.wait:.0%} of the time, the first start aside, was spent waiting for data, nearly all of it "
        f"for the first batches of each epoch, {each:.1f} s every time; it matters less where epochs are longer",
    )


def number(rate: float) -> str:
    """1,234 or 12.3."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.1f}"


def _estimated(remedy: _Try, facts: Facts, unit: str) -> str:
    if remedy.rate is None:
        return remedy.words
    times, rate = remedy.rate / max(facts.speed, 1e-9), number(remedy.rate * facts.ranks)
    if remedy.rate == facts.tried:
        return f"{remedy.words} (tried: {times:.1f}x, {rate} {unit})"
    # Busy processes on the cores that compute cost more than their share: its threads wait for each other.
    least = "" if facts.cuda or facts.backend == "native" else "at least "
    return f"{remedy.words} (estimate: {least}{times:.1f}x, {rate} {unit})"


def _gains(facts: Facts, rate: float | None) -> bool:
    return rate is not None and rate >= GAIN * facts.speed


def _cause(facts: Facts) -> tuple[Kind, str, Sequence[_Try]]:
    """What is slow, what the run waits for in words, and what to do, the likeliest first."""
    if not facts.encoded:
        more = _more_workers(facts) if (facts.busy or 0.0) >= BUSY else []
        return "loader-bound", "data that needs no decoding", [*more, _prefetch(facts)]
    if facts.backend != "native":
        return _other_loader(facts)
    if facts.cuda and facts.copy is not None and facts.copy > COPYING:
        return "copy-bound", f"copies to the GPU, which take {facts.copy:.0%} of it", _smaller_copies(facts)
    busy, read = facts.busy or 0.0, facts.read or 0.0
    if busy < BUSY and facts.decode == "gpu":
        waits_for = f"data that the GPU decodes; the {_threads(facts)} busy for {busy:.0%} of it"
        return "decode-bound", waits_for, [_Try("--decode cpu")]
    if busy < BUSY:
        waits_for = f"data, though the {_threads(facts)} busy for {busy:.0%} of it only, for want of free slots"
        return "loader-bound", waits_for, [_prefetch(facts)]
    if read > READING * busy:
        waits_for = f"data, and reading is {read / busy:.0%} of the loader's work"
        return "storage-bound", waits_for, _faster_storage(facts)
    waits_for = f"data, while the {_threads(facts)} busy for {busy:.0%} of it"
    return "decode-bound", waits_for, _faster_decoding(facts)


def _other_loader(facts: Facts) -> tuple[Kind, str, Sequence[_Try]]:
    waits_for, probe = f"the {facts.backend} loader", facts.probe
    if not facts.cuda:
        waits_for += ", which takes cores from computing besides"
    if probe is None:
        return "loader-bound", waits_for, [_Try("--loader native", facts.tried)]
    rate = with_workers(facts, probe.rate, facts.workers) if facts.tried is None else facts.tried
    gains = [_Try("--loader native", rate)] if _gains(facts, rate) else []
    if probe.reading > READING:
        waits_for += f"; reading would be {probe.reading:.0%} of the native one's work"
        return "storage-bound", waits_for, [*gains, *_faster_storage(facts)]
    return "decode-bound", waits_for, gains or _faster_decoding(facts)


def _threads(facts: Facts) -> str:
    return "loader's thread is" if facts.workers == 1 else f"loader's {plural(facts.workers, 'thread', 'is')}"


def _faster_storage(facts: Facts) -> list[_Try]:
    """Larger reads, more of them at a time, another disk."""
    others = [_Try(f"--workers {2 * facts.workers}: more reads at a time"), _Try("a faster disk")]
    if facts.folder:
        return [_Try(f"`fastimg convert {facts.data} DST`: a few large files"), *others]
    if facts.order == "random":
        return [_Try("--order quasi-random: neighbours are read together"), *others]
    return others


def _faster_decoding(facts: Facts) -> list[_Try]:
    """More workers where there are cores, the GPU's decoder, tiles; smaller images where all that is done."""
    found = _more_workers(facts)
    if facts.backend == "native" and facts.cuda and facts.gpu_decoder and facts.decode != "gpu":
        found.append(_Try("--decode gpu"))
    if facts.folder or (facts.probe is not None and facts.probe.tiled < TILED):
        native = "" if facts.backend == "native" else " and --loader native"
        return [*found, _Try(f"`fastimg convert {facts.data} DST`{native}: of tiles, a crop decodes only its own")]
    return [*found, _Try(f"`fastimg convert --max-size N {facts.data} DST`: smaller images")]


def _smaller_copies(facts: Facts) -> list[_Try]:
    found = [_Try("--decode gpu, which copies JPEGs instead of pixels")] if facts.gpu_decoder else []
    return [*found, _Try("a smaller --img-size")]


def _prefetch(facts: Facts) -> _Try:
    return _Try(f"--prefetch {2 * facts.prefetch}")


def _more_workers(facts: Facts) -> list[_Try]:
    """As many as there are cores, where that is estimated to be faster."""
    if facts.workers >= facts.cores:
        return []
    expected = with_workers(facts, _each(facts), facts.cores)
    return [_Try(f"--workers {facts.cores}", expected)] if _gains(facts, expected) else []


def _computing(facts: Facts) -> float:
    """Samples per second of the time that was not waiting."""
    return facts.speed / max(1.0 - facts.wait, 1e-3)


def _cores(some: int, others: int, cores: int) -> float:
    """Cores that `some` threads get beside `others` that are as busy, where the system is fair."""
    return some * min(1.0, cores / (some + others))


def _each(facts: Facts) -> float:
    """Samples per second of a worker on a core of its own. Now all of them work all the time, or nobody would wait."""
    if facts.cuda:
        return facts.speed / min(facts.workers, facts.cores)
    alone = min(facts.workers, facts.cores)
    beside = _cores(facts.workers, facts.threads, facts.cores)
    return facts.speed / (facts.wait * alone + (1 - facts.wait) * beside)


def with_workers(facts: Facts, rate: float, workers: int) -> float:
    """Samples per second of training with so many workers, each doing `rate` on a core of its own.

    On a GPU the slower one of loading and computing. On a CPU they have the same cores, which the system shares out
    evenly among all threads that have work; while training waits for data, its threads have none.
    """
    compute = _computing(facts)
    alone = min(workers, facts.cores)
    if facts.cuda:
        return min(compute, rate * alone)
    # Core-seconds of a sample. What computes has the cores that it has now, beside workers that never rest.
    work = _cores(facts.threads, facts.workers, facts.cores) / compute
    decoding = 1 / rate
    beside, computing = (
        _cores(workers, facts.threads, facts.cores),
        _cores(facts.threads, workers, facts.cores),
    )
    # All workers at work: for a share of the time alone, else beside computing, which is the rest of the time.
    waiting = alone / (decoding + (alone - beside) * work / computing)
    if waiting * work <= computing:
        return waiting
    whole = min(facts.threads, facts.cores)  # workers that rest leave their cores to computing
    return whole / (work + decoding * (whole - computing) / beside)
