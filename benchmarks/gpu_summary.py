"""A summary of a run of `gpu.py` in at most ten lines, made from its records. Imports no torch."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
LINES = 10


def read(path: Path, run: str | None = None) -> list[Record]:
    """The records of a file, of one run if given. A truncated line is skipped."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and (run is None or record.get("run") == run):
            found.append(record)
    return found


def summary(records: Sequence[Record], remarks: Iterable[str]) -> list[str]:
    """At most ten lines, the best numbers first. `remarks` about sections come last."""
    first = [*_steps(records), *_loader(records), *_real(records), *_augment(records), *_overlap(records)]
    last = [*_parity(records), *_not_reached(records), *remarks]
    return [*first[: LINES - len(last)], *last]


def _steps(records: Sequence[Record]) -> list[str]:
    """One line per model: its best rate, and its best rate without compiling."""
    rows = [r for r in records if r["section"] == "steps" and "images_per_second" in r]
    lines = []
    for arch in dict.fromkeys(row["arch"] for row in rows):
        own = sorted((row for row in rows if row["arch"] == arch), key=lambda row: -row["images_per_second"])
        plain = [row for row in own if not row["compile"]]
        line = f"{arch}: {_rate(own[0])}"
        if plain and own[0]["compile"]:
            line += f"; not compiled {_rate(plain[0])}"
        by_type = {row["dtype"]: row for row in reversed(plain)}
        if len(by_type) > 1:
            line += "; " + ", ".join(f"{name} {row['images_per_second']:,.0f}" for name, row in by_type.items())
        lines.append(line)
    return lines


def _rate(row: Record) -> str:
    how = [row["dtype"], *([row["compile"]] if row["compile"] else [])]
    return f"{row['images_per_second']:,.0f} img/s ({' '.join(how)}, batch {row['batch']}, {row['ms']:.4g} ms)"


def _loader(records: Sequence[Record]) -> list[str]:
    rows = [r for r in records if r["section"] == "loader" and "per_thread" in r]
    if not rows:
        return []
    untiled = " of untiled JPEGs"
    rates = (
        f"{r['images_per_second']:,.0f} img/s{untiled * (r.get('source') == 'untiled files')} on {r['threads']} threads"
        for r in rows
    )
    return [f"loader alone: {', '.join(rates)}"]


def _real(records: Sequence[Record]) -> list[str]:
    rows = [r for r in records if r["section"] == "loader" and "real_over_synthetic" in r]
    if not rows:
        return []
    ratios = (f"{r['arch']} {r['real_over_synthetic']:.3f} ({r['real_images_per_second']:,.0f} img/s)" for r in rows)
    return [f"real/synthetic: {', '.join(ratios)}"]


def _augment(records: Sequence[Record]) -> list[str]:
    rows = [r for r in records if r["section"] == "augment" and "ratio_to_floor" in r]
    if not rows:
        return []
    times = []
    for row in rows[1:]:
        host = f", host {row['host_microseconds']:,.0f} us" + ("" if row["host_ahead"] else ", WAITS FOR THE DEVICE")
        times.append(f"{row['what']} {row['milliseconds']:.3g} ms ({row['ratio_to_floor']:.2f}x{host})")
    return [f"augmentation: floor {rows[0]['milliseconds']:.3g} ms; {'; '.join(times[:2])}"]


def _overlap(records: Sequence[Record]) -> list[str]:
    both = [r["ratio_to_slower"] for r in records if r["section"] == "overlap" and "ratio_to_slower" in r]
    if not both:
        return []
    hidden = (r for r in records if r["section"] == "overlap" and r.get("share_under_compute") is not None)
    shares = "".join(f"; {r['what']} {r['share_under_compute']:.0%} under compute" for r in hidden)
    return [f"overlap: both together {both[-1]:.3f}x the slower one{shares}"]


def _parity(records: Sequence[Record]) -> list[str]:
    checked = [r for r in records if "parity" in r["section"] and "ok" in r]
    if not checked:
        return []
    wrong = [r for r in checked if not r["ok"]]
    if not wrong:
        return [f"parity: ok, {len(checked)} comparisons"]
    names = [str(r.get("check") or r.get("filter") or r.get("item") or r["section"]) for r in wrong]
    return [f"parity: FAILED, {len(wrong)} of {len(checked)}: {'; '.join(names[:4])}"]


def _not_reached(records: Sequence[Record]) -> list[str]:
    left = {r["section"]: r["not_reached"] for r in records if "not_reached" in r}
    if not left:
        return []
    counts = (f"{section} {len(names)} ({names[0]}{', ...' if names[1:] else ''})" for section, names in left.items())
    return [f"no time for: {', '.join(counts)}"]
