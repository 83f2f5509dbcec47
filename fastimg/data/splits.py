"""Which samples are held out and in what order they are stored: pure functions of (labels or count, seed).

Keys are drawn with `PCG64.random_raw` and sorted, because numpy keeps a bit generator's stream the same across versions
and promises no such thing of `Generator.permutation` (NEP 19): the same seed gives the same dataset anywhere.
"""

import numpy as np
import numpy.typing as npt

from fastimg.wording import plural

_SPLIT, _SHUFFLE = 1, 2  # streams of one seed


def stratified_split(
    labels: npt.NDArray[np.int64], fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices to keep and indices held out, both ascending: of every class its `fraction`, rounded.

    A class of two or more samples has at least one on either side; a class of one is kept.
    labels [N]. Raises ValueError for a fraction outside [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction {fraction} is not in [0, 1)")
    chosen = np.zeros(len(labels), bool)
    if fraction > 0 and len(labels):
        keys = _keys(len(labels), seed, _SPLIT)
        order = np.lexsort((keys, labels))  # class by class, at random within a class
        starts = np.flatnonzero(np.diff(labels[order], prepend=labels[order[:1]] - 1))
        for start, end in zip(starts, np.append(starts[1:], len(labels)), strict=True):
            n = end - start
            chosen[order[start : start + min(max(round(fraction * n), 1), n - 1)]] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)


def share_of_split(count: int, total: int, noun: str, split: str) -> str:
    """In words, how much of a split was held out: a class of few samples gives more than its share."""
    return f"{100 * count / total:.2g}% of the {plural(total, noun)} of {split}"


def shuffled(n: int, seed: int) -> npt.NDArray[np.int64]:
    """A permutation of range(n) [n]."""
    return np.argsort(_keys(n, seed, _SHUFFLE), kind="stable")


def _keys(n: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    return np.random.PCG64([seed, stream]).random_raw(n)
