"""Draw docs/charts/loaders.svg, the bar chart in README, from the last comparison in results/loaders.jsonl.

    python benchmarks/loaders_chart.py

The last comparison is the newest run in which `loaders.py` measured at least eight loaders. Its records contain medians
of n epochs, interleaved in one run. Standard library only; a test checks that the chart is current.
"""

import json
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "docs" / "charts" / "loaders.svg"
_NAMES = {
    "fastimg, tiled": "fastimg, shards that it converted",
    "fastimg": "fastimg, the files as they are",
    "ffcv": "FFCV 1.0.2, its own .beton",
    "ffcv, our tiled beton": "FFCV 1.0.2, fastimg's .beton",
    "dali": "DALI 2.4 on the CPU",
    "spdl": "SPDL 0.8, FFmpeg",
    "spdl, torchcodec": "SPDL 0.8, TorchCodec",
    "litdata": "LitData 0.2, torchvision.io",
    "torch, torchvision.io": "torch DataLoader, torchvision.io",
    "torch, torchcodec": "torch DataLoader, TorchCodec",
    "torch, simplejpeg": "torch DataLoader, simplejpeg",
    "torch, imagecodecs": "torch DataLoader, imagecodecs",
    "torch": "torch DataLoader, Pillow",
    "webdataset": "WebDataset, Pillow",
}
_LOADERS = 8
_LEFT, _WIDTH, _ROW = 270, 400, 26  # pixels: start of the bars, longest bar, row height


def last_comparison(results: Path) -> list[dict[str, Any]]:
    """The records of the newest run with at least eight loaders and two workers."""
    records = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    records = [record for record in records if record["benchmark"] == "loaders" and record["workers"] == 2]
    runs = [list(run) for _, run in groupby(records, key=lambda record: record["time"])]
    return next(run for run in reversed(runs) if len(run) >= _LOADERS)


def drawn(records: list[dict[str, Any]]) -> str:
    """The bar chart as SVG, the fastest loader first, legible on light and dark pages."""
    bars = sorted(((record["images_per_second"], _NAMES[record["loader"]]) for record in records), reverse=True)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {_ROW * len(bars) + 8}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#808080">',
        "<title>Images per second, JPEG to a uint8 batch on the CPU, two threads or processes each</title>",
    ]
    for row, (rate, name) in enumerate(bars):
        y, width = row * _ROW + 4, rate / bars[0][0] * _WIDTH
        colour = "#2f81f7" if name.startswith("fastimg") else "#8b949e"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.0f}" height="{_ROW - 6}" rx="2" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 6:.0f}" y="{y + 15}">{rate:,.0f}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(drawn(last_comparison(ROOT / "benchmarks" / "results" / "loaders.jsonl")), encoding="utf-8")
    print(CHART.relative_to(ROOT))
