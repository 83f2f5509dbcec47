"""Architectures, weights and checkpoints that are none, and files that would run code."""

import re
import tarfile
import warnings
from fractions import Fraction

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastimg.convert.sources import named_sets as imagesets
from fastimg.errors import UserError, reason_of
from fastimg.models.registry import read_weights
from fastimg.train.checkpoints.format import MODEL, load_training


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
    torch.save({"state_dict": {"fc.weight": torch.zeros(1)}, "args": Fraction(1, 2)}, folder / "wrapped.pth")
    torch.save(torch.nn.Linear(1, 1), folder / "whole.pth", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(1, 1)).save(str(folder / "script.pt"))
    return {
        "old.pth": "torch.load finds no plain tensors in it",
        "wrapped.pth": "it holds Python objects (fractions.Fraction), and reading them would run code",
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
    for split in ("val", "train"):
        (folder / split / "red").rename(folder / split / "pink")
    texts = [folder, trained.run, "classes that the model was not trained on: pink (4); evaluate on data without them"]
    refuses(1, texts, *commands["eval"](folder))
