"""Pictures of a search: what is drawn is what the records say."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from fastimg.search import plots
from fastimg.search.leaderboard import Contender, Leaderboard
from fastimg.search.plots import FrontPoint, front, importances, plot_front, plot_history, plot_importance, plot_slices
from fastimg.search.records import TrialRecord

LONG = "vit_small_patch16_224.augreg_in21k_ft_in1k"


def trial(number, value, stage="trials", **parameters):
    return TrialRecord(number=number, stage=stage, state="complete", values=(value,), parameters=parameters)


def pruned(number, **reported):
    told = {int(epoch[1:]): value for epoch, value in reported.items()}
    return TrialRecord(number=number, stage="trials", state="pruned", reason="not promising", reported=told)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """drawn(plot, ...): the figure that a function saves, and what it returns."""

    def call(plot, *arguments):
        kept = []
        monkeypatch.setattr(plots, "save", lambda figure, *_: kept.append(figure))
        remarks = plot(*arguments, tmp_path / "picture.png")
        return (kept[0] if kept else None), remarks

    return call


def points(axis, label):
    """The points of the line whose legend begins so."""
    return next(line.get_xydata().tolist() for line in axis.get_lines() if str(line.get_label()).startswith(label))


def test_history_shows_every_trial_and_the_best_so_far(drawn):
    records = [trial(3, 0.8, "fine-tuning"), trial(0, 0.5, "heads"), pruned(2, e1=0.1, e2=0.3), trial(1, 0.4, "heads")]
    axis = drawn(plot_history, records, "top1")[0].axes[0]
    assert points(axis, "heads (2 trials)") == [[0, 0.5], [1, 0.4]]
    assert points(axis, "fine-tuning (1 trial)") == [[3, 0.8]]
    assert points(axis, "ended early (1 trial)") == [[2, 0.3]]
    assert points(axis, "best: 0.8") == [[0, 0.5], [3, 0.8], [3, 0.8]]


def test_of_a_loss_less_is_better(drawn):
    records = [trial(0, 0.5), trial(1, 0.9), trial(2, 0.4), pruned(3)]
    axis = drawn(plot_history, records, "age.mae")[0].axes[0]
    assert points(axis, "best: 0.4") == [[0, 0.5], [2, 0.4], [3, 0.4]]


def test_a_trial_that_diverged_does_not_flatten_the_others(drawn):
    records = [trial(number, 1 + number / 100) for number in range(20)] + [trial(20, 1e6), trial(21, float("inf"))]
    axis = drawn(plot_history, records, "loss")[0].axes[0]
    assert axis.get_ylim()[1] < 2 and len(points(axis, "trials (21 trials)")) == 21


def test_a_search_without_a_value_says_so(drawn):
    axis = drawn(plot_history, [pruned(0)], "top1")[0].axes[0]
    assert [text.get_text() for text in axis.texts] == ["no trial has ended with a value"]


def quadratic(count):
    """Trials in which the rate decides, the augmentation helps a little, and the seed does nothing."""
    generator = np.random.default_rng(0)
    for number in range(count):
        rate, trivial, seed = 10 ** generator.uniform(-4, -1), bool(generator.integers(2)), int(generator.integers(100))
        value = 0.9 - 0.1 * (np.log10(rate) + 2.5) ** 2 + 0.02 * trivial
        yield trial(number, value, lr=rate, aa="trivial" if trivial else None, seed=seed, epochs=3)


def test_importance_finds_what_decides(drawn, monkeypatch):
    monkeypatch.setattr(plots, "_TREES", 8)
    records = [*quadratic(40), trial(40, 0.1, "final", lr=0.1, aa=None, seed=1, epochs=3)]
    shares = importances(records[:40], ["lr", "aa", "seed"])
    assert sum(shares.values()) == pytest.approx(1) and shares["lr"] > 0.7 > shares["aa"]
    figure, remarks = drawn(plot_importance, records, "top1")
    axis = figure.axes[0]
    assert remarks == [] and axis.get_title() == "40 trials"  # the stage that has the most
    ranked = sorted(shares, key=shares.get)
    assert [label.get_text() for label in axis.get_yticklabels()] == ranked  # epochs never differ
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([shares[name] for name in ranked])


def test_importance_of_too_little_is_not_guessed(drawn):
    assert drawn(plot_importance, [*quadratic(5)], "top1") == (None, [
        "no picture of which parameters matter: it takes 8 trials"
    ])  # fmt: skip
    same = [trial(number, 0.5, lr=10.0**-number) for number in range(9)]
    assert "all trials have the same top1" in drawn(plot_importance, same, "top1")[1][0]
    assert drawn(plot_importance, [trial(number, number, epochs=3) for number in range(9)], "top1") == (None, [])


def test_slices_show_each_parameter_that_differs(drawn):
    records = [
        trial(0, 0.5, lr=1e-4, aa=None, ema=True, epochs=3),
        trial(1, 0.7, lr=1e-2, aa="a-policy-with-a-rather-long-name", ema=False, epochs=3),
        trial(2, 0.6, lr=1e-3, aa=None, epochs=3),
    ]
    figure, remarks = drawn(plot_slices, records, "top1")
    axes = {axis.get_xlabel(): axis for axis in figure.axes if axis.get_xlabel()}
    assert list(axes) == ["lr", "aa", "ema"] and remarks == []
    spots = {name: next(c for c in axis.collections if isinstance(c, PathCollection)) for name, axis in axes.items()}
    assert spots["lr"].get_offsets().tolist() == [[1e-4, 0.5], [1e-2, 0.7], [1e-3, 0.6]]
    assert spots["lr"].get_array().tolist() == [0, 1, 2] and axes["lr"].get_xscale() == "log"
    assert spots["aa"].get_offsets().tolist() == [[1, 0.5], [0, 0.7], [1, 0.6]]
    assert [label.get_text() for label in axes["aa"].get_xticklabels()] == ["a-polic…g-name", "none"]
    assert spots["ema"].get_offsets().tolist() == [[1, 0.5], [0, 0.7]]
    assert [label.get_text() for label in axes["ema"].get_xticklabels()] == ["off", "on"]
    assert [axis.get_lines()[0].get_xydata().tolist() for axis in axes.values()] == [[[x, 0.7]] for x in (1e-2, 0, 0)]


def test_more_parameters_than_fit_are_said(drawn):
    records = [trial(number, number, **{f"p{place}": number for place in range(14)}) for number in range(2)]
    figure, remarks = drawn(plot_slices, records, "top1")
    assert sum(bool(axis.get_xlabel()) for axis in figure.axes) == 12
    assert remarks == ["picture.png shows 12 parameters; 2 more differ between trials"]


def test_an_axis_is_logarithmic_where_values_are_spread_so():
    generator = np.random.default_rng(0)
    assert plots._spans_decades((10 ** generator.uniform(-4, -1, 50)).tolist())
    assert not plots._spans_decades(generator.uniform(0, 0.2, 50).tolist())  # its smallest value is small by chance
    assert not plots._spans_decades([0.0, 1.0, 1000.0]) and not plots._spans_decades([0.1, 0.2])


def test_the_front_has_what_nothing_beats():
    slow, fast, worse, equal = (
        FrontPoint(name=name, speed=speed, value=value)
        for name, speed, value in (("a", 10, 0.9), ("b", 100, 0.8), ("c", 50, 0.7), ("d", 100, 0.8))
    )
    assert front([fast, worse, slow, equal], "top1") == [slow, fast]
    assert front([fast, worse, slow, equal], "loss") == [worse, fast]
    assert front([slow, worse], "loss") == [worse] and front([], "top1") == []


def boxes(figure):
    """The extents of the names in the picture."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    return {text.get_text(): text.get_window_extent(renderer) for text in figure.axes[0].texts}


@pytest.mark.parametrize("count", [2, 10, 60])
def test_names_cover_neither_each_other_nor_a_point(drawn, count):
    generator = np.random.default_rng(count)
    candidates = [
        FrontPoint(name=f"{number}-{LONG}", speed=float(speed), value=float(value))
        for number, (speed, value) in enumerate(generator.uniform((50, 0.6), (900, 0.95), (count, 2)))
    ]
    figure, remarks = drawn(plot_front, candidates, "breed.top1")
    found = boxes(figure)
    best = front(candidates, "breed.top1")
    assert len(found) >= min(count, len(best)) - len(remarks)
    every = [*found.values()]
    assert not any(a.overlaps(b) for place, a in enumerate(every) for b in every[:place])
    axis = figure.axes[0]
    dots = [axis.transData.transform((point.speed, point.value)) for point in candidates]
    assert not any(box.contains(*dot) for box in every for dot in dots)
    whole = axis.get_window_extent()
    assert all(whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1) for box in every)
    shown = next(line for line in axis.get_lines() if line.get_color() == "tab:blue").get_xydata().tolist()
    assert shown == [[point.speed, point.value] for point in best]


def test_names_that_find_no_place_are_said(drawn):
    crowd = [FrontPoint(name=f"{n}-{LONG}", speed=100 + 1e-6 * n, value=0.9 - 1e-9 * n) for n in range(60)]
    assert len(front(crowd, "top1")) == 60
    figure, (remark,) = drawn(plot_front, crowd, "top1")
    lost = 60 - len(boxes(figure))
    assert lost > 5 and remark.endswith(f" and {lost - 5} more") and remark.count(LONG) == 5


def board(*rows, records=()):
    contenders = [
        Contender(
            trial=n, stage="trials", run=f"runs/{n}", value=value, loss=0.0, seconds=1.0, epochs=1, arch=arch, size=64,
            images_per_second=speed,
        )
        for n, (arch, value, speed) in enumerate(rows)
    ]  # fmt: skip
    return Leaderboard(metric="top1", rows=contenders, records=records)


@pytest.fixture
def fronts(monkeypatch):
    """The points that `draw` gives to the picture of the front; the other pictures are not drawn."""
    given = []
    for name in ("plot_history", "plot_slices", "plot_importance"):
        monkeypatch.setattr(plots, name, lambda *_: [])
    monkeypatch.setattr(plots, "plot_front", lambda points, *_: given.append(points) or ["said"])
    return given


def test_the_front_has_the_best_of_each_kind_that_was_measured(fronts, tmp_path):
    rows = (("resnet18", 0.9, 50.0), ("resnet18", 0.8, 50.0), ("vit", 0.7, 90.0), ("swin", 0.6, None))
    assert plots.draw(board(*rows), tmp_path) == ["said"]
    assert {(point.name, point.speed, point.value) for point in fronts[0]} == {
        ("resnet18 64", 50.0, 0.9),
        ("vit 64", 90.0, 0.7),
    }
    assert plots.draw(board(*rows[:2]), tmp_path) == []  # one kind is no front


def test_with_two_objectives_the_front_has_every_trial(fronts, tmp_path):
    records = [
        TrialRecord(number=n, stage="trials", state="complete", values=(0.5 + n, 10.0 * n), parameters={})
        for n in (1, 2)
    ]
    plots.draw(board(("a", 1, 1), ("b", 2, 2), records=records), tmp_path)
    assert [(p.name, p.speed, p.value) for p in fronts[0]] == [("trial 1", 10.0, 1.5), ("trial 2", 20.0, 2.5)]


def test_all_pictures_of_a_search_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "_TREES", 2)
    rows = (("resnet18", 0.9, 50.0), ("vit", 0.7, 90.0))
    titles = {}
    save = plots.save
    monkeypatch.setattr(
        plots, "save", lambda f, file, *a: titles.update({file.name: f.get_suptitle()}) or save(f, file, *a)
    )
    assert plots.draw(board(*rows, records=[*quadratic(10)]), tmp_path) == []
    written = {file.name for file in tmp_path.iterdir()}
    assert written == {"front.png", "history.png", "importance.png", "slices.png"} == {*titles}
    assert all(title.startswith(f"{tmp_path.name}: ") for title in titles.values())
