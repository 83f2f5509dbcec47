"""What a conversion did: a value, a json object, a table."""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text


class Skipped(NamedTuple):
    """An image that was left out."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a conversion did."""

    dst: str
    images: int
    classes: int
    splits: dict[str, int]
    bytes_in: int  # of the images that were stored
    bytes_out: int  # of shards and their indexes
    skipped: list[Skipped]
    tiling: dict[str, int]  # images by what --tile made of them; empty with --tile off
    ignored: int  # files that are no images by their names
    seconds: float
    images_per_second: float  # read and checked in this run; what an earlier run finished does not count

    def to_json(self) -> str:
        """The report as one json object."""
        return json.dumps(asdict(self) | {"skipped": [skipped._asdict() for skipped in self.skipped]}, indent=2)


def print_report(report: Report, console: Console) -> None:
    """The report as a table, and at most ten of the images that were left out."""
    table = Table(show_header=False, box=None)
    counts = ", ".join(f"{split} {count:,}" for split, count in report.splits.items())
    for name, value in (
        ("dataset", report.dst),
        ("images", f"{report.images:,} of {report.classes:,} classes ({counts})"),
        ("bytes", f"{decimal(report.bytes_in)} in, {decimal(report.bytes_out)} out"),
        *(("tiling", f"{count:,} {what}") for what, count in report.tiling.items()),
        ("skipped", f"{len(report.skipped):,} that cannot be decoded"),
        ("ignored", f"{report.ignored:,} files that are no images by their names"),
        ("time", f"{report.seconds:.1f} s, {report.images_per_second:,.0f} img/s"),
    ):
        table.add_row(name, Text(value))
    console.print(table)
    for path, reason in report.skipped[:10]:
        console.print(Text(f"skipped {path}: {reason}"), soft_wrap=True)
    if len(report.skipped) > 10:
        console.print(Text(f"... and {len(report.skipped) - 10:,} more"))
