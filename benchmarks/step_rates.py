"""Update the table of step rates by which `train` chooses the mixed precision type, from the results of `gpu.py`.

    python benchmarks/step_rates.py benchmarks/results/gpu.jsonl   adds its rates to the package's table
    python benchmarks/step_rates.py --check                        only reads the table, and prints what follows

A rate replaces an older one of the same GPU, torch, model, type, mode and batch. Records of failures and of CPUs are
skipped and counted, and so are those with a `note`, which says why their rate is not comparable. An invalid record is
an error, and nothing is written.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import msgspec
from rich.console import Console

from fastimg.errors import UserError
from fastimg.loaders.containers.atomic import replace_file
from fastimg.models.registry import build
from fastimg.train.choices import step_rates
from fastimg.train.choices.step_rates import StepRate

KEYS = tuple(field.name for field in dataclasses.fields(StepRate))


def main() -> int:
    """Add rates, check the table and print it. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="files of gpu.py")
    parser.add_argument("--out", type=Path, default=step_rates.FILE, help="the table; default: the package's")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    if bool(args.results) == args.check:
        parser.error("give files of gpu.py, or --check")
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        rates = step_rates.read(args.out) if args.out.exists() or args.check else []
        if args.results:
            new, left_out = collected(args.results)
            rates = merged(rates, new)
            write(args.out, rates)
            console.print(f"{len(new)} rates added, {left_out} records skipped; {args.out} has {len(rates)}")
            step_rates.read(args.out)
    except (UserError, BadRecordError) as error:
        console.print(f"error: {error}", markup=False, highlight=False)
        return 1
    show(console, rates)
    return 0


class BadRecordError(Exception):
    """A record of a rate is invalid."""


def collected(files: list[Path]) -> tuple[list[StepRate], int]:
    """The rates in files of gpu.py, and how many records were skipped: failures, CPUs, CUDA graphs, and noted ones."""
    rates: list[StepRate] = []
    left_out = 0
    kinds: dict[str, step_rates.Kind] = {}
    for where, record in _records(files):
        no_rate = "error" in record or "skipped" in record or "note" in record
        if no_rate or record.get("cuda_graphs") or record.get("gpu") in (None, "", "cpu"):
            left_out += 1
            continue
        missing = [key for key in KEYS if key not in record and key != "kind"]
        if missing:
            raise BadRecordError(f"{where}: a rate without {', '.join(missing)}")
        arch = record["arch"]
        try:
            if arch not in kinds:
                kinds[arch] = step_rates.kind_of(build(arch, 2))
            values = {key: record[key] for key in KEYS if key != "kind"}
            rates.append(msgspec.convert({**values, "kind": kinds[arch]}, StepRate))
        except (msgspec.ValidationError, UserError) as error:
            raise BadRecordError(f"{where}: {error}") from error
        if not rates[-1].images_per_second > 0:
            raise BadRecordError(f"{where}: {rates[-1].images_per_second} images per second")
    return rates, left_out


def _records(files: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, record) of every record of the section `steps`."""
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise BadRecordError(f"{file}:{number}: not JSON: {error}") from error
            if record.get("section") == "steps":
                yield f"{file}:{number}", record


def merged(old: list[StepRate], new: list[StepRate]) -> list[StepRate]:
    """Both tables merged and sorted; new rates replace old ones."""
    key = lambda rate: (rate.gpu, rate.torch, rate.arch, rate.batch, rate.dtype, rate.compile or "")  # noqa: E731
    by_key = {key(rate): rate for rate in (*old, *new)}
    return [by_key[name] for name in sorted(by_key)]


def write(file: Path, rates: list[StepRate]) -> None:
    """Format one rate per line, so that a diff of the table is readable."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(rate)) for rate in rates)
    replace_file(file, f"[\n{lines}\n]\n".encode() if rates else b"[]\n")


def show(console: Console, rates: list[StepRate]) -> None:
    """The rates of each model and batch side by side, and what --compile gains on each GPU."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for rate in rates:
        row = rows.setdefault(
            (rate.gpu, rate.arch, rate.batch), {"gpu": rate.gpu, "arch": rate.arch, "batch": rate.batch}
        )
        row[f"{rate.dtype}{' ' + rate.compile if rate.compile else ''}"] = f"{rate.images_per_second:,.0f}"
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    if rows:
        measure.show(
            console, "images per second", [{name: row.get(name, "") for name in columns} for row in rows.values()]
        )
    for gpu in dict.fromkeys(rate.gpu for rate in rates):
        for sentence in step_rates.machine_gains(gpu, rates):
            console.print(f"{gpu}: {sentence}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
