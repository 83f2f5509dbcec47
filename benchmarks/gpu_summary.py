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
    first = [*_steps(records), *_real(records), *_cifar(records), *_loader(records), *_augment(records)]
    first += _overlap(records)
    last = [*_parity(records), *_not_reached(records), *remarks]
    return [*first[: LINES - len(last)], *last]


def _steps(records: Sequence[Record]) -> list[str]:
    """One line per model: its best rate, and its best rate when it is neither compiled nor replayed."""
    rows = [r for r in records if r["section"] == "steps" and "images_per_second" in r]
    lines = []
    for arch in dict.fromkeys(row["arch"] for row in rows):
        own = sorted((row for row in rows if row["arch"] == arch), key=lambda row: -row["images_per_second"])
        plain = [row for row in own if not row["compile"] and not _graphed(row)]
        line = f"{arch}: {_rate(own[0])}"
        if plain and own[0] not in plain:
            line += f"; eager {_rate(plain[0])}"
        by_type = {row["dtype"]: row for row in reversed(plain)}
        if len(by_type) > 1:
            line += "; " + ", ".join(f"{name} {row['images_per_second']:,.0f}" for name, row in by_type.items())
        lines.append(line)
    return lines


def _graphed(row: Record) -> bool:
    return bool(row.get("cuda_graphs", False))


def _rate(row: Record) -> str:
    how = [row["dtype"], *([row["compile"]] if row["compile"] else []), *(["graphs"] if _graphed(row) else [])]
    return f"{row['images_per_second']:,.0f} img/s ({' '.join(how)}, batch {row['batch']}, {row['ms']:.4g} ms)"


def _loader(records: Sequence[Record]) -> list[str]:
    rows = [r for r in records if r["section"] == "training" and "per_thread" in r]
    if not rows:
        return []
    rates = (
        f"{r['images_per_second']:,.0f} img/s of {r.get('source', 'decoding alone')} on {r['threads']} threads"
        for r in rows
    )
    return [f"loader: {', '.join(rates)}"]


def _real(records: Sequence[Record]) -> list[str]:
    """One line per model: its rate from each source, and the share of the fastest synthetic step."""
    rows = [r for r in records if r["section"] == "training" and "real_over_synthetic" in r]
    lines = []
    for arch in dict.fromkeys(row["arch"] for row in rows):
        own = [row for row in rows if row["arch"] == arch]
        ratios = (
            f"{r['source']}, {r['way']} {r['real_over_synthetic']:.3f} ({r['images_per_second']:,.0f} img/s)"
            for r in own
        )
        lines.append(f"real/synthetic {arch}: {', '.join(ratios)}")
    return lines


def _cifar(records: Sequence[Record]) -> list[str]:
    rows = [r for r in records if r["section"] == "cifar" and "by" in r]
    if not rows:
        return []
    each = (
        f"{r['by']} {r['seconds']:.2f} s" + (f" ({r['ratio']:.2f}x airbench)" if "ratio" in r else "") for r in rows
    )
    return [f"cifar-fast: {', '.join(each)}"]


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
    both = [r["ratio_to_slower"] for r in records if "ratio_to_slower" in r]
    said = [f"both together {both[-1]:.3f}x the slower one"] if both else []
    hidden = (r for r in records if r.get("share_under_compute") is not None)
    said += [f"{r['what']} {r['share_under_compute']:.0%} under compute" for r in hidden]
    return [f"overlap: {'; '.join(said)}"] if said else []


def _parity(records: Sequence[Record]) -> list[str]:
    checked = [r for r in records if ("parity" in r["section"] or "check" in r) and "ok" in r]
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
