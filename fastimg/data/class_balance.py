"""How often each class is seen, and how much it weighs: --sampler, --class-weights, --logit-adjust.

All of them look at the samples of a class as they are drawn: a sampler comes first, weights correct what it leaves.
"""

import csv
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastimg.errors import UsageError, UserError, nearest, printable
from fastimg.wording import plural

BETA = 0.999  # of the effective number of samples
RARE = 0.1  # of the commonest class's samples: below, training mentions it

Doubles = npt.NDArray[np.float64]


def class_counts(labels: npt.NDArray[np.int64], outputs: int) -> Doubles:
    """Samples of each class [outputs]. A label below 0 is none."""
    return np.bincount(labels[labels >= 0], minlength=outputs).astype(np.float64)


def class_weights(choice: str, classes: Sequence[str], counts: Doubles) -> Doubles:
    """The weight of each class [C], whose mean over the `counts` [C] of samples is 1; 0 for a class without samples.

    `choice` is that of --class-weights: "balanced"; "effective", by the effective number of samples (Cui et al., 2019);
    or a file. Raises UserError and UsageError for a file that does not give each class its weight.
    """
    present = counts > 0
    weights = np.zeros(len(counts))
    if choice == "balanced":
        weights[present] = 1.0 / counts[present]
    elif choice == "effective":
        weights[present] = (1.0 - BETA) / (1.0 - BETA ** counts[present])
    else:
        named = read_weights(Path(choice), classes, "--class-weights")
        weights[: len(classes)] = named
        weights[~present] = 0.0
        if not weights.any():
            raise UserError(f"--class-weights {choice}: all classes that have samples weigh 0; give one of them more")
    weights *= counts.sum() / (weights * counts).sum()
    return weights


def drawn(choice: str | None, classes: Sequence[str], counts: Doubles) -> Doubles:
    """The samples of each class that an epoch draws [C], from `counts` [C]. `choice` is that of --sampler.

    "balanced": as many of each; "sqrt": in proportion to the square roots of their numbers; a file: in proportion to
    its numbers. Classes without samples have none. Raises UserError and UsageError for a file that cannot be used.
    """
    if choice is None:
        return counts
    shares: Doubles = np.sqrt(counts) if choice == "sqrt" else np.ones(len(counts))
    if choice not in ("balanced", "sqrt"):
        shares[: len(classes)] = read_weights(Path(choice), classes, "--sampler")
    shares[counts == 0] = 0.0
    if not shares.any():
        raise UserError(f"--sampler {choice}: all classes that have samples have 0; give one of them more")
    shares *= counts.sum() / shares.sum()
    return shares


def sampling(choice: str, classes: Sequence[str], labels: npt.NDArray[np.int64]) -> Doubles:
    """How often each sample is drawn in an epoch, on average [N]; one without a class is drawn once."""
    counts = class_counts(labels, len(classes))
    each = drawn(choice, classes, counts) / np.maximum(counts, 1.0)
    weights: Doubles = np.where(labels >= 0, each[labels], 1.0)
    return weights


def log_priors(counts: Doubles) -> Doubles:
    """The logarithm of each class's share of the samples [C]. A class without samples counts as one sample."""
    counts = np.maximum(counts, 1.0)
    logs: Doubles = np.log(counts / counts.sum())
    return logs


def read_weights(file: Path, classes: Sequence[str], flag: str) -> Doubles:
    """The number that a json object or a csv of `class,number` lines has for each of `classes` [C].

    Raises UsageError for a file that is not there, and UserError for unknown and missing classes, for what is not a
    number of 0 or more, and for a file of zeros. `flag` is for messages.
    """
    where = f"{flag} {file}"
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UsageError(f"{where}: {reason}; give a word that {flag} takes, or a csv or json file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: is not text in UTF-8; give a csv of class,number lines, or a json object") from error
    named = _of_json(text, where) if file.suffix.lower() == ".json" else _of_csv(text, where)
    for name in named:
        if name not in classes:
            raise UserError(
                f"{where}: the data has no class {printable(name)!r}{nearest(name, classes) or '; leave it out'}"
            )
    missing = [printable(name) for name in classes if name not in named]
    if missing:
        more = f" and {plural(len(missing) - 3, 'more class')}" if len(missing) > 3 else ""
        raise UserError(f"{where}: has no number for {', '.join(missing[:3])}{more}; give every class one")
    weights = np.array([_number(named[name], name, where) for name in classes])
    if not weights.any():
        raise UserError(f"{where}: every class has 0; give at least one more")
    return weights


def _of_json(text: str, where: str) -> dict[str, object]:
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not json ({error}); give an object of class names and numbers") from error
    if not isinstance(content, dict):
        raise UserError(f'{where}: is not an object; give class names and numbers, as {{"cat": 1, "dog": 2.5}}')
    return content


def _of_csv(text: str, where: str) -> dict[str, object]:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    wrong = next((row for row in rows if len(row) != 2), None)
    if not rows or wrong is not None:
        found = "is empty" if wrong is None else f"has the line {printable(','.join(wrong))[:60]!r}"
        raise UserError(f"{where}: {found}; give lines of a class and a number, as cat,2.5")
    if rows[0][1].strip().lower() in ("weight", "share", "number", "value"):
        rows = rows[1:]
    return _once([(name.strip(), number) for name, number in rows], where)


def _once(rows: Sequence[tuple[str, object]], where: str) -> dict[str, object]:
    """The rows by class. Raises UserError for a class that comes twice."""
    twice = next((name for name, count in Counter(name for name, _ in rows).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{where}: has the class {printable(twice)!r} twice; leave one of them out")
    return dict(rows)


def _number(value: object, name: str, where: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UserError(f"{where}: {printable(name)} has {printable(str(value))[:40]!r}; give a number of 0 or more")
    return number


def rarest(classes: Sequence[str], counts: Doubles) -> str | None:
    """A remark on classes with less than RARE of the commonest class's samples; None where there are none."""
    named = {name: int(count) for name, count in zip(classes, counts, strict=False) if count > 0}
    if not named:
        return None
    least, most = min(named, key=named.__getitem__), max(named, key=named.__getitem__)
    if named[least] >= RARE * named[most]:
        return None
    few = sum(count < RARE * named[most] for count in named.values())
    others = f" (and {plural(few - 1, 'other class', 'has')} under a tenth)" if few > 1 else ""
    return (
        f"{printable(least)} has {plural(named[least], 'sample')}, {printable(most)} {named[most]:,}{others}: "
        "--class-weights balanced or --sampler balanced raises the recall of rare classes"
    )
