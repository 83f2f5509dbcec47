"""What inspections of images and of texts have in common: the balance of classes, copies, tables of both."""

from dataclasses import asdict
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg.errors import printable
from fastimg.system.terminal import print_table, say
from fastimg.wording import agreeing, plural

from .scan import Copies, Duplicates, SplitFacts

_LINES, _CLASSES = 5, 30


class Balance(NamedTuple):
    """The smallest and the largest class of a split."""

    smallest: str
    images: int  # or texts
    largest: str
    largest_images: int
    ratio: float  # smallest / largest


def class_names(facts: SplitFacts) -> list[str]:
    """Names of classes; of two that print alike the second keeps its number."""
    names = [printable(name) for name in facts.dataset.classes]
    return [name if names.index(name) == i else f"{name} ({i})" for i, name in enumerate(names)]


def balance(counts: dict[str, int]) -> Balance | None:
    """Of the samples of each class; None where there are none."""
    if not counts or not max(counts.values()):
        return None
    smallest, largest = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    few, many = counts[smallest], counts[largest]
    return Balance(smallest, few, largest, many, round(few / many, 4))


def plain(result: Any) -> dict[str, Any]:
    """A dataclass for json: named tuples as objects."""

    def unfolded(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: unfolded(each) for key, each in value.items()}
        if hasattr(value, "_asdict"):
            return unfolded(value._asdict())
        return [unfolded(each) for each in value] if isinstance(value, list | tuple) else value

    unnamed: dict[str, Any] = unfolded(asdict(result))
    return unnamed


def balanced(split: str, found: Balance | None, what: str) -> str:
    """A line on a split."""
    if found is None:
        return f"{split}: no labels"
    if found.ratio == 1:
        return f"{split}: {plural(found.images, what)} of every class"
    few, many = f"{found.smallest} {found.images:,}", f"{found.largest} {found.largest_images:,}"
    return f"{split}: smallest {few}, largest {many}, ratio {found.ratio:.2f}"


def print_classes(splits: dict[str, dict[str, int]], out: Console) -> None:
    """The samples of each class in each split."""
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


def print_copies(found: Duplicates, out: Console) -> None:
    """Groups of samples with the same bytes."""
    print_some(out, "In several splits", [_copied(copies) for copies in found.across])
    print_some(out, "Twice in a split", [_copied(copies) for copies in found.same])
    if found.conflicting:
        what = f"{found.conflicting:,} of these {agreeing(found.conflicting, 'is')}"
        say(out, f"{what} in several classes", style="yellow")


def _copied(copies: Copies) -> str:
    names = [f"{split}: {name}" for split, name in copies.names[:4]]
    more = [f"... {copies.images - 4:,} more"] if copies.images > 4 else []
    return " = ".join([*names, *more]) + (f" ({' and '.join(copies.classes)})" if len(copies.classes) > 1 else "")


def print_some(out: Console, title: str, lines: list[str], count: int | None = None) -> None:
    """A title and the first lines, of `count` in all."""
    if not lines:
        return
    say(out, f"{title}:", style="yellow")
    for line in lines[:_LINES]:
        say(out, f"  {line}")
    left = (count or len(lines)) - _LINES
    if left > 0:
        say(out, f"  ... and {left:,} more, see --json")
