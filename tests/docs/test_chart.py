"""README's chart matches the stored records."""

import importlib.util
import re

from .pages import ROOT


def test_the_chart_is_current():
    """If it fails: `python benchmarks/loaders_chart.py`."""
    spec = importlib.util.spec_from_file_location("loaders_chart", ROOT / "benchmarks/loaders_chart.py")
    chart = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(chart)
    records = chart.last_comparison(ROOT / "benchmarks/results/loaders.jsonl")
    assert chart.drawn(records) == chart.CHART.read_text(encoding="utf-8")
    described = re.search(
        r"!\[Images per second of fourteen loaders(.+?)\]", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    rates = {int(number.replace(",", "")) for number in re.findall(r"\d,?\d{3}|\d{3}", described[1])}
    assert len(rates) >= 9 and rates <= {round(record["images_per_second"]) for record in records}
