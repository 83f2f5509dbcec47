"""A console that keeps what is said, and conversions into fresh folders."""

import io

import pytest
from rich.console import Console

from fastimg.config.commands import Convert
from fastimg.convert.pipeline import convert


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=400)


@pytest.fixture
def make(tmp_path, console):
    """`make(src, **options)`: convert into a fresh folder; returns the folder and the report."""
    count = iter(range(100))

    def run(src, **options):
        dst = options.pop("dst", tmp_path / f"out{next(count)}")
        report = convert(Convert(src=src, dst=dst, workers="2", **options), console)
        return dst, report

    return run
