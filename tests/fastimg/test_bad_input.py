"""Invalid input: a sentence with the name and the remedy, an exit code, and nothing left behind."""

import argparse
import json
import re
import shutil
import struct
import tarfile
import warnings
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastimg.convert.sources import named_sets as imagesets
from fastimg.errors import UserError, reason_of
from fastimg.models.ranks import Ranks, start
from fastimg.models.registry import read_weights
from fastimg.train import loop as training
from fastimg.train.checkpoints.format import MODEL, load_model, load_training
from fastimg.wording import with_flags

# As in fastimg.loaders.decode: pytest replaces the filters, which would turn the warning into an error.
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")


def everything(folder):
    """Files and folders below `folder`, without the compact index, which is a cache."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*") if path.suffix != ".fidx"}


@pytest.fixture
def refuses(cli, tmp_path):
    """`refuses(code, texts, command...)`: it ends with `code`, prints all `texts`, and changes nothing on disk."""

    def check(code, texts, *arguments):
        before = everything(tmp_path)
        ran = cli(*arguments)
        assert ran.code == code, ran.out + ran.err
        assert "Traceback" not in ran.err + ran.out
        last = ran.err.strip().splitlines()[-1]
        assert last.startswith("fastimg: error: ")
        assert not [text for text in texts if str(text) not in last], last
        assert everything(tmp_path).keys() == before.keys()
        assert everything(tmp_path) == before
        return ran

    return check


@pytest.fixture
def folder(trained, tmp_path):
    """A folder with train/ and val/, to be damaged."""
    return shutil.copytree(trained.images, tmp_path / "data")


@pytest.fixture
def shards(trained, tmp_path):
    """Shards with train and val, to be damaged."""
    return shutil.copytree(trained.shards, tmp_path / "shards")


@pytest.fixture
def commands(trained, tmp_path, fast):
    """`commands[name](data)`: the arguments of a command on some data."""
    return {
        "convert": lambda data: ("convert", data, tmp_path / "new" / "out"),
        "train": lambda data: ("train", data, *fast, "-o", tmp_path / "runs"),
        "eval": lambda data: ("eval", trained.run, data, "--plot", tmp_path / "plot.png"),
        "predict": lambda data: ("predict", trained.run, data),
    }


READERS = ("convert", "train", "eval")


def bomb(width=10_000, height=10_000):
    """A PNG whose header claims this many pixels, with almost no data."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 99))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize("command", READERS)
def test_a_source_that_is_missing(command, commands, tmp_path, refuses):
    refuses(1, [tmp_path / "no", "check the path"], *commands[command](tmp_path / "no"))


@pytest.mark.parametrize("command", READERS)
def test_a_source_without_classes(command, commands, tmp_path, refuses):
    (tmp_path / "flat").mkdir()
    refuses(1, [tmp_path / "flat", "no class folders"], *commands[command](tmp_path / "flat"))


@pytest.mark.parametrize("command", READERS)
def test_an_empty_class(command, commands, folder, refuses):
    shutil.rmtree(folder / "train" / "red")
    (folder / "train" / "red").mkdir()
    refuses(1, [folder / "train" / "red", "the class is empty", "add images or remove"], *commands[command](folder))


@pytest.mark.parametrize("command", READERS)
def test_a_class_only_in_the_validation_split(command, commands, folder, refuses):
    shutil.copytree(folder / "val" / "red", folder / "val" / "pink")
    refuses(1, [folder / "val" / "pink", "no class 'pink'", "add it there or remove"], *commands[command](folder))


def test_training_on_a_single_class_is_refused(folder, commands, refuses, cli, tmp_path):
    for name in ("train/red", "train/green", "val/red", "val/green"):
        shutil.rmtree(folder / name)
    told = ["every image of the training split is of one class, 'blue'", "add images of another class"]
    refuses(1, [folder, *told], *commands["train"](folder))
    refuses(1, [folder, *told], *commands["train"](folder), "--num-classes", 3, "--dry-run")
    ran = cli(*commands["convert"](folder))
    assert ran.code == 0
    assert f"{folder}: there is only one class, 'blue'; `train` refuses such a dataset" in ran.err
    refuses(1, told, *commands["train"](tmp_path / "new/out"))


def test_several_classes_but_images_of_only_one(tmp_path, encode, commands, refuses, cli):
    names = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}
    table = pa.table({"image": [encode(seed=i) for i in range(8)], "label": [1] * 8})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(names)}), tmp_path / "set.parquet")
    assert cli(*commands["convert"](tmp_path / "set.parquet")).code == 0
    refuses(1, ["every image of the training split is of one class, 'dog'"], *commands["train"](tmp_path / "new/out"))


def damage(folder, split):
    """One unreadable, one truncated, one empty image and a decompression bomb in a split; returns their names."""
    whole = (folder / split / "red" / "0.jpg").read_bytes()
    contents = {
        "text.jpg": b"no image",
        "cut.jpg": whole[: len(whole) * 9 // 10],
        "empty.png": b"",
        "bomb.png": bomb(),
        "huge.png": bomb(50_000, 50_000),
    }
    for name, content in contents.items():
        (folder / split / "green" / name).write_bytes(content)
    return contents.keys()


REASONS = {
    "text.jpg": "not an image in a format that Pillow knows",
    "cut.jpg": "truncated",
    "empty.png": "the file is empty",
    "bomb.png": "10000 x 10000 pixels are more than max_pixels=89478485",
    "huge.png": "more pixels than",
}


def test_damaged_images_are_left_out_of_a_conversion(folder, commands, cli):
    names = damage(folder, "train")
    ran = cli(*commands["convert"](folder))
    assert ran.code == 0 and "5 images: " in ran.out
    assert all(f"{name}: " in ran.out and REASONS[name] in ran.out for name in names)


@pytest.mark.parametrize("split", ["train", "val"])
def test_damaged_images_are_left_out_of_training(split, folder, commands, cli, tmp_path):
    names = damage(folder, split)
    ran = cli(*commands["train"](folder))
    assert ran.code == 0, ran.err
    what = "training" if split == "train" else "validation"
    assert f"5 {what} images could not be decoded and were left out" in ran.out
    assert all(f"{name}: " in ran.out and REASONS[name] in ran.out for name in names)
    records = [json.loads(line) for line in next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
    steps = [r["samples"] for r in records if r["kind"] == "step"]
    assert sum(steps) == 24 and 0 not in steps
    assert [(r["kind"], r["samples"]) for r in records if r["kind"] in ("train", "val")] == [("train", 24), ("val", 12)]


def test_damaged_images_are_left_out_of_an_evaluation(folder, commands, cli):
    names = damage(folder, "val")
    ran = cli(*commands["eval"](folder), "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["images"], told["unreadable"]) == (0, 12, 5)
    assert all(f"{name}: " in ran.err and REASONS[name] in ran.err for name in names)
    assert "5 could not be decoded" in cli(*commands["eval"](folder)).out


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", REASONS)
def test_damaged_images_are_refused_on_demand(command, name, folder, commands, refuses):
    for other in damage(folder, "val" if command == "eval" else "train") - {name}:
        next(folder.glob(f"*/green/{other}")).unlink()
    texts = [f"green/{name}", with_flags(REASONS[name]), "--on-error skip"]
    refuses(1, texts, *commands[command](folder), "--on-error", "fail")


def test_a_damaged_validation_image_is_refused_on_demand(folder, commands, cli):
    damage(folder, "val")
    ran = cli(*commands["train"](folder), "--on-error", "fail")
    assert ran.code == 1 and "green/" in ran.err and "--on-error skip" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["convert", "train", "eval"])
def test_no_decodable_image(command, folder, commands, refuses):
    for file in folder.rglob("*.*"):
        file.write_bytes(b"none")
    ran = refuses(1, [folder], *commands[command](folder))
    assert "decoded" in ran.err and "not an image" in ran.err


@pytest.mark.parametrize("command", READERS)
def test_max_pixels_is_held(command, folder, commands, refuses):
    """All images have 36 x 48 pixels or more."""
    ran = refuses(1, [folder], *commands[command](folder), "--max-pixels", "1000")
    assert "pixels are more than --max-pixels 1000" in with_flags(ran.err)
    refuses(2, ["--max-pixels", "1 or more"], *commands[command](folder), "--max-pixels", "0")


def test_max_pixels_applies_to_shards_too(shards, commands, refuses):
    refuses(1, [shards, "more than --max-pixels 1000"], *commands["train"](shards), "--max-pixels", "1000")


def shorten(file):
    file.write_bytes(file.read_bytes()[:-512])


def alter(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    (file.parent / "train.fidx").unlink(missing_ok=True)
    (file.parent / "val.fidx").unlink(missing_ok=True)


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("00000.tar", shorten, "cut short or altered"),
        ("00000.idx", shorten, "cut short or altered"),
        ("00000.idx", alter, "cut short or altered"),
        ("00000.tar", lambda file: file.unlink(), "missing"),
        ("00000.idx", lambda file: file.unlink(), "missing"),
    ],
)
def test_incomplete_shards(command, name, change, reason, shards, commands, refuses):
    file = shards / f"{'train' if command == 'train' else 'val'}-{name}"
    change(file)
    refuses(1, [file, reason, "copy it again, or convert again"], *commands[command](shards))


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"format": "other"}', ""])
@pytest.mark.parametrize("command", ["train", "eval"])
def test_an_invalid_dataset_json(command, content, shards, commands, refuses):
    (shards / "dataset.json").write_text(content)
    refuses(1, [shards / "dataset.json", "convert again"], *commands[command](shards))


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_conversion_that_did_not_finish(command, shards, commands, refuses):
    (shards / "dataset.json").unlink()
    (shards / "convert.json").write_text("{}")
    refuses(1, [shards, "did not finish", "--resume"], *commands[command](shards))


def test_a_label_that_is_not_among_the_classes(shards, commands, refuses):
    description = json.loads((shards / "dataset.json").read_text())
    description["classes"].pop()
    (shards / "dataset.json").write_text(json.dumps(description))
    refuses(1, [shards, "label 2 is not among its 2 classes", "convert again"], *commands["train"](shards))


def test_a_manifest_row_without_its_file(folder, tmp_path, commands, refuses, cli):
    rows = [f"data/train/{name}/0.jpg,{name}" for name in ("red", "green", "blue")]
    manifest = tmp_path / "list.csv"
    manifest.write_text("path,label\n" + "\n".join([*rows, "data/gone.jpg,red"]) + "\n")
    texts = [f"{manifest}: row 5: data/gone.jpg: no such file", "--on-error skip"]
    refuses(1, texts, *commands["convert"](manifest), "--on-error", "fail")
    ran = cli(*commands["convert"](manifest))
    assert ran.code == 0 and "data/gone.jpg: no such file" in ran.out


def test_an_existing_destination(trained, folder, shards, refuses):
    refuses(1, [shards, "already holds a dataset", "--overwrite"], "convert", folder, shards)


@pytest.mark.parametrize("cut", ["shrunk", "altered"])
def test_a_shard_that_changes_under_a_running_training(cut, shards, commands, cli, tmp_path, monkeypatch):
    """Never a SIGBUS: the run ends with the shard's name, and its last checkpoint is usable."""
    end_of_epoch = training._end_of_epoch

    def change(run, display):
        end_of_epoch(run, display)
        file = shards / "train-00000.tar"
        content = file.read_bytes()
        file.write_bytes(content[:4096] if cut == "shrunk" else bytes(len(content)))

    monkeypatch.setattr(training, "_end_of_epoch", change)
    ran = cli(*commands["train"](shards), "--epochs", "3")
    assert ran.code == 1 and "Traceback" not in ran.err
    assert f"{shards / 'train-00000.tar'}: " in ran.err and "copy" in ran.err
    (run,) = (tmp_path / "runs").iterdir()
    assert load_model(run / "last")[1].epoch == 1


def test_more_ranks_than_samples(folder, commands, refuses, monkeypatch):
    class Alone(Ranks):
        """One of a hundred ranks, which waits for nobody."""

        def barrier(self):
            pass

        def broadcast(self, value):
            return value

    def many(device, numa_binding):
        class Context:
            def __enter__(self):
                with start(device, numa_binding) as ranks:
                    return Alone(0, 100, 1, ranks.device, None)

            def __exit__(self, *error):
                pass

        return Context()

    monkeypatch.setattr(training, "start", many)
    refuses(1, [folder, "24 samples for 100 ranks", "start fewer"], *commands["train"](folder))


@pytest.mark.parametrize(
    ("arch", "texts"),
    [
        ("resnt50", ["resnt50", "timm has no such model", "resnet50"]),
        ("torchvision/resnet1", ["torchvision has no such classifier", "resnet18"]),
        ("resnet50.nonsense", ["nonsense", "resnet50.a1_in1k"]),
        ("torchvision/googlenet", ["auxiliary", "--model-kwargs aux_logits=False"]),
    ],
)
def test_an_unknown_architecture(arch, texts, trained, tmp_path, refuses):
    refuses(2, ["--arch", *texts], "train", trained.images, "--arch", arch, "-o", tmp_path / "runs")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("noequals", "give name=value"),
        ("=3", "give name=value"),
        ("a-b=3", "give name=value"),
        ("nonsense=3", "does not accept them"),
        ("num_classes=3", "use --num-classes instead"),
        ("act_layer=nonsense", "cannot be built with act_layer=nonsense"),
        ("layers={1,2}", "not a number, string, list or dict"),
    ],
)
def test_invalid_model_arguments(given, text, trained, tmp_path, fast, refuses):
    arguments = ("train", trained.images, *fast, "--model-kwargs", given, "-o", tmp_path / "runs")
    refuses(2, ["--model-kwargs", text], *arguments)


def test_a_size_that_the_model_does_not_support(trained, tmp_path, refuses):
    arguments = ("train", trained.images, "--arch", "test_vit", "--img-size", "33", "-o", tmp_path / "runs")
    ran = refuses(2, [], *arguments)
    assert "--img-size 33" in ran.err or "--val-crop-size 33" in ran.err


def test_pretrained_without_network(trained, tmp_path, fast, monkeypatch, cli):
    """The hub is queried once; its own retries would take a minute."""
    import socket

    import huggingface_hub

    asked = []

    def no_name(host, *rest, **options):
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_name)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    for arch in ("test_resnet", "torchvision/resnet18"):
        ran = cli("train", trained.images, *fast, "--arch", arch, "--pretrained", "-o", tmp_path / "runs")
        assert ran.code == 1 and "Traceback" not in ran.err and "Retrying" not in ran.err
        said = ran.err.strip().splitlines()[-1]
        assert f"--pretrained: the weights of {arch} could not be downloaded" in said and "--weights FILE" in said
        assert not (tmp_path / "runs").exists()
    assert 1 <= len(asked) <= 4
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False


@pytest.fixture
def weights(trained, tmp_path):
    """Tensors of the run's model."""
    return load_file(trained.run / "best" / MODEL)


def test_weights_of_another_architecture(trained, tmp_path, fast, weights, refuses):
    file = tmp_path / "other.safetensors"
    save_file({**{f"x.{name}": tensor for name, tensor in weights.items()}}, file)
    texts = [file, "not the weights of test_resnet", "missing (conv1.0.weight", "unknown (x.", "--arch"]
    refuses(1, texts, "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")
    weights["layer1.0.conv1.weight"] = torch.zeros(3, 3)
    save_file(weights, file)
    texts = [file, "of another shape (layer1.0.conv1.weight [3, 3] for"]
    refuses(1, texts, "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_weights_that_are_cut_short(name, trained, tmp_path, fast, weights, refuses):
    file = tmp_path / name
    save_file(weights, file) if name.endswith("rs") else torch.save(weights, file)
    file.write_bytes(file.read_bytes()[:1000])
    refuses(1, [file], "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, torch.zeros(3), {"state_dict": {}}])
def test_weights_without_names(content, trained, tmp_path, fast, refuses):
    file = tmp_path / "w.pt"
    torch.save(content, file)
    texts = [file, "no named tensors", "state_dict"]
    refuses(1, texts, "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")


def test_missing_weights(trained, tmp_path, fast, refuses):
    (tmp_path / "empty").mkdir()
    for name, reason in (("no.pt", "no such file"), ("empty", "a folder without model.safetensors")):
        file = tmp_path / name
        texts = [f"{file}: {reason}"]
        refuses(1, texts, "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_weights_that_are_a_text_file(trained, tmp_path, fast, refuses):
    file = tmp_path / "notes.pt"
    file.write_text("hello\n")
    texts = [file, "not written by torch.save"]
    refuses(1, texts, "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")


def test_a_pickle_is_never_executed(trained, tmp_path, fast, refuses):
    file = tmp_path / "evil.pt"
    torch.save({"state_dict": {"fc.weight": torch.zeros(1)}, "epoch": Evil(tmp_path / "written")}, file)
    texts = [file, "cannot be read as plain tensors", "safetensors"]
    refuses(1, texts, "train", trained.images, *fast, "--weights", file, "-o", tmp_path / "runs")
    assert not (tmp_path / "written").exists()


def saved_pickles(folder):
    """Files that torch.load(weights_only=True) refuses with different advice."""
    with tarfile.open(folder / "old.pth", "w") as tar:
        tar.addfile(tarfile.TarInfo("storages"))
    torch.save({"state_dict": {"fc.weight": torch.zeros(1)}, "args": argparse.Namespace()}, folder / "wrapped.pth")
    torch.save(torch.nn.Linear(1, 1), folder / "whole.pth", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(1, 1)).save(str(folder / "script.pt"))
    return {
        "old.pth": "torch.load finds no plain tensors in it",
        "wrapped.pth": "it holds Python objects (argparse.Namespace), and reading them would run code",
        "whole.pth": "it holds Python objects (torch.nn.modules.linear.Linear)",
        "script.pt": "it is a TorchScript program",
    }


UNSAFE = re.compile("weights_only|likely succeed|safe_globals|trust|allowlist", re.IGNORECASE)


def test_no_message_advises_to_execute_a_files_code(trained, tmp_path):
    for name, reason in saved_pickles(tmp_path).items():
        file = tmp_path / name
        with pytest.raises(UserError) as read:
            read_weights(file)
        assert f"{file}: cannot be read as plain tensors ({reason}" in str(read.value)
        (tmp_path / "training.pt").write_bytes(file.read_bytes())
        with pytest.raises(UserError) as resumed:
            load_training(tmp_path)
        assert f"cannot be read ({reason}" in str(resumed.value)
        for said in (read, resumed):
            assert not UNSAFE.search(str(said.value)) and "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Weights only load failed. Re-running `torch.load` with `weights_only` set to `False` will likely succeed",
            "no",
        ),
        (
            "it needs code.\nPlease pass the argument `trust_remote_code=True` to allow it to be run.",
            "it comes with Python code, which is not run",
        ),
        ("\n  first \nsecond", "first"),
        ("", "ValueError"),
    ],
)
def test_a_librarys_reason_is_shown(text, said):
    reason = reason_of(ValueError(text))
    assert said in reason and not UNSAFE.search(reason) and "\n" not in reason


def test_no_such_advice_for_torchvision_datasets(tmp_path):
    error = RuntimeError("Weights only load failed. Re-running `torch.load` with `weights_only` set to `False`")
    said = str(imagesets._failure("torchvision:MNIST", error, tmp_path))
    assert "torchvision cannot load it (torch.load finds no plain tensors in it)" in said


@pytest.mark.parametrize(
    ("pair", "said"),
    [("checkpoint_path=w.pth", "use --weights FILE"), ("trust_remote_code=True", "does not execute code")],
)
def test_arguments_that_let_a_file_run_code_are_refused(pair, said, trained, fast, refuses, tmp_path):
    texts = [f"--model-kwargs {pair}", said]
    refuses(2, texts, "train", trained.images, *fast, "--model-kwargs", pair, "-o", tmp_path / "runs")


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_files_that_are_not_checkpoints(command, trained, tmp_path, weights, refuses):
    data = trained.images if command == "eval" else trained.images / "val" / "red" / "0.jpg"
    refuses(1, [tmp_path / "no", "give a run directory"], command, tmp_path / "no", data)
    refuses(1, [tmp_path, "no checkpoint in it"], command, tmp_path, data)
    plain, cut, text = tmp_path / "plain.safetensors", tmp_path / "cut.safetensors", tmp_path / "text"
    save_file(weights, plain)
    cut.write_bytes((trained.run / "best" / MODEL).read_bytes()[:-100])
    text.write_text("words")
    refuses(1, [plain, "without classes and preprocessing", "train --weights"], command, plain, data)
    for file in (cut, text):
        refuses(1, [file, "not a complete checkpoint"], command, file, data)


def test_a_checkpoint_with_another_class_list(trained, folder, commands, refuses):
    shutil.rmtree(folder / "val" / "red")
    (folder / "train" / "red").rename(folder / "train" / "pink")
    texts = [folder, trained.run, "it also has pink", "it lacks red", "the classes the model was trained on"]
    refuses(1, texts, *commands["eval"](folder))


def test_an_output_that_is_a_file(trained, tmp_path, fast, refuses):
    (tmp_path / "file").write_text("")
    texts = [tmp_path / "file", "--output"]
    refuses(1, texts, "train", trained.images, *fast, "-o", tmp_path / "file")


def test_a_learning_rate_that_explodes(trained, tmp_path, fast, refuses):
    texts = ["the loss became nan", "lower --lr"]
    refuses(1, texts, "train", trained.images, *fast, "--lr", "1e30", "--opt", "sgd", "-o", tmp_path / "runs")


@pytest.mark.parametrize("flags", [("--batch-size", "0"), ("--workers", "0"), ("--device", "tpu")])
@pytest.mark.parametrize("command", ["eval", "predict"])
def test_flags_of_eval_and_predict(command, flags, trained, commands, refuses):
    data = trained.images if command == "eval" else trained.images / "val" / "red" / "0.jpg"
    refuses(2, [flags[0]], *commands[command](data), *flags)


def test_a_missing_split(trained, commands, refuses):
    refuses(
        1,
        [trained.images, "no split 'tset'", "it has train, val"],
        *commands["eval"](trained.images),
        "--split",
        "tset",
    )
    refuses(1, ["no split 'tset'"], *commands["train"](trained.images), "--train-split", "tset")
    refuses(1, ["no split 'tset'"], *commands["train"](trained.images), "--val-split", "tset")


def test_a_plot_that_cannot_be_written(trained, tmp_path, refuses):
    refuses(2, ["--plot", "a.xyz", ".png"], "eval", trained.run, trained.images, "--plot", tmp_path / "a.xyz")
    refuses(1, ["--plot", "no/a.png"], "eval", trained.run, trained.images, "--plot", tmp_path / "no" / "a.png")


def test_an_index_that_does_not_match_a_foreign_tar_is_reported(trained, tmp_path, cli, fast):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for file in trained.shards.glob("*.tar"):
        shutil.copy(file, theirs)
        lines = file.with_suffix(".idx").read_text().splitlines()
        (theirs / file.name).with_suffix(".idx").write_text("\n".join(["v1.2 1", lines[2]]) + "\n")
    ran = cli("train", theirs, *fast, "-o", tmp_path / "runs", "--name", "r")
    assert ran.code == 0, ran.err
    assert "train-00000.idx does not fit train-00000.tar: the tar was scanned" in ran.out and "24 images" in ran.out
    ran = cli("eval", tmp_path / "runs/r", theirs)
    assert ran.code == 0 and "val-00000.idx does not fit val-00000.tar" in ran.err


def test_shards_next_to_class_folders_are_not_a_dataset(trained, tmp_path, refuses):
    both = shutil.copytree(trained.images / "train", tmp_path / "both")
    shutil.copy(next(trained.shards.glob("train*.tar")), both)
    refuses(1, (both, "holds both subfolders of images and shards", "move one of them away"), "train", both)
