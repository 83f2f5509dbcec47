"""`--arch hf-hub:USER/NAME`: a model in a repository, by timm and the hub's own client, from a server like the hub."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save

from fastimg.errors import UsageError, UserError
from fastimg.models.registry import build
from fastimg.train.checkpoints import format as checkpoint
from fastimg.train.choices.weights_at_hand import fetched

ARCH = "hf-hub:timm/test_resnet.r160_in1k"
SMALL = ("--img-size", "32", "--batch-size", "8", "--workers", "1", "--no-amp")


@pytest.fixture
def published(hub: Any) -> Any:
    """timm/test_resnet.r160_in1k, with random weights of ten classes."""
    torch.manual_seed(1)
    model = timm.create_model("test_resnet", num_classes=10)
    config = {
        "architecture": "test_resnet",
        "num_classes": 10,
        "pretrained_cfg": {**model.pretrained_cfg, "num_classes": 10, "mean": [0.5, 0.4, 0.3], "crop_pct": 0.8},
        "model_args": {"drop_rate": 0.25},
    }
    repository = hub.model("timm/test_resnet.r160_in1k")
    repository.commit({"config.json": json.dumps(config).encode(), "model.safetensors": save(model.state_dict())})
    return model


def test_built_with_its_weights(published: Any) -> None:
    model = build(ARCH, 10, pretrained=True)
    assert (model.arch, model.kwargs) == ("test_resnet", {"drop_rate": 0.25})
    assert model.preprocessing.mean == (0.5, 0.4, 0.3) and model.new_head is None
    own = published.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.module.state_dict().items())
    other = build(ARCH, 3, pretrained=True, kwargs={"drop_rate": 0.0})
    assert other.new_head == "zeros" and other.kwargs == {"drop_rate": 0.0}


def test_a_run_needs_the_hub_no_more(
    published: Any, trained: Any, hub: Any, tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint states timm's own name: `eval` asks nobody."""
    arguments = (trained.images, "--arch", ARCH, "--pretrained", *SMALL, "--epochs", "1", "--no-aug")
    ran = cli("train", *arguments, "-o", tmp_path / "runs", "--name", "r")
    assert ran.code == 0, ran.err
    assert checkpoint.read_card(checkpoint.find(tmp_path / "runs" / "r")).arch == "test_resnet"
    hub.requests.clear()
    ran = cli("eval", tmp_path / "runs" / "r", trained.images, "--workers", "1")
    assert ran.code == 0, ran.err
    assert not hub.requests
    ran = cli("embed", trained.images, tmp_path / "E", "--arch", ARCH, "--pretrained", "--img-size", "32")
    assert ran.code == 0, ran.err
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    ran = cli("train", *arguments, "-o", tmp_path / "runs", "--name", "again", "--dry-run")  # from the hub's cache
    assert ran.code == 0, ran.err


def test_weights_for_search_and_suggest(published: Any, hub: Any) -> None:
    kept, why = fetched((ARCH,))
    assert why == "" and [each.arch for each in kept] == [ARCH]
    hub.requests.clear()
    again, _ = fetched((ARCH,))
    assert again == kept and not hub.requests
    model = build(ARCH, 10, weights=kept[0].file)
    assert torch.equal(model.module.state_dict()["fc.weight"], published.state_dict()["fc.weight"])
    none, why = fetched(("hf-hub:timm/none",))
    assert none == [] and why


def test_failures_in_a_sentence(
    hub: Any, published: Any, trained: Any, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    with pytest.raises(UserError, match=r"--arch hf-hub:timm/none: .* knows no such repository"):
        build("hf-hub:timm/none", 10)
    hub.model("me/empty").commit({"a.txt": b""})
    with pytest.raises(UserError, match="a file is missing there"):
        build("hf-hub:me/empty", 10)
    hub.model("me/other").commit({"config.json": b'{"model_type": "bert"}'})
    with pytest.raises(UserError, match="not a model of timm's"):
        build("hf-hub:me/other", 10)
    hub.model("me/new").commit({"config.json": b'{"architecture": "future_net", "pretrained_cfg": {}}'})
    with pytest.raises(UsageError, match="this version of timm has no model 'future_net'"):
        build("hf-hub:me/new", 10)
    levels = {"architecture": "test_resnet", "pretrained_cfg": {"mean": [124, 116, 104], "std": [58, 57, 57]}}
    hub.model("me/levels").commit({"config.json": json.dumps(levels).encode()})
    with pytest.raises(UserError, match=r"--arch hf-hub:me/levels: .* mean \[124, 116, 104\] .* shares of white"):
        build("hf-hub:me/levels", 10)
    import huggingface_hub

    hub.close()
    huggingface_hub.close_session()
    ran = cli("train", trained.images, "--arch", "hf-hub:timm/other", "--pretrained", "-o", tmp_path / "runs")
    assert ran.code == 1 and "Traceback" not in ran.err and "--arch hf-hub:timm/other: " in ran.err
    assert "check the network connection" in ran.err and not (tmp_path / "runs").exists()
