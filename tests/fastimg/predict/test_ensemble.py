"""Several runs on one dataset: each by itself, their mean and deviation, and what they predict together."""

import json
import shutil
from statistics import mean, stdev

import numpy as np
import pytest
from PIL import Image

from fastimg.loaders.containers.targets import TargetColumn
from fastimg.predict.ensemble import Together
from fastimg.train.tasks.restored import averaged, restored


@pytest.fixture
def tasks():
    """A class of two, labels of two and a number with a mean of 10 and a deviation of 2."""
    kinds = ({"kind": "class", "outputs": 2}, {"kind": "multilabel", "outputs": 2, "thresholds": [0.5, 0.9]})
    named = [{"name": name, "classes": ["x", "y"], **kind} for name, kind in zip(("breed", "tags"), kinds, strict=True)]
    return restored([*named, {"name": "age", "kind": "number", "outputs": 1, "mean": 10.0, "std": 2.0}])


def test_means_are_scored_where_the_target_is_there(tasks):
    columns = (
        TargetColumn.of_classes(np.array([0, 1, 1, -1]), ("x", "y"), "breed"),
        TargetColumn.of_labels([[0], [1], None, []], ("x", "y"), "tags"),
        TargetColumn.of_numbers(np.array([8.0, 12.0, np.nan, 10.0]), "age"),
    )
    together = Together(columns, 5)
    together.add(np.array([0, 1, 3]), np.array([[0.9, 0.1, 1, 0, 9], [0.6, 0.4, 0.2, 0.8, 11], [0.5, 0.5, 0, 0, 9.0]]))
    together.add(np.array([1, 0]), np.array([[0.2, 0.8, 0.4, 0.9, 10], [0.3, 0.7, 0.6, 0.2, 8.0]]))
    score = together.score(tasks, together.count == 2, "both")
    assert (score.images, score.present) == (2, {"breed": 2, "tags": 2, "age": 2})
    found = score.scores
    assert found["breed.top1"] == found["breed.balanced_accuracy"] == found["tags.map"] == 1.0
    assert found["breed.loss"] == pytest.approx(-np.log([0.6, 0.6]).mean())
    assert found["tags.f1"] == 0.5  # y has 0.85, below its threshold
    assert found["tags.loss"] == pytest.approx(-np.log([0.8, 0.9, 0.7, 0.85]).sum() / 2)
    assert found["age.mae"] == pytest.approx(1.0) and found["age.r2"] == pytest.approx(1 - 2.5 / 8)
    assert together.score(tasks, together.count == 1, "one").present == {"breed": 0, "tags": 1, "age": 1}
    assert together.score(tasks, together.count == 3, "none") is None


def test_an_ensemble_has_the_mean_thresholds_and_units_of_its_runs(tasks):
    other = [dict(each) for each in tasks.stated()]
    other[1]["thresholds"], other[2]["mean"] = [0.7, 0.1], 12.0
    first = [{**each, "thresholds": [0.5, 0.9]} if each["name"] == "tags" else each for each in tasks.stated()]
    found = averaged([first, other]).all
    assert found[1].thresholds == pytest.approx((0.6, 0.5)) and (found[2].mean, found[2].std) == (11.0, 2.0)
    del other[1]["thresholds"]
    assert averaged([first, other]).all[1].thresholds == ()


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """Images of two classes, 12 to train on and 4 to test on."""
    root = tmp_path_factory.mktemp("folded") / "images"
    for split, count in (("train", 12), ("test", 4)):
        for index in range(count):
            folder = root / split / "ab"[index % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 32), (20 * index, 90 * (index % 2), count)).save(folder / f"{index}.jpg")
    return root


def test_runs_over_folds(folded, tmp_path, cli, fast):
    for number in range(2):
        flags = ("--fold", f"{number}/2", "--stratify", "--seed", number, "-o", tmp_path, "--name", f"fold{number}")
        assert cli("train", folded, *fast, *flags).code == 0
    runs = [tmp_path / "fold0", tmp_path / "fold1"]
    ran = cli("eval", *runs, folded, "--json")
    found = json.loads(ran.out)
    assert [run["images"] for run in found["runs"]] == [6, 6] and found["split"] == "train"
    assert all(run["part"].endswith(f"by fold {k} of 2, stratified") for k, run in enumerate(found["runs"]))
    for name in ("top1", "loss"):
        values = [run[name] for run in found["runs"]]
        assert found["mean"][name] == pytest.approx(mean(values))
        assert found["deviation"][name] == pytest.approx(stdev(values))
        assert found["out_of_fold"][name] == pytest.approx(mean(values))  # as many samples in each fold
    assert found["out_of_fold"]["images"] == 12 and found["ensemble"] is None
    assert found["test"]["images"] == 4 and found["test"]["part"].startswith("test, of 2 runs")
    said = cli("eval", *runs, folded).out
    for word in ("mean", "deviation", "out of fold", "each by the one run that held it out", "ensemble", "4 images"):
        assert word in said


def test_runs_on_a_validation_split_are_an_ensemble(trained, tmp_path, cli):
    """Of equal runs: it scores as each of them does."""
    copy = shutil.copytree(trained.run, tmp_path / "copy", symlinks=True)
    alone = json.loads(cli("eval", copy, trained.shards, "--json").out)
    found = json.loads(cli("eval", trained.run, copy, trained.shards, "--json").out)
    assert found["out_of_fold"] is None and found["test"] is None
    for name in ("images", "top1", "balanced_accuracy", "loss"):
        assert found["ensemble"][name] == pytest.approx(alone[name]) == pytest.approx(found["runs"][1][name])
    assert found["deviation"] == {"loss": 0, "top1": 0, "balanced_accuracy": 0}


def test_what_cannot_be(trained, tmp_path, cli):
    ran = cli("eval", trained.run, trained.run, trained.shards)
    assert ran.code == 2 and "is given twice; name each run once" in ran.err
    ran = cli("eval", trained.run, tmp_path / "x", trained.shards)
    assert ran.code == 1 and str(tmp_path / "x") in ran.err
    copy = shutil.copytree(trained.run, tmp_path / "copy", symlinks=True)
    ran = cli("eval", trained.run, copy, trained.shards, "--output", tmp_path / "a.png")
    assert ran.code == 2 and "--output has no effect with several runs" in ran.err
