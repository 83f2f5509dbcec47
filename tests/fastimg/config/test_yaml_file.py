"""Settings as YAML: the same keys as the flags, and the same run from a run's own config file."""

import dataclasses
import itertools
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from safetensors.torch import load_file

from fastimg.config.augmentation import ON_A_LIST
from fastimg.config.commands import Train
from fastimg.config.yaml_file import combined, dump, load
from fastimg.config.yaml_text import Texts, parsed
from fastimg.errors import UsageError
from fastimg.loaders.backends.settings import IGNORED_SETTINGS
from fastimg.train.choices.refusals import check


def test_round_trip(tmp_path):
    config = Train(
        data=Path("some/där"),
        arch="torchvision/resnet18",
        weights=Path("w.pt"),
        model_kwargs=("a=1", "b=x"),
        scale=(0.5, 1.0),
        mean=(0.1, 0.2, 0.3),
        lr=1e-5,
        no_aug=True,
        freeze="backbone",
        epochs=3,
    )
    file = tmp_path / "config.yaml"
    file.write_text(dump(config), encoding="utf-8")
    assert load(file, Train) == config
    assert "pretrained: false" in file.read_text() and "sched" not in file.read_text()  # unset choices are left out


SPECIAL = {"lr": 0.3, "batch_size": 48, "augmentation": ["hflip", {"rotate": {"degree": 15}}]}
NOT_IN_A_FILE = ("recipe", "config")


def other(hint, default):
    """A value of a field's type other than its default."""
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        return next(choice for choice in choices if choice != default)
    if get_origin(hint) is tuple:
        texts = choices[-1] is Ellipsis and choices[0] is str
        return ("a=1", "b=x") if texts else tuple(0.25 + 0.25 * i for i in range(len(choices)))
    if get_origin(hint) in (UnionType, Union):
        return other(next(choice for choice in choices if choice is not type(None)), default)
    if get_origin(hint) is list:
        return [{"RandomBlur": {"p": 0.5}}]
    return {bool: not default, int: 7, float: 0.125, str: "1e-3", Path: Path("some/där")}[hint]


def test_every_field_is_dumped_and_read_back(tmp_path):
    """Text that looks like a number stays text: every text here is 1e-3."""
    hints = get_type_hints(Train)
    values = {field.name: other(hints[field.name], field.default) for field in dataclasses.fields(Train)}
    values |= SPECIAL | dict.fromkeys(NOT_IN_A_FILE)
    file = tmp_path / "config.yaml"
    for left_out in ({"augmentation"}, set(ON_A_LIST)):
        config = Train(**{name: value for name, value in values.items() if name not in left_out})
        file.write_text(dump(config), encoding="utf-8")
        assert load(file, Train) == config
        unset = {field.name for field in dataclasses.fields(Train) if getattr(config, field.name) == field.default}
        assert unset - left_out <= {*NOT_IN_A_FILE}


@pytest.mark.parametrize(
    "text", ["1e5", "5", "off", "no", "true", "null", "~", "007", "11:13", "1.5", "2024-01-01", ""]
)
def test_text_is_dumped_and_read_back(text, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(dump(Train(name=text, progressive_epochs=text)), encoding="utf-8")
    assert (load(file, Train).name, load(file, Train).progressive_epochs) == (text, text)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("batch_size: auto", "batch_size", "auto"),
        ("batch_size: 32", "batch_size", 32),
        ("lr: auto", "lr", "auto"),
        ("lr: 1", "lr", 1.0),
        ("lr: 1e-3", "lr", 1e-3),  # YAML 1.1 reads it as text
        ("lr: .5", "lr", 0.5),
        ("warmup_epochs: 5", "warmup_epochs", 5.0),
        ("scale: [0.5, 1]", "scale", (0.5, 1.0)),
        ("mean: [0, 0, 1]", "mean", (0.0, 0.0, 1.0)),
        ("dct_scaling: off", "dct_scaling", "off"),  # false in YAML 1.1
        ("progressive: 160:192", "progressive", "160:192"),
        ("progressive_epochs: 11:13", "progressive_epochs", "11:13"),  # 673 in YAML 1.1
        ("duration: 16", "duration", "16"),
        ("warmup: 2.5", "warmup", "2.5"),
        ("decay: 30ep", "decay", "30ep"),
        ("workers: 4", "workers", "4"),
        ("freeze: 3", "freeze", "3"),
        ("name: 007", "name", "007"),
        ("name: 2024-01-01", "name", "2024-01-01"),
        ("compile: true", "compile", "default"),
        ("compile: false", "compile", None),
        ("compile: max-autotune", "compile", "max-autotune"),
        ("tta: true", "tta", True),
        ("tta: mirror-shift", "tta", "mirror-shift"),
        ("epochs: null", "epochs", None),
        ("epochs:", "epochs", None),
        ("model_kwargs: [a=1]", "model_kwargs", ("a=1",)),
        ("augmentation: false", "no_aug", True),
        ("weights: 5.pt", "weights", Path("5.pt")),
        ("output: 5", "output", Path("5")),
        ('batch_size: "64"', "batch_size", 64),  # in quotes, parsed as the flags are
        ("batch_size: 'auto'", "batch_size", "auto"),
        ('epochs: "3"', "epochs", 3),
        ("lr: '1e-3'", "lr", 1e-3),
        ('tta: "true"', "tta", True),
        ("amp: 'False'", "amp", False),
        ("scale: ['0.5', 1]", "scale", (0.5, 1.0)),
        ("model_kwargs: a=1", "model_kwargs", ("a=1",)),
        ("batch_size: null", "batch_size", None),  # left out
        ("tta: null", "tta", False),
    ],
)
def test_common_spellings(line, field, value, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(line)
    given = getattr(load(file, Train), field)
    assert given == value and type(given) is type(value)


def test_an_empty_file_is_the_defaults(tmp_path):
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n")
    assert load(file, Train) == Train()


def test_keys_may_be_written_like_flags(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("batch-size: 7\nimg_size: 64\n")
    assert (load(file, Train).batch_size, load(file, Train).img_size) == (7, 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch: 3", "unknown key 'epoch'; did you mean epochs"),
        ("epochs: 3\nlr: 1\nepochs: 4", "not YAML: epochs comes twice"),
        ("augmentation:\n  - {rotate: {degree: 1, degree: 2}}", "not YAML: degree comes twice"),
        ("config: other.yaml", "names another file (other.yaml); give that one, or put both into one"),
        ("weight_dekay: 3", "did you mean weight_decay"),
        ("1: 2", "unknown key '1'"),
        ("epochs: three", "epochs: expected a whole number, not the text 'three'"),
        ("learning_rate: 3", "unknown key 'learning_rate'; did you mean lr?"),
        ("per_device_train_batch_size: 3", "did you mean batch_size?"),
        ("image-size: 3", "unknown key 'image_size'; did you mean img_size?"),
        ("epochs: '3.5'", "epochs: expected a whole number, not the text '3.5'"),
        ("epochs: 3.5", "epochs: expected a whole number, not 3.5"),
        ("epochs: true", "epochs: expected a whole number, not true"),
        ("epochs: [3]", "epochs: expected a whole number, not [3]"),
        ("lr: fast", "lr: expected a number or one of auto, find, not the text 'fast'"),
        ("lr: nan", "lr: expected a number or one of auto, find, not the text 'nan'"),
        ("sched: poly", "sched: expected one of cosine, linear, step, constant, not the text 'poly'"),
        (
            "sched: steps",
            "sched: expected one of cosine, linear, step, constant, not the text 'steps'; did you mean step?",
        ),
        ("opt_betas: 0.9", "opt_betas: expected a list of numbers, not 0.9"),
        ("batch_size: many", "batch_size: expected a whole number or auto, not the text 'many'"),
        (
            "tta: yes",
            "tta: expected true or false or one of mirror, mirror-shift, not the text 'yes'; write true",
        ),  # text in YAML 1.2
        ("tta: 1", "tta: expected true or false or one of mirror, mirror-shift, not 1"),
        ("tta: mirror-shifts", "not the text 'mirror-shifts'; did you mean mirror-shift?"),
        ("name: true", "name: expected text, not true; put it in quotes if it is meant as text"),
        ("scale: 0.5", "scale: expected a list of 2 numbers, not 0.5"),
        ("color_jitter: [0.5, 0.5]", "color_jitter: expected a list of 3 numbers, not [0.5, 0.5]"),
        ("mean: [a, b, c]", "mean: expected a list of numbers, not ['a', 'b', 'c']"),
        ("model_kwargs: {a: 1}", "model_kwargs: expected a list such as [name=value], not {'a': 1}"),
        ("kornia: RandomBlur", "kornia: expected a list, not the text 'RandomBlur'"),
        ("output: false", "output: expected a path, not false"),
        ("recipe: cifar-fas", "no recipe is called 'cifar-fas'; did you mean cifar-fast"),
        ("scale: [0.1]", "scale"),
        ("just words", "not a mapping"),
        ("- a\n- b", "not a mapping"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.system ['false']", "not YAML"),
        (b"\xff\xfe", "not YAML"),
    ],
)
def test_invalid_files(content, message, tmp_path, cli):
    file = tmp_path / "c.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=str(file)) as caught:
        load(file, Train)
    assert message in str(caught.value)
    ran = cli("train", tmp_path / "nowhere", "--config", file)
    assert ran.code == 2 and str(file) in ran.err and message in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("flag", ["--config=", "--config "])
def test_a_missing_file(flag, tmp_path, cli):
    ran = cli("train", *f"{flag}{tmp_path}/no.yaml".split(" "))
    assert ran.code == 2 and "no.yaml: No such file" in ran.err and "Traceback" not in ran.err


def test_flags_win_over_the_file(tmp_path, trained, cli):
    file = tmp_path / "c.yaml"
    file.write_text(f"data: {trained.images}\narch: test_resnet\nepochs: 5\nimg_size: 32\nopt: sgd\n")
    ran = cli("train", "--config", file, "--epochs", "3", "--dry-run", "-o", tmp_path / "runs")
    assert ran.code == 0 and "3 epochs" in ran.out and "sgd (fused), lr" in ran.out and "24 images" in ran.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("file", "flags", "expected"),
    [
        ({"epochs": 5}, {"duration": "300ba"}, {"epochs": None, "duration": "300ba"}),
        ({"duration": "300ba"}, {"epochs": 5}, {"epochs": 5, "duration": None}),
        ({"warmup": "5ep"}, {"warmup_fraction": 0.1}, {"warmup": None}),
        ({"warmup_epochs": 1.0}, {"warmup": "5ep"}, {"warmup_epochs": None}),
        ({"sched": "step", "decay": "2ep"}, {"decay_epochs": 1.0}, {"decay": None, "decay_epochs": 1.0}),
        (
            {"sched": "step", "decay": "2ep", "decay_rate": 0.5},
            {"sched": "cosine"},
            {"decay": None, "decay_rate": None},
        ),
        ({"sched": "linear", "min_lr": 0.1}, {"sched": "constant"}, {"min_lr": None}),
        ({"sched": "linear", "min_lr": 0.1}, {"sched": "cosine"}, {"min_lr": 0.1}),
        ({"opt": "sgd", "momentum": 0.8, "lr": 0.1}, {"opt": "adamw"}, {"momentum": None, "lr": 0.1}),
        ({"opt": "sgd", "momentum": 0.8}, {"opt": "sgd"}, {"momentum": 0.8}),
        ({"sched": "linear"}, {"opt": "schedule_free_adamw"}, {"sched": None}),
        ({"lr": 0.1, "lr_scale": "linear", "lr_base_size": 512}, {"lr": 0.2}, {"lr_scale": "linear"}),
        ({"lr": 0.1, "batch_size": "auto", "lr_base_size": 512}, {"batch_size": 64}, {"lr_base_size": None}),
        ({"lr": 0.1, "batch_size": "auto", "lr_base_size": 512}, {"lr": 0.2}, {"lr_base_size": 512}),
        (
            {"val_crop_size": 64, "val_resize_size": 73, "train_crop_size": 64},
            {"img_size": 32},
            {"val_resize_size": None},
        ),
        ({"val_resize_size": 73}, {"crop_pct": 0.9}, {"val_resize_size": None}),
        ({"weights": Path("w")}, {"pretrained": True}, {"weights": None}),
        ({"order": "quasi-random", "order_window": 64}, {"order": "random"}, {"order_window": None}),
        ({"no_aug": True}, {"hflip": 0.0}, {"no_aug": False}),
        ({"no_aug": True}, {"aa": "none"}, {"no_aug": True}),
        ({"hflip": 0.3, "kornia": [], "scale": (0.5, 1.0)}, {"no_aug": True}, {"hflip": None, "scale": None}),
        ({"brightness": (0.5, 1.0)}, {"color_jitter": (0.1, 0.1, 0.1)}, {"brightness": None}),
        ({"color_jitter": (0.1, 0.1, 0.1)}, {"contrast": (0.5, 1.0)}, {"color_jitter": None, "saturation": None}),
        ({"augmentation": ["hflip"]}, {"hflip": 0.1}, {"augmentation": ["hflip"]}),
        ({"model_ema": True, "model_ema_decay": 0.9}, {"model_ema": False}, {"model_ema_decay": None}),
        ({"head": "mlp", "head_hidden": 64}, {"head": "linear"}, {"head_hidden": None}),
        ({"layer_decay": 0.7}, {"freeze": "backbone"}, {"layer_decay": None}),
        ({"amp_dtype": "bf16"}, {"amp": False}, {"amp_dtype": "auto"}),
        (
            {"patience": 3, "patience_metric": "top1"},
            {"val_fraction": 0.0},
            {"patience": None, "patience_metric": None},
        ),
        ({"recipe": "finetune-cnn"}, {"arch": "hf:x"}, {"pretrained": False, "epochs": 5}),
    ],
)
def test_flags_drop_contradicting_settings(file, flags, expected):
    given = combined(file, flags)
    check(given)
    assert {name: getattr(given, name) for name in expected} == expected
    assert {name: getattr(given, name) for name in flags} == flags


@pytest.mark.parametrize("loader", ["torch", "dali", "ffcv", "synthetic"])
def test_another_loader_drops_settings_it_does_not_have(loader):
    hints = get_type_hints(Train)
    file = {name: other(hints[name], "auto") for name in IGNORED_SETTINGS[loader]}
    config = combined(file, {"loader": loader})
    assert {getattr(config, name) for name in file} <= {None, "auto"}
    assert combined(file, {"loader": "native"}) == Train(**file, loader="native")


@pytest.mark.parametrize(
    "flags",
    [
        ("--opt", "sgd", "--sched", "step", "--img-size", "32", "--warmup-epochs", "0.5", "--clip-grad", "1"),
        (
            "--freeze",
            "backbone",
            "--weights",
            "{run}",
            "--train-crop-size",
            "32",
            "--val-crop-size",
            "40",
            "--hflip",
            "0",
        ),
    ],
)
def test_a_runs_own_file_makes_the_same_weights(flags, trained, tmp_path, cli):
    """config.yaml contains every choice that was made, so that nothing is chosen again."""
    flags = [flag.format(run=trained.run) for flag in flags]
    common = ("--output", tmp_path, "--device", "cpu")
    first = ("--arch", "test_resnet", "-b", "8", "-j", "1", "--epochs", "2", "--seed", "5")
    ran = cli("train", trained.shards, *first, *flags, *common, "--name", "first")
    assert ran.code == 0, ran.err
    file = tmp_path / "first" / "config.yaml"
    ran = cli("train", "--config", file)
    assert ran.code == 0, ran.err
    assert f"{tmp_path}/first, which {file} names, already exists: this run is {tmp_path}/first-2\n" in ran.out
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("first", "first-2"))
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    settings = [load(tmp_path / name / "config.yaml", Train) for name in ("first", "first-2")]
    assert settings[0] == settings[1]
    assert cli("train", trained.shards, *first, *flags, *common, "--name", "first").code == 2
    for name in ("lr", "weight_decay", "sched", "mean", "std", "interpolation", "train_crop_size", "val_resize_size"):
        assert yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())[name] is not None


def read_text(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    return load(tmp_path / "config.yaml", Train)


NAMES = itertools.pairwise("abcdefghij")
NINE_TIMES = [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in NAMES]
MERGED = [line.replace("[", "{<<: [").replace("]", "]}") for line in NINE_TIMES]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [1, 2]\n" + "".join(NINE_TIMES), "more than 1,000,000 values, with aliases written out"),
        ("a: &a {x: 1}\n" + "".join(MERGED), "more than 1,000,000 values, with aliases written out"),
        ("epochs: " + 3000 * "[", "more than 100 levels"),
        ("epochs: " + 3000 * "{a: ", "more than 100 levels"),
        ("a: &a [*a]", r"\*a stands for itself"),
        ("epochs: " + 5000 * "9", "epochs: expected a whole number, not the text '9+…$"),
        ("epochs: " + 90 * "[" + 90 * "]", r"epochs: expected a whole number, not \[+\]*…$"),
    ],
)
def test_yaml_that_is_larger_than_it_looks_is_refused(tmp_path, text, why):
    with pytest.raises(UsageError, match=f"config.yaml: .*{why}"):
        read_text(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max_pixels: 1e40", "max_pixels: expected a whole number, not 1e\\+40"),
        ("max_pixels: 99999999999999999999", "max_pixels: 99999999999999999999 is too large"),
        ("max_pixels: '99999999999999999999'", "max_pixels: 99999999999999999999 is too large"),
        ("seed: -99999999999999999999", "seed: -99999999999999999999 is too large"),
        ("lr: 1e40", "lr: 1e\\+40 is too large; numbers go up to 3.4e\\+38"),
        ("lr: " + 400 * "9", "lr: 9+… is too large"),
        ("scale: [0.1, 1e300]", "scale: 1e\\+300 is too large"),
    ],
)
def test_numbers_that_nothing_holds_are_refused_by_their_keys(tmp_path, text, why):
    with pytest.raises(UsageError, match=why):
        read_text(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('data: "\\ud800"', "data: expected a path"),
        ('output: "\\udfff/x"', "output: expected a path"),
        ('name: "\\ud800"', "name: expected text"),
        ('workers: "\\ud800"', "workers: expected"),
        ('amp: "\\ud800"', "amp: expected true or false"),
        ('interpolation: "\\ud800"', "interpolation: expected one of"),
        ('"\\ud800": 3', "unknown key"),
    ],
)
def test_half_a_surrogate_pair_is_no_text(tmp_path, text, why):
    with pytest.raises(UsageError, match=f"config.yaml: {why}"):
        read_text(tmp_path, text)


def test_merge_keys_are_below_a_mappings_own(tmp_path):
    common = "{epochs: 3, batch_size: 8}"
    assert read_text(tmp_path, f"<<: {common}\nepochs: 4").epochs == 4
    merged = read_text(tmp_path, f"epochs: 4\n<<: [{{batch_size: 16}}, {common}]")
    assert (merged.epochs, merged.batch_size) == (4, 16)
    with pytest.raises(UsageError, match="epochs comes twice"):
        read_text(tmp_path, f"<<: {common}\nepochs: 4\nepochs: 5")
    with pytest.raises(UsageError, match="expected a mapping or list of mappings"):
        read_text(tmp_path, "<<: 3")


def test_texts_in_yaml_stay_texts():
    stated = parsed("a: &a {x: 1, y: no}\nb: {<<: *a, x: 2}\nc: 1e3\nd:", Texts)
    assert stated == {"a": {"x": "1", "y": "no"}, "b": {"x": "2", "y": "no"}, "c": "1e3", "d": ""}
