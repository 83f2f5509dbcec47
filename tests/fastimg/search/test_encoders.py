"""Which encoders a search compares: those that fit, those at hand, small ones where there are none."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save_file

from fastimg.config.commands import Train
from fastimg.errors import UsageError
from fastimg.models.ranks import Ranks
from fastimg.search.staged import encoders
from fastimg.search.staged.encoders import Candidate, DataFacts, find, from_json, measure, text_reader, untrained
from fastimg.search.staged.trials import Trials
from fastimg.train.choices import weights_at_hand
from fastimg.train.choices.resolution import resolve
from fastimg.train.choices.weights_at_hand import PUBLISHED, KeptWeights, kept_images, kept_texts


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Empty caches, and a hub that is not asked."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))


@pytest.fixture
def images(tmp_path):
    """12 images of two classes to train on, and a test split."""
    for split in ("train", "test"):
        for name in ("dark", "light"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(6):
                shade = np.full((20, 30, 3), number + (200 if name == "light" else 0), np.uint8)
                Image.fromarray(shade).save(tmp_path / "data" / split / name / f"{number}.png")
    return tmp_path / "data"


@pytest.fixture
def small(tmp_path):
    """Weights of a small network, which say what they are of."""
    file = tmp_path / "small.safetensors"
    save_file(timm.create_model("test_resnet", num_classes=5).state_dict(), file, {"arch": "test_resnet"})
    return file


def facts(content="images", side=200):
    return DataFacts(
        content=content, train=10, val=2, side=side, settings={}, validation="", val_split="train", untouched=""
    )


def test_a_test_split_never_validates_unless_it_is_asked_to(images):
    found = encoders.facts(images, {}, 0)
    assert (found.settings, found.untouched, found.val_split) == ({"fold": "0/10", "stratify": True}, "test", "train")
    assert found.train + found.val == 12 and found.side == 20
    asked = encoders.facts(images, {"val_split": "test"}, 0)
    assert (asked.settings, asked.untouched, asked.val) == ({}, "", 12)
    with pytest.raises(UsageError, match="nothing validates"):
        encoders.facts(images / "train", {"val_fraction": 0.0}, 0)


def test_weights_go_with_the_architecture_that_they_fit(small):
    found = find(("test_vit", "test_resnet"), (small,), facts(), {}, gpu=False)
    assert [each.settings.get("weights") for each in found.candidates] == [str(small.resolve()), None]
    assert [each.tuned for each in found.candidates] == [True, False]
    assert "HF_HUB_OFFLINE" in found.candidates[1].origin


def test_weights_of_another_image_size_fit(tmp_path):
    file = tmp_path / "vit.pth"
    torch.save(timm.create_model("test_vit", num_classes=5, img_size=32).state_dict(), file)
    found = find(("test_vit",), (file,), facts(), {"img_size": 64}, gpu=False)
    assert found.candidates[0].settings["weights"] == str(file.resolve()) and found.skipped == []


def test_weights_that_fit_none_are_skipped_and_named(small, tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    found = find(("test_vit",), (small, broken), facts(), {}, gpu=False)
    assert [each.name for each in found.candidates] == ["test_vit"]
    assert [each.reason.split(":")[0] for each in found.skipped] == [
        f"--weights {small.resolve()}",
        f"--weights {broken}",
    ]
    assert "not the weights of test_vit" in found.skipped[0].reason
    with pytest.raises(UsageError, match=r"no encoder is left: .*not a complete safetensors file"):
        find((), (broken,), facts(), {}, gpu=False)
    with pytest.raises(UsageError, match=r"no encoder is left: resnett18: .*did you mean resnet18"):
        find(("resnett18",), (), facts(), {}, gpu=False)


def test_two_files_of_one_architecture_are_told_apart(small, tmp_path):
    other = tmp_path / "other.safetensors"
    other.write_bytes(small.read_bytes())
    names = [each.name for each in find((), (small, other), facts(), {}, gpu=False).candidates]
    assert len(set(names)) == 2 and all(name.startswith("test_resnet (") for name in names)


def test_weights_in_the_caches_are_at_hand(tmp_path):
    state = timm.create_model("test_resnet", num_classes=1000).state_dict()
    snapshot = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    save_file(state, snapshot / "model.safetensors")
    (tmp_path / "hub" / "models--someone--else").mkdir()
    (tmp_path / "torch" / "checkpoints").mkdir(parents=True)
    (tmp_path / "torch" / "checkpoints" / "resnet18-f37072fd.pth").write_bytes(b"weights")
    assert [(each.arch, each.file.name) for each in kept_images()] == [
        ("resnet18.tv_in1k", "resnet18-f37072fd.pth"),  # which torchvision publishes, too
        ("test_resnet.r160_in1k", "model.safetensors"),
    ]
    found = find((), (), facts(), {}, gpu=False)
    assert [each.name for each in found.candidates] == ["test_resnet.r160_in1k"]
    assert [each.name for each in found.skipped] == ["resnet18.tv_in1k"]  # not a file of weights
    assert [each.name for each in find((), (), facts(), {"img_size": 64}, gpu=False).candidates]


def test_text_encoders_in_the_cache_are_at_hand(tmp_path):
    whole = tmp_path / "hub" / "models--org--reader" / "snapshots" / "1"
    whole.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (whole / name).write_text("{}")
    (tmp_path / "hub" / "models--org--half" / "snapshots" / "1").mkdir(parents=True)
    assert kept_texts() == [KeptWeights(f"hf:{whole}", None, "hf:org/reader")]


def test_texts_without_an_encoder_ask_for_one():
    with pytest.raises(UsageError, match="give one with --arch hf:NAME"):
        find((), (), facts("text", 0), {}, gpu=False)


def test_without_weights_small_models_are_trained_from_nothing():
    found = find((), (), facts(side=200), {}, gpu=False)
    assert [each.tuned for each in found.candidates] == [False, False]
    assert [each.name for each in found.skipped] == list(PUBLISHED[: weights_at_hand.ON_CPUS])
    assert untrained(8)[0].settings == {"arch": "fastimg/airnet"}
    assert [each.settings["img_size"] for each in untrained(400)] == [160, 160]


def test_published_models_are_timms():
    assert set(PUBLISHED) <= set(timm.list_pretrained())


def test_a_measured_encoder_survives_the_journal(small, monkeypatch):
    monkeypatch.setattr(encoders, "model_speed", lambda *_: 12.5)
    (candidate,) = find((), (small,), facts(), {}, gpu=False).candidates
    measured = measure(candidate, {}, "cpu")
    assert (measured.side, measured.small, measured.rate) == (160, 96, 12.5)
    assert measured.learning_rate == 3e-4  # what `train` chooses with batches of 64
    assert measured.head_rates == {"linear": 1e-3, "mlp": 1e-3}
    assert from_json(encoders.as_json(measured)) == measured
    assert measure(candidate, {"img_size": 64}, "cpu").small is None  # a size that was asked for stays


@pytest.mark.parametrize(
    ("shared", "rate"),
    [
        ({}, 5e-4),
        ({"opt": "sgd"}, 0.0312),  # its rate follows the batch linearly
        ({"opt": "sgd", "lr_scale": "none"}, 0.5),
    ],
)
def test_the_usual_rate_is_the_one_that_training_chooses(monkeypatch, shared, rate):
    monkeypatch.setattr(encoders, "model_speed", lambda *_: 12.5)
    candidate = Candidate(name="test_resnet", settings={"arch": "test_resnet"}, tuned=False, origin="random weights")
    measured = measure(candidate, shared, "cpu")
    assert measured.learning_rate == rate
    config = Train(arch="test_resnet", batch_size=64, **shared)
    model = encoders.built(candidate, shared, classes=2)
    ranks = Ranks(0, 1, 1, torch.device("cpu"), None)
    assert resolve(config, Path("data"), model, model.preprocessing, None, ranks).lr == rate


@pytest.mark.parametrize(
    ("shared", "device", "batch"),
    [
        ({}, "cpu", 64),
        ({}, "cuda", 256),
        ({"batch_size": 32, "grad_accum_steps": 4}, "cuda", 128),
        ({"batch_size": "auto"}, "cuda", 256),
    ],
)
def test_rates_are_for_the_batch_of_the_trials(shared, device, batch):
    assert encoders._batch(Train(**shared), device) == batch


def test_what_reads_the_texts_beside_images_is_told(monkeypatch):
    pairs = dataclasses.replace(facts(), captions=True)
    assert text_reader(facts(), {}, chosen=False) == ({}, "")
    assert text_reader(pairs, {"text_arch": "hf:x"}, chosen=False) == ({}, "")
    assert text_reader(pairs, {}, chosen=True, archs=["hf:x"]) == ({}, "")
    nothing = "those beside the images are not read"
    remedy = "--text-arch hf:NAME behind `--` reads them"
    assert text_reader(pairs, {}, chosen=True) == ({}, f"{nothing}; {remedy}")
    assert text_reader(pairs, {}, chosen=False) == ({}, f"{nothing}: no encoder of texts is at hand; {remedy}")
    monkeypatch.setattr(encoders, "kept_texts", lambda: [KeptWeights("hf:/hub/mini", None, "hf:mini")])
    words = "those beside the images are read by hf:mini, which is at hand"
    assert text_reader(pairs, {}, chosen=False) == ({"text_arch": "hf:/hub/mini"}, words)


def test_beside_an_encoder_of_texts_no_other_one_is_compared():
    found = find(["hf:some/encoder", "test_resnet"], [], facts(), {"text_arch": "hf:x"}, gpu=False)
    assert [each.name for each in found.candidates] == ["test_resnet"]
    assert [each.reason for each in found.skipped] == [
        "reads texts, as --text-arch does; give models of images beside it"
    ]


def test_a_rate_that_was_drawn_is_not_scaled_again(tmp_path):
    asked = SimpleNamespace(shared={"lr_scale": "sqrt"}, data=tmp_path, folder=tmp_path, seed=3, metric=None)
    trials = SimpleNamespace(asked=asked, data=SimpleNamespace(settings={}))
    assert Trials.settings(trials, {"lr": 0.01})["lr_scale"] == "none"
    assert Trials.settings(trials, {"head": "mlp", "lr": None})["lr_scale"] == "sqrt"  # `train` chooses the rate
