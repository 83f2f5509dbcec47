"""README's chart matches the stored records."""

import importlib.util

from .pages import ROOT


def test_the_chart_is_current():
    """If it fails: `python benchmarks/loaders_chart.py`."""
    spec = importlib.util.spec_from_file_location("loaders_chart", ROOT / "benchmarks/loaders_chart.py")
    chart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chart)
    records = chart.last_comparison(ROOT / "benchmarks/results/loaders.jsonl")
    assert chart.drawn(records) == chart.CHART.read_text(encoding="utf-8")
    assert {round(record["images_per_second"]) for record in records} >= {3780, 1242, 1156, 974}
