"""Several runs on one dataset: each by itself, their mean and deviation, and what they predict together."""

import json
import shutil
from statistics import mean, stdev

import numpy as np
import pytest
from PIL import Image

from fastimg.predict.ensemble import Together


def test_mean_probabilities_are_scored():
    together = Together(np.array([0, 1, 1, 0]), 2)
    together.add(np.array([0, 1, 2]), np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    together.add(np.array([1, 0]), np.array([[0.2, 0.8], [0.3, 0.7]]))
    score = together.score(together.count == 2, "both")
    assert (score.images, score.top1, score.balanced_accuracy) == (2, 1.0, 1.0)
    assert score.loss == pytest.approx(-np.log([0.6, 0.6]).mean())
    assert together.score(together.count == 3, "none") is None


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
    assert found["deviation"] == {"top1": 0, "balanced_accuracy": 0, "loss": 0}


def test_what_cannot_be(trained, tmp_path, cli):
    ran = cli("eval", trained.run, trained.run, trained.shards)
    assert ran.code == 2 and "is given twice; name each run once" in ran.err
    ran = cli("eval", trained.run, tmp_path / "x", trained.shards)
    assert ran.code == 1 and str(tmp_path / "x") in ran.err
    copy = shutil.copytree(trained.run, tmp_path / "copy", symlinks=True)
    ran = cli("eval", trained.run, copy, trained.shards, "--plot", tmp_path / "a.png")
    assert ran.code == 2 and "--plot has no effect with several runs" in ran.err
