"""Metadata in a weights file about its model is used and reported; flags take precedence."""

import json
import re
import shutil

import pytest
import yaml
from safetensors.torch import load_file, save_file

from fastimg.config.commands import Embed, Train
from fastimg.errors import UserError
from fastimg.models.registry import build
from fastimg.train.checkpoints.format import MODEL, TRAINING
from fastimg.train.choices.stated_weights import adopted


@pytest.fixture
def file(tmp_path):
    """file(**metadata): weights of a ResNet of eight channels, with this metadata."""

    def write(**metadata):
        tensors = build("test_resnet", 3, kwargs={"stem_width": 8}).module.state_dict()
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "w.safetensors", metadata)
        return tmp_path / "w.safetensors"

    return write


@pytest.mark.parametrize("where", ["", "best", "last", f"best/{MODEL}", "checkpoints/*", f"checkpoints/*/{MODEL}"])
@pytest.mark.parametrize("command", ["train", "embed"])
def test_a_run_says_what_its_weights_are_of(command, where, trained, tmp_path, cli, monkeypatch):
    """Every kind of path: the architecture and the image size are those of the run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    weights = sorted(trained.run.glob(where))[-1] if where else trained.run
    settings = Train(weights=weights) if command == "train" else Embed(weights=weights, data=tmp_path, dst=tmp_path)
    config, stated, words = adopted(settings)
    assert (config.arch, stated.image_size()) == ("test_resnet", 32)
    assert words == f"{weights} states --arch test_resnet, images of 32 pixels"
    if where != "best":
        return
    if command == "train":
        ran = cli("train", trained.images, "--weights", weights, "-b", "8", "--dry-run", "-j", "1")
        assert ran.code == 0, ran.err
        assert f"weights     {words}" in ran.out and "centre crop 32" in ran.out
        return
    data = shutil.copytree(trained.shards, tmp_path / "shards")
    ran = cli("embed", data, tmp_path / "out", "--weights", weights, "--no-amp", "-j", "1")
    assert ran.code == 0, ran.err
    assert f"weights: {words}" in ran.err
    made = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    assert made["splits"]["val"]["samples"] == 12
    flags = ("--arch", "test_resnet", "--img-size", "32", "--no-amp", "-j", "1")
    assert cli("embed", data, tmp_path / "same", "--weights", weights, *flags).code == 0
    assert json.loads((tmp_path / "same" / "embeddings.json").read_text())["splits"]["val"]["made now"] == 0


def test_the_optimisers_state_is_not_weights(trained, cli):
    file = trained.run / "best" / TRAINING
    ran = cli("train", trained.images, "--weights", file, "--dry-run")
    assert ran.code == 1
    assert f"{file}: contains the optimiser's state; the weights are in {file.with_name(MODEL)}" in ran.err


@pytest.mark.parametrize(
    "text",
    ["stem_width=8", '{"stem_width": 8}', "{'stem_width': 8}", "stem_width=8 num_classes=3", "stem_width=8, a=b"],
)
def test_arguments_in_the_metadata_are_obeyed(text, file):
    weights = file(arch="test_resnet", model_kwargs=text)
    config, stated, words = adopted(Train(weights=weights))
    expected = {"stem_width": 8, "a": "b"} if "a=b" in text else {"stem_width": 8}
    assert stated.kwargs == expected
    assert (config.arch, config.model_kwargs[0]) == ("test_resnet", "stem_width=8")
    assert words.startswith(f"{weights} states --arch test_resnet, --model-kwargs stem_width=8")


def test_a_run_with_the_arguments_of_the_metadata(file, trained, tmp_path, fast, cli):
    """They reach the model and config.yaml, which makes the same run again."""
    weights = file(arch="test_resnet", model_kwargs="stem_width=8")
    ran = cli("train", trained.images, *fast[2:], "--weights", weights, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    assert f"{weights} states --arch test_resnet, --model-kwargs stem_width=8" in ran.out
    assert load_file(tmp_path / "run" / "last" / MODEL)["conv1.0.weight"].shape[0] == 8
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (written["arch"], written["model_kwargs"]) == ("test_resnet", ["stem_width=8"])


def test_flags_win_over_what_weights_state(file):
    weights = file(arch="test_resnet", model_kwargs="stem_width=8 pad_type=same")
    config, _, words = adopted(Train(weights=weights, arch="test_resnet", model_kwargs=("stem_width=16",)))
    assert config.model_kwargs == ("pad_type=same", "stem_width=16")
    assert words.endswith(
        "states --model-kwargs pad_type=same; --model-kwargs stem_width=16 overrules its stem_width=8"
    )
    config, stated, words = adopted(Train(weights=weights, arch="resnet18"))
    assert (config.arch, config.model_kwargs, stated.kwargs) == ("resnet18", (), {})
    assert words == f"{weights} states --arch test_resnet, which --arch resnet18 overrules"
    assert (
        adopted(Train(weights=weights, arch="test_resnet.r160_in1k"))[0].model_kwargs != ()
    )  # a tag does not change the model


def test_a_size_that_is_asked_for_is_not_that_of_the_run(trained, cli):
    ran = cli("train", trained.images, "--weights", trained.run, "--img-size", "48", "--dry-run")
    assert ran.code == 0 and "centre crop 48" in ran.out and "images of 32" not in ran.out


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"arch": "test_resnet", "model_kwargs": "8"}, "model_kwargs '8' in its metadata is neither a JSON object nor"),
        ({"arch": "test_resnet", "model_kwargs": "{'a'"}, "is neither a JSON object nor name=value pairs"),
        (
            {"arch": "test_resnet", "model_kwargs": "in_chans=4"},
            "its metadata says in_chans=4, and images have 3 channels,",
        ),
        ({"model_kwargs": "stem_width=8"}, "its metadata has model_kwargs, but no arch that they are for"),
    ],
)
def test_metadata_that_cannot_be(metadata, words, file):
    weights = file(**metadata)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        adopted(Train(weights=weights))
    assert str(weights) in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "head", "words"),
    [((), None, "its classifier kept"), (("--num-classes", "5"), "zeros", "zeros head but for 3 rows")],
)
def test_how_the_classifier_begins_is_printed_and_recorded(flags, head, words, trained, tmp_path, fast, cli):
    ran = cli("train", trained.images, *fast, "--weights", trained.run, *flags, "-o", tmp_path, "--name", "run")
    assert ran.code == 0, ran.err
    model = next(line for line in ran.out.splitlines() if line.startswith("model "))
    assert model.rstrip().endswith(words) and ("zeros head" in model) == (head == "zeros")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()).get("head_init") == head


def test_a_start_of_the_classifier_that_is_kept_is_refused(trained, fast, cli):
    ran = cli("train", trained.images, *fast, "--weights", trained.run, "--head-init", "he", "--dry-run")
    assert ran.code == 2 and "--head-init he has no effect: the weights come with a classifier" in ran.err
