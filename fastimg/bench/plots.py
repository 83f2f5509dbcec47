"""Pictures of what `bench` measured: bars of loaders, and curves over numbers of threads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastimg.bench.peers.pipelines import BASE
from fastimg.errors import UsageError, UserError
from fastimg.loaders.errors import not_written
from fastimg.loaders.remote.stores import shown, url_of
from fastimg.train.reporting.lettering import lettering
from fastimg.train.reporting.plots import blank, write_figure
from fastimg.wording import plural, several

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CEILING = "synthetic"  # reads no images, and may be far above the loaders of interest
_FAR = 1.5  # times the fastest of the others


def check_file(file: Path) -> None:
    """Check the file before measuring. Raises UsageError and UserError if no picture can be written there."""
    if file.suffix.lower() != ".png":
        raise UsageError(f"--output {shown(file)}: give a file name that ends in .png")
    if url_of(file) is not None:
        return
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise UsageError(
            f"--output {file}: {'a folder' if file.is_dir() else 'its folder does not exist'}; give a file"
        )
    there = file.exists()
    try:
        file.open("ab").close()  # permissions alone do not tell
    except OSError as error:
        raise _unwritable(file, error) from error
    if not there:
        file.unlink()


def plot_loaders(records: Sequence[Mapping[str, Any]], file: Path, title: str = "") -> None:
    """Plot images per second of loaders, from `Comparison.records()`: medians, with ranges from slowest to fastest.

    Draws bars for the largest number of threads if there are several loaders, and curves if there are several numbers
    of threads. Raises UserError if the file cannot be written.
    """
    threads = sorted({record["threads"] for record in records})
    loaders = list(dict.fromkeys(record["name"] for record in records))
    bars = len(loaders) > 1 or len(threads) < 2
    curves = len(threads) > 1
    height = max(2.6, 1.4 + 0.45 * len(loaders), 4.2 if curves else 0)
    figure = blank(7.5 * (bars + curves), height)
    axes = list(figure.subplots(1, bars + curves, squeeze=False)[0])
    if bars:
        _bars(axes[0], [record for record in records if record["threads"] == max(threads, default=0)])
    if curves:
        _curves(axes[-1], records, loaders, threads)
    if title:
        letters = lettering([title])
        figure.suptitle(letters.text(title), fontsize=11, parse_math=False)
        letters.apply(figure)
    try:
        write_figure(figure, file, dpi=110, format="png")
    except OSError as error:
        raise _unwritable(file, error) from error


def _unwritable(file: Path, error: OSError) -> UserError:
    return UserError(f"--output {file}: {not_written(error, 'choose a file that can be written')}")


def _bars(axis: "Axes", records: Sequence[Mapping[str, Any]]) -> None:
    rows = sorted(records, key=lambda record: float(record["images_per_second"]))
    end = 1.3 * _end(rows)  # room for the labels
    for place, row in enumerate(rows):
        speed = row["images_per_second"]
        colour = "tab:blue" if row["name"] == BASE else "tab:gray"
        beyond = speed > end
        hatch = "//" if row["name"] == _CEILING else None
        axis.barh(place, min(speed, end), color=colour, alpha=0.75, hatch=hatch, height=0.65)
        if not beyond:
            axis.errorbar(speed, place, xerr=_errors(row), color="black", capsize=3, linewidth=1)
        label = f" {speed:,.0f}" + (" (beyond the axis) " if beyond else "")
        x = end if beyond else max(speed, row["spread"][1])
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if beyond else None
        axis.text(x, place, label, va="center", ha="right" if beyond else "left", fontsize=9, bbox=box)
    axis.set_yticks(range(len(rows)), labels=[row["name"] for row in rows])
    axis.set_xlim(0, end)
    workers = "".join(
        f"{plural(row['threads'], 'thread')} or {several('process') if row['threads'] != 1 else 'process'}, "
        f"median of {row['n']}"
        for row in rows[:1]
    )
    axis.set(xlabel="images per second", title=workers)
    axis.grid(axis="x", alpha=0.3)


def _curves(axis: "Axes", records: Sequence[Mapping[str, Any]], loaders: Sequence[str], threads: Sequence[int]) -> None:
    top = 1.15 * _end(records)
    for name in loaders:
        rows = sorted((r for r in records if r["name"] == name), key=lambda record: int(record["threads"]))
        x, y = [row["threads"] for row in rows], [row["images_per_second"] for row in rows]
        low, high = zip(*(_range(row) for row in rows), strict=True)
        if name == _CEILING and min(y) > top:
            label = f"{name}: beyond the axis ({', '.join(f'{speed:,.0f}' for speed in y)})"
            axis.plot([], [], color="tab:gray", linestyle=":", label=label)
            continue
        style: dict[str, Any] = {"linestyle": ":", "color": "tab:gray"} if name == _CEILING else {}
        axis.errorbar(x, y, yerr=[low, high], marker="o", markersize=4, capsize=3, label=name, **style)
        if name == BASE or len(loaders) == 1:
            ideal = [y[0] * count / x[0] for count in threads]
            axis.plot(threads, ideal, "k--", linewidth=1, label=f"{name}, ideal scaling")
    axis.set_xticks(threads)
    axis.set_xlim(0, 1.05 * max(threads))
    axis.set_ylim(0, top)
    axis.set(xlabel="threads or processes", ylabel="images per second", title="scaling")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)


def _end(records: Sequence[Mapping[str, Any]]) -> float:
    """The largest value to show; the ceiling's counts only if it is not far above the others."""
    images = [float(record["spread"][1]) for record in records if record["name"] != _CEILING]
    others = [float(record["spread"][1]) for record in records if record["name"] == _CEILING]
    if not images or max(others, default=0) <= _FAR * max(images):
        return max(images + others, default=1)
    return max(images)


def _range(row: Mapping[str, Any]) -> tuple[float, float]:
    """The distances of the slowest and the fastest repeat from the median."""
    low, high = row["spread"]
    return max(0.0, row["images_per_second"] - low), max(0.0, high - row["images_per_second"])


def _errors(row: Mapping[str, Any]) -> list[list[float]]:
    """The range in matplotlib's form."""
    low, high = _range(row)
    return [[low], [high]]
