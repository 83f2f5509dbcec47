"""`fastimg push`: what is uploaded, by the hub's own client to a server that answers as the hub does; timm reads it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml

from fastimg.publish.command import repository_files
from fastimg.publish.model_card import model_card, public_settings
from fastimg.publish.timm_layout import why_not_timm
from fastimg.train.checkpoints import format as checkpoint

# The hub's client uploads large files by an argument that its HTTP library would rather see under another name.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, hub: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")


def pushed(hub: Any, name: str, ref: str = "main") -> dict[str, bytes]:
    repository = hub.models[name]
    files: dict[str, bytes] = repository.commits[repository.refs[ref]]
    return files


@pytest.mark.usefixtures("token")
def test_timm_loads_what_was_pushed(trained: Any, hub: Any, cli: Callable[..., Any]) -> None:
    ran = cli("push", trained.run, "hub://me/colours", "--private", "--message", "Colours", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    repository = hub.models["me/colours"]
    assert (told["repository"], told["timm"]) == ("me/colours", True)
    assert told["commit"] == repository.refs["main"] and told["url"].endswith(told["commit"])
    assert repository.private and repository.messages[-1] == "Colours"
    files = pushed(hub, "me/colours")
    named = {"README.md", "classes.json", "config.json", "config.yaml", "metrics.json", "model.safetensors"}
    assert set(told["files"]) == named == files.keys() - {".gitattributes"}
    assert files["model.safetensors"] == (trained.run / "best" / "model.safetensors").read_bytes()
    assert json.loads(files["classes.json"]) == ["blue", "green", "red"]

    model = timm.create_model("hf-hub:me/colours", pretrained=True).eval()
    own, card = checkpoint.load_model(trained.run)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(images), own.module(images))
    data = timm.data.resolve_model_data_config(model)
    assert tuple(data["mean"]) == card.preprocessing.mean and data["input_size"] == (3, 32, 32)
    assert round(32 / data["crop_pct"]) == card.preprocessing.val_resize
    assert model.pretrained_cfg["label_names"] == ["blue", "green", "red"]


@pytest.mark.usefixtures("token")
def test_a_second_push_is_a_commit_on_a_branch(trained: Any, hub: Any, cli: Callable[..., Any]) -> None:
    hub.model("me/colours").commit({"kept.txt": b"kept"})
    ran = cli("push", trained.run / "last", "hub://me/colours/", "--revision", "next")
    assert ran.code == 0 and "pushed" in ran.out and f"{hub.endpoint}/me/colours/commit/" in ran.out
    assert set(pushed(hub, "me/colours")) == {"kept.txt"}
    assert {"kept.txt", "model.safetensors"} <= pushed(hub, "me/colours", "next").keys()


def test_a_dry_run_uploads_nothing(trained: Any, hub: Any, cli: Callable[..., Any]) -> None:
    ran = cli("push", trained.run, "hub://me/colours", "--dry-run")
    assert ran.code == 0 and not hub.requests
    assert "model.safetensors" in ran.out and "nothing uploaded" in ran.out
    card = ran.out[ran.out.index("---") :]
    front = yaml.safe_load(card.split("---")[1])
    assert front == {
        "library_name": "timm",
        "tags": ["image-classification", "timm", "fastimg"],
        "pipeline_tag": "image-classification",
    }
    assert "test_resnet, trained with fastimg" in card and "on 24 samples of 3 classes" in card
    assert "| 1 | green | 8 |" in card and "| top1 |" in card
    assert 'timm.create_model("hf-hub:me/colours", pretrained=True)' in card
    assert "resized to" in card and "epochs: 2" in card
    assert str(trained.images) not in card


def test_settings_without_paths(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("data: /home/me/photos\noutput: runs\nweights: ../w.safetensors\nepochs: 3\narch: resnet18\n")
    settings = public_settings(config)
    assert {key: str(value) for key, value in settings.items()} == {
        "data": "photos", "output": "runs", "weights": "w.safetensors", "epochs": "3", "arch": "resnet18",
    }  # fmt: skip


def test_a_model_that_timm_cannot_rebuild(trained: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    model, card = checkpoint.load_model(trained.run)
    assert why_not_timm(model, card) == ""
    assert "--head mlp" in why_not_timm(model, replace(card, head="mlp"))
    assert "fastimg/airnet is not one of timm's" in why_not_timm(model, replace(card, arch="fastimg/airnet"))
    names = tuple(f"a|{i}" for i in range(60))
    text = model_card("me/x", replace(card, classes=names, metrics={}), {}, "it reads texts")
    assert "library_name" not in text and "timm.create_model" not in text and "## Results" not in text
    assert "| 49 | a\\|49 |" in text and "And 10 more" in text
    lone = tmp_path / "model.safetensors"
    shutil.copy(trained.run / "best" / "model.safetensors", lone)
    files, timms = repository_files(lone, "me/x")
    assert timms == "" and "config.yaml" not in files and "config.json" in files


def test_refusals(trained: Any, hub: Any, tmp_path: Path, cli: Callable[..., Any], monkeypatch: Any) -> None:
    def said(code: int, *arguments: object) -> str:
        ran = cli("push", *arguments)
        assert ran.code == code and "Traceback" not in ran.err
        line: str = ran.err.strip().splitlines()[-1]
        return line

    assert "no token; set HF_TOKEN" in said(1, trained.run, "hub://me/colours") and not hub.requests
    assert "give hub://USER/NAME" in said(2, trained.run, "me/colours")
    assert "no checkpoint in it" in said(1, tmp_path, "hub://me/colours")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "push hub://me/colours: " in said(1, trained.run, "hub://me/colours") and not hub.models
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.faults = [("repos/create", "denied")]
    assert "refuses (403); set HF_TOKEN" in said(1, trained.run, "hub://me/colours")
    hub.faults = [("/lfs/", "denied")]
    assert "refuses (403)" in said(1, trained.run, "hub://me/colours")
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in said(1, trained.run, "hub://me/colours")
