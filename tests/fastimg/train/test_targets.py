"""Runs on data with several targets, some of them missing: everything that works for a class works for them."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fastimg import api
from fastimg.cli import run
from fastimg.config import yaml_file as configfile
from fastimg.config.commands import Train
from fastimg.config.recipes import RECIPES
from fastimg.loaders.containers.targets import TargetColumn
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.train.checkpoints import run_directory as rundir
from fastimg.train.checkpoints.format import load_model, load_training
from fastimg.train.choices import learning_rate
from fastimg.wording import legible

from .test_resume import Killed, assert_same, at_step, kill, outcome

THREE = ("--bce-pos-weight", "balanced", "--log-interval", "1", "--lr", "1e-2")
TAGS = ("cold", "warm, hot", "odd")


def columns(dataset: FilesDataset) -> tuple[TargetColumn, ...]:
    """A colour, tags and a number that follow from the class folder; every sixth sample lacks one of them."""
    labels = dataset.labels
    place = np.arange(len(labels))
    colour = TargetColumn.of_classes(np.where(place % 6 == 1, -1, labels), dataset.classes, "colour")
    of_class = ([0], [], [1, 2])
    tags = [None if i % 6 == 2 else of_class[label] for i, label in enumerate(labels.tolist())]
    wave = np.where(place % 6 == 3, np.nan, 450.0 + 80.0 * labels)
    return (
        colour,
        TargetColumn.of_labels(tags, TAGS, "tags"),
        TargetColumn.of_numbers(wave, "wave"),
    )


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`declared(make)`: class folders are data whose targets `make` gives."""

    def declare(make: Callable[[FilesDataset], tuple[TargetColumn, ...]]) -> None:
        monkeypatch.setattr(FilesDataset, "targets", property(make))

    return declare


@pytest.fixture
def train(trained: Any, fast: tuple[str, ...], cli: Any, tmp_path: Path, declared: Callable[..., None]) -> Any:
    """`train(flag, ..., name="run", targets=columns)`: train on the folder with these targets."""

    def call(*flags: object, name: str = "run", targets: Any = columns, code: int = 0) -> Any:
        declared(targets)
        ran = cli("train", trained.images, *fast, "--no-aug", "-o", tmp_path, "--name", name, *flags)
        assert ran.code == code, ran.err
        if code:
            assert not (tmp_path / name).exists(), "nothing is written before a refusal"
        return ran

    return call


def card(run: Path, which: str = "last") -> dict[str, Any]:
    with safe_open(run / which / "model.safetensors", framework="pt") as file:
        stated: dict[str, Any] = json.loads(file.metadata()["fastimg"])
    return stated


def validations(run: Path) -> list[dict[str, Any]]:
    return [record for record in rundir.read_log(run) if record["kind"] == "val"]


def test_three_targets_are_learned_together(train: Any, tmp_path: Path) -> None:
    ran = train(*THREE, "--epochs", "20", "--val-interval", "20", "--smoothing", "0", "--metric", "wave.mae")
    last = validations(tmp_path / "run")[-1]
    assert last["colour.top1"] == 1.0 and last["tags.map"] == 1.0 and last["tags.f1"] == 1.0
    assert last["wave.mae"] < 25 and last["wave.r2"] > 0.8
    assert last["samples"] == 12
    stated = card(tmp_path / "run", "best")
    assert [each["name"] for each in stated["targets"]] == ["colour", "tags", "wave"]
    assert stated["num_classes"] == 3 + 3 + 1 and stated["classes"] == ["blue", "green", "red"]
    assert [each["outputs"] for each in stated["targets"]] == [3, 3, 1]
    numbers = np.array([450.0 + 80.0 * (i // 8) for i in range(24) if i % 6 != 3])
    assert (stated["targets"][2]["mean"], stated["targets"][2]["std"]) == (numbers.mean(), numbers.std())
    assert len(stated["targets"][1]["thresholds"]) == 3
    assert "colour: cross-entropy, label smoothing 0; tags: binary cross-entropy of each label, where it" in ran.out
    assert "wave: smooth L1 of (x - " in ran.out
    assert "best by wave.mae" in ran.out and "colour.top1 100.00%" in ran.out and "wave.r2 " in ran.out


@pytest.mark.parametrize(
    "flags",
    [
        ("--target-weights", "uncertainty", "--model-ema", "--grad-accum-steps", "2", "-b", "4"),
        ("--target-weights", "tags=0.1,wave=2", "--freeze", "backbone"),
    ],
    ids=["uncertainty, average, accumulation", "weights, kept embeddings"],
)
def test_a_killed_run_goes_on_to_the_same_bits(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    several = (*THREE, "--epochs", "2", "--save-interval", "1", *flags)
    train(*several, name="whole")
    at_step(monkeypatch, 2, kill)
    with pytest.raises(Killed):
        train(*several, name="half")
    train(*several, "--resume", "auto", name="half")
    (weights, optimizer, records), (weights2, optimizer2, records2) = (
        outcome(tmp_path / name) for name in ("whole", "half")
    )
    assert weights.keys() == weights2.keys() and all(torch.equal(weights[name], weights2[name]) for name in weights)
    moments, moments2 = (list(states["state"].values()) for states in (optimizer, optimizer2))
    assert [list(map(str, state.values())) for state in moments] == [
        list(map(str, state.values())) for state in moments2
    ]
    kept, kept2 = ([record for record in each if record["kind"] != "cache"] for each in (records, records2))
    assert kept == kept2
    one, two = (torch.load(tmp_path / name / "last/training.pt", weights_only=True) for name in ("whole", "half"))
    assert torch.equal(one["meter"], two["meter"])
    assert (one["best"], one["thresholds"]) == (two["best"], two["thresholds"])
    if "uncertainty" in flags:
        assert torch.equal(one["log_variances"], two["log_variances"])
        assert (one["log_variances"] != 0).all()
    own, other = card(tmp_path / "whole"), card(tmp_path / "half")
    assert own["targets"] == other["targets"]


def test_the_search_for_a_rate_is_undone(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run equals one with the rate that was found, learned weights of targets included."""
    monkeypatch.setattr(learning_rate, "PER_DECADE", 4)
    monkeypatch.setattr(learning_rate, "plot_range_test", lambda *_: None)
    flags = ("--bce-pos-weight", "balanced", "--target-weights", "uncertainty")
    train(*flags, "--lr", "find", name="found")
    train(*flags, "--lr", str(configfile.load(tmp_path / "found/config.yaml", Train).lr), name="given")
    (one, _, found), (two, _, given) = (outcome(tmp_path / name) for name in ("found", "given"))
    assert found[1:] == given and found[0]["kind"] == "lr_find"
    assert all(torch.equal(one[name], two[name]) for name in one)
    variances = [load_training((tmp_path / name / "last").resolve())["log_variances"] for name in ("found", "given")]
    assert torch.equal(*variances)


def test_one_class_of_several_targets_trains_as_a_class_does(train: Any, tmp_path: Path) -> None:
    """The same bits as on data that has nothing but this class; only the checkpoint names the target."""

    def also(dataset: FilesDataset) -> tuple[TargetColumn, ...]:
        return (*columns(dataset)[1:], TargetColumn.of_classes(dataset.labels, dataset.classes, "colour"))

    ran = train("--targets", "colour", name="one", targets=also)
    train(name="alone", targets=lambda d: (TargetColumn.of_classes(d.labels, d.classes),))
    assert_same(tmp_path / "one", tmp_path / "alone")
    assert "top1" in validations(tmp_path / "one")[0] and "best validation  top-1" in ran.out
    own, alone = card(tmp_path / "one"), card(tmp_path / "alone")
    assert [each["name"] for each in own["targets"]] == ["colour"] and "targets" not in alone


def test_resident_images_keep_their_targets(train: Any, tmp_path: Path) -> None:
    """Of a held-out part too, whose images are kept under other numbers than their ids."""
    flags = ("--fold", "1/3", "--stratify", "--log-interval", "1", "--metric", "wave.mae")
    for name, more in (("disk", ()), ("kept", ("--resident",))):
        train(*flags, *more, name=name)
    assert_same(tmp_path / "disk", tmp_path / "kept")
    assert validations(tmp_path / "disk") == validations(tmp_path / "kept")


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_every_recipe_takes_several_targets(recipe: str, declared: Any, trained: Any, cli: Any, tmp_path: Path) -> None:
    """With a smaller model that begins with random weights, and smaller crops."""
    declared(columns)
    arch = {"finetune-vit": "test_vit", "cifar-fast": "fastimg/airnet"}.get(recipe, "test_resnet")
    small = ("--arch", arch, "--img-size", "32", "-b", "8", "--epochs", "1", "--workers", "1", "--no-amp")
    if recipe.startswith("finetune"):
        small += ("--no-pretrained",)
    if arch == "fastimg/airnet":
        small += ("--model-kwargs", "width=4")
    ran = cli("train", trained.images, "--recipe", recipe, *small, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    assert "colour.top1" in validations(tmp_path / "run")[-1]


def test_what_a_recipe_smooths_is_dropped_without_a_class(train: Any, tmp_path: Path) -> None:
    flags = ("--targets", "wave", "--recipe", "cifar-fast", "--arch", "test_resnet")
    train(*flags)
    assert configfile.load(tmp_path / "run/config.yaml", Train).smoothing == Train().smoothing
    train(*flags, "--resume", "auto")
    train("--targets", "wave", "--recipe", "cifar-fast", "--smoothing", "0.3", name="other", code=2)


def test_a_class_that_is_missing_for_some_samples(train: Any, tmp_path: Path) -> None:
    train("--targets", "colour", "--metric", "colour.top1")
    assert validations(tmp_path / "run")[0]["samples"] == 10  # two of twelve have no colour


def test_a_declared_label_alone_may_be_missing(trained: Any, fast: Any, cli: Any, tmp_path: Path) -> None:
    """`--target label` is a target that samples may lack."""
    rows = ["path,split,label"]
    for path in sorted(trained.images.glob("*/*/*")):
        rows.append(f"{path},{path.parts[-3]},{'' if path.stem == '1' else path.parts[-2]}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    assert cli("convert", tmp_path / "t.csv", tmp_path / "D", "--target", "label").code == 0
    flags = (*fast, "--no-aug", "-o", tmp_path, "--log-interval", "1")
    for name in ("one", "two"):
        assert cli("train", tmp_path / "D", *flags, "--name", name).code == 0
    assert validations(tmp_path / "one")[0]["samples"] == 9
    told = json.loads(cli("eval", tmp_path / "one", tmp_path / "D", "--json", "--no-amp", "-j", "1").out)
    assert told["present"] == {"label": 9} and told["targets"]["label"]["loss"] == pytest.approx(
        validations(tmp_path / "one")[0]["loss"], rel=1e-4
    )
    both = json.loads(cli("eval", tmp_path / "one", tmp_path / "two", tmp_path / "D", "--json", "-j", "1").out)
    assert both["ensemble"]["images"] == 9


def test_classes_and_labels_are_mixed(declared: Any, tmp_path: Path, cli: Any, trained: Any, fast: Any) -> None:
    declared(columns)
    flags = ("--targets", "tags,colour", "--cutmix", "1", "--mixup", "1", "--log-interval", "9", "-o", tmp_path)
    ran = cli("train", trained.images, *fast, *flags, "--name", "mixed")
    assert ran.code == 0, ran.err
    (told,) = [record for record in rundir.read_log(tmp_path / "mixed") if record["kind"] == "train"]
    assert told["samples"] == 24 and told["loss"] == pytest.approx(
        sum(told[f"{name}.loss"] for name in ("tags", "colour")), rel=0.5
    )


def constant(kind: str) -> Callable[[FilesDataset], tuple[TargetColumn, ...]]:
    """Targets of which one has nothing to learn."""

    def make(dataset: FilesDataset) -> tuple[TargetColumn, ...]:
        count = len(dataset)
        last = {
            "missing": lambda: TargetColumn.of_numbers(np.full(count, np.nan), "age"),
            "number": lambda: TargetColumn.of_numbers(np.full(count, 7.0), "age"),
            "labels": lambda: TargetColumn.of_labels([[1]] * count, TAGS, "age"),
            "class": lambda: TargetColumn.of_classes(np.full(count, 1), dataset.classes, "age"),
        }[kind]()
        return (*columns(dataset), last)

    return make


@pytest.mark.parametrize(
    ("flags", "targets", "message"),
    [
        (("--targets", "colour,wve"), columns, "has no target 'wve', but colour, tags, wave; did you mean wave?"),
        (("--targets", "tags,tags"), columns, "--targets tags,tags: names 'tags' twice; name it once"),
        (("--target-weights", "age=1"), columns, "there is no target 'age', but colour, tags, wave"),
        (("--target-weights", "wave=0"), columns, "give name=weight pairs, as in colour=1, with weights above 0"),
        (("--target-weights", "1,2"), columns, "give name=weight pairs"),
        (("--targets", "wave", "--target-weights", "wave=1"), columns, "has no effect with a single target"),
        (("--metric", "tags.mae"), columns, "--metric tags.mae: give one of loss, colour.loss"),
        (("--metric", "top1"), columns, "give one of loss, colour.loss, colour.top1, colour.balanced_accuracy, tags."),
        (("--patience", "1", "--patience-metric", "top1"), columns, "--patience-metric top1: there are several"),
        (("--bce-pos-weight", "0"), columns, "--bce-pos-weight 0: give a number above 0, or balanced"),
        (("--targets", "wave", "--bce-pos-weight", "2"), columns, "no target has several labels; leave it out"),
        (("--targets", "wave", "--loss", "focal"), columns, "--loss has no effect: every target is a number"),
        (("--targets", "wave", "--bce-loss"), columns, "--bce-loss has no effect: every target is a number"),
        (("--targets", "wave", "--smoothing", "0"), columns, "--smoothing has no effect: no target is a class; leave"),
        (("--targets", "tags,wave", "--smoothing", "0.2"), columns, "--smoothing has no effect: no target is a class"),
        (("--num-classes", "9"), columns, "--num-classes 9: goes with a class alone"),
        ((), constant("missing"), "the target age is missing for every image of the training split"),
        ((), constant("number"), "the target age is 7 for every image of the training split"),
        ((), constant("labels"), "the target age has the same labels for every image of the training split"),
        ((), constant("class"), "the target age is 'green' for every image of the training split"),
    ],
)
def test_what_cannot_be_is_one_sentence(train: Any, flags: tuple[str, ...], targets: Any, message: str) -> None:
    ran = train(*flags, targets=targets, code=2 if flags else 1)
    assert message in ran.err and ran.err.count("\n") == 1


def test_numbers_are_not_mixed(train: Any, declared: Any, cli: Any, trained: Any, fast: Any) -> None:
    declared(columns)
    ran = cli("train", trained.images, *fast, "--mixup", "0.2")
    assert ran.code == 2 and "--mixup: mixes targets, and wave is a number" in ran.err


def test_other_targets_are_not_resumed(train: Any, tmp_path: Path) -> None:
    train("--targets", "tags,wave")

    def others(dataset: FilesDataset) -> tuple[TargetColumn, ...]:
        colour, tags, wave = columns(dataset)
        return colour, tags, TargetColumn.of_numbers(wave.values + 1, "wave")

    flags = ("--targets", "tags,wave", "--resume", "auto")
    with pytest.raises(AssertionError, match="has other values of the target wave than"):
        train(*flags, targets=others)


@pytest.fixture(scope="module")
def learned(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three targets. Do not change it."""
    output = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FilesDataset, "targets", property(columns))
        flags = ["--arch", "test_resnet", "--img-size", "32", "-b", "8", "--workers", "1", "--no-amp", "--no-aug"]
        schedule = ["--epochs", "3", "--lr", "1e-2", "--val-interval", "3"]
        assert run(["train", str(trained.images), *flags, *schedule, "-o", str(output), "--name", "run"]) == 0
    return output / "run"


def test_eval_tells_what_the_last_validation_told(
    learned: Path, trained: Any, declared: Any, cli: Any, cache: Any
) -> None:
    declared(columns)
    ran = cli("eval", learned, trained.images, "--split", "val", "--json", "-b", "5", "--workers", "1", "--no-amp")
    told = json.loads(ran.out)
    (validated,) = validations(learned)
    for name, scores in told["targets"].items():
        for metric, value in scores.items():
            assert value == pytest.approx(validated[f"{name}.{metric}"], rel=1e-4), (name, metric)
    assert told["present"] == {"colour": 10, "tags": 10, "wave": 10} and told["images"] == 12
    assert told["thresholds"]["tags"] == card(learned, "best")["targets"][1]["thresholds"]
    ran = cli("eval", learned, trained.images, "--split", "val", "--workers", "1", "--no-amp")
    assert "colour" in ran.out and "mae" in ran.out and "balanced_accuracy" in ran.out
    ran = cli("eval", learned, trained.images, "--split", "val", "--output", "plotted.png")
    assert (
        ran.code == 2
        and "--output has no effect: a confusion matrix shows one class, which all samples have" in ran.err
    )
    url = f"file://{trained.images}"
    ran = cli("eval", learned, url, "--split", "val", "--json", "--workers", "1", "--no-amp", *cache)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == told | {"data": url, "targets": json.loads(ran.out)["targets"]}
    declared(lambda dataset: columns(dataset)[1:])
    ran = cli("eval", learned, trained.images, "--split", "val")
    assert ran.code == 1 and "has no target colour, which" in ran.err


def test_targets_with_some_of_the_classes_are_evaluated_by_name(
    learned: Path, trained: Any, declared: Any, cli: Any
) -> None:
    """In another order, beside a class without samples: the scores are those of the same samples with all classes."""

    def of(names: tuple[str, ...], labels: tuple[str, ...]) -> Callable[[FilesDataset], tuple[TargetColumn, ...]]:
        def make(dataset: FilesDataset) -> tuple[TargetColumn, ...]:
            colours = np.array([-1, names.index("green"), names.index("red")])[dataset.labels]
            warm = [labels.index("warm, hot")]
            tags = [[[], None, warm][label] for label in dataset.labels.tolist()]
            wave = columns(dataset)[2]
            return TargetColumn.of_classes(colours, names, "colour"), TargetColumn.of_labels(tags, labels, "tags"), wave

        return make

    flags = (learned, trained.images, "--split", "val", "--workers", "1", "--no-amp", "--json")
    declared(of(("blue", "green", "red"), TAGS))
    whole = cli("eval", *flags)
    assert "target colour: no samples of 1 of 3 classes (blue); averages are over the others" in whole.err
    assert "target tags: no samples of 2 of 3 classes (cold, odd)" in whole.err
    declared(of(("red", "unheard", "green"), ("warm, hot", "cold")))
    ran = cli("eval", *flags)
    assert ran.code == 0, ran.err
    assert "target colour: left out, without samples and unknown to the model: unheard" in ran.err
    assert json.loads(ran.out) == json.loads(whole.out)
    others = ("blue", "green", "pink")
    declared(lambda data: (TargetColumn.of_classes(data.labels, others, "colour"), *columns(data)[1:]))
    ran = cli("eval", *flags)
    assert ran.code == 1 and "classes that the model was not trained on: pink (4)" in ran.err


def test_runs_over_folds_are_scored_by_target(
    train: Any, trained: Any, cli: Any, tmp_path: Path, learned: Path
) -> None:
    runs = [tmp_path / name for name in ("one", "two")]
    for number, each in enumerate(runs):
        train("--fold", f"{number}/2", "--stratify", "--seed", number, name=each.name)
    ran = cli("eval", *runs, trained.images, "--json", "--no-amp", "-j", "1")
    told = json.loads(ran.out)
    one, two = told["runs"]
    assert told["out_of_fold"]["images"] == 24 and told["ensemble"] is None
    assert told["out_of_fold"]["present"] == {"colour": 20, "tags": 20, "wave": 20}
    for name in ("colour.top1", "colour.loss", "tags.loss", "wave.mae"):
        of = name.partition(".")[0]
        values, counts = [run[name] for run in (one, two)], [run["present"][of] for run in (one, two)]
        assert told["out_of_fold"][name] == pytest.approx(np.average(values, weights=counts), rel=1e-5), name
        assert told["mean"][name] == pytest.approx(np.mean(values))
        assert told["deviation"][name] == pytest.approx(np.std(values, ddof=1))
    ran = cli("eval", *runs, trained.images, "--no-amp", "-j", "1")
    assert "(train), colour" in ran.out and "out of fold  colour.loss" in ran.out and "mae" in ran.out
    train("--targets", "colour", name="colour")
    ran = cli("eval", learned, tmp_path / "colour", trained.images)
    assert ran.code == 1 and "predicts 3 classes, and the first run 3 targets: colour (3 classes), tags (3" in ran.err


def test_equal_runs_score_as_each_of_them(learned: Path, trained: Any, declared: Any, cli: Any, tmp_path: Path) -> None:
    declared(columns)
    copy = shutil.copytree(learned, tmp_path / "copy", symlinks=True)
    flags = (trained.images, "--split", "val", "--json", "--no-amp", "-j", "1")
    alone = json.loads(cli("eval", learned, *flags).out)
    both = json.loads(cli("eval", learned, copy, *flags).out)
    for name, scores in alone["targets"].items():
        for metric, value in scores.items():
            for told in (*both["runs"], both["ensemble"], both["mean"]):
                assert told[f"{name}.{metric}"] == pytest.approx(value, rel=1e-5), (name, metric)
    assert both["ensemble"]["present"] == alone["present"] and set(both["deviation"].values()) == {0}


def test_predict_answers_for_each_target(learned: Path, trained: Any, cli: Any, tmp_path: Path) -> None:
    files = [trained.images / "val/red/0.jpg", trained.images / "none.jpg"]
    flags = ("--workers", "1", "--no-amp")
    answer, missing = map(json.loads, cli("predict", learned, *files, "--json", *flags).out.splitlines())
    assert missing["targets"] == {} and missing["error"]
    told = answer["targets"]
    assert answer["classes"] == told["colour"]["classes"] and len(answer["classes"]) == 3
    assert sum(told["colour"]["probabilities"]) == pytest.approx(1.0, abs=1e-5)
    assert 300 < told["wave"]["number"] < 800
    everything = json.loads(cli("predict", learned, files[0], "--json", "--threshold", "0", *flags).out)
    shares = dict(
        zip(everything["targets"]["tags"]["labels"], everything["targets"]["tags"]["probabilities"], strict=True)
    )
    assert set(shares) == set(TAGS)
    limits = dict(zip(TAGS, card(learned, "best")["targets"][1]["thresholds"], strict=True))
    assert set(told["tags"]["labels"]) == {name for name in TAGS if shares[name] >= limits[name]}
    cli("predict", learned, *files, "--csv", tmp_path / "t.csv", *flags)
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["file", "error", "colour", "colour_probability", "tags", "wave"]
    assert json.loads(rows[1][4]) == told["tags"]["labels"] and float(rows[1][5]) == told["wave"]["number"]
    assert rows[2][2:] == [""] * 4
    assert "colour: " in cli("predict", learned, files[0], *flags).out


def test_a_class_alone_has_no_threshold(trained: Any, cli: Any) -> None:
    ran = cli("predict", trained.run, trained.images / "val", "--threshold", "0.3")
    assert ran.code == 2 and "--threshold has no effect: the model has no target of several labels" in ran.err


@pytest.mark.parametrize("form", ["pt2", "onnx", "safetensors"])
def test_an_exported_file_has_an_output_for_each_target(
    learned: Path, cli: Any, tmp_path: Path, trained: Any, form: str
) -> None:
    file = tmp_path / f"x.{form}"
    ran = cli("export", learned, "-o", file, "--check", "--check-data", trained.images / "val", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["check"]["agrees"] and [each["name"] for each in told["targets"]] == ["colour", "tags", "wave"]
    if form == "pt2":
        images = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
        with torch.no_grad():
            outputs = torch.export.load(file).module()(images)
        assert [tuple(each.shape) for each in outputs] == [(3, 3), (3, 3), (3, 1)]
        assert 300 < outputs[2][0].item() < 800  # a number in its own units
    if form == "onnx":
        import onnx

        assert [each.name for each in onnx.load(file).graph.output] == ["colour", "tags", "wave"]


def test_large_numbers_keep_their_digits(train: Any, trained: Any, cli: Any, tmp_path: Path) -> None:
    """Unix times some minutes apart, and a northing with a fraction: predicted, written and exported in float64."""

    def large(dataset: FilesDataset) -> tuple[TargetColumn, ...]:
        times = TargetColumn.of_numbers(1.7e9 + 100.5 * dataset.labels, "time")
        return times, TargetColumn.of_numbers(5_400_000.25 + 0.5 * dataset.labels, "north")

    ran = train("--lr", "1e-2", name="large", targets=large)
    assert "(x - 1700000100.5) / 82.05" in ran.out and "(x - 5400000.75) / 0.408" in ran.out
    path, file = tmp_path / "large", trained.images / "val/red/0.jpg"
    (answer,) = api.predict(path, [file], workers=1, amp=False)
    found = {name: told["number"] for name, told in (answer.targets or {}).items()}
    stated = {each["name"]: each for each in card(path, "best")["targets"]}
    model, _ = load_model(path)
    with torch.no_grad():
        (logits,) = model.module(api.load(path, workers=1).inputs([file]))
    for place, name in enumerate(("time", "north")):
        exact = float(logits[place]) * stated[name]["std"] + stated[name]["mean"]
        assert found[name] == pytest.approx(exact, rel=0, abs=1e-5 * stated[name]["std"])
    told = json.loads(cli("predict", path, file, "--json", "-j", "1", "--no-amp").out)
    assert {name: each["number"] for name, each in told["targets"].items()} == found
    cli("predict", path, file, "--csv", tmp_path / "t.csv", "-j", "1", "--no-amp")
    rows = list(csv.reader((tmp_path / "t.csv").read_text().splitlines()))
    assert dict(zip(rows[0][2:], map(float, rows[1][2:]), strict=True)) == found
    table = cli("predict", path, file, "-j", "1", "--no-amp").out
    assert f"time: {legible(found['time'])}; north: {legible(found['north'])}" in table and "e+" not in table

    for form in ("pt2", "onnx"):
        ran = cli("export", path, "-o", tmp_path / f"x.{form}", "--check", "--check-data", trained.images / "val")
        assert ran.code == 0 and "time float64 [batch, 1] (in its own units)" in ran.out, ran.out
        assert "agrees with predict on 12 images" in ran.out and "numbers differ by at most" in ran.out
        assert "probabilities" not in ran.out and "likeliest" not in ran.out


def test_weights_of_other_targets_lend_what_is_the_same(learned: Path, train: Any) -> None:
    ran = train("--weights", learned, "--targets", "wave,tags")
    assert "4 of 4 rows of the classifier kept by name; 3 rows of the file left out" in ran.out
    assert "its classifier kept" in ran.out
    ran = train("--weights", learned, name="same")
    assert "its classifier kept" in ran.out


@pytest.mark.slow
def test_two_ranks_are_one(trained: Any, two_ranks: Any, cli: Any, tmp_path: Path) -> None:
    """Of converted data, with learned variances and samples that are drawn several times: the same draws, validation,
    thresholds and weights, up to rounding."""
    rows = ["path,split,colour,tags,wave"]
    for i in range(24):
        name = ("blue", "green", "red")[i % 3]
        split, place = ("val", i // 3 - 4) if i >= 12 else ("train", i // 3)
        cells = ("" if i % 6 == 1 else name, ("cold", "cold|calm", "")[i % 3], "" if i % 6 == 3 else 400 + 80 * (i % 3))
        file = f"{split}/{name}/{place}.{'png' if place % 2 else 'jpg'}"
        rows.append(",".join([str(trained.images / file), split, *map(str, cells)]))
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    targets = ("--target", "colour", "--target", "tags:multilabel", "--target", "wave:number")
    assert cli("convert", tmp_path / "t.csv", tmp_path / "D", *targets).code == 0
    flags = ("--arch", "test_vit", "--img-size", "32", "--workers", "1", "--no-amp", "--lr", "1e-3", "-o", tmp_path)
    steps = ("--epochs", "2", "--log-interval", "1", "--target-weights", "uncertainty", "--sampler", "sqrt")
    steps += ("--clip-grad", "1")
    command = ("train", tmp_path / "D", *flags, *steps)
    assert cli(*command, "-b", "6", "--name", "one").code == 0
    shards = (*command, "-b", "3", "--strategy", "fsdp", "--name", "shards")
    two_ranks((*command, "-b", "3", "--name", "two"), shards)
    one = torch.load(tmp_path / "one/last/training.pt", weights_only=True)
    assert (one["log_variances"] != 0).all()
    for name in ("two", "shards"):
        for mine, other in zip(validations(tmp_path / "one"), validations(tmp_path / name), strict=True):
            assert {**mine, "kind": 0} == pytest.approx({**other, "kind": 0}, rel=1e-3)
        two = torch.load(tmp_path / name / "last/training.pt", weights_only=True)
        torch.testing.assert_close(one["log_variances"], two["log_variances"], rtol=1e-3, atol=1e-5)
        assert one["thresholds"]["tags"] == pytest.approx(two["thresholds"]["tags"], rel=1e-3)
