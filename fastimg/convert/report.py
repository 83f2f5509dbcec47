"""The report of a conversion: as a value, a JSON object, and a table."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table
from rich.text import Text

from fastimg import notebook
from fastimg.convert.recompression.facts import recompression_lines
from fastimg.convert.sources.samples import Source
from fastimg.errors import printable
from fastimg.system.terminal import print_table, say
from fastimg.wording import plural, with_flags

from .image_preparation import KEPT, KINDS, RECOMPRESSED, REENCODED, TILED
from .shards.base import Base, ignored_of


class Skipped(NamedTuple):
    """An image that was left out."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:  # more than 12 fields: the keys of --json, which are flat
    """What a dataset contains, and what the conversion that made it or added to it did."""

    dst: str
    format: str  # tar or beton
    content: str = "images"  # or text; then `images` here are texts
    images: int
    added: int  # images added by this conversion
    classes: int
    splits: dict[str, int]
    targets: list[dict[str, Any]] = field(default_factory=list)  # name, kind, number of classes, missing; if declared
    without_targets: int = 0  # samples that have none of them
    fields: list[dict[str, Any]] = field(default_factory=list)  # as dataset.json states them, and missing; if any
    bytes_in: int  # of the images that are stored
    bytes_out: int  # of shards and their indexes
    tiled: int  # without loss
    reencoded: int
    recompressed: int = 0
    recompression: dict[str, Any] | None = None  # as dataset.json states it: by format, what --recompress changed
    kept: int  # unchanged
    outcomes: dict[str, int]  # the same with reasons
    skipped: list[Skipped]
    ignored: int  # files under the sources that are neither images (texts) nor shards
    ignored_reasons: dict[str, int] = field(default_factory=dict)
    ignored_extensions: dict[str, int] = field(default_factory=dict)
    ignored_names: list[Skipped] = field(default_factory=list)  # at most ten
    ignored_summary: str = ""  # reasons and extensions in words
    uncounted: list[str] = field(default_factory=list)  # sentences on files beside those that a manifest names
    missing: dict[str, int] | None = None  # of samples with an image and a text: how many lack one
    columns: list[str] = field(default_factory=list)  # sentences on which columns of manifests were used
    seconds: float
    images_per_second: float  # read and checked in this run; what an earlier run finished does not count

    def to_json(self) -> str:
        """The report as one json object."""
        named = {"skipped": self.skipped, "ignored_names": self.ignored_names}
        lists = {name: [file._asdict() for file in files] for name, files in named.items()}
        flat = asdict(self) | lists
        if self.missing is None:
            del flat["missing"]
        if self.recompression is None:
            del flat["recompressed"], flat["recompression"]
        if not self.targets:
            del flat["targets"], flat["without_targets"]
        if not self.fields:
            del flat["fields"]
        return json.dumps(flat, indent=2)

    def _repr_html_(self) -> str:
        left_out = [(file.path, file.reason) for file in self.skipped[: notebook.ROWS]]
        return notebook.page(
            notebook.facts(_rows(self)),
            notebook.table(("skipped", "reason"), left_out, len(self.skipped)) if left_out else "",
        )


def report_on(
    folder: Path | str, description: dict[str, Any], base: Base | None, source: Source, checked: int, seconds: float
) -> Report:
    """Build the report from a description; `checked` samples of `source` were read in this run."""
    splits = description["splits"]
    images = sum(split["samples"] for split in splits.values())
    before = sum(split["samples"] for split in base.description["splits"].values()) if base else 0
    ignored = ignored_of(description)
    kinds: Counter[str] = Counter()
    for outcome, count in description["outcomes"].items():
        kinds[outcome.partition(":")[0]] += count
    shards = [shard for split in splits.values() for shard in split["shards"]]
    return Report(
        dst=str(folder),
        format=description["container"],
        content=source.content,
        images=images,
        added=images - before,
        classes=len(description["classes"]),
        splits={name: split["samples"] for name, split in splits.items()},
        targets=_targets(description),
        fields=_fields(description),
        without_targets=sum(split.get("without_targets", 0) for split in splits.values()),
        bytes_in=sum(split["source_bytes"] for split in splits.values()),
        bytes_out=sum(shard["bytes"] + shard.get("index_bytes", 0) for shard in shards),
        tiled=kinds[TILED],
        reencoded=kinds[REENCODED],
        recompressed=kinds[RECOMPRESSED],
        recompression=description.get("recompressed"),
        kept=kinds[KEPT],
        outcomes=description["outcomes"],
        skipped=[Skipped(skipped["path"], skipped["reason"]) for skipped in description["skipped"]],
        ignored=ignored.total,
        ignored_reasons=ignored.reasons,
        ignored_extensions=ignored.extensions,
        ignored_names=[Skipped(path, reason) for path, reason in ignored.first()],
        ignored_summary=ignored.summary(),
        uncounted=list(source.uncounted),
        missing=missing_inputs(description),
        columns=list(source.columns),
        seconds=seconds,
        images_per_second=checked / seconds,
    )


def _targets(description: dict[str, Any]) -> list[dict[str, Any]]:
    """What a description says about the targets that it declares."""
    splits = description["splits"].values()
    return [
        {
            **{key: value for key, value in target.items() if key != "classes"},
            **({"classes": len(target["classes"])} if "classes" in target else {}),
            "missing": sum(split["missing"][target["name"]] for split in splits),
        }
        for target in description.get("targets", ())
    ]


def _fields(description: dict[str, Any]) -> list[dict[str, Any]]:
    """What a description says about the fields of samples."""
    splits = description["splits"].values()
    return [
        {
            **{key: value for key, value in stated.items() if key not in ("classes", "optional")},
            **({"classes": len(stated["classes"])} if "classes" in stated else {}),
            "missing": sum(split["missing_fields"][stated["name"]] for split in splits),
        }
        for stated in description.get("fields", ())
    ]


def field_line(stated: Mapping[str, Any]) -> str:
    """A field in words."""
    shape = f" {stated['shape']}".replace(", 0, 0]", ", H, W]") if stated.get("shape") else ""
    what = f"{stated.get('geometry') or stated['kind']}{shape}"
    parts = [f"{what} of {stated['dtype']}" if "dtype" in stated else what]
    if "longest" in stated:
        parts.append(f"at most {plural(stated['longest'], 'item' if stated['kind'] == 'ragged' else 'byte')}")
    parts += [f"along {stated['along']}"] if "along" in stated else []
    parts += [plural(stated["classes"], "class")] if "classes" in stated else []
    missing = f"; missing in {stated['missing']:,}" if stated["missing"] else ""
    place = f"; field {stated['field']}" if stated.get("field", stated["name"]) != stated["name"] else ""
    return f"{stated['name']}: {', '.join(parts)}{missing}{place}"


def target_line(target: Mapping[str, Any]) -> str:
    """A target in words."""
    names = {"class": "class", "multilabel": "label"}
    count = f", {plural(target['classes'], names[target['kind']])}" if "classes" in target else ""
    field = f"; field {target['field']}" if target.get("field", target["name"]) != target["name"] else ""
    missing = f"; missing in {target['missing']:,}" if target["missing"] else ""
    return f"{printable(target['name'])}: {target['kind']}{count}{missing}{field}"


def print_report(report: Report, console: Console) -> None:
    """Print the report as a table, and at most ten of the images that were left out."""
    table = Table(Column(no_wrap=True), Column(overflow="fold"), show_header=False, box=None)
    for name, value in _rows(report):
        table.add_row(name, Text(value))
    print_table(console, table)
    _print_some("skipped", report.skipped, len(report.skipped), console)
    _print_some("ignored", report.ignored_names, report.ignored, console)


def _rows(report: Report) -> list[tuple[str, str]]:
    """The report as names and sentences."""
    counts = ", ".join(f"{split} {count:,}" for split, count in report.splits.items())
    added = f", {report.added:,} of them new" if report.added != report.images else ""
    reasons = {kind: _reasons(report.outcomes, kind) for kind in KINDS}
    skipped = Counter(reason for _, reason in report.skipped)
    what, unit = ("images", "img") if report.content == "images" else ("texts", "texts")
    rows = [
        ("dataset", f"{report.dst} ({report.format})"),
        (what, f"{report.images:,} of {plural(report.classes, 'class')} ({counts}){added}"),
        *([("texts", f"beside images; {missing_words(report.missing)}")] if report.missing is not None else []),
        *(("columns", used) for used in report.columns),
        *(("target", target_line(target)) for target in report.targets),
        *(("field", field_line(stated)) for stated in report.fields),
        *(("without", f"{plural(count, what[:-1])} with no target") for count in (report.without_targets,) if count),
        ("bytes", f"{decimal(report.bytes_in)} in, {decimal(report.bytes_out)} out"),
    ]
    if report.content == "images":
        rows += [
            ("tiled", f"{plural(report.tiled, 'image')}, without loss{reasons[TILED]}"),
            ("re-encoded", f"{report.reencoded:,}{reasons[REENCODED]}"),
        ]
    if report.recompression is not None:
        rows += [("recompressed", line) for line in recompression_lines(report.recompression)]
    rows += [
        ("kept", f"{report.kept:,} as they were{reasons[KEPT]}"),
        ("skipped", plural(len(report.skipped), what[:-1]) + (f": {_counts(skipped)}" if skipped else "")),
        ("ignored", _ignored(report)),
        ("time", f"{report.seconds:.1f} s, {report.images_per_second:,.0f} {unit}/s"),
    ]
    return rows


def missing_inputs(description: Mapping[str, Any]) -> dict[str, int] | None:
    """How many samples of a dataset lack an image, and how many a text; None if it has no texts beside images."""
    if not description.get("inputs"):
        return None
    counts = [split["missing_inputs"] for split in description["splits"].values()]
    return {name: sum(count[name] for count in counts) for name in ("image", "text")}


def missing_words(missing: Mapping[str, int]) -> str:
    """How many samples lack an image, and how many a text, in words."""
    return f"{plural(missing['image'], 'sample')} without an image, {missing['text']:,} without a text"


def _ignored(report: Report) -> str:
    files = plural(report.ignored, "file")
    if report.ignored:
        return "; ".join([f"{files}: {report.ignored_summary}", *report.uncounted])
    return "; ".join(report.uncounted) or files


def _print_some(what: str, left_out: list[Skipped], total: int, console: Console) -> None:
    """Print at most ten of `total` files that were left out."""
    for path, reason in left_out[:10]:
        say(console, with_flags(f"{what} {path}: {reason}"))
    if total > 10:
        say(console, f"... and {total - 10:,} more")


def _reasons(outcomes: dict[str, int], kind: str) -> str:
    counts = {
        outcome.partition(": ")[2]: count for outcome, count in outcomes.items() if outcome.startswith(f"{kind}: ")
    }
    return f": {_counts(counts)}" if counts else ""


def _counts(reasons: dict[str, int]) -> str:
    """The five most common reasons with their counts."""
    commonest = Counter(reasons).most_common(6)
    listed = ", ".join(f"{count:,} {reason}" for reason, count in commonest[:5])
    return listed + (", ..." if len(commonest) > 5 else "")
