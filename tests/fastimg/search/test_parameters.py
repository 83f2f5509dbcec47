"""What --param asks for: ranges, choices, and what is refused before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from fastimg.config import yaml_file
from fastimg.config.commands import Train
from fastimg.config.searching import Search
from fastimg.errors import UsageError
from fastimg.search.parameters import Parameter, combinations, read, settings, trial_config
from fastimg.search.request import request


def one(text: str, **base: object) -> Parameter:
    return read([text], base)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=log:1e-4:1e-1", Parameter(name="lr", kind="number", low=1e-4, high=0.1, log=True)),
        ("--smoothing=0:0.2", Parameter(name="smoothing", kind="number", low=0.0, high=0.2)),
        ("wd=0:0.2:0.05", Parameter(name="weight_decay", kind="number", low=0.0, high=0.2, step=0.05)),
        ("epochs=5:20", Parameter(name="epochs", kind="integer", low=5, high=20)),
        ("batch_size=log:int:16:256", Parameter(name="batch_size", kind="integer", low=16, high=256, log=True)),
        ("aa=none,trivial,rand-m9", Parameter(name="aa", kind="choice", choices=("none", "trivial", "rand-m9"))),
        ("batch-size=16,32,auto", Parameter(name="batch_size", kind="choice", choices=(16, 32, "auto"))),
        ("model-ema", Parameter(name="model_ema", kind="choice", choices=(True, False))),
        ("channels-last=true,false", Parameter(name="channels_last", kind="choice", choices=(True, False))),
        ("scale=0.08 1,0.5 1", Parameter(name="scale", kind="choice", choices=("0.08 1", "0.5 1"))),
        ("lr-scale=none,linear", Parameter(name="lr_scale", kind="choice", choices=("none", "linear"))),
    ],
)
def test_what_is_searched(text, expected):
    parameter = one(text)
    assert parameter == expected
    assert one(str(parameter)) == parameter  # as it is told, it can be typed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning-rate=0:1", "train has no flag --learning-rate; did you mean lr?"),
        ("smothing=0:0.2", "did you mean smoothing?"),
        ("zzz=0:1", "`fastimg train --help-all` lists its flags"),
        ("smoothing", "its values are missing; write smoothing="),
        ("smoothing=0.2:0.2", "the range is empty"),
        ("smoothing=0.2:0", "the range is empty; write 0:0.2"),
        ("lr=log:0:0.1", "ends above 0"),
        ("lr=log:1e-4:1e-1:0.1", "has no steps"),
        ("smoothing=0:0.2:0.3", "a step above 0 and up to 0.2"),
        ("epochs=1:2.5", "whole numbers"),
        ("lr=a:b", "write a range of numbers"),
        ("lr=int:1", "write a range of numbers"),
        ("aa=log:1:2", "takes no numbers"),
        ("aa=trivial", "one value is nothing to search"),
        ("aa=trivial,trivial", "named twice"),
        ("aa=trivial,nonsense", "with aa nonsense, train refuses it"),
        ("smoothing=0:2", "with smoothing 2, train refuses it: --smoothing 2: give a share"),
        ("sched=cosine,cosin", "did you mean cosine?"),
        ("momentum=0.8:0.99", "--momentum has no effect with --opt adamw"),
        ("output=a,b", "a search sets --output itself"),
        ("name=a,b", "a search sets --name itself"),
    ],
)
def test_what_cannot_be_searched(text, words):
    with pytest.raises(UsageError) as refused:
        one(text)
    assert str(refused.value).startswith(f"--param {text.partition('=')[0]}")
    assert words in str(refused.value)


def test_a_flag_is_searched_once():
    with pytest.raises(UsageError, match="--param lr: given twice"):
        read(["lr=0.1:0.2", "lr=log:0.1:0.2"], {})


def test_a_parameter_that_other_choices_give_an_effect_is_searched_and_left_out_where_it_has_none():
    parameters = read(["opt=adamw,sgd", "momentum=0.8:0.99"], {})
    assert [parameter.name for parameter in parameters] == ["opt", "momentum"]
    assert settings({"opt": "sgd", "momentum": 0.9}, {}) == {"opt": "sgd", "momentum": 0.9}
    assert settings({"opt": "adamw", "momentum": 0.9}, {}) == {"opt": "adamw"}


def test_a_trial_is_what_was_drawn_over_what_all_share():
    base = {"arch": "resnet18", "aa": "trivial", "smoothing": 0.3, "weights": Path("w.safetensors")}
    config = trial_config({"lr": 0.01, "aa": "none", "scale": "0.5 1"}, base)
    assert (config.lr, config.scale, config.smoothing) == (0.01, (0.5, 1.0), 0.3)
    assert (config.arch, config.weights, config.aa) == ("resnet18", Path("w.safetensors"), "trivial")


def test_what_all_trials_share_stays_where_it_equals_the_recipes(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("recipe: resnet50-short\n")
    shared = ("--opt", "adamw", "--lr", "1.7")
    asked = request(Search(data=tmp_path, config=file, trials=4, param=("smoothing=0:0.2",), shared=shared))
    config = trial_config({"smoothing": 0.1}, asked.base)
    assert (config.opt, config.lr, config.smoothing) == ("adamw", 1.7, 0.1)
    assert asked.shared["lr"] == 1.7


def test_a_trial_drops_settings_of_the_recipe_as_train_does(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("recipe: cifar-fast\nweight_decay: 0.01\n")
    asked = request(Search(data=tmp_path, config=file, trials=4, param=("opt=sgd,lion", "lr=log:1e-4:1e-2")))
    assert (asked.shared["momentum"], asked.shared["arch"]) == (0.85, "fastimg/airnet")
    for opt, momentum in (("sgd", 0.85), ("lion", Train().momentum)):
        config = trial_config({"opt": opt, "lr": 1e-3}, asked.base)
        trained = yaml_file.layered({"config": file, "opt": opt, "lr": 1e-3})
        assert config == replace(trained, config=None)
        assert (config.opt, config.momentum, config.weight_decay) == (opt, momentum, 0.01)


def test_a_grid_has_every_combination():
    parameters = read(["smoothing=0:0.2:0.1", "aa=none,trivial", "epochs=1:2"], {})
    drawn = list(combinations(parameters))
    assert len(drawn) == 12
    assert drawn[:2] == [
        {"smoothing": 0.0, "aa": "none", "epochs": 1},
        {"smoothing": 0.0, "aa": "none", "epochs": 2},
    ]
    assert {each["smoothing"] for each in drawn} == {0.0, 0.1, 0.2}


def test_a_grid_needs_steps():
    with pytest.raises(UsageError, match=r"--algorithm grid: .*lr=log:0.0001:0.1 has no steps"):
        list(combinations(read(["lr=log:1e-4:1e-1"], {})))


@pytest.mark.parametrize(
    ("text", "share", "expected"),
    [
        ("lr=log:1e-4:1e-1", 0.0, 1e-4),
        ("lr=log:1e-4:1e-1", 1 / 3, 1e-3),
        ("smoothing=0:0.2", 0.25, 0.05),
        ("wd=0:0.2:0.05", 0.99, 0.2),
        ("epochs=5:20", 0.999, 20),
        ("batch_size=log:int:16:256", 0.5, 64),
        ("aa=none,trivial,rand-m9", 0.34, "trivial"),
    ],
)
def test_a_share_of_a_range(text: str, share: float, expected: object) -> None:
    value = one(text).at(share)
    assert value == (pytest.approx(expected) if isinstance(expected, float) else expected)
    assert type(value) is type(expected)
