"""Pictures of a search: its history, which parameters matter, each parameter's values, and accuracy against speed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastimg.train.reporting.lettering import Lettering, lettering
from fastimg.train.reporting.plots import blank, save
from fastimg.train.tasks.score import lower_is_better
from fastimg.wording import plural

from .records import TrialRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from .leaderboard import Leaderboard

HISTORY = "history.png"
IMPORTANCE = "importance.png"
SLICES = "slices.png"
FRONT = "front.png"

_STAGES = ("tab:blue", "tab:orange", "tab:green", "tab:purple")  # one stage after the other
_NAME = 34  # characters of a name
_CATEGORY = 14  # characters of a value below an axis
_TREES = 32  # of fANOVA: 200 trials take about a second
_FEWEST = 8  # trials, below which importances are guesses
_NAMED = 12  # points of the front's picture that have names; more only if the front has more
_SLICES = 12  # parameters that are drawn
_DECADES = 30.0  # the largest value over the smallest, from which on an axis is logarithmic
_FAR = 3.0  # times the middle half's range: what lies further out is drawn at the edge


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """A model in the picture of accuracy against speed; speed in images per second."""

    name: str
    speed: float
    value: float


def draw(board: "Leaderboard", folder: Path) -> list[str]:
    """Write the pictures of a search: history.png, and where there is something to show the others.

    Returns remarks for the user.
    """
    metric, records = board.metric, board.records
    name = Path(board.folder or folder).name
    plot_history(records, metric, folder / HISTORY, f"{name}: {metric} of each trial")
    remarks = plot_slices(records, metric, folder / SLICES, f"{name}: {metric} over each parameter")
    remarks += plot_importance(records, metric, folder / IMPORTANCE, f"{name}: which parameters matter")
    points = [
        FrontPoint(name=f"trial {r.number}", speed=r.values[1], value=r.values[0]) for r in _scored(records, 2)
    ] or [
        FrontPoint(name=" ".join(filter(None, (row.arch, str(row.size or "")))), speed=speed, value=row.value)
        for row in {row.kind: row for row in reversed(board.rows)}.values()  # the best of each kind
        if (speed := row.images_per_second) is not None
    ]
    if len(points) > 1:
        remarks += plot_front(points, metric, folder / FRONT, f"{name}: {metric} and speed")
    return remarks


def plot_history(records: Sequence[TrialRecord], objective: str, file: Path, title: str = "") -> None:
    """The first objective of each trial, in the order of their numbers, and the best so far.

    A trial that was pruned is a cross at the last value that it reported, if any.
    """
    from matplotlib.ticker import MaxNLocator

    figure = blank(8, 4.5)
    axis = figure.subplots()
    ordered = sorted(records, key=lambda record: record.number)
    scored = _scored(ordered)
    for number, stage in enumerate(dict.fromkeys(record.stage for record in ordered)):
        own = [record for record in scored if record.stage == stage]
        if own:
            label = f"{stage} ({plural(len(own), 'trial')})"
            style: dict[str, Any] = {"markersize": 4, "alpha": 0.75, "color": _STAGES[number % len(_STAGES)]}
            axis.plot([r.number for r in own], [r.values[0] for r in own], "o", label=label, **style)
    ended = [(r.number, r.reported[max(r.reported)]) for r in ordered if r.state == "pruned" and r.reported]
    if ended:
        label = f"ended early ({plural(len(ended), 'trial')})"
        axis.plot(*zip(*ended, strict=True), "x", markersize=4, color="tab:gray", alpha=0.7, label=label)
    if scored:
        x, y = zip(*_best_so_far(scored, objective), strict=True)
        end = max(ordered[-1].number, x[-1])
        axis.step([*x, end], [*y, y[-1]], where="post", color="black", linewidth=1.2, label=f"best: {y[-1]:.4g}")
        _limit(axis, [record.values[0] for record in scored] + [value for _, value in ended])
    else:
        axis.text(0.5, 0.5, "no trial has ended with a value", ha="center", transform=axis.transAxes)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("trial")
    axis.set_ylabel(objective, parse_math=False)
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(framealpha=0.8, edgecolor="none", fontsize=8)
    _save(figure, file, title)


def plot_importance(records: Sequence[TrialRecord], objective: str, file: Path, title: str = "") -> list[str]:
    """How much of the first objective's variance each parameter explains: fANOVA, as Optuna has it.

    It reads the stage with the most trials, whose parameters are the same. Too few of them, or trials that all did the
    same, are said instead of drawn. Returns remarks for the user.
    """
    own = _largest_stage(records)
    names = _varying(own)
    if not names:
        return []
    values = {record.values[0] for record in own}
    if len(own) < _FEWEST or len(values) < 2:
        why = f"it takes {_FEWEST} trials" if len(own) < _FEWEST else f"all trials have the same {objective}"
        return [f"no picture of which parameters matter: {why}"]
    shares = importances(own, names)
    ranked = sorted(shares, key=lambda name: shares[name])
    letters = lettering(ranked)
    figure = blank(7, max(2.2, 1.2 + 0.36 * len(ranked)))
    axis = figure.subplots()
    axis.barh(range(len(ranked)), [shares[name] for name in ranked], color="tab:blue", alpha=0.75, height=0.65)
    for place, name in enumerate(ranked):
        axis.text(shares[name], place, f" {shares[name]:.0%}", va="center", fontsize=9)
    axis.set_yticks(range(len(ranked)), labels=[letters.text(name, _NAME) for name in ranked], parse_math=False)
    axis.set_xlim(0, 1.12 * max(shares.values()))
    axis.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.set_xlabel(f"share of the variance of {objective} (fANOVA)", parse_math=False)
    stage = "" if own[0].stage == "trials" else f"{own[0].stage}, "
    axis.set_title(f"{stage}{plural(len(own), 'trial')}", fontsize=9, parse_math=False)
    axis.grid(axis="x", alpha=0.3)
    _save(figure, file, title, letters)
    return [*filter(None, [letters.note()])]


def importances(records: Sequence[TrialRecord], names: Sequence[str]) -> dict[str, float]:
    """The share of the first objective's variance that each parameter explains (Hutter, Hoos, Leyton-Brown, 2014).

    It is the part that a random forest's trees see in each parameter by itself; the shares sum to 1. Every record has
    all of `names`.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, Any] = {}
    for name in names:
        values = [record.parameters[name] for record in records]
        if _numeric(values):
            low, high = min(values), max(values)
            distributions[name] = optuna.distributions.FloatDistribution(low, high, log=_spans_decades(values))
        else:
            distributions[name] = optuna.distributions.CategoricalDistribution([*dict.fromkeys(map(_written, values))])
    study = optuna.create_study()
    for record in records:
        drawn = {
            name: float(record.parameters[name])
            if isinstance(kind, optuna.distributions.FloatDistribution)
            else _written(record.parameters[name])
            for name, kind in distributions.items()
        }
        study.add_trial(
            optuna.trial.create_trial(params=drawn, distributions=distributions, value=float(record.values[0]))
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=_TREES, seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=list(names))
    return {name: float(share) for name, share in found.items()}


def plot_slices(records: Sequence[TrialRecord], objective: str, file: Path, title: str = "") -> list[str]:
    """The first objective over each parameter that trials differ in; later trials are darker, the best is a star."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    scored = _scored(records)
    names = _varying(scored)
    if not names:
        return []
    shown = names[:_SLICES]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = blank(max(5.0, 3.1 * columns + 0.8), 2.9 * rows)
    letters = lettering([*names, *(_written(record.parameters.get(name)) for record in scored for name in shown)])
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    best = (min if lower_is_better(objective) else max)(scored, key=lambda record: record.values[0])
    scale = Normalize(min(r.number for r in scored), max(r.number for r in scored) or 1)
    for place, (axis, name) in enumerate(zip(axes, shown, strict=False)):
        own = [record for record in scored if name in record.parameters]
        x = _positions(axis, [record.parameters[name] for record in own], letters)
        y = [record.values[0] for record in own]
        numbers = [record.number for record in own]
        axis.scatter(x, y, c=numbers, norm=scale, cmap="Blues", edgecolor="gray", linewidth=0.4, s=18)
        for at, record in zip(x, own, strict=True):
            if record is best:
                axis.plot([at], [record.values[0]], "*", color="tab:red", markersize=11, zorder=3)
        axis.set_xlabel(letters.text(name, _NAME), parse_math=False)
        axis.grid(alpha=0.3)
        if place % columns == 0:
            axis.set_ylabel(objective, parse_math=False)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    _limit(axes[0], [record.values[0] for record in scored])
    ticks = MaxNLocator(integer=True)
    figure.colorbar(ScalarMappable(scale, "Blues"), ax=axes, label="trial", pad=0.01, ticks=ticks)
    _save(figure, file, title, letters)
    left = len(names) - len(shown)
    remarks = [f"{file.name} shows {len(shown)} parameters; {left} more differ between trials"] if left else []
    return [*remarks, *filter(None, [letters.note()])]


def plot_front(points: Sequence[FrontPoint], objective: str, file: Path, title: str = "") -> list[str]:
    """A metric against images per second, and the front: the points that no other one beats in both.

    Names stand beside their points where they cover neither a point nor another name: those of the front, then of the
    best others, up to a dozen of them. Returns remarks for the user: which names of the front found no place.
    """
    figure = blank(8, 5)
    axis = figure.subplots()
    on_front = front(points, objective)
    others = sorted(
        (p for p in points if p not in on_front), key=lambda p: p.value, reverse=not lower_is_better(objective)
    )
    if others:
        x, y = [point.speed for point in others], [point.value for point in others]
        axis.plot(x, y, "o", markersize=5, color="tab:gray", alpha=0.6)
    if on_front:
        x, y = [point.speed for point in on_front], [point.value for point in on_front]
        axis.plot(x, y, "o", markersize=6, color="tab:blue")
        axis.step(x, y, where="pre", color="tab:blue", linewidth=1, alpha=0.6)
    else:
        axis.text(0.5, 0.5, "nothing was measured", ha="center", transform=axis.transAxes)
    if points and _spans_decades([point.speed for point in points]):
        axis.set_xscale("log")
    axis.margins(x=0.12, y=0.12)
    axis.set_xlabel("images per second at prediction")
    axis.set_ylabel(objective, parse_math=False)
    axis.grid(alpha=0.3)
    letters = lettering([point.name for point in points])
    if title:
        figure.suptitle(title, fontsize=11, parse_math=False)  # before names find their places
    named = _label(figure, axis, [*on_front, *others], max(_NAMED, len(on_front)), letters)
    save(figure, file, letters)
    lost = [point.name for point in on_front if point not in named]
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    remarks = [f"{file.name}: no room beside the points for {', '.join(lost[:5])}{more}"] if lost else []
    return [*remarks, *filter(None, [letters.note()])]


def _save(figure: "Figure", file: Path, title: str, letters: Lettering | None = None) -> None:
    """Write a picture with its title, which may hold letters that its labels do not have."""
    if title:
        figure.suptitle(title, fontsize=11, parse_math=False)
    save(figure, file, letters or lettering([title]))


def front(points: Sequence[FrontPoint], objective: str) -> list[FrontPoint]:
    """The points that no other one beats in speed and value, the slowest first; of equal ones the first."""
    sign = -1.0 if lower_is_better(objective) else 1.0
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda point: (-point.speed, -sign * point.value)):
        if not kept or sign * point.value > sign * kept[-1].value:
            kept.append(point)
    return kept[::-1]


_WHITE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.6, "pad": 0.5}

# Where a name may stand beside its point: in points of the page, the nearest first.
_PLACES = [
    (distance * math.cos(angle), distance * math.sin(angle))
    for distance in (7, 14, 24, 36, 52, 70, 95, 125)
    for angle in (math.pi * eighth / 4 for eighth in (0, 4, 1, 3, 7, 5, 2, 6))
]


def _label(
    figure: "Figure", axis: "Axes", points: Sequence[FrontPoint], most: int, letters: Lettering
) -> list[FrontPoint]:
    """Write the names of the first `most` points, as long as they find a place; no name covers any of the points.

    Returns those that are named.
    """
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # the layout decides where the axes are
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    pixels = figure.dpi / 72  # a point of the page
    inside = axis.get_window_extent(renderer)
    dots = [axis.transData.transform((point.speed, point.value)) for point in points]
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in dots]
    named: list[FrontPoint] = []
    for point, (x, y) in list(zip(points, dots, strict=True))[:most]:
        style: dict[str, Any] = {"fontsize": 8, "va": "center", "parse_math": False, "bbox": _WHITE}
        text = axis.annotate(
            letters.text(point.name, _NAME), (point.speed, point.value), (0, 0), textcoords="offset points", **style
        )
        text.set_fontfamily(list(letters.families))
        size = text.get_window_extent(renderer)
        for right, up in _PLACES:
            side: Literal["left", "right", "center"] = "left" if right > 1 else "right" if right < -1 else "center"
            start = x + right * pixels - {"left": 0.0, "right": size.width, "center": size.width / 2}[side]
            box = Bbox.from_bounds(start, y + up * pixels - size.height / 2, size.width, size.height)
            if not _within(box, inside) or any(box.overlaps(other) for other in taken):
                continue
            text.set_position((right, up))
            text.set_horizontalalignment(side)
            taken.append(box.padded(1.0))
            named.append(point)
            if math.hypot(right, up) > 20:  # a thin line says whose name it is
                end = axis.transData.inverted().transform(_nearest(box, (x, y)))
                line = ([point.speed, end[0]], [point.value, end[1]])
                axis.plot(*line, color="gray", linewidth=0.5, scalex=False, scaley=False)
            break
        else:
            text.remove()
    return named


def _within(box: "Bbox", outer: "Bbox") -> bool:
    return bool(outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1)


def _nearest(box: "Bbox", dot: Sequence[float]) -> tuple[float, float]:
    """The point of a box that is nearest to a dot."""
    return min(max(dot[0], box.x0), box.x1), min(max(dot[1], box.y0), box.y1)


def _scored(records: Sequence[TrialRecord], objectives: int = 1) -> list[TrialRecord]:
    """The complete trials that have finite values."""
    return [
        record
        for record in records
        if record.state == "complete" and len(record.values) >= objectives and all(map(math.isfinite, record.values))
    ]


def _best_so_far(scored: Sequence[TrialRecord], objective: str) -> list[tuple[int, float]]:
    """(number, value) of each trial that was the best when it ended."""
    sign = -1.0 if lower_is_better(objective) else 1.0
    found: list[tuple[int, float]] = []
    for record in scored:
        if not found or sign * record.values[0] > sign * found[-1][1]:
            found.append((record.number, record.values[0]))
    return found


def _largest_stage(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The complete trials of the stage that has the most of them."""
    stages: dict[str, list[TrialRecord]] = {}
    for record in _scored(records):
        stages.setdefault(record.stage, []).append(record)
    return max(stages.values(), key=len, default=[])


def _varying(records: Sequence[TrialRecord]) -> list[str]:
    """The parameters that have more than one value, in the order in which they first came."""
    names = dict.fromkeys(name for record in records for name in record.parameters)
    return [name for name in names if len({_written(r.parameters[name]) for r in records if name in r.parameters}) > 1]


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _spans_decades(values: Sequence[float]) -> bool:
    """Whether values are rather spread by orders of magnitude: their median is nearer to the middle of logarithms."""
    low, high = min(values), max(values)
    if low <= 0 or high / low < _DECADES:
        return False
    median = math.log(statistics.median(values))
    return abs(median - math.log(low * high) / 2) < abs(median - math.log((low + high) / 2))


def _written(value: Any) -> str:
    """A value as on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(_written, value)) if isinstance(value, list | tuple) else str(value)


def _positions(axis: "Axes", values: Sequence[Any], letters: Lettering) -> list[float]:
    """Where values stand on an axis: numbers at their size, others side by side, by name."""
    if _numeric(values):
        if _spans_decades(values):
            axis.set_xscale("log")
        return [float(value) for value in values]
    categories = sorted(dict.fromkeys(map(_written, values)))
    steep = len(categories) > 3 or max(map(len, categories)) > 8
    labels = [letters.text(name, _CATEGORY) for name in categories]
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if steep else {}
    axis.set_xticks(range(len(categories)), labels=labels, fontsize=8, parse_math=False, **turned)
    axis.set_xlim(-0.6, len(categories) - 0.4)
    return [float(categories.index(_written(value))) for value in values]


def _limit(axis: "Axes", values: Sequence[float]) -> None:
    """Leave out what lies far from the middle half, such as the loss of a trial that diverged."""
    if len(values) < _FEWEST:
        return
    ordered = sorted(values)
    lower, upper = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    reach = _FAR * (upper - lower)
    kept = [value for value in ordered if lower - reach <= value <= upper + reach]
    if reach and len(kept) < len(ordered):
        margin = 0.06 * (kept[-1] - kept[0])
        axis.set_ylim(kept[0] - margin, kept[-1] + margin)
