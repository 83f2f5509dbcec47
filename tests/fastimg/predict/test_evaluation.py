"""`fastimg eval`: its results, compared with an independent computation."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import fastimg
from fastimg.cli import run
from fastimg.data.datasets import open_parts
from fastimg.data.provenance import record, select
from fastimg.loaders import open_dataset
from fastimg.models import precision as precisions
from fastimg.models.registry import Preprocessing
from fastimg.predict import evaluation
from fastimg.train.checkpoints.format import find, load_model, read_card, trained_before

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def told_of(cli, *arguments):
    ran = cli("eval", *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


@pytest.fixture
def plot(tmp_path):
    return tmp_path / "plot.png"


def test_numbers_are_those_of_the_predictions(trained, plot, cli):
    """Top-1, loss, precision, recall and confusion from the probabilities that `predict` gives for the same files."""
    told = told_of(cli, trained.run, trained.images, "--output", plot, "--overwrite", "--no-amp", "-b", "5")
    files = sorted((trained.images / "val").glob("*/*"))
    ran = cli("predict", trained.run, *files, "--json", "--no-amp", "-b", "7")
    answers = [json.loads(line) for line in ran.out.splitlines()]
    names = ["blue", "green", "red"]
    matrix, losses = np.zeros((3, 3), int), []
    for file, answer in zip(files, answers, strict=True):
        assert answer["file"] == str(file)
        matrix[names.index(file.parent.name), names.index(answer["classes"][0])] += 1
        losses.append(-np.log(answer["probabilities"][answer["classes"].index(file.parent.name)]))
    assert told["confusion"] == matrix.tolist() and told["images"] == 12 == matrix.sum()
    assert told["top1"] == pytest.approx(np.trace(matrix) / 12) and told["top5"] is None
    assert told["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    right, predicted, true = np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
    for at, score in enumerate(told["classes"]):
        assert (score["name"], score["images"]) == (names[at], true[at])
        assert score["precision"] == pytest.approx(right[at] / max(predicted[at], 1))
        assert score["recall"] == pytest.approx(right[at] / true[at])


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])])
def test_places_are_those_of_a_stable_sort(classes, device):
    """Of logits, mainly with ties: of two equally likely classes, the lower index comes first."""
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randint(0, 4, (300, classes), generator=generator).float()  # hundreds of samples per value
    logits[0] = 0.0
    logits[1] = float("nan")
    logits[2:100] += torch.randn(98, classes, generator=generator)
    targets = torch.randint(0, classes, (300,), generator=generator)
    targets[0] = classes - 1
    probabilities = logits.softmax(dim=1)
    ranked = np.argsort(-probabilities.numpy(), axis=1, kind="stable")
    batch = SimpleNamespace(weight=torch.ones(300), targets=targets.to(device))
    scored = evaluation._scored(batch, probabilities.to(device))
    _, _, first, confidence, place, share = (t.cpu().numpy() for t in scored)
    np.testing.assert_array_equal(confidence, probabilities.numpy()[np.arange(300), first])
    assert first.tolist() == ranked[:, 0].tolist()
    assert place.tolist() == (ranked == targets.numpy()[:, None]).argmax(axis=1).tolist()
    expected = probabilities.numpy()[np.arange(300), targets.numpy()]
    np.testing.assert_array_equal(share, expected)


def test_shards_and_folder_give_the_same_results(trained, plot, cli):
    folder = told_of(cli, trained.run, trained.images, "--output", plot, "--overwrite")
    shards = told_of(cli, trained.run, trained.shards, "--output", plot, "--overwrite")
    for name in ("split", "images", "unreadable", "top1", "classes", "confusion"):
        assert folder[name] == shards[name]
    assert folder["loss"] == pytest.approx(shards["loss"], rel=1e-6)


def test_it_is_what_training_validated(trained, plot, cli):
    """The numbers of the best checkpoint in the training's log."""
    told = told_of(cli, trained.run, trained.images, "--output", plot, "--overwrite", "--no-amp")
    log = [json.loads(line) for line in (trained.run / "metrics.jsonl").read_text().splitlines()]
    best = max((record for record in log if record["kind"] == "val"), key=lambda record: record["top1"])
    assert (told["top1"], told["loss"]) == (pytest.approx(best["top1"]), pytest.approx(best["loss"], rel=1e-4))


@pytest.mark.parametrize(("split", "images"), [("train", 24), ("val", 12)])
def test_splits(split, images, trained, plot, cli):
    told = told_of(cli, trained.run, trained.images, "--split", split, "--output", plot, "--overwrite")
    assert (told["split"], told["images"]) == (split, images)


def test_the_picture(trained, tmp_path, cli):
    run = shutil.copytree(trained.run, tmp_path / "run", symlinks=True)
    told = told_of(cli, run, trained.images)
    assert told["plot"] == str(run / "best" / "confusion-val.png")
    with Image.open(told["plot"]) as image:
        image.load()
    assert np.asarray(image.convert("RGB")).std() > 0


def test_omissions_of_the_picture_are_reported(trained, plot, cli, monkeypatch):
    monkeypatch.setattr("fastimg.train.reporting.confusion.WHOLE", 2)
    monkeypatch.setattr("fastimg.train.reporting.confusion.NAMED", 2)
    ran = cli("eval", trained.run, trained.images, "--output", plot, "--overwrite", "--json")
    assert len(json.loads(ran.out)["confusion"]) == 3
    assert f"{plot}: the picture shows the 2 most confused of 3 classes; --json has all of them\n" in ran.err


def test_a_folder_with_some_of_the_classes_is_evaluated_on_these(trained, plot, tmp_path, cli):
    """Without a class folder, with an empty one, and as the only split: labels are found by name."""
    whole = json.loads(cli("eval", trained.run, trained.images, "--output", plot, "--overwrite", "--json").out)
    recall = {each["name"]: each["recall"] for each in whole["classes"]}
    shutil.copytree(trained.images / "val", tmp_path / "some")
    shutil.rmtree(tmp_path / "some/blue")
    shutil.copytree(tmp_path / "some", tmp_path / "empty")
    for name in ("blue", "unheard"):
        (tmp_path / "empty" / name).mkdir()
    shutil.copytree(tmp_path / "some", tmp_path / "alone/val")
    for folder in ("some", "empty", "alone"):
        ran = cli("eval", trained.run, tmp_path / folder, "--output", plot, "--overwrite", "--json")
        assert ran.code == 0, ran.err
        told = json.loads(ran.out)
        assert f"{tmp_path / folder}: no samples of 1 of 3 classes (blue); averages are over the others" in ran.err
        assert ("without samples and unknown to the model: unheard" in ran.err) == (folder == "empty")
        assert {each["name"]: each["images"] for each in told["classes"]} == {"blue": 0, "green": 4, "red": 4}
        assert told["balanced_accuracy"] == pytest.approx((recall["green"] + recall["red"]) / 2)
        assert told["confusion"][1:] == whole["confusion"][1:] and sum(told["confusion"][0]) == 0
    shutil.copytree(trained.run, tmp_path / "again", symlinks=True)
    both = cli("eval", trained.run, tmp_path / "again", tmp_path / "empty", "--json")
    assert both.code == 0 and "no samples of 1 of 3 classes (blue)" in both.err, both.err
    assert json.loads(both.out)["ensemble"]["top1"] == pytest.approx(told["top1"])
    table = cli("eval", trained.run, tmp_path / "some", "--output", plot, "--overwrite")
    assert [line for line in table.out.splitlines() if "blue" in line and " - " in line]


def test_the_training_split_may_have_none_of_a_class_only_where_nothing_is_trained(trained, tmp_path, fast, cli):
    shutil.copytree(trained.images, tmp_path / "data")
    (tmp_path / "data/train/unheard").mkdir()
    assert "the class is empty" in cli("train", tmp_path / "data", *fast).err


def test_the_runs_own_pictures_are_renewed_and_named(trained, tmp_path, cli):
    run = shutil.copytree(trained.run, tmp_path / "a-run", symlinks=True)
    folder = (run / "best").resolve()
    (folder / "mistakes-val.csv").touch()
    ran = cli("eval", run, trained.images)
    assert ran.code == 0 and "renewed     mistakes-val.csv in " in ran.err
    ran = cli("eval", run, trained.images)
    assert "renewed     confusion-val.png, mistakes-val.csv, mistakes-val.png in " in ran.err


def test_words(trained, plot, cli):
    ran = cli("eval", trained.run, trained.images, "--output", plot, "--overwrite")
    assert ran.code == 0 and ran.err == ""
    assert all(word in ran.out for word in ("blue", "green", "red", "precision", "recall", "top-1", str(plot)))
    assert "top-5" not in ran.out and "decoded" not in ran.out


def test_ten_classes_have_a_top5(tmp_path, encode, fast, cli):
    for label in range(10):
        for split in ("train", "val"):
            folder = tmp_path / "d" / split / f"c{label}"
            folder.mkdir(parents=True)
            (folder / "0.png").write_bytes(encode((25 * label, 99, 99), seed=label, kind="PNG"))
    assert cli("train", tmp_path / "d", *fast, "-o", tmp_path, "--name", "run").code == 0
    told = told_of(cli, tmp_path / "run", tmp_path / "d", "--no-amp")
    files = sorted((tmp_path / "d" / "val").glob("*/*"))
    ran = cli("predict", tmp_path / "run", *files, "--json", "--topk", "5", "--no-amp")
    found = [
        file.parent.name in json.loads(line)["classes"] for file, line in zip(files, ran.out.splitlines(), strict=True)
    ]
    assert told["top5"] == pytest.approx(np.mean(found)) and 0 <= told["top1"] <= told["top5"] < 1
    assert "top-5" in cli("eval", tmp_path / "run", tmp_path / "d").out


def test_preprocessing_is_the_checkpoints(trained, tmp_path, fast, cli):
    """The evaluation uses the model's image size and normalisation."""
    sizes = (
        "--val-crop-size",
        "40",
        "--val-resize-size",
        "48",
        "--mean",
        "0.1",
        "0.2",
        "0.3",
        "--interpolation",
        "bicubic",
    )
    assert cli("train", trained.images, *fast, *sizes, "-o", tmp_path, "--name", "run").code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    log = [record for record in records if record["kind"] == "val"]
    told = told_of(cli, tmp_path / "run", trained.images, "--no-amp")
    assert told["loss"] == pytest.approx(log[-1]["loss"], rel=1e-4)
    assert read_card(find(tmp_path / "run")).preprocessing == Preprocessing(
        train_size=32, val_size=40, val_resize=48, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5)
    )


def test_balanced_accuracy_and_classes_that_are_never_found(trained, tmp_path, plot, cli):
    """A class without images has no recall; a class whose images are all misclassified has 0."""
    data = shutil.copytree(trained.images, tmp_path / "d")
    (data / "val/green").rename(data / "val/kept")
    for file in (data / "val/kept").iterdir():
        file.rename(data / "val/red" / f"green-{file.name}")  # classified as red; at most half of them are
    for file in (data / "val/blue").iterdir():
        shutil.copy(trained.images / "val/green" / file.name, file)
    (data / "val/kept").rmdir()
    told = told_of(cli, trained.run, data, "--output", plot, "--overwrite", "--no-amp")
    recalls = [score["recall"] for score in told["classes"] if score["images"]]
    assert len(recalls) == 2 and told["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert told["balanced_accuracy"] != pytest.approx(told["top1"])
    assert told["zero_recall"] == ["blue"] and told["classes"][0]["recall"] == 0
    ran = cli("eval", trained.run, data, "--output", plot, "--overwrite", "--no-amp")
    assert f"balanced accuracy {told['balanced_accuracy']:.2%}" in ran.out
    assert "1 class has a recall of 0: blue\n" in ran.out


@pytest.fixture(scope="module")
def unsplit(write_images, tmp_path_factory):
    """36 images without a validation split, their shards, and for each a run that held out a sixth."""
    root = tmp_path_factory.mktemp("unsplit")
    write_images(root / "images")
    assert run(["convert", str(root / "images"), str(root / "shards")]) == 0
    flags = ("--arch", "test_resnet", "--img-size", "32", "-b", "30", "-j", "1", "--no-amp", "--epochs", "1")
    for name in ("images", "shards"):
        more = ("--val-fraction", "0.1667", "--seed", "3", "-o", str(root), "--name", f"on-{name}")
        assert run(["train", str(root / name), *flags, *more]) == 0
    return root


@pytest.mark.parametrize("kind", ["images", "shards"])
@pytest.mark.parametrize("way", ["same", "moved", "linked", "from inside"])
def test_held_out_images_are_evaluated(kind, way, unsplit, plot, tmp_path, cli, monkeypatch):
    data = unsplit / kind
    if way == "moved":
        data = shutil.copytree(data, tmp_path / "elsewhere")
    elif way == "linked":
        (tmp_path / "link").symlink_to(data)
        data = tmp_path / "link"
    elif way == "from inside":
        monkeypatch.chdir(data)
        data = Path()
    told = told_of(cli, unsplit / f"on-{kind}", data, "--output", plot, "--overwrite", "--no-amp")
    log = (unsplit / f"on-{kind}/metrics.jsonl").read_text().splitlines()
    (validated,) = (r for r in map(json.loads, log) if r["kind"] == "val")
    assert (told["images"], told["split"]) == (6, "train") == (validated["samples"], "train")
    assert told["top1"] == pytest.approx(validated["top1"]) and told["loss"] == pytest.approx(
        validated["loss"], rel=1e-4
    )
    assert told["balanced_accuracy"] == pytest.approx(validated["balanced_accuracy"])
    assert told["part"] == "17% of the 36 images of train, held out of training by seed 3"
    assert told["trained_on"] is False and told["warning"] is None


def test_a_warning_if_the_training_split_is_chosen(unsplit, trained, plot, cli):
    told = told_of(cli, unsplit / "on-images", unsplit / "images", "--split", "train", "--output", plot, "--overwrite")
    assert (told["images"], told["part"], told["trained_on"]) == (36, "train", True)
    words = "30 of these 36 images were trained on, so the result says little about new images; leave out --split"
    assert told["warning"].startswith(words)
    ran = cli("eval", unsplit / "on-images", unsplit / "images", "--split", "train", "--output", plot, "--overwrite")
    assert f"warning: {words}" in ran.out
    told = told_of(cli, trained.run, trained.images, "--split", "train", "--output", plot, "--overwrite")
    assert told["trained_on"] is True
    assert told["warning"] == "all 24 images were trained on, so the result says little about new images"
    told = told_of(
        cli, trained.run, trained.images / "train", "--output", plot, "--overwrite"
    )  # the same images at another path
    assert told["trained_on"] is True and told["images"] == 24


def test_the_table_names_held_out_images(unsplit, plot, cli):
    ran = cli("eval", unsplit / "on-images", unsplit / "images", "--output", plot, "--overwrite")
    part = "17% of the 36 images of train, held out of training by seed 3"
    assert f"{unsplit / 'images'} ({part}), 6 images\n" in ran.out
    assert "warning" not in ran.out and ran.err == ""


def test_other_data_needs_no_warning(unsplit, plot, write_images, tmp_path, cli):
    """Even if names and labels equal those of training images."""
    other = write_images(tmp_path / "other")
    for file in other.glob("*/*"):
        Image.effect_noise((40, 40), 50).convert("RGB").save(file)
    told = told_of(cli, unsplit / "on-images", other, "--output", plot, "--overwrite")
    assert (told["images"], told["trained_on"], told["warning"]) == (36, False, None)


def test_a_checkpoint_that_does_not_say_is_doubted(unsplit, trained, plot, tmp_path, cli):
    """As in checkpoints from before the record existed."""
    for file, name in ((find(unsplit / "on-images"), "a"), (find(trained.run), "b")):
        with safe_open(file, framework="pt") as handle:
            tensors = {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118
            stated = json.loads(handle.metadata()["fastimg"])
        del stated["trained_on"]
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors", metadata={"fastimg": json.dumps(stated)})
    assert read_card(find(tmp_path / "a")).trained_on is None
    told = told_of(cli, tmp_path / "a", unsplit / "images", "--output", plot, "--overwrite")
    assert (told["images"], told["trained_on"]) == (36, None)
    assert told["warning"].startswith("the checkpoint is from before fastimg recorded what was trained on")
    assert (
        "warning: the checkpoint is from before"
        in cli("eval", tmp_path / "a", unsplit / "images", "--output", plot, "--overwrite").out
    )
    told = told_of(cli, tmp_path / "b", trained.images, "--output", plot, "--overwrite")  # a split for validation
    assert (told["split"], told["images"], told["trained_on"], told["warning"]) == ("val", 12, None, None)


# The tests below call `select`, which evaluates nothing.


def trained_on(data, fraction=None, seed=0, split="train", val_split=None):
    return record(data, *open_parts(data, split, val_split, fraction, seed), split, seed)


def added(folder):
    shutil.copy(next(folder.glob("red/*.jpg")), folder / "red/zz.jpg")


def relabelled(folder):
    next(folder.glob("red/*.jpg")).rename(folder / "blue/zz.jpg")


def renamed(folder):
    sorted(folder.glob("red/*.jpg"))[0].rename(folder / "red/zz.jpg")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (added, "36 images then, 37 now"),
        (relabelled, "the same number of images, but other labels"),
        (renamed, "the same number of images, but other contents or names"),
    ],
)
@pytest.mark.parametrize("split", [None, "train"])
def test_data_that_has_changed_is_noticed(change, words, split, image_folder):
    history = [trained_on(image_folder)]
    change(image_folder)
    found = select(image_folder, split, history)
    assert found.indices is None and found.trained_on is None
    assert f"the train split has changed since the checkpoint was trained on it ({words})" in found.warning
    assert f"some of these {len(found.dataset)} images may have been trained on" in found.warning


def test_shards_that_were_appended_to_have_changed(image_folder, tmp_path, cli):
    assert cli("convert", image_folder, tmp_path / "d").code == 0
    history = [trained_on(tmp_path / "d")]
    for file in image_folder.glob("*/*"):
        file.rename(file.with_name(f"more-{file.name}"))
    assert cli("convert", image_folder, tmp_path / "d", "--append").code == 0
    found = select(tmp_path / "d", None, history)
    assert found.trained_on is None and "36 images then, 72 now" in found.warning


@pytest.mark.parametrize("shards", [False, True])
def test_a_copy_with_further_images_overlaps_the_training_images(shards, image_folder, tmp_path, cli):
    data = tmp_path / "d" if shards else image_folder
    if shards:
        assert cli("convert", image_folder, data).code == 0
    history = [trained_on(data)]
    copy = shutil.copytree(data, tmp_path / "copy")
    for file in image_folder.glob("*/*"):
        file.rename(file.with_name(f"more-{file.name}"))
    if shards:
        assert cli("convert", image_folder, copy, "--append").code == 0
    else:
        shutil.copytree(image_folder, copy, dirs_exist_ok=True)
    found = select(copy, None, history)
    assert len(found.dataset) == 72 and found.trained_on is None
    assert "overlaps the training data (16 of the 16 images that were compared are in both)" in found.warning


def test_images_with_names_that_were_trained_on_are_compared_by_content(image_folder, tmp_path):
    """Cameras number their images from 1 again."""
    history = [trained_on(image_folder)]
    names = [file.relative_to(image_folder) for file in sorted(image_folder.glob("*/*"))]
    others = tmp_path / "others"
    for name, other in zip(names, reversed(names), strict=True):
        (others / name).parent.mkdir(parents=True, exist_ok=True)
        (others / name).write_bytes((image_folder / other).read_bytes() + b"0")
    (others / names[0]).unlink()
    found = select(others, None, history)
    assert (found.trained_on, found.warning) == (False, None)


@pytest.mark.parametrize("shards", [False, True])
def test_data_that_was_split_after_training_has_changed(shards, image_folder, tmp_path, cli):
    """The validation split was used for training."""
    data = tmp_path / "d" if shards else image_folder
    if shards:
        assert cli("convert", image_folder, data).code == 0
    history = [trained_on(data)]
    if shards:
        assert cli("convert", image_folder, data, "--val-fraction", "0.25", "--overwrite").code == 0
    else:
        for split, ending in (("train", "*[0-7].*"), ("val", "*[89].*")):
            for file in list(data.glob(f"[bgr]*/{ending}")):
                (data / split / file.parent.name).mkdir(parents=True, exist_ok=True)
                file.rename(data / split / file.parent.name / file.name)
        for name in ("blue", "green", "red"):
            (data / name).rmdir()
    found = select(data, None, history)
    assert found.split == "val" and found.trained_on is None and "36 images then, " in found.warning


@pytest.mark.parametrize(("trained_kind", "other"), [("images", "shards"), ("shards", "images"), ("shards", "again")])
def test_data_that_was_converted_may_be_what_was_trained_on(trained_kind, other, unsplit, tmp_path, cli):
    """Neither bytes nor order are the same."""
    history = [trained_on(unsplit / trained_kind)]
    data = unsplit / other
    if other == "again":
        data = tmp_path / "d"
        assert cli("convert", unsplit / "images", data, "--seed", "1", "--val-fraction", "0.25").code == 0
    found = select(data, None, history)
    assert found.trained_on is None and found.split == ("val" if other == "again" else "train")
    assert "as many images of every class as the training data" in found.warning


def test_other_shards_need_no_warning(unsplit, trained):
    found = select(unsplit / "shards", None, [trained_on(trained.shards)])
    assert (found.trained_on, found.warning) == (False, None)


def test_new_training_images_do_not_change_the_validation_split(trained, tmp_path):
    data = shutil.copytree(trained.images, tmp_path / "d")
    history = [trained_on(data)]
    shutil.copy(data / "train/red/0.jpg", data / "train/red/99.jpg")
    found = select(data, None, history)
    assert (found.split, found.trained_on, found.warning) == ("val", False, None)
    added(data / "val")
    assert "24 images then, 25 now" in select(data, None, history).warning


def test_a_split_that_was_trained_on_is_not_chosen(trained, tmp_path):
    found = select(trained.images, None, [trained_on(trained.images, split="val", val_split="train")])
    assert (found.split, found.trained_on, found.warning) == ("train", False, None)
    shutil.copytree(trained.images / "train", tmp_path / "d/train")
    found = select(tmp_path / "d", None, [trained_on(tmp_path / "d", 0.0)])
    assert (found.split, found.indices, found.trained_on) == ("train", None, True)
    assert found.warning.startswith("all 24 images were trained on") and "--split" not in found.warning


def test_texts_have_words_of_their_own(tmp_path):
    for label in ("good", "bad"):
        (tmp_path / "d" / label).mkdir(parents=True)
        for i in range(10):
            (tmp_path / "d" / label / f"{i}.txt").write_text(f"{label} text {i}")
    history = [trained_on(tmp_path / "d", 0.2)]
    assert len(select(tmp_path / "d", None, history).indices) == 4
    assert select(tmp_path / "d", "train", history).warning.startswith("16 of these 20 texts were trained on")


def test_weights_that_training_started_from_are_remembered(unsplit, tmp_path, fast, cli):
    """After fine-tuning with another seed, part of the held-out images were trained on before."""
    first = find(unsplit / "on-images")
    more = (
        "--weights",
        unsplit / "on-images",
        "--seed",
        "4",
        "-o",
        tmp_path,
        "--name",
        "run",
        "--val-fraction",
        "0.5",
        "-b",
        "18",
    )
    assert cli("train", unsplit / "images", *fast, *more).code == 0
    history = trained_before(find(tmp_path / "run"))
    assert [each.seed for each in history] == [4, 3] and history[1:] == trained_before(first) != ()
    found = select(unsplit / "images", None, history)
    assert len(found.indices) == 18 and found.trained_on
    overlap = set(found.indices.tolist()) & set(history[1].trained(found.dataset, unsplit / "images").tolist())
    assert found.warning.startswith(f"{len(overlap)} of these 18 images were trained on")


def test_a_checkpoint_names_no_path(unsplit):
    card = read_card(find(unsplit / "on-images"))
    assert str(unsplit) not in card.to_json() and unsplit.name not in card.to_json()
    (own,) = card.trained_on
    assert own.identity.fits(open_dataset(unsplit / "images")) and not own.identity.fits(
        open_dataset(unsplit / "shards")
    )
    assert type(card).from_json(card.to_json()) == card
    assert type(card).from_json(replace(card, trained_on=None).to_json()).trained_on is None


def test_the_precision_of_the_training_is_the_default(trained, tmp_path, cli, monkeypatch):
    """Of eval with one run and several, predict, load and embed; `trained` is a run with --no-amp."""
    monkeypatch.setattr(precisions, "_cpu_has_bf16", lambda: True)
    copy = shutil.copytree(trained.run, tmp_path / "copy", symlinks=True)
    image = trained.images / "val/red/0.jpg"

    def told(flag):
        flags = (*((flag,) if flag else ()), "-j", "1")
        alone = json.loads(cli("eval", trained.run, trained.images, "--json", *flags).out)
        both = json.loads(cli("eval", trained.run, copy, trained.images, "--json", *flags).out)
        answer = json.loads(cli("predict", trained.run, image, "--json", *flags).out)
        out = tmp_path / f"vectors{flag}"
        cache = ("--cache-dir", tmp_path / "cache", "--dtype", "fp32", "--format", "npy", "--split", "val")
        assert cli("embed", trained.images, out, "--weights", trained.run, *cache, *flags).code == 0
        return alone["loss"], both["ensemble"]["loss"], answer["probabilities"], np.load(out / "val.npy")

    exact, default, mixed = told("--no-amp"), told(""), told("--amp")
    for same, mine, other in zip(exact, default, mixed, strict=True):
        assert np.array_equal(same, mine) and not np.array_equal(same, other)
    assert load_model(trained.run)[1].precision == "float32"
    assert fastimg.load(trained.run, workers=1).predict([image])[0].probabilities == exact[2]


def test_files_are_called_after_what_was_evaluated(trained, cli, tmp_path):
    """The split of the data that was trained on; of a folder without splits its own name, though it is read as train"""
    data = shutil.copytree(trained.images / "val", tmp_path / "photos")
    ran = cli("eval", trained.run, data, "--no-amp")
    best = trained.run / "best"
    assert ran.code == 0 and f"{data}, 12 images" in ran.out and "(train)" not in ran.out, ran.err
    assert f"confusion matrix: {best / 'confusion-photos.png'}" in ran.out
    assert {"mistakes-photos.csv", "mistakes-photos.png"} <= {file.name for file in best.iterdir()}
    moved = shutil.copytree(trained.images, tmp_path / "moved")
    assert json.loads(cli("eval", trained.run, moved, "--json").out)["plot"] == str(best / "confusion-moved-val.png")
    assert json.loads(cli("eval", trained.run, trained.images, "--json").out)["plot"] == str(best / "confusion-val.png")
