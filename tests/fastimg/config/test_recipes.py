"""Recipes: their settings are valid, explicit settings override them, and `fastimg recipe` shows them."""

import json

import pytest
import timm
import torch
import yaml

from fastimg import cli as command_line
from fastimg.config import recipes
from fastimg.config.commands import Train
from fastimg.config.intent import SCHEDULE_FREE
from fastimg.config.values.durations import parse
from fastimg.config.yaml_file import combined, layered, load
from fastimg.errors import UsageError
from fastimg.models.input_size import check_input
from fastimg.models.registry import build
from fastimg.train.choices.refusals import check

NAMES = [*recipes.RECIPES, *(f"resnet50-short:{epochs}" for epochs in (16, 24, 32, 40, 56, 88))]


def parsed(*arguments):
    """The effective settings of `fastimg train ARGUMENTS`."""
    return command_line._parse("train", [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_recipes_are_valid(name):
    check(Train(**recipes.settings(name)))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_sets_no_path_and_names_its_source(name):
    values = recipes.settings(name)
    assert not values.keys() & {"data", "output", "name", "resume", "recipe", "config", "device", "seed", "workers"}
    assert "Measured" in recipes.about(name) and recipes.about(name).startswith(recipes.purpose(name))


@pytest.mark.parametrize("name", ["finetune-cnn", "finetune-vit"])
def test_models_to_fine_tune_have_published_weights(name):
    assert timm.is_model_pretrained(recipes.settings(name)["arch"])


def test_the_model_for_cifar_accepts_its_pixels():
    values = recipes.settings("cifar-fast")
    model = build(values["arch"], 10, img_size=values["train_crop_size"])
    check_input(model, values["train_crop_size"], 10, "--img-size")
    assert model.convolutional
    with torch.inference_mode():
        assert model.module.eval().stages(torch.zeros(1, 24, 31, 31)).shape == (1, 256, 3, 3)


@pytest.mark.parametrize(
    ("recipe", "beside", "epochs", "ramp"),
    [
        ("resnet50-short", None, 16, "11:13"),
        ("resnet50-short:24", None, 24, "17:20"),
        ("resnet50-short:88", None, 88, "65:76"),
        ("resnet50-short", 56, 56, "41:48"),
        ("resnet50-short:88", 32, 32, "23:27"),
        ("resnet50-short", 20, 20, None),
    ],
)
def test_epochs_of_resnet50_short(recipe, beside, epochs, ramp):
    values = recipes.settings(recipe, beside)
    assert (values["epochs"], values.get("progressive_epochs")) == (epochs, ramp)
    assert (values["lr"], values["batch_size"], values["lr_base_size"]) == (1.7, 512, 4096)
    given = combined({"recipe": recipe}, {} if beside is None else {"epochs": beside})
    assert (given.epochs, given.progressive, given.progressive_epochs) == (epochs, "160:192", ramp)
    check(given)


@pytest.mark.parametrize("epochs", range(1, 7))
def test_a_short_trial_of_resnet50_short(epochs):
    given = combined({"recipe": "resnet50-short", "epochs": epochs})
    check(given)
    assert given.epochs == epochs and (given.progressive, given.train_crop_size) in (("160:192", None), (None, 160))
    assert parse(given.warmup, "--warmup").steps(1, 512, epochs) < epochs  # the peak is reached


def test_a_short_trial_of_cifar_fast_reaches_its_peak():
    given = combined({"recipe": "cifar-fast", "epochs": 2})
    assert parse(given.warmup, "--warmup").steps(1, 512, 2) < 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("finetune-cn", "no recipe is called 'finetune-cn'; did you mean finetune-cnn"),
        ("xyz", "no recipe is called 'xyz'; `fastimg recipe list`"),
        ("resnet50-short:20", "made for 16, 24, 32, 40, 56, 88 epochs"),
        ("resnet50-short:", "made for 16"),
        ("resnet50-short:016", "made for 16"),
        ("cifar-fast:3", "takes no number of epochs"),
    ],
)
def test_unknown_recipes(name, message, tmp_path, cli):
    with pytest.raises(UsageError, match=message.partition(" (")[0]):
        recipes.settings(name)
    file = tmp_path / "c.yaml"
    file.write_text(f"recipe: '{name}'\n")
    for ran in (
        cli("train", tmp_path, "--recipe", name),
        cli("recipe", "show", name),
        cli("train", tmp_path, "--config", file),
    ):
        assert ran.code == 2 and message in ran.err and "Traceback" not in ran.err
    assert f"--config {file}: " in ran.err


def test_a_recipe_with_an_unknown_setting(monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "cifar-fast", lambda: {"epoch": 3})
    with pytest.raises(AssertionError, match="epoch"):
        recipes.settings("cifar-fast")


def test_defaults_recipe_file_flags(tmp_path):
    """Each overrides those before it."""
    file = tmp_path / "c.yaml"
    file.write_text("recipe: cifar-fast\nepochs: 3\nweight_decay: 0.001\n")
    own = recipes.settings("cifar-fast")
    assert load(file, Train) == Train(**{**own, "recipe": "cifar-fast", "epochs": 3, "weight_decay": 0.001})
    given = parsed("--config", file, "--wd", "0.002", "--arch", "test_resnet", "--no-tta", "--batch-size", "64")
    assert (given.log_interval, given.momentum, given.epochs, given.weight_decay) == (20, 0.85, 3, 0.002)
    assert (given.arch, given.tta, given.batch_size) == ("test_resnet", False, 64)  # also if it equals the default
    assert parsed("--config", file, "--recipe=finetune-cnn").opt == "adamw"
    assert parsed("--recipe", "cifar-fast", "data").data.name == "data"
    assert parsed("--recipe", "cifar-fast", "--resume").resume == "last"


@pytest.mark.parametrize(
    "flags",
    [
        "--warmup-epochs 3",
        "--warmup-fraction 0.1",
        "--warmup 100ba",
        "--duration 500ba",
        "--epochs 40",
        "--sched step --decay-epochs 2",
        "--sched step --decay 0.2dur",
        "--sched constant",
        "--no-aug",
        "--aa none --hflip 0",
        "--color-jitter 0.1 0.1 0.1",
        "--img-size 64",
        "--train-crop-size 64 --val-crop-size 64",
        "--progressive 64:96 --progressive-epochs 1:3",
        "--val-resize-size 300",
        "--crop-pct 0.9",
        "--opt adamw",
        "--opt sgd",
        "--lr auto",
        "--lr 0.1",
        "--lr-scale none",
        "--lr-scale sqrt",
        "--weights x.safetensors",
        "--freeze backbone",
        "--val-fraction 0",
        "--loader synthetic",
        "--loader torch",
        "--batch-size auto",
    ],
)
def test_flags_win_over_a_recipe(flags):
    """Recipe settings that depend on an overridden one are dropped without a message."""
    names = {word.lstrip("-").replace("-", "_") for word in flags.split() if word.startswith("--")}
    alone = parsed(*flags.split())
    said = {name: getattr(alone, name) for name in names}
    for recipe in recipes.RECIPES:
        if (recipe, flags) in (("resnet50-short", "--freeze backbone"), ("cifar-fast", "--freeze backbone")):
            continue  # a head on random weights makes no sense
        given = combined({"recipe": recipe}, said)
        check(given)
        assert {name: getattr(given, name) for name in names} == said


@pytest.mark.parametrize(
    ("recipe", "said", "expected"),
    [
        ("resnet50-short", {"warmup_epochs": 3.0}, {"warmup": None, "warmup_epochs": 3.0, "lr": 1.7}),
        ("resnet50-short", {"lr": 0.5}, {"lr_scale": None, "lr_base_size": None}),  # the given value, not 1/8 of it
        ("resnet50-short", {"lr_scale": "sqrt"}, {"lr": 1.7, "lr_base_size": 4096}),
        ("resnet50-short", {"lr_scale": "none"}, {"lr": 1.7, "lr_base_size": None}),
        ("resnet50-short", {"opt": "adamw"}, {"lr": "auto", "momentum": None, "weight_decay": None}),
        ("resnet50-short", {"opt": "sgd"}, {"lr": 1.7, "momentum": 0.9}),  # the recipe's own value
        ("resnet50-short", {"duration": "300ba"}, {"epochs": None, "progressive_epochs": None}),
        ("resnet50-short", {"img_size": 128}, {"val_crop_size": None, "progressive": None, "crop_pct": 0.875}),
        ("cifar-fast", {"arch": "resnet18"}, {"norm_lr_scale": None, "lr": 1.5, "resident": True}),
        ("cifar-fast", {"lr": 0.01}, {"warmup_lr": None, "min_lr": None}),
        ("cifar-fast", {"opt": "adamw"}, {"lr": "auto", "min_lr": None, "norm_weight_decay": None}),
        ("cifar-fast", {"batch_size": 512}, {"lr": 1.5, "warmup_lr": 0.3, "min_lr": 0.105}),
        ("cifar-fast", {"warmup": "0ep"}, {"warmup_lr": None, "min_lr": 0.105}),
        ("cifar-fast", {"scale": (0.5, 1.0)}, {"crop_padding": None, "resident": True}),
        ("cifar-fast", {"hflip": 0.0}, {"alternating_flip": False, "crop_padding": 2}),
        ("cifar-fast", {"loader": "torch"}, {"resident": False, "crop_padding": 2}),
        ("finetune-vit", {"freeze": "backbone"}, {"layer_decay": None}),
        ("finetune-vit", {"freeze": "backbone", "freeze_epochs": 1}, {"layer_decay": 0.75}),
        ("finetune-cnn", {"pretrained": False}, {"weights": None, "warmup": "0.2dur"}),
    ],
)
def test_dropped_and_kept_settings(recipe, said, expected):
    given = combined({"recipe": recipe}, said)
    assert {name: getattr(given, name) for name in expected} == expected


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_no_optimiser_is_refused_for_a_setting_of_the_recipe(recipe):
    """What the user did not give is not held against them: with a recipe, an optimiser is refused as without."""
    for opt in (*timm.optim.list_optimizers(), *SCHEDULE_FREE):
        for said in ({"opt": opt}, {"opt": opt, "lr": 1e-4}):
            assert fault(combined({"recipe": recipe}, said)) == fault(Train(**said)), said


def fault(config):
    try:
        check(config)
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("cifar-fast", {"lr": 2.0, "lr_scale": "linear", "lr_base_size": 1024, "min_lr": 0.105}),
        ("resnet50-short", {"opt": "adamw", "lr": 1.7}),
        ("resnet50-short", {"opt": "adamw", "weight_decay": 1e-4}),
        ("resnet50-short", {"img_size": 64, "val_crop_size": 256}),
        ("cifar-fast", {"arch": "resnet18", "norm_lr_scale": 64.0}),
    ],
)
@pytest.mark.parametrize("in_a_file", [False, True])
def test_what_is_given_stays_where_it_equals_the_recipes(recipe, said, in_a_file, tmp_path):
    """A recipe's setting gives way to another flag; the same value as a flag does not."""
    (tmp_path / "c.yaml").write_text(f"recipe: {recipe}\n")
    below = {"config": tmp_path / "c.yaml"} if in_a_file else {"recipe": recipe}
    given = layered({**below, **said})
    check(given)
    assert {name: getattr(given, name) for name in said} == said


@pytest.mark.parametrize(
    ("lr", "expected"),
    [
        (1.5, {"lr_scale": "linear", "lr_base_size": 512, "warmup_lr": 0.2, "min_lr": 0.105}),  # the recipe's own rate
        (0.7, {"lr_scale": None, "lr_base_size": None, "warmup_lr": 0.2, "min_lr": None}),
    ],
)
def test_a_file_keeps_what_has_an_effect_over_its_recipe(lr, expected, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("recipe: cifar-fast\nlr_base_size: 512\nwarmup_lr: 0.2\n")
    given = layered({"config": file, "lr": lr})
    check(given)
    assert given.lr == lr and {name: getattr(given, name) for name in expected} == expected


def test_a_list_in_a_file_replaces_the_recipes_augmentation(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("recipe: cifar-fast\naugmentation: [vflip]\n")
    given = load(file, Train)
    assert (given.hflip, given.crop_padding, given.augmentation) == (None, 2, ["vflip"])
    assert not given.alternating_flip  # the list has no horizontal flip
    check(given)


def test_the_list(cli):
    ran = cli("recipe", "list")
    assert ran.code == 0 and all(f"{name} " in ran.out for name in recipes.RECIPES)
    assert all(recipes.purpose(name) in ran.out for name in recipes.RECIPES)
    listed = json.loads(cli("recipe", "list", "--json").out)
    assert [entry["name"] for entry in listed] == list(recipes.RECIPES) and all(entry["for"] for entry in listed)


@pytest.mark.parametrize("name", NAMES)
def test_shown_recipes_are_valid_yaml(name, tmp_path, cli):
    ran = cli("recipe", "show", name)
    assert ran.code == 0 and all(line in ran.out.replace("# ", "") for line in recipes.about(name).splitlines())
    file = tmp_path / "shown.yaml"
    file.write_text(ran.out)
    assert list(yaml.safe_load(ran.out)) == list(recipes.settings(name))
    assert load(file, Train) == Train(**recipes.settings(name))
    ran = cli("recipe", "show", name, "--json")
    assert set(json.loads(ran.out)["settings"]) == set(recipes.settings(name))


@pytest.mark.parametrize("arguments", [("show",), ("list", "cifar-fast"), (), ("print",)])
def test_invalid_recipe_commands(arguments, cli):
    ran = cli("recipe", *arguments)
    assert ran.code == 2 and ran.err and "Traceback" not in ran.err
