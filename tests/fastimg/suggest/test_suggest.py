"""`fastimg suggest`: a file that `train --config` reads, what it says about the data, and what it refuses."""

import json
import shutil

import numpy as np
import pytest
import yaml
from huggingface_hub import constants
from PIL import Image

from fastimg.config import yaml_file
from fastimg.config.commands import Train
from fastimg.config.searching import Suggest
from fastimg.data.datasets import open_parts
from fastimg.loaders import open_dataset
from fastimg.models.ranks import start
from fastimg.suggest import resemblance, timing
from fastimg.suggest.sampled import evenly, sampled
from fastimg.suggest.timing import Timing

TIMING = Timing(start=1.0, encode=0.01, sample=0.001, val=0.001, save=0.1, batch=64)


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """No weights are at hand, and none can be downloaded; what is measured takes a few steps."""
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(timing, "STEPS", 2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


@pytest.fixture
def unmeasured(monkeypatch):
    """Nothing is timed."""
    monkeypatch.setattr("fastimg.suggest.command.timed", lambda *_, **__: TIMING)


@pytest.fixture
def suggest(cli, tmp_path):
    """`suggest(data, flags)`: what --json prints, and the file."""

    def call(data, *flags):
        file = tmp_path / "suggested.yaml"
        ran = cli("suggest", data, "-o", file, "--overwrite", "--json", "-j", "1", "--device", "cpu", *flags)
        assert ran.code == 0, ran.err
        return json.loads(ran.out), file

    return call


def photograph(seed, size=(96, 80)):
    """A picture with coarse structure, of which small changes leave most."""
    drawn = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(drawn).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def photographs(tmp_path):
    """20 + 4 pictures of two classes. In val: one of train saved anew and smaller, and one copied as it is."""
    root = tmp_path / "photographs"
    for split, numbers in (("train", range(10)), ("val", range(10, 12))):
        for label, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for number in numbers:
                photograph(100 * label + number).save(root / split / name / f"{number}.jpg", quality=95)
    photograph(3, (72, 60)).save(root / "val/cat/again.jpg", quality=60)
    shutil.copy(root / "train/dog/4.jpg", root / "val/dog/copy.jpg")
    return root


def test_train_reads_the_file_as_it_is(trained, suggest, cli, tmp_path):
    """Measured, written and trained."""
    said, file = suggest(trained.images, "--weights", trained.run)
    assert said["kind"] == "head" and said["expected_seconds"] > 0 and said["timing"]["encode"] > 0
    settings = yaml.safe_load(file.read_text())
    assert settings == said["settings"] and settings["freeze"] == "backbone"
    ran = cli("train", trained.images, "--config", file, "--epochs", "2", "-o", tmp_path / "runs", "--name", "run")
    assert ran.code == 0, ran.err
    made = yaml.safe_load((tmp_path / "runs/run/config.yaml").read_text())
    assert (made["head"], made["batch_size"], made["epochs"]) == ("mlp", 8, 2)


def test_from_random_weights_with_a_time(trained, suggest):
    said, file = suggest(trained.images, "--max-time", "30s")
    assert said["kind"] == "scratch" and said["expected_seconds"] <= 30 and said["settings"]["max_time"] == "30s"
    config = yaml_file.load(file, Train)
    assert config.arch == "test_resnet" and config.img_size == 64 and config.epochs == said["settings"]["epochs"]


def test_every_setting_has_its_reason_above_it(photographs, suggest, unmeasured):
    said, file = suggest(photographs)
    lines = file.read_text().splitlines()
    for name in said["settings"]:
        above = lines[next(i for i, line in enumerate(lines) if line.startswith(f"{name}:")) - 1]
        assert above.startswith("# ") and len(above) > 10, name
    assert f"fastimg train {photographs} --config {file}" in file.read_text().replace("\n# ", " ")
    assert "20 images for training, 6 for validation (the val split)" in file.read_text().replace("\n# ", " ")


def test_copies_between_training_and_validation_are_named(photographs, suggest, unmeasured):
    said, _ = suggest(photographs)
    notes = "\n".join(said["notes"])
    assert (
        "Of validation, 1 image is nearly the same as one of training" in notes
        and "again.jpg and " in notes
        and "3.jpg" in notes
    )
    assert "Of validation, 1 image has the same bytes as one of training" in notes and "copy.jpg" in notes
    assert said["data"]["near"]["across"] == 1 and said["data"]["copies"]["leaked"] == 1
    assert "`hflip: 0` if they do" in notes and "fastimg convert" in notes and "only 6 images" in notes


def test_pictures_that_differ_are_not_copies(photographs):
    train, val = open_dataset(photographs, "train"), open_dataset(photographs, "val")
    rows = resemblance.thumbnails(train, 1)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1) and resemblance.pairs(rows) == []
    (found,) = {
        pair for pair in resemblance.pairs(resemblance.thumbnails(val, 1), rows) if "again" in val.sample_name(pair[0])
    }
    assert train.sample_name(found[1]).endswith("cat/3.jpg")
    flat = np.zeros((2, resemblance.SIDE**2), np.float32)
    assert resemblance.pairs(flat) == []


def test_texts_written_anew(tmp_path):
    for split, texts in (("train", ("A good film.", "Bad!", "bad")), ("val", ("a GOOD film", "another one"))):
        for number, text in enumerate(texts):
            folder = tmp_path / "texts" / split / "abc"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.txt").write_text(text)
    train, val = (open_dataset(tmp_path / "texts", split) for split in ("train", "val"))
    found = resemblance.of_texts(train, val)
    assert (found.within, found.across) == (1, 1) and "0.txt" in found.examples[0][0]


def test_some_samples_of_a_dataset(trained):
    part, _ = open_parts(trained.images, "train", None, None, 0)
    few = sampled(part, 7)
    assert len(few) == 7 and sorted(np.bincount(few.labels)) == [2, 2, 3] and few.classes == part.dataset.classes
    assert (np.diff(few.ids) > 0).all() and few.targets[0].values.tolist() == few.labels.tolist()
    assert few.sample_name(0) == part.dataset.sample_name(int(few.ids[0]))
    assert len(evenly(part, 100)) == 24 and len(evenly(part, 5)) == 5
    assert few.fingerprint != sampled(part, 7, seed=1).fingerprint


def test_a_small_split_holds_a_fifth_out(trained, suggest, unmeasured, tmp_path):
    shutil.copytree(trained.images / "train", tmp_path / "D")
    (tmp_path / "D/red/none.jpg").write_bytes(b"none")
    said, _ = suggest(tmp_path / "D")
    assert said["settings"]["val_fraction"] == 0.2 and "fold: 0/5" in said["reasons"]["val_fraction"]
    assert said["data"]["unreadable"] == 1 and any("none.jpg" in note for note in said["notes"])


def test_what_it_prints(photographs, cli, unmeasured, tmp_path):
    ran = cli("suggest", photographs, "-o", tmp_path / "a.yaml", "-j", "1", "--device", "cpu")
    assert ran.code == 0, ran.err
    for words in (
        "2 classes of 10 images",
        "96 x 80 pixels, the median",
        "epochs ",
        "expected    about ",
        "written  ",
    ):
        assert words in ran.out, words
    ran = cli("suggest", photographs, "-o", tmp_path / "a.yaml")
    assert ran.code == 2 and "a.yaml: exists already; add --overwrite" in ran.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-time", "soon"), "--max-time soon: give a time, as 90s, 30m or 2h"),
        (("--model-kwargs", "a=1"), "--model-kwargs: for which model?"),
        (("-o", "a.txt"), "a.txt: give a .yaml file"),
        (("--arch", "hf:bert"), "holds images; give a timm model"),
        (("--arch", "resnet999"), "timm has no such model"),
    ],
)
def test_refused(trained, cli, unmeasured, tmp_path, flags, words):
    target = () if "-o" in flags else ("-o", tmp_path / "x.yaml")
    ran = cli("suggest", trained.images, *target, *flags)
    assert ran.code == 2 and words in ran.err and not (tmp_path / "x.yaml").exists()


def test_data_that_cannot_be_learned(trained, cli, unmeasured, tmp_path, encode):
    (tmp_path / "empty").mkdir()
    (tmp_path / "one/cat").mkdir(parents=True)
    for number in range(10):
        (tmp_path / f"one/cat/{number}.jpg").write_bytes(encode(seed=number))
    for name, code, words in (("empty", 1, "no class folders"), ("nowhere", 1, "no such"), ("one", 1, "of one class")):
        ran = cli("suggest", tmp_path / name, "-o", tmp_path / "x.yaml")
        assert ran.code == code and words in ran.err, ran.err
    ran = cli("suggest", trained.images, "--weights", trained.run, "--arch", "resnet18", "-o", tmp_path / "x.yaml")
    assert ran.code == 1 and "not the weights of resnet18" in ran.err
    ran = cli("suggest", trained.images, "--max-time", "1s", "-o", tmp_path / "x.yaml")
    assert ran.code == 1 and "--max-time 1s is too short" in ran.err


def test_texts_need_an_encoder(cli, tmp_path):
    for name in ("pos", "neg"):
        (tmp_path / "texts" / name).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "texts" / name / f"{number}.txt").write_text(f"{name} {number}")
    ran = cli("suggest", tmp_path / "texts", "-o", tmp_path / "x.yaml")
    assert ran.code == 2 and "holds texts, and no text encoder is at hand; give one" in ran.err


def test_texts(cli, suggest, tmp_path):
    """A BERT of random weights; what is measured is the trainer's own path, from tokens to embeddings."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = "good bad the film was seen by many".split()  # noqa: SIM905
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]")
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, model_max_length=16, unk_token="[UNK]", pad_token="[PAD]"
    )
    fast.save_pretrained(tmp_path / "bert")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    transformers.BertModel(transformers.BertConfig(vocab_size=10, max_position_embeddings=16, **sizes)).save_pretrained(
        tmp_path / "bert"
    )
    drawn = np.random.default_rng(0)
    for name in words[:2]:
        (tmp_path / "texts" / name).mkdir(parents=True)
        for number in range(20):
            text = " ".join([name, *drawn.choice(words[2:], 6)])
            (tmp_path / "texts" / name / f"{number}.txt").write_text(text)
    said, file = suggest(tmp_path / "texts", "--arch", f"hf:{tmp_path / 'bert'}")
    assert said["kind"] == "head" and said["timing"]["encode"] > 0 and said["data"]["words"]["median"] == 7
    assert said["settings"]["freeze"] == "backbone" and "img_size" not in said["settings"]
    ran = cli("train", tmp_path / "texts", "--config", file, "--dry-run", "-o", tmp_path / "runs")
    assert ran.code == 0, ran.err


def test_several_targets(trained, cli, suggest, unmeasured, tmp_path):
    rows = ["path,breed,age"]
    for number, file in enumerate(sorted((trained.images / "train").rglob("*.*"))):
        rows.append(f"{file},{file.parent.name},{number}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    ran = cli("convert", tmp_path / "table.csv", tmp_path / "D", "--target", "breed", "--target", "age:number")
    assert ran.code == 0, ran.err
    said, file = suggest(tmp_path / "D")
    assert said["data"]["targets"] == {"breed": "class", "age": "number"} and said["data"]["folder"] is False
    assert "targets: breed (class), age (number)" in file.read_text()
    ran = cli("train", tmp_path / "D", "--config", file, "--dry-run", "-o", tmp_path / "runs")
    assert ran.code == 0, ran.err


def test_memory_that_runs_out_halves_the_batch(monkeypatch):
    tried = []

    def measure(config, *_):
        tried.append(config.batch_size)
        if config.batch_size > 16:
            raise MemoryError("out of memory")
        return TIMING

    monkeypatch.setattr(timing, "_measured_in_a_folder", measure)
    with start("cpu") as ranks:
        found = timing.timed(Train(freeze="backbone", weights="w"), None, None, None, ranks)
    assert tried == [64, 32, 16] and (found.batch, found.shrunk) == (16, True)


def test_the_defaults_of_the_command():
    assert Suggest(data="D").output.name == "suggested.yaml"


def test_images_with_texts_beside_them_are_refused_with_the_command_that_trains_on_them(photographs, cli, tmp_path):
    rows = [f"{image},a photograph,{image.parent.name}" for image in sorted(photographs.glob("train/*/*"))]
    table = tmp_path / "posts.csv"
    table.write_text("\n".join(["image,caption,label", *rows]))
    ran = cli("convert", table, tmp_path / "posts", "--path-column", "image", "--text-column", "caption")
    assert ran.code == 0, ran.err
    ran = cli("suggest", tmp_path / "posts", "-o", tmp_path / "suggested.yaml", "-j", "1", "--device", "cpu")
    assert ran.code == 2
    assert "has texts beside its images, and suggest chooses for images or texts alone; start from" in ran.err
    assert not (tmp_path / "suggested.yaml").exists()
