"""`fastimg inspect` for a dataset of texts: counts, lengths, copies, leaks, and some of the texts."""

import json
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastimg import notebook
from fastimg.config.commands import Inspect
from fastimg.config.rules import refuse_set
from fastimg.data.elsewhere import as_given
from fastimg.errors import printable
from fastimg.loaders import Dataset
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.system.terminal import print_table
from fastimg.wording import plural, shortened

from .scan import Duplicates, SplitFacts, duplicates, gather, several
from .summaries import (
    Balance,
    balance,
    balanced,
    class_names,
    plain,
    print_classes,
    print_copies,
    print_some,
    summarised,
    target_rows,
)

_SHOWN, _CHARACTERS = 10, 80
_TAKEN = ("data", "split", "samples", "workers", "seed", "json")  # flags that apply to texts


class Lengths(NamedTuple):
    """Lengths over all readable texts."""

    min: int
    median: float
    mean: float
    p95: int  # 95 % are at most this long
    max: int


class Shown(NamedTuple):
    """The beginning of a text, with white space collapsed."""

    split: str
    name: str
    label: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TextInspection:  # more than 12 fields: the keys of --json, which are flat
    """The result of an inspection of texts."""

    data: str
    content: str = "text"
    texts: int
    classes: int
    samples: dict[str, int]  # of each split
    splits: dict[str, dict[str, int]]  # split -> class -> texts
    unlabelled: int
    targets: list[dict[str, Any]]  # what samples have for each, if targets were declared
    balance: dict[str, Balance | None]
    bytes: int
    characters: Lengths | None  # None if no text could be read
    words: Lengths | None  # separated by white space
    unreadable: int
    unreadable_names: list[tuple[str, str]]
    duplicates: Duplicates
    shown: list[Shown]

    def _repr_html_(self) -> str:
        counts = ", ".join(f"{split} {count:,}" for split, count in self.samples.items())
        return notebook.page(
            notebook.facts(
                {
                    "dataset": self.data,
                    "texts": f"{self.texts:,} of {plural(self.classes, 'class')} ({counts})",
                    "words": _lengths_line(self.words),
                    "copies": f"{plural(self.duplicates.within, 'text')} identical to another one in their split",
                    "leaks": f"{plural(self.duplicates.leaked, 'text')} identical to one in another split",
                    "not readable": self.unreadable or None,
                }
            ),
            notebook.table(("split", "name", "label", "text"), self.shown),
        )


def inspect_texts(
    config: Inspect, datasets: dict[str, Dataset], workers: int, out: Console, err: Console
) -> TextInspection:
    """Inspect texts and print the result. Raises UsageError for flags that apply only to images, and DataError."""
    refuse_set(config, [field.name for field in fields(config) if field.name not in _TAKEN], "on texts")
    splits = [gather(name, dataset, workers, config.max_pixels, True, err) for name, dataset in datasets.items()]
    records = np.concatenate([facts.records for facts in splits])
    readable = records[records["readable"]]
    counted = {facts.split: dict(zip(class_names(facts), facts.counts(), strict=True)) for facts in splits}
    names = list(dict.fromkeys(name for classes in counted.values() for name in classes))
    result = TextInspection(
        data=printable(as_given(config.data)),
        texts=len(records),
        classes=len(names),
        samples={facts.split: len(facts.records) for facts in splits},
        splits={split: {name: classes.get(name, 0) for name in names} for split, classes in counted.items()},
        unlabelled=sum(int((facts.dataset.labels < 0).sum()) for facts in splits),
        targets=summarised(splits),
        balance={split: balance(classes) for split, classes in counted.items()},
        bytes=int(records["bytes"].sum()),
        characters=_lengths(readable["characters"]),
        words=_lengths(readable["words"]),
        unreadable=int((~records["readable"]).sum()),
        unreadable_names=[pair for facts in splits for pair in facts.unreadable],
        duplicates=duplicates(splits),
        shown=_shown(splits[0], config.samples or _SHOWN, config.seed),
    )
    if config.json:
        print(json.dumps(plain(result)))
    else:
        _print(result, out)
    return result


def _lengths(values: npt.NDArray[np.int64]) -> Lengths | None:
    if not len(values):
        return None
    p95 = int(np.percentile(values, 95, method="inverted_cdf"))
    return Lengths(int(values.min()), float(np.median(values)), round(float(values.mean()), 1), p95, int(values.max()))


def _shown(facts: SplitFacts, count: int, seed: int) -> list[Shown]:
    """Texts of the first split, from each class in turn."""
    scratch = Scratch()
    names = class_names(facts)
    shown = []
    for index in several(facts, count, seed).tolist():
        text = " ".join(str(facts.dataset.read(index, scratch), "utf-8").split())
        label = int(facts.dataset.labels[index])
        name = printable(facts.dataset.sample_name(index))
        shown.append(Shown(facts.split, name, names[label] if label >= 0 else "no label", shortened(text, _CHARACTERS)))
    return shown


def _print(result: TextInspection, out: Console) -> None:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    splits = ", ".join(f"{split} {count:,}" for split, count in result.samples.items())
    unlabelled = f"; {result.unlabelled:,} without a label" if result.unlabelled else ""
    rows = {
        "dataset": result.data,
        "texts": f"{result.texts:,} of {plural(result.classes, 'class')} ({splits}{unlabelled})",
        "balance": "\n".join(balanced(split, classes, "text") for split, classes in result.balance.items()),
        **({"targets": target_rows(result.targets)} if result.targets else {}),
        "bytes": f"{result.bytes / 1e6:,.1f} MB, {result.bytes / max(1, result.texts):,.0f} bytes per text",
        "characters": _lengths_line(result.characters),
        "words": _lengths_line(result.words),
        "copies": f"{plural(result.duplicates.within, 'text')} identical to another one in their split",
        "leaks": f"{plural(result.duplicates.leaked, 'text')} identical to one in another split",
        "unreadable": plural(result.unreadable, "text"),
    }
    for name, value in rows.items():
        table.add_row(f" {name}", Text(value))
    print_table(out, table)
    print_classes(result.splits, out)
    print_copies(result.duplicates, out)
    print_some(
        out, "Not readable", [f"{name}: {reason}" for name, reason in result.unreadable_names], result.unreadable
    )
    if result.shown:
        shown = Table()
        shown.add_column("class", overflow="fold")
        shown.add_column(f"texts of {result.shown[0].split}", overflow="fold")
        for sample in result.shown:
            shown.add_row(Text(sample.label), Text(_visible(sample.text)))
        print_table(out, shown)


def _visible(text: str) -> str:
    """Replace control characters, which a terminal would interpret."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _lengths_line(lengths: Lengths | None) -> str:
    if lengths is None:
        return "none"
    middle = f"median {lengths.median:,.0f}, mean {lengths.mean:,.1f}"
    return f"{lengths.min:,} to {lengths.max:,}, {middle}; 95 % have at most {lengths.p95:,.0f}"
