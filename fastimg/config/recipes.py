"""Recipes: functions that return the settings of a training, the fields of Train that they set and no others.

Below files and flags, which win: `--arch` of somebody else's choice is as good. Nothing here has been measured by
fastimg yet; each docstring says where its numbers are from. Nothing here imports torch.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from fastimg.errors import UsageError, nearest

from .commands import Train

Settings = dict[str, Any]

# Epochs of ffcv-imagenet's ResNet-50 configurations -> the epochs between which the crops grow.
_RAMPS = {16: "11:13", 24: "17:20", 32: "23:27", 40: "29:34", 56: "41:48", 88: "65:76"}


def finetune_cnn() -> Settings:
    """Fine-tune a published convolutional model, all of it, in a few epochs.

    AdamW at the learning rate that is chosen for tuned convolutional models, a fifth of the run to warm up, then a
    linear fall to 0: the schedule of BERT's fine-tuning, as Ludwig's defaults have it. Measured: nothing yet.
    """
    return {
        "arch": "resnet50",
        "pretrained": True,
        "epochs": 5,
        "opt": "adamw",
        "lr": "auto",
        "weight_decay": 0.05,
        "smoothing": 0.1,
        "sched": "linear",
        "warmup": "0.2dur",
    }


def finetune_vit() -> Settings:
    """Fine-tune a published vision transformer, all of it, in a few epochs.

    As finetune-cnn, with lower rates for lower blocks (layer decay 0.75, BEiT and MAE), clipped gradients and a
    little stochastic depth. Measured: nothing yet.
    """
    return {
        **finetune_cnn(),
        "arch": "vit_small_patch16_224",
        "layer_decay": 0.75,
        "clip_grad": 1.0,
        "drop_path": 0.1,
    }


def resnet50_short(epochs: int = 16) -> Settings:
    """ResNet-50 on ImageNet from random weights, in 16, 24, 32, 40, 56 or 88 epochs.

    ffcv-imagenet's rn50 configurations (libffcv/ffcv-imagenet), which report top-1 of 73.8, 75.6, 76.6, 77.2, 78.0 and
    78.4 % on 8 A100: BlurPool, crops that grow from 160 to 192 pixels, validation at 256 with mirror images. Their 512
    images are those of one GPU, so that 1.7 holds for 4096; with other batches the rate follows linearly, as its
    authors suggest (issue 4) and had not tried. With other numbers of epochs the crops grow between 70 and 85 % of the
    run; fewer than 4 are a trial at 160 pixels.
    Different here: momentum is Nesterov's, no bias and no norm decays (there biases of the classifier and norms in
    shortcuts do), an epoch's last batch is kept. Measured by fastimg: nothing yet.
    """
    short: Settings = {"train_crop_size": 160, "warmup": "0.1dur"}  # to try it
    crops = {"progressive": "160:192", "warmup": "2ep"} if epochs >= 4 else short
    ramp = {"progressive_epochs": _RAMPS[epochs]} if epochs in _RAMPS else {}
    return {
        "arch": "resnet50",
        "blurpool": True,
        "epochs": epochs,
        "batch_size": 512,
        "opt": "sgd",
        "lr": 1.7,
        "lr_scale": "linear",
        "lr_base_size": 4096,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "smoothing": 0.1,
        "sched": "linear",
        **crops,
        **ramp,
        "interpolation": "bilinear",
        "val_crop_size": 256,
        "crop_pct": 0.875,
        "tta": True,
    }


def cifar_fast() -> Settings:
    """CIFAR-10 and its like, 32 x 32 pixels, from random weights in 10 epochs, all images on the device.

    Network, batch, schedule, shifts, mirror images in every second epoch and lookahead of Jordan, 94% on CIFAR-10 in
    3.29 Seconds on a Single GPU (arXiv 2404.00498; KellerJordan/cifar10-airbench, airbench94), whose rates are turned
    into those of a mean loss: 11.5 / 7.667 per 1,024 images, and 64 times that for the norms' biases.
    Different here: an epoch's last batch is kept, the first layer's bias trains to the end, lookahead begins after 0.3
    of the run. Measured beside airbench's own script by benchmarks/cifar.py.
    """
    return {
        "arch": "fastimg/airnet",
        "resident": True,
        "train_crop_size": 32,
        "val_crop_size": 32,
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": (0.4914, 0.4822, 0.4465),
        "std": (0.247, 0.2435, 0.2616),
        "crop_padding": 2,
        "hflip": 0.5,
        "alternating_flip": True,
        "epochs": 10,
        "batch_size": 1024,
        "opt": "sgd",
        "lr": 1.5,
        "lr_scale": "linear",
        "lr_base_size": 1024,
        "momentum": 0.85,
        "weight_decay": 1.33e-3,
        "norm_weight_decay": 1.33e-3,
        "norm_lr_scale": 64.0,
        "lookahead": 5,
        "smoothing": 0.2,
        "sched": "linear",
        "warmup": "0.23dur",
        "warmup_lr": 0.3,
        "min_lr": 0.105,
        "amp_dtype": "auto",
        "channels_last": True,
        "tta": "mirror-shift",
    }


RECIPES: dict[str, Callable[..., Settings]] = {
    "finetune-cnn": finetune_cnn,
    "finetune-vit": finetune_vit,
    "resnet50-short": resnet50_short,
    "cifar-fast": cifar_fast,
}
_EPOCHS = {"resnet50-short": tuple(_RAMPS)}  # what may follow the name: resnet50-short:88


def settings(recipe: str, epochs: int | None = None) -> Settings:
    """What `recipe` sets: NAME, or NAME:EPOCHS where it has a choice. `epochs`, asked for beside it, wins over both.

    Raises UsageError for a name or a number of epochs that is not there.
    """
    name, colon, number = recipe.partition(":")
    function = _function(recipe)
    choices = _EPOCHS.get(name, ())
    if colon and number not in map(str, choices):
        if not choices:
            raise UsageError(f"recipe {recipe}: {name} takes no number of epochs; write {name}")
        there = ", ".join(map(str, choices))
        raise UsageError(
            f"recipe {recipe}: made for {there} epochs; write {name}:{choices[0]}, or give --epochs beside {name}"
        )
    chosen = epochs or (int(number) if colon else None)
    values = function(epochs=chosen) if choices and chosen else function()
    known = {field.name for field in dataclasses.fields(Train)}
    assert values.keys() <= known, f"{name} sets {values.keys() - known}, which Train does not have"
    return values


def has_set(recipe: str | None, field: str, value: Any) -> bool:
    """Whether a setting is as the recipe of the run has it, so that nobody need have given it."""
    return recipe is not None and settings(recipe).get(field) == value


def purpose(recipe: str) -> str:
    """What `recipe` is for: one sentence."""
    return about(recipe).partition("\n")[0]


def about(recipe: str) -> str:
    """What `recipe` is for, where it comes from and what was measured. Raises UsageError for an unknown name."""
    return inspect.getdoc(_function(recipe)) or ""


def _function(recipe: str) -> Callable[..., Settings]:
    name = recipe.partition(":")[0]
    if name not in RECIPES:
        raise UsageError(
            f"no recipe is called {name!r}{nearest(name, RECIPES) or ';'} `fastimg recipe list` shows all of them"
        )
    return RECIPES[name]
