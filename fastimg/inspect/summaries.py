"""What inspections of images and texts have in common: the balance of classes, duplicates, and their tables."""

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg.errors import printable
from fastimg.loaders.containers.fields import WithFields
from fastimg.loaders.containers.targets import LABEL
from fastimg.system.terminal import print_table, say
from fastimg.wording import agreeing, legible, plural, shortened, with_flags

from .scan import Copies, Duplicates, SplitFacts

_LINES, _CLASSES = 5, 30
_TOP = 10  # commonest classes or labels of a target


class Balance(NamedTuple):
    """The smallest and the largest class of a split."""

    smallest: str
    images: int  # or texts
    largest: str
    largest_images: int
    ratio: float  # smallest / largest


def class_names(facts: SplitFacts) -> list[str]:
    """Printable class names; if two are the same, the second gets its index as a suffix."""
    names = [printable(name) for name in facts.dataset.classes]
    first: dict[str, int] = {}
    return [name if first.setdefault(name, i) == i else f"{name} ({i})" for i, name in enumerate(names)]


def balance(counts: dict[str, int]) -> Balance | None:
    """The balance of class counts; None if there are no samples."""
    if not counts or not max(counts.values()):
        return None
    smallest = min(counts, key=counts.__getitem__)
    largest = max(counts, key=counts.__getitem__)
    few = counts[smallest]
    many = counts[largest]
    return Balance(smallest, few, largest, many, round(few / many, 4))


def summarised(splits: list[SplitFacts]) -> list[dict[str, Any]]:
    """What all splits have for each declared target: its kind, its commonest classes or the range of its numbers.

    Empty where there is only the class, which is summarised anyway.
    """
    if all(column.target.kind == "class" and column.target.name == LABEL for column in splits[0].dataset.targets):
        return []
    summaries = []
    for columns in zip(*(facts.dataset.targets for facts in splits), strict=True):
        target = columns[0].target
        summary: dict[str, Any] = {"name": target.name, "kind": target.kind}
        missing = sum(len(column) - int(column.present.sum()) for column in columns)
        if target.kind == "number":
            values = np.concatenate([column.values[column.present] for column in columns])
            spread = (values.min(), values.mean(), values.max()) if len(values) else ()
            summary |= dict(zip(("min", "mean", "max"), map(float, spread), strict=False))
        else:
            found = [column.values if column.ends is not None else column.values[column.present] for column in columns]
            counts = np.bincount(np.concatenate(found).astype(np.int64), minlength=len(target.classes))
            commonest = np.argsort(-counts, kind="stable")[:_TOP].tolist()
            summary |= {"classes": len(target.classes), "none": int((counts == 0).sum())}
            summary["top"] = {printable(target.classes[label]): int(counts[label]) for label in commonest}
        summaries.append(summary | {"missing": missing})
    return summaries


def stated_fields(splits: list[SplitFacts]) -> list[dict[str, Any]]:
    """The fields of samples as dataset.json states them, and how many samples of these splits lack each."""
    stated = []
    for name, schema in splits[0].dataset.fields.items():
        each = schema.to_json()
        each.pop("optional", None)
        each |= {"classes": len(schema.classes)} if schema.classes else {}
        stored = [facts.dataset.stored for facts in splits if isinstance(facts.dataset, WithFields)]
        columns = [fields.columns[name] for fields in stored if fields is not None]
        stated.append(each | {"missing": sum(int((~column.present).sum()) for column in columns)})
    return stated


def target_rows(summaries: list[dict[str, Any]]) -> str:
    """Summaries of targets, a line each."""
    lines = []
    for summary in summaries:
        if "top" in summary:
            what = "class" if summary["kind"] == "class" else "label"
            top = ", ".join(f"{shortened(name, 40)} {count:,}" for name, count in summary["top"].items())
            more = ", ..." if summary["classes"] > len(summary["top"]) else ""
            said = f"{plural(summary['classes'], what)} ({top}{more})"
        elif "min" in summary:
            said = "{} to {}, mean {}".format(*(legible(summary[name]) for name in ("min", "max", "mean")))
        else:
            said = "no values"
        missing = f"; missing in {summary['missing']:,}" if summary["missing"] else ""
        lines.append(f"{printable(summary['name'])}: {summary['kind']}, {said}{missing}")
    return "\n".join(lines)


def plain(result: Any) -> dict[str, Any]:
    """A dataclass as JSON values, with named tuples as objects."""

    def unfolded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: unfolded(each) for key, each in value.items()}
        if hasattr(value, "_asdict"):
            return unfolded(value._asdict())
        return [unfolded(each) for each in value] if isinstance(value, list | tuple) else value

    unnamed: dict[str, Any] = unfolded(asdict(result))
    for name in ("targets", "fields"):
        if not unnamed.get(name):
            unnamed.pop(name, None)
    return unnamed


def balanced(split: str, classes: Balance | None, what: str) -> str:
    """The balance of a split as a line."""
    if classes is None:
        return f"{split}: no labels"
    if classes.ratio == 1:
        return f"{split}: {plural(classes.images, what)} of every class"
    smallest = f"{classes.smallest} {classes.images:,}"
    largest = f"{classes.largest} {classes.largest_images:,}"
    return f"{split}: smallest {smallest}, largest {largest}, ratio {classes.ratio:.2f}"


def print_classes(splits: dict[str, dict[str, int]], out: Console) -> None:
    """Print how many samples each class has in each split."""
    names = list(next(iter(splits.values())))
    if not names:
        return
    table = Table()
    table.add_column("class", overflow="fold")
    for split in splits:
        table.add_column(Text(split), justify="right")
    for name in names[:_CLASSES]:
        table.add_row(Text(name), *(f"{classes[name]:,}" for classes in splits.values()))
    if len(names) > _CLASSES:
        table.add_row(f"... {len(names) - _CLASSES:,} more, see --json", *("" for _ in splits))
    print_table(out, table)


def print_copies(duplicates: Duplicates, out: Console) -> None:
    """Print groups of samples with the same bytes."""
    print_some(out, "In several splits", [_copied(copies) for copies in duplicates.across])
    print_some(out, "Twice in a split", [_copied(copies) for copies in duplicates.same])
    if duplicates.conflicting:
        what = f"{duplicates.conflicting:,} of these {agreeing(duplicates.conflicting, 'is')}"
        say(out, f"{what} in several classes", style="yellow")


def _copied(copies: Copies) -> str:
    names = [f"{split}: {name}" for split, name in copies.names[:4]]
    more = [f"... {copies.images - 4:,} more"] if copies.images > 4 else []
    return " = ".join([*names, *more]) + (f" ({' and '.join(copies.classes)})" if len(copies.classes) > 1 else "")


def print_some(out: Console, title: str, lines: list[str], count: int | None = None) -> None:
    """Print a title and the first lines, out of `count` in total."""
    if not lines:
        return
    say(out, f"{title}:", style="yellow")
    for line in lines[:_LINES]:
        say(out, with_flags(f"  {line}"))
    left = (count or len(lines)) - _LINES
    if left > 0:
        say(out, f"  ... and {left:,} more, see --json")
