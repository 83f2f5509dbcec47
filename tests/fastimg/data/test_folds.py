"""Folds: a function of content, in which groups and copies stay together and every sample is held out once."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastimg.config.values.folds import Fold, parse
from fastimg.data import folds
from fastimg.errors import UsageError, UserError
from fastimg.loaders import open_dataset
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.train.checkpoints.format import find, read_card

KEYS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60)


@given(keys=KEYS, of=st.integers(2, 7), stratify=st.booleans(), data=st.data())
def test_folds_are_of_keys_whatever_their_order(keys, of, stratify, data):
    """With copies, which have equal keys and labels."""
    keys = np.array(keys + keys[:3], np.uint64)
    labels = (keys % np.uint64(3)).astype(np.int64)
    numbers = folds.assigned(keys, labels, of, stratify)
    assert numbers.min() >= 0 and numbers.max() < of
    order = np.array(data.draw(st.permutations(range(len(keys)))))
    assert (folds.assigned(keys[order], labels[order], of, stratify) == numbers[order]).all()
    assert all(len(set(numbers[keys == key])) == 1 for key in keys)


def drawn(n, seed=0):
    return np.random.PCG64(seed).random_raw(n).astype(np.uint64)


def test_samples_that_are_added_move_no_other():
    keys = drawn(40)
    labels = np.zeros(40, np.int64)
    assert (folds.assigned(keys, labels, 5, False)[:30] == folds.assigned(keys[:30], labels[:30], 5, False)).all()


def test_stratified_folds_have_each_class_alike():
    labels = np.repeat([0, 1, 2], [50, 23, 5])
    numbers = folds.assigned(drawn(78), labels, 5, True)
    for label in range(3):
        counts = np.bincount(numbers[labels == label], minlength=5)
        assert np.ptp(counts) <= 1
    assert np.ptp(np.bincount(numbers, minlength=5)) <= 1


def test_stratified_groups_stay_together_and_are_nearly_even():
    labels = np.tile(np.repeat([0, 1], [8, 2]), 60)
    groups = np.repeat(drawn(120), 5)
    numbers = folds.assigned(groups, labels, 4, True)
    assert all(len(set(numbers[groups == group])) == 1 for group in np.unique(groups))
    for label in range(2):
        counts = np.bincount(numbers[labels == label], minlength=4)
        assert np.ptp(counts) <= 0.1 * counts.mean()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5/5", "the folds are 0/5 to 4/5"),
        ("0/1", "two folds or more"),
        ("1", "as 0/5"),
        ("-1/5", "as 0/5"),
        ("a/b", "as 0/5"),
    ],
)
def test_folds_that_are_none(text, message):
    with pytest.raises(UsageError, match=f"^--fold {text}: .*{message}"):
        parse(text)


class Noted:
    """A dataset of 12 samples whose notes have columns."""

    content = "image"
    targets = (TargetColumn.of_classes(np.zeros(12, np.int64), ("a",)),)

    def __len__(self):
        return 12

    def note(self, index):
        return {"path": f"{index}.jpg", "patient": f"p{index // 3}", "site": "here"} | ({"age": 3} if index < 4 else {})


def test_groups_come_from_notes(tmp_path):
    keys = folds.group_keys(Noted(), tmp_path, "patient", drawn(12))
    assert len(set(keys.tolist())) == 4 and len(set(keys[:3].tolist())) == 1
    some = folds.group_keys(Noted(), tmp_path, "age", drawn(12))
    assert len(set(some.tolist())) == 9 and (some[4:] == drawn(12)[4:]).all()  # without a value: on its own


def test_groups_come_from_targets(tmp_path):
    dataset = Noted()
    labels = np.repeat([0, 1, -1], [5, 5, 2])
    dataset.targets = (*Noted.targets, TargetColumn.of_classes(labels, ("x", "y"), "camera"))
    keys = folds.group_keys(dataset, tmp_path, "camera", drawn(12))
    assert len(set(keys.tolist())) == 4


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("site", "--group site: every sample has 'here', so that nothing can be held out"),
        ("pateint", r"no sample has a value in such a column; did you mean patient"),
        ("zzz", "no sample has a value in such a column; there are age, path, patient, site"),
    ],
)
def test_columns_that_do_not_group(tmp_path, column, message):
    with pytest.raises(UserError, match=message):
        folds.group_keys(Noted(), tmp_path, column, drawn(12))


@pytest.fixture
def few(tmp_path, cli):
    """Twelve JPEGs of two classes as a folder, as tars and as .beton."""
    for index in range(12):
        folder = tmp_path / "images" / ("ab"[index % 2])
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 32), (20 * index, 90, 200 - index)).save(folder / f"{index}.jpg")
    for format in ("tar", "beton"):
        options = ("--format", format, "--tile", "off", "--seed", len(format))
        assert cli("convert", tmp_path / "images", tmp_path / format, *options).code == 0
    return tmp_path


def test_folds_are_the_same_in_every_container(few):
    """The orders of these differ."""
    fold = Fold(number=0, of=3, stratify=True)
    inside = []
    for name in ("images", "tar", "beton"):
        dataset = open_dataset(few / name)
        chosen = np.flatnonzero(folds.held_out(dataset, few / name, fold))
        inside.append({Path(dataset.sample_key(index)).name for index in chosen.tolist()})
        dataset.close()
    assert inside[0] == inside[1] == inside[2] and len(inside[0]) == 4


@pytest.mark.parametrize("name", ["tar", "beton"])
def test_notes_are_read_from_both_containers(few, name):
    dataset = open_dataset(few / name)
    keys = folds.group_keys(dataset, few, "path", drawn(12))
    assert len(set(keys.tolist())) == 12 and not set(keys.tolist()) & set(drawn(12).tolist())
    dataset.close()


def test_eval_takes_the_fold_that_training_held_out(few, cli, fast):
    flags = ("--fold", "1/3", "--stratify", "-o", few / "runs", "--name", "run")
    ran = cli("train", few / "tar", *fast, *flags)
    assert ran.code == 0, ran.err
    assert "4 images (fold 1 of 3, stratified, 33% of the 12 images of train)" in ran.out
    found = json.loads(cli("eval", few / "runs/run", few / "tar", "--json").out)
    assert found["images"] == 4 and found["trained_on"] is False
    assert found["part"] == "33% of the 12 images of train, held out of training by fold 1 of 3, stratified"
    whole = json.loads(cli("eval", few / "runs/run", few / "tar", "--split", "train", "--json").out)
    assert whole["warning"].startswith("8 of these 12 images were trained on")
    (own,) = read_card(find(few / "runs/run")).trained_on
    assert own.fold == parse("1/3", stratify=True)


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--fold", "0/20"), 1, "12 different images are too few for 20 folds; give as many folds or fewer"),
        (("--fold", "3/3"), 2, "--fold 3/3: the folds are 0/3 to 2/3; give one of them"),
        (("--group", "path"), 2, "--group has no effect without --fold"),
        (("--fold", "0/3", "--val-fraction", "0.5"), 2, "--fold has no effect with --val-fraction"),
        (("--fold", "0/3", "--group", "patient"), 1, "--group patient: no sample has a value in such a column"),
    ],
)
def test_folds_that_cannot_be(few, cli, fast, flags, code, message):
    ran = cli("train", few / "tar", *fast, *flags, "-o", few / "runs")
    assert ran.code == code and message in ran.err
    assert not (few / "runs").exists()
