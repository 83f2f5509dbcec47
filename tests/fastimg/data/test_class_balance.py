"""Weights and priors of classes: formulas, files of weights, and messages about rare classes."""

import json
import re

import numpy as np
import pytest

from fastimg.data import class_balance
from fastimg.errors import UsageError, UserError

CLASSES = ("cat", "dog", "yak")


@pytest.mark.parametrize("choice", ["balanced", "effective"])
def test_the_mean_weight_of_the_samples_is_one(choice):
    counts = np.array([900.0, 90.0, 10.0, 0.0])
    weights = class_balance.class_weights(choice, CLASSES, counts)
    assert (weights * counts).sum() == pytest.approx(1000)
    assert weights[3] == 0
    if choice == "balanced":
        assert np.ptp(weights[:3] * counts[:3]) == pytest.approx(0)
    else:
        expected = (1 - 0.999**900) / (1 - 0.999**10)
        assert weights[2] / weights[0] == pytest.approx(expected)


def test_the_effective_number_of_samples_stops_growing():
    few, many = (class_balance.class_weights("effective", CLASSES, np.array(c)) for c in ([2e4, 1e4], [2e5, 1e5]))
    assert few[1] / few[0] == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(few, many, atol=1e-3)


def test_priors_are_shares():
    priors = np.exp(class_balance.log_priors(np.array([75.0, 24.0, 0.0])))
    np.testing.assert_allclose(priors, [0.75, 0.24, 0.01])


def test_files_of_weights(tmp_path):
    table = tmp_path / "weights.csv"
    table.write_text('class,weight\nyak,3\n"dog",0\ncat,1.5\n')
    object_ = tmp_path / "weights.json"
    object_.write_text(json.dumps({"dog": 0, "yak": 3, "cat": 1.5}))
    for file in (table, object_):
        assert class_balance.read_weights(file, CLASSES, "--x").tolist() == [1.5, 0, 3]
        weights = class_balance.class_weights(str(file), CLASSES, np.array([2.0, 5.0, 1.0]))
        np.testing.assert_allclose(weights, [1.5 * 8 / 6, 0, 3 * 8 / 6])
    with pytest.raises(UserError, match="all classes that have samples weigh 0"):
        class_balance.class_weights(str(table), CLASSES, np.array([0.0, 5.0, 0.0]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat,1\ndog,1\nyac,1\n", r"no class 'yac'; did you mean yak\?"),
        ("cat,1\ndog,1\nyak,1\nzzz,1", "no class 'zzz'; leave it out"),
        ("cat,1\n", "has no number for dog, yak; give every class one"),
        ("cat,1\ndog,-1\nyak,1\n", "dog has '-1'; give a number of 0 or more"),
        ("cat,1\ndog,nan\nyak,1\n", "dog has 'nan'; give a number"),
        ("cat,1\ndog,inf\nyak,1\n", "dog has 'inf'; give a number"),
        ("cat,1\ndog,much\nyak,1\n", "dog has 'much'; give a number"),
        ("cat,0\ndog,0\nyak,0\n", "every class has 0"),
        ("cat,1\ncat,2\n", "'cat' twice"),
        ("cat,1\n cat,2\n", "'cat' twice"),
        ("cat 1\n", "has the line 'cat 1'"),
        ("", "is empty"),
    ],
)
def test_invalid_files(tmp_path, text, message):
    file = tmp_path / "weights.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        class_balance.read_weights(file, CLASSES, "--class-weights")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not json"),
        ('{"cat": 1, "cat": 2}', "has the class 'cat' twice; leave one of them out"),
        ("[1]", "is not an object"),
        ('{"cat": true, "dog": 1, "yak": 1}', "cat has 'True'"),
    ],
)
def test_invalid_json(tmp_path, text, message):
    file = tmp_path / "weights.json"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        class_balance.read_weights(file, CLASSES, "--class-weights")


def test_a_missing_file_may_be_a_misspelt_choice():
    with pytest.raises(UsageError, match="--class-weights balancd: no such file; give a word"):
        class_balance.class_weights("balancd", CLASSES, np.ones(3))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([100.0, 10.0, 50.0], None),
        ([100.0, 9.0, 50.0], "dog has 9 samples, cat 100: --class-weights balanced or --sampler balanced"),
        ([100.0, 9.0, 3.0], r"yak has 3 samples, cat 100 \(and 1 other class has under a tenth\)"),
        ([100.0, 0.0, 50.0], None),
        ([0.0, 0.0, 0.0], None),
    ],
)
def test_messages_about_rare_classes(counts, said):
    remark = class_balance.rarest(CLASSES, np.array(counts))
    if said is None:
        assert remark is None
    else:
        assert re.match(said, remark)
