"""config.json as timm writes and reads it, so that `timm.create_model("hf-hub:USER/NAME", pretrained=True)` works."""

import json
import tempfile
from pathlib import Path
from typing import Any

import timm
from timm.models._hub import save_config_for_hf

from fastimg.models.registry import Model
from fastimg.train.checkpoints.format import Card


def why_not_timm(model: Model, card: Card) -> str:
    """Why timm could not rebuild the model; empty if it can."""
    if model.text is not None or model.pair is not None:
        return "it reads texts"
    if not timm.is_model(card.arch):
        return f"{card.arch} is not one of timm's models"
    changed = {"--head mlp": card.head != "linear", "--blurpool": card.blurpool}
    return next((f"{flag} changed the network" for flag, given in changed.items() if given), "")


def timm_config(model: Model, card: Card) -> dict[str, Any]:
    """The content of config.json: the architecture, its arguments, the class names, and the preprocessing.

    The input is cut as `predict` cuts it: resized to `val_resize`, and `val_size` pixels of the middle.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        stated = {"label_names": list(card.classes)} if len(card.classes) == card.num_classes else {}
        save_config_for_hf(model.module, str(file), model_config=stated, model_args=dict(model.kwargs))
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    pixels = card.preprocessing
    own = config["pretrained_cfg"]
    for name in ("test_input_size", "test_crop_pct", "hf_hub_id", "url", "tag", "license", "origin_url", "paper_ids"):
        own.pop(name, None)
    own |= {
        "input_size": [pixels.channels, pixels.val_size, pixels.val_size],
        "crop_pct": pixels.val_size / pixels.val_resize,
        "crop_mode": "center",
        "interpolation": pixels.interpolation,
        "mean": list(pixels.mean),
        "std": list(pixels.std),
        "num_classes": card.num_classes,
    }
    return config
