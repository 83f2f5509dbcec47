"""Contents of a dataset: counted, compared and drawn, in any container; faults are named without stopping the rest."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from rich.console import Console

from fastimg.augment import Policy, apply, draw
from fastimg.config.commands import Inspect
from fastimg.errors import UsageError
from fastimg.inspect.images import _augmentation, _kornia
from fastimg.inspect.scan import duplicates, gather, several
from fastimg.inspect.summaries import class_names
from fastimg.loaders import FilesDataset, ImageDecoder, Loader, LoaderConfig, RandomResizedCrop, open_dataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.train.reporting import sheets

PICTURES = ("samples.png", "trivial.png", "augmented.png")


@pytest.fixture
def flawed(trained, tmp_path):
    """24 + 12 images, including: one copied into val, one copied into another class, two that are not images."""
    root = tmp_path / "flawed"
    shutil.copytree(trained.images, root)
    shutil.copy(root / "train/red/0.jpg", root / "val/red/leak.jpg")
    shutil.copy(root / "train/red/2.jpg", root / "train/blue/copy.jpg")
    (root / "train/green/none.jpg").write_bytes(b"none")
    whole = (root / "train/green/0.jpg").read_bytes()
    (root / "val/green/cut.jpg").write_bytes(whole[: len(whole) // 2])
    return root


@pytest.fixture
def look(tmp_path, cli):
    """`look(data, flags)`: the output of `inspect --json`."""

    def call(data, *flags):
        place = ("-o", tmp_path / "pictures", "--overwrite")
        ran = cli("inspect", data, "--json", *place, "-j", "2", "--img-size", "32", *flags)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return call


def test_a_flawed_folder(flawed, look):
    said = look(flawed)
    assert said["images"] == 40 and said["classes"] == 3 and said["unlabelled"] == 0
    assert said["splits"]["train"] == {"blue": 9, "green": 9, "red": 8}
    assert said["splits"]["val"] == {"blue": 4, "green": 5, "red": 5}
    assert said["balance"]["val"] == {
        "smallest": "blue",
        "images": 4,
        "largest": "green",
        "largest_images": 5,
        "ratio": 0.8,
    }
    assert said["unreadable"] == 2 and said["decoded"]
    assert {Path(name).name for name, _ in said["unreadable_names"]} == {"none.jpg", "cut.jpg"}
    assert sum(said["formats"].values()) == 38 and set(said["formats"]) == {"jpeg", "png"}
    found = said["duplicates"]
    assert (found["within"], found["leaked"], found["conflicting"]) == (1, 1, 1)
    (leak,) = found["across"]
    assert [(split, Path(name).name) for split, name in leak["names"]] == [("train", "0.jpg"), ("val", "leak.jpg")]
    (copy,) = found["same"]
    assert {Path(name).name for _, name in copy["names"]} == {"2.jpg", "copy.jpg"}
    assert sorted(copy["classes"]) == ["blue", "red"]
    assert said["width"] == {"min": 48, "median": 48, "max": 48}
    assert said["height"]["min"] == 36 and said["height"]["max"] == 43
    assert said["aspect"]["max"] == round(48 / 36, 4)
    assert "ppm" not in said["formats"] and leak["images"] == 2
    assert said["bytes"] == sum(file.stat().st_size for file in flawed.rglob("*.*") if file.is_file())


def test_a_flawed_folder_as_text(flawed, tmp_path, cli):
    ran = cli("inspect", flawed, "-o", tmp_path / "pictures")
    assert ran.code == 0, ran.err
    for words in (
        *("40 of 3 classes (train 26, val 14)", "train: smallest red 8, largest blue 9, ratio 0.89"),
        "leaks      1 image identical to one in another split",
        "copies     1 image identical to another one in their split",
        *("unreadable 2 images", "none.jpg: not an image"),
        *("In several splits:", "Twice in a split:", "(blue and red)", "1 of these is in several classes"),
        *("36 to 43, median ", "augmented.png"),
    ):
        assert words in ran.out, words


def test_how_a_folder_is_read_is_printed_once(tmp_path, encode, look, cli):
    for name in ("Training/x/a/1", "Training/x/b/2", "dev/x/a/3"):
        (tmp_path / f"D/{name}.jpg").parent.mkdir(parents=True)
        (tmp_path / f"D/{name}.jpg").write_bytes(encode(seed=int(name[-1])))
    (tmp_path / "D/dev/4.jpg").write_bytes(encode())
    flags = ("-o", tmp_path / "pictures", "--overwrite", "--headers-only", "--img-size", "32")
    for level, classes, leaf in ((None, {"x": 2}, 1), ("leaf", {"a": 1, "b": 1}, 0)):
        ran = cli("inspect", tmp_path / "D", "--json", *flags, *(("--classes", level) if level else ()))
        assert json.loads(ran.out)["splits"]["train"] == classes
        assert ran.err.count("folders are read as splits: Training/ as train, dev/ as val") == 1
        assert ran.err.count("1 of 4 files is not used: 1 outside any class folder (.jpg)") == 1
        assert ran.err.count("use --classes leaf to take the innermost folder") == leaf


def test_pictures_in_a_folder_that_was_named_are_replaced_only_when_asked(trained, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ("--headers-only", "--img-size", "32", "--samples", "1")
    (tmp_path / "p").mkdir()
    (tmp_path / "p/samples.png").write_bytes(b"mine")
    ran = cli("inspect", trained.images, "-o", "p", *flags)
    assert ran.code == 2 and "--output p: samples.png exists already there; add --overwrite" in ran.err
    assert (tmp_path / "p/samples.png").read_bytes() == b"mine"
    ran = cli("inspect", trained.images, "-o", "p", "--overwrite", *flags)
    assert ran.code == 0 and "renewed     samples.png in p" in ran.err and (tmp_path / "p/augmented.png").exists()
    folder = f"inspect-{trained.images.name}"  # the command's own: renewed, which is said
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "augmented.png").touch()
    ran = cli("inspect", trained.images, *flags)
    assert ran.code == 0 and f"renewed     augmented.png in {folder}" in ran.err


def test_pictures(flawed, look, tmp_path):
    said = look(flawed, "--samples", "10", "--aa", "trivial", "--mixup", "0.5", "--cutmix", "1", "--reprob", "0.5")
    assert said["pictures"] == [str(tmp_path / "pictures" / name) for name in PICTURES]
    for file in said["pictures"]:
        with Image.open(file) as image:
            assert image.width > 100 and image.height > 100
            assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 500


def tars(shards, folder):
    """Foreign tars: the shards without convert's description of them."""
    folder.mkdir()
    for tar in shards.glob("*.tar"):
        shutil.copy(tar, folder)
    return folder


@pytest.mark.parametrize("kind", ["shards", "tars", "beton", "lone beton"])
def test_every_container(kind, trained, tmp_path, look, cli):
    data = trained.shards
    if kind == "tars":
        data = tars(trained.shards, tmp_path / "tars")
    elif "beton" in kind:
        data = tmp_path / "betons"
        assert cli("convert", trained.images, data, "--format", "beton").code == 0
    if kind == "lone beton":
        data = data / "train.beton"
    said = look(data)
    assert said["images"] == (24 if kind == "lone beton" else 36) and said["classes"] == 3
    assert said["unreadable"] == 0 and said["duplicates"]["within"] == 0
    assert set(said["splits"]) == ({"train"} if kind == "lone beton" else {"train", "val"})
    assert said["tiled"] > 0 and sum(said["formats"].values()) == said["images"]
    assert ("raw pixels" in said["formats"]) == ("beton" in kind)
    assert all(Path(file).exists() for file in said["pictures"])


def test_images_without_labels(tmp_path, trained, look, cli):
    with BetonWriter(tmp_path / "x.beton", {"image": BetonField("rgb")}) as writer:
        for file in sorted((trained.images / "val/red").glob("*.jpg")):
            writer.add({"image": file.read_bytes()})
    said = look(tmp_path / "x.beton", "--mixup", "1", "--cutmix", "1")
    assert (said["samples"], said["unlabelled"], said["classes"]) == ({"train": 2}, 2, 0)
    assert said["balance"] == {"train": None} and len(said["pictures"]) == 2
    ran = cli("inspect", tmp_path / "x.beton", "-o", tmp_path / "p")
    assert ran.code == 0 and "2 of 0 classes (train 2; 2 without a label)" in ran.out


def test_one_split(flawed, look, cli):
    said = look(flawed, "--split", "val")
    assert list(said["splits"]) == ["val"] and said["duplicates"]["leaked"] == 0
    ran = cli("inspect", flawed, "--split", "test")
    assert ran.code == 2 and "no such split; it has train, val" in ran.err


def test_headers_only_does_not_detect_truncation(flawed, look):
    said = look(flawed, "--headers-only")
    assert said["unreadable"] == 1 and not said["decoded"]


def test_nothing_can_be_read(tmp_path, look, cli):
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "x.jpg").write_bytes(b"none")
    said = look(tmp_path / "data")
    assert said["unreadable"] == 2 and said["width"] is None and said["pictures"] == []
    assert said["duplicates"]["within"] == 1 and said["duplicates"]["conflicting"] == 1
    ran = cli("inspect", tmp_path / "data", "-o", tmp_path / "p")
    assert ran.code == 0 and "no image can be read" in ran.out and not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--samples", "0"), 2, "--samples 0: give 1 to 400"),
        (("--img-size", "0"), 2, "--img-size 0: give a size"),
        (("--workers", "many"), 2, "--workers many"),
        (("--max-pixels", "0"), 2, "--max-pixels 0"),
        (("--seed=-1",), 2, "--seed -1"),
        (("--hflip", "2"), 2, "--hflip 2: give a probability"),
        (("--no-aug", "--rotate", "3"), 2, "--rotate has no effect with --no-aug"),
        (("--scale", "0.9", "0.1"), 2, "--scale"),
        (("--config", "nowhere.yaml"), 2, "nowhere.yaml"),
        (("-o", "/proc/none"), 1, "--output /proc/none"),
    ],
)
def test_invalid_arguments(flags, code, message, trained, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = cli("inspect", trained.images, *flags)
    assert ran.code == code and message in ran.err and "Traceback" not in ran.err, ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nowhere", "file.txt", "empty"])
def test_no_dataset(name, tmp_path, cli):
    (tmp_path / "file.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    ran = cli("inspect", tmp_path / name)
    assert ran.code == 1 and name in ran.err and "Traceback" not in ran.err


def test_a_ppm_file_is_not_a_raw_image_of_a_beton(tmp_path, look):
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (9, 7), "red" if name == "a" else "blue").save(tmp_path / "data" / name / "x.ppm")
    said = look(tmp_path / "data")
    assert said["formats"] == {"ppm": 2} and said["balance"]["train"]["ratio"] == 1.0


def test_of_many_copies_some_are_named(tmp_path, encode, look, cli):
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(15):
            (tmp_path / "data" / name / f"{i}.jpg").write_bytes(encode())
    (copies,) = look(tmp_path / "data")["duplicates"]["same"]
    assert copies["images"] == 30 and len(copies["names"]) == 10
    ran = cli("inspect", tmp_path / "data", "-o", tmp_path / "p", "--samples", "1")
    assert "... 26 more" in ran.out and "train: 15 images of every class" in ran.out


def test_too_many_pixels_are_unreadable(trained, look):
    assert look(trained.images, "--max-pixels", "100")["unreadable"] == 36


def test_pictures_are_written_to_the_default_folder(trained, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("inspect", trained.images, "--img-size", "32").code == 0
    assert sorted(file.name for file in (tmp_path / "inspect-images").iterdir()) == ["augmented.png", "samples.png"]


def test_trivial_augments_operations_are_drawn_if_enabled(trained, look, tmp_path):
    assert [Path(file).name for file in look(trained.images, "--aa", "ta_wide")["pictures"]] == list(PICTURES)
    (tmp_path / "pictures" / "trivial.png").unlink()
    for flags in ((), ("--rotate", "10"), ("--aa", "none"), ("--no-aug",)):
        assert [Path(file).name for file in look(trained.images, *flags)["pictures"]] == [
            "samples.png",
            "augmented.png",
        ]
    assert not (tmp_path / "pictures" / "trivial.png").exists()


def test_names_in_pictures_are_shortened_and_missing_glyphs_reported(tmp_path, trained, cli, monkeypatch):
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr("fastimg.train.reporting.lettering._fallbacks", lambda wanted: [])  # no other font is installed
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (figures.append(self), savefig(self, *args, **kw)))
    data = tmp_path / "data" / "train"
    for name, source in (("犬", "red"), ("y" * 80, "blue")):
        shutil.copytree(trained.images / "train" / source, data / name)
    ran = cli("inspect", data.parent, "--json", "-o", tmp_path / "p", "--img-size", "32", "--samples", "4")
    texts = {text.get_text() for figure in figures for text in figure.findobj(Text)}
    assert {"class 1", "y" * 9 + "…" + "y" * 8, "y" * 10 + "…" + "y" * 10} <= texts
    assert ran.code == 0 and json.loads(ran.out)["classes"] == 2
    assert ran.err.count("pictures show 犬 as class 1; install a font that has them") == 1


def drawn(monkeypatch):
    """The tiles and the names of the rows of every sheet, by file name; under `heads` what stands above them."""
    kept = {"heads": {}}

    def keep(rows, names, side, file, letters, *above):
        kept[file.name] = rows, names
        kept["heads"][file.name] = above

    monkeypatch.setattr(sheets, "save_sheet", keep)
    return kept


def test_augmented_images_equal_those_of_training(trained, look, monkeypatch):
    """For each image: the loader's crop of (seed, epoch, id), and the plan of (seed, epoch, id)."""
    kept = drawn(monkeypatch)
    flags = ("--seed", "5", "--aa", "trivial", "--rotate", "10", "--hflip", "0.5", "--reprob", "0.5", "--samples", "4")
    look(trained.shards, *flags)
    rows, names = kept["augmented.png"]
    assert len(rows) == 4 and all(len(row) == 8 for row in rows)
    title, heads = kept["heads"]["augmented.png"]
    assert title == "shards (train): what a model would see" and heads == [f"epoch {n}" for n in range(1, 9)]
    policy = Policy(trivial=True, rotate=10.0, hflip=0.5, erase=0.5)
    dataset = open_dataset(trained.shards)
    settings = LoaderConfig(batch_size=24, order="random", seed=5, workers=1)
    loader = Loader(dataset, ImageDecoder(RandomResizedCrop(size=32)), settings)
    expected = []
    for epoch in (0, 7):
        loader.set_epoch(epoch)
        for batch in loader:
            seen = apply(draw(policy, batch.ids, 5, epoch), batch.inputs, policy, torch.uint8)
            expected.append({int(i): seen[row].permute(1, 2, 0).numpy() for row, i in enumerate(batch.ids)})
    loader.close()
    for row in rows:
        matches = [i for i in expected[0] if np.array_equal(expected[0][i], row[0].pixels)]
        assert len(matches) == 1
        assert np.array_equal(expected[1][matches[0]], row[7].pixels)
        assert row[0].lines[0] in sheets.TRIVIAL
    dataset.close()
    assert len(set(names)) == 3


def test_mixed_captions_name_the_shares(trained, look, monkeypatch):
    kept = drawn(monkeypatch)
    look(trained.images, "--mixup", "5", "--samples", "6")
    captions = [tile.lines for row in kept["augmented.png"][0] for tile in row]
    assert any(len(lines) == 2 and all("%" in line for line in lines) for lines in captions)


def test_captions_of_images_mixed_completely(trained):
    dataset, policy = open_dataset(trained.images), Policy(trivial=True, mixup=1.0)
    plan = draw(policy, np.arange(2), 0, 0)
    classes = sheets._Classes(dataset, [0, 1])
    one, other = (
        sheets._happened(classes, plan, policy, 0, torch.tensor(soft), 0, 20) for soft in ([0.0, 1.0], [0.999, 0.001])
    )
    assert one == (*other, "\u200e100% green") and other[0] in sheets.TRIVIAL
    dataset.close()


def test_without_augmentation_it_is_the_validation_crop(trained, look, monkeypatch):
    kept = drawn(monkeypatch)
    look(trained.images, "--no-aug", "--samples", "3")
    assert [len(row) for row in kept["augmented.png"][0]] == [1, 1, 1]


def test_trivial_shows_every_operation(trained, look, monkeypatch):
    kept = drawn(monkeypatch)
    look(trained.images, "--aa", "trivial")
    rows, names = kept["trivial.png"]
    assert names == list(sheets.TRIVIAL) and [len(row) for row in rows].count(7) == 11
    captions = {name: [tile.lines[0] for tile in row] for name, row in zip(names, rows, strict=True)}
    assert captions["Rotate"] == ["-135 deg", "-90 deg", "-45 deg", "+0 deg", "+45 deg", "+90 deg", "+135 deg"]
    assert captions["TranslateX"][0] == "-32 px" and captions["TranslateX"][3] == "+0 px"
    assert captions["Posterize"][-1] == "2 bits" and captions["Solarize"][0] == "from 255"
    assert captions["Brightness"][0] == "x 0.01" and captions["ShearY"][-1] == "+0.99"


def test_a_runs_file_selects_the_augmentation(trained, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("augmentation: [{rotate: {degree: 7}}, trivial]\ntrain_crop_size: 40\nmean: [0.1, 0.2, 0.3]\n")
    shown, crop = _augmentation(Inspect(data=trained.images, config=file, hflip=0.25))
    assert (shown.rotate, shown.aa, shown.hflip, crop.size, shown.mean) == (7.0, "trivial", 0.25, 40, (0.1, 0.2, 0.3))
    assert _kornia(shown, crop) is None
    shown, _ = _augmentation(Inspect(data=trained.images, config=file, no_aug=True))
    assert shown.no_aug and shown.rotate is None
    shown, crop = _augmentation(Inspect(data=trained.images, config=trained.run / "config.yaml"))
    assert shown.no_aug and crop.size == 32
    shown, _ = _augmentation(Inspect(data=trained.images, config=trained.run / "config.yaml", cutmix=1.0))
    assert not shown.no_aug and shown.cutmix == 1.0
    with pytest.raises(UsageError, match="two factors"):
        _augmentation(Inspect(data=trained.images, contrast=(2.0, 1.0)))


@pytest.mark.skipif(not importlib.util.find_spec("kornia"), reason="kornia is not installed: pip install '.[kornia]'")
def test_kornias_operations_are_shown(trained, tmp_path, look, monkeypatch):
    kept = drawn(monkeypatch)
    file = tmp_path / "c.yaml"
    file.write_text("augmentation: [{RandomInvert: {p: 1.0}}]\n")
    look(trained.images, "--samples", "3", "--scale", "1", "1", "--ratio", "1", "1")
    plain = kept["augmented.png"][0]
    look(trained.images, "--samples", "3", "--scale", "1", "1", "--ratio", "1", "1", "--config", file)
    inverted = kept["augmented.png"][0]
    same = [
        np.array_equal(255 - a.pixels, b.pixels)
        for r, s in zip(plain, inverted, strict=True)
        for a, b in zip(r, s, strict=True)
    ]
    assert any(same)  # the list has no flip, so these are the images that the other run did not flip


def test_duplicates_across_many_splits(tmp_path, encode):
    for name, seed in (("a", 1), ("b", 2), ("c", 1), ("d", 1)):
        (tmp_path / name).write_bytes(encode(seed=seed))
    parts = [("train", "aab", (0, 0, 1)), ("test", "c", (0,)), ("val", "dx", (1, 1))]
    splits = []
    for split, files, labels in parts:
        dataset = FilesDataset(tmp_path, list(files), ("one", "two"), labels)
        splits.append(gather(split, dataset, 1, 10**6, True, Console(quiet=True)))
    found = duplicates(splits)
    assert (found.within, found.leaked, found.conflicting) == (1, 2, 1)
    assert [split for split, _ in found.across[0].names] == ["train", "train", "test", "val"]
    assert found.across[0].classes == ["one", "two"] and not found.same
    assert splits[2].unreadable == [(str(tmp_path / "x"), "No such file or directory")]
    assert splits[2].counts() == [0, 2]


def test_several_takes_classes_in_turn(tmp_path, encode):
    (tmp_path / "a").write_bytes(encode())
    dataset = FilesDataset(tmp_path, ["a"] * 12, ("x", "y", "z"), [0] * 9 + [1, 2, 2])
    facts = gather("train", dataset, 1, 10**6, True, Console(quiet=True))
    chosen = several(facts, 5, 0)
    assert sorted(dataset.labels[chosen[:3]].tolist()) == [0, 1, 2]
    assert sorted(dataset.labels[chosen[3:]].tolist()) == [0, 2]
    assert len(several(facts, 100, 0)) == 12 and len(set(several(facts, 100, 0).tolist())) == 12


@pytest.mark.slow
def test_the_real_program_on_the_digits(tmp_path, python):
    from fastimg.data.digits import digits_folder

    program = [python, "-m", "fastimg", "inspect", str(digits_folder()), "-o", str(tmp_path / "p"), "--json"]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["images"] == 1797


def test_classes_that_are_printed_alike_are_numbered():
    names = ("a", "\udcff", "\\udcff", "b", "\\udcff")
    facts = SimpleNamespace(dataset=SimpleNamespace(classes=names))
    assert class_names(facts) == ["a", "\\udcff", "\\udcff (2)", "b", "\\udcff (4)"]
