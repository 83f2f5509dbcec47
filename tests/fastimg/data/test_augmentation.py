"""Augmentation settings: flags, YAML's list, named policies, errors, and the printed sentence."""

from dataclasses import replace

import pytest

from fastimg.augment import Policy
from fastimg.config.augmentation import effective, listed
from fastimg.config.commands import Augmenting, Train
from fastimg.config.yaml_file import load
from fastimg.data.augmentation import order_note, policy_of, sentence
from fastimg.errors import UsageError
from fastimg.train.choices.refusals import check

from .augmentation_constants import MEAN, STD

LUDWIG = """
augmentation:
  - random_horizontal_flip
  - random_rotate: {degree: 15}
  - random_contrast: {min: 0.5, max: 2.0}
  - random_brightness: {min: 0.8, max: 1.25}
  - trivial_augment
"""


def chosen(config):
    """The settings of an effective configuration that enable something."""
    found = effective(config, plain=False)
    return {name: value for name, value in found.items() if value and name not in ("scale", "ratio")}


def from_yaml(text, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return load(file, Train)


def test_flags():
    assert chosen(Train()) == {"hflip": 0.5}
    everything = Train(
        aa="ta_wide", hflip=0.1, vflip=0.2, rotate=30.0, color_jitter=(0.4, 0.0, 2.0), reprob=0.3, mixup=0.2, cutmix=1.0
    )
    assert chosen(everything) == {
        "aa": "trivial",
        "hflip": 0.1,
        "vflip": 0.2,
        "rotate": 30.0,
        "brightness": (0.6, 1.4),
        "saturation": (0.0, 3.0),
        "reprob": 0.3,
        "mixup": 0.2,
        "cutmix": 1.0,
    }
    policy = policy_of(replace(everything, **effective(everything, plain=False)), MEAN, STD)
    assert policy == Policy(
        hflip=0.1,
        vflip=0.2,
        rotate=30.0,
        brightness=(0.6, 1.4),
        saturation=(0.0, 3.0),
        trivial=True,
        erase=0.3,
        mixup=0.2,
        cutmix=1.0,
        mean=MEAN,
        std=STD,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("augmentation: true", {"hflip": 0.5, "rotate": 15.0}),
        ("augmentation: []", {}),
        ("augmentation: [random_vertical_flip]", {"vflip": 0.5}),
        (
            LUDWIG,
            {
                "hflip": 0.5,
                "rotate": 15.0,
                "brightness": (0.8, 1.25),
                "contrast": (0.5, 2.0),
                "aa": "trivial",
            },
        ),
        ("augmentation: [{type: random_rotate, degree: 20}, {type: random_contrast}]", "Ludwig's own form"),
        ("augmentation: [{random_rotate: {degrees: 20}}, random_contrast: {max: 2, min: 0.5}]", "Ludwig's own form"),
        ("augmentation: [{auto_augmentation: {method: trivial_augment}}]", {"aa": "trivial"}),
        (
            "augmentation: [{mixup: {alpha: 0.3}}, cutmix, {random_erasing: {p: 0.25}}, {hflip: {p: 1}}, saturation]",
            {"hflip": 1.0, "reprob": 0.25, "mixup": 0.3, "cutmix": 1.0, "saturation": (0.5, 2.0)},
        ),
    ],
)
def test_lists(text, expected, tmp_path):
    if expected == "Ludwig's own form":
        expected = {"rotate": 20.0, "contrast": (0.5, 2.0)}
    assert chosen(from_yaml(text, tmp_path)) == expected


def test_ludwigs_blur_is_kornias_with_torchvisions_sigma(tmp_path):
    said = listed(["random_blur", {"random_blur": {"kernel_size": 5}}])
    assert said.kornia == [
        {"RandomGaussianBlur": {"kernel_size": [3, 3], "sigma": [0.8, 0.8], "p": 0.5}},
        {"RandomGaussianBlur": {"kernel_size": [5, 5], "sigma": [1.1, 1.1], "p": 0.5}},
    ]


def test_false_disables_augmentation(tmp_path):
    assert from_yaml("augmentation: false", tmp_path) == Train(no_aug=True)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("[random_rotat]", "no augmentation is called 'random_rotat'; did you mean random_rotate"),
        ("[trivial_augmnt]", "did you mean"),
        ("[{random_rotate: {degree: -5}}]", "random_rotate: degree=-5: give degrees to either side, from 0 to 180"),
        ("[{random_horizontal_flip: {p: 1.5}}]", "a probability, from 0 to 1"),
        ("[{random_contrast: {min: 2.0, max: 0.5}}]", "random_contrast: min=2.0, max=0.5: give two factors"),
        ("[{random_contrast: {min: 3.0}}]", "two factors from 0 up, the smaller first"),
        ("[{mixup: {alpha: -1}}]", "the alpha of a Beta distribution"),
        ("[{random_rotate: {angle: 5}}]", "no argument 'angle'; it takes degree"),
        ("[{random_rotate: {degree: much}}]", "degree is a number; it was 'much'"),
        ("[{random_rotate: {degree: true}}]", "degree is a number"),
        ("[{trivial_augment: {bins: 5}}]", "it takes no argument"),
        ("[random_rotate, {rotate: {degree: 5}}]", "rotate is given twice"),
        ("[{a: {}, b: {}}]", "is not an augmentation; write a name"),
        ("[{random_rotate: 15}]", "is not an augmentation; write a name"),
        ("[3]", "augmentation"),
        ("sometimes", "augmentation"),
        ("[{auto_augmentation: {method: rand_augment}}]", "trivial_augment alone"),
        ("[{random_blur: {kernel_size: 4}}]", "an odd number"),
    ],
)
def test_invalid_lists(entries, message, tmp_path, cli):
    file = tmp_path / "c.yaml"
    file.write_text(f"augmentation: {entries}\n")
    ran = cli("train", tmp_path / "nowhere", "--config", file)
    assert ran.code == 2 and str(file) in ran.err and message in ran.err, ran.err


@pytest.mark.parametrize("other", ["hflip: 0.2", "kornia: [{RandomInvert: {}}]", "mixup: 1.0"])
def test_a_file_sets_an_operation_only_once(other, tmp_path):
    with pytest.raises(UsageError, match="say two things"):
        from_yaml(f"augmentation: [cutmix]\n{other}\n", tmp_path)
    assert from_yaml("augmentation: [cutmix]\nscale: [0.5, 1.0]\n", tmp_path).scale == (0.5, 1.0)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--no-aug", "--aa", "trivial"), "--aa"),
        (("--no-aug", "--rotate", "3"), "--rotate"),
        (("--no-aug", "--color-jitter", "0.1", "0.1", "0.1"), "--color-jitter"),
        (("--no-aug", "--mixup", "1"), "--mixup"),
        (("--color-jitter", "0.1", "0.1", "0.1", "--contrast", "1", "2"), "--contrast"),
        (("--mixup", "1", "--batch-size", "1"), "--mixup"),
        (("--cutmix", "1", "-b", "1"), "--cutmix"),
    ],
)
def test_flags_without_effect(flags, named, tmp_path, cli):
    ran = cli("train", tmp_path / "nowhere", *flags)
    assert ran.code == 2 and f"{named} has no effect with" in ran.err


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--rotate", ("-1", "181", "nan")),
        ("--reprob", ("-0.1", "1.1")),
        ("--mixup", ("-1", "inf", "1e-9", "1e6")),
        ("--cutmix", ("-1",)),
        ("--contrast", ("2 1", "-1 1", "1 inf")),
        ("--brightness", ("2 1",)),
        ("--saturation", ("2 1",)),
        ("--color-jitter", ("-1 0 0",)),
    ],
)
def test_values_out_of_range(flag, values, tmp_path, cli):
    for value in values:
        ran = cli("train", tmp_path / "nowhere", flag, *value.split())
        assert ran.code == 2, (value, ran.err)
        shown = " ".join(f"{float(number):g}" for number in value.split())
        assert f"{flag} {shown}: give " in ran.err or "unrecognized" in ran.err.lower(), (value, ran.err)


def test_no_aug_and_none_agree():
    check(Train(no_aug=True, aa="none"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--hflip", "0.25"), "hflip 0.25, rotate 15 degrees to either side, contrast 0.5 to 2, TrivialAugment"),
        (("--aa", "none"), "hflip 0.5, rotate 15 degrees to either side, contrast 0.5 to 2\n"),
        (("--no-aug",), "no augmentation (validation's crops)"),
        (("--color-jitter", "0.5", "0", "0"), "hflip 0.5, rotate 15 degrees to either side, brightness 0.5 to 1.5, "),
    ],
)
@pytest.mark.parametrize("form", ["list", "fields"])
def test_flags_win_over_a_file(flags, expected, form, trained, tmp_path, fast, cli):
    file = tmp_path / "c.yaml"
    entries = "[hflip, {rotate: {degree: 15}}, {contrast: {min: 0.5, max: 2}}, trivial]"
    fields = "hflip: 0.5\nrotate: 15\ncontrast: [0.5, 2]\naa: trivial\n"
    file.write_text(f"augmentation: {entries}\n" if form == "list" else fields)
    ran = cli("train", trained.images, *fast, "--config", file, *flags, "--dry-run")
    assert ran.code == 0, ran.err
    assert expected in "\n".join(line.rstrip() for line in ran.out.splitlines())


def test_flags_win_over_a_file_without_augmentation(trained, tmp_path, fast, cli):
    file = tmp_path / "c.yaml"
    file.write_text("no_aug: true\n")
    ran = cli("train", trained.images, *fast, "--config", file, "--mixup", "0.2", "--dry-run")
    assert ran.code == 0 and "hflip 0.5, mixup 0.2" in ran.out, ran.err


def test_everything_is_printed_in_its_order(trained, tmp_path, fast, cli):
    file = tmp_path / "c.yaml"
    file.write_text("augmentation: [cutmix, mixup, trivial_augment, random_erasing, random_rotate, saturation]\n")
    ran = cli("train", trained.images, *fast, "--config", file, "--dry-run")
    assert ran.code == 0, ran.err
    words = "hflip 0, rotate 15 degrees to either side, saturation 0.5 to 2, TrivialAugment, erasing 0.1, "
    assert words + "mixup 0.2 or cutmix 1" in ran.out
    order = "random_rotate, saturation, trivial_augment, random_erasing, mixup, cutmix"
    assert f"whatever the list's order, it happens as {order}" in ran.out.replace("cutmix, mixup", "mixup, cutmix")


def test_no_remark_on_the_usual_order():
    assert order_note(Train(augmentation=["hflip", "rotate", "trivial", "RandomInvert", "RandomGamma", "erase"])) == ""
    assert order_note(Train(augmentation=["RandomInvert", "trivial"])).endswith("trivial, RandomInvert")
    assert order_note(Train(augmentation=True)) == ""


def test_a_frozen_backbone_is_augmented_if_a_list_is_given(trained, tmp_path, fast, cli):
    file = tmp_path / "c.yaml"
    file.write_text("augmentation: true\n")
    frozen = (*fast, "--freeze", "backbone", "--weights", trained.run, "--dry-run")
    assert "no augmentation" in cli("train", trained.images, *frozen).out
    assert "no augmentation" in cli("train", trained.images, *frozen, "--aa", "none").out
    assert "rotate 15" in cli("train", trained.images, *frozen, "--config", file).out


def test_none_is_no_policy():
    assert policy_of(Train(aa="none"), (0.5,), (0.5,)) == policy_of(Train(), (0.5,), (0.5,))


def test_words():
    config = Augmenting(augmentation=["hflip", {"RandomInvert": {"p": 0.5}}, "mixup"], vflip=0.25)
    resolved = replace(config, **effective(config, plain=False))
    crop = "random resized crop 8 (scale 0.08 to 1, ratio 0.75 to 1.33)"
    assert sentence(resolved, 8) == f"{crop}, hflip 0.5, vflip 0.25, Kornia's RandomInvert(p=0.5), mixup 0.2"


def effective_policy(**fields):
    config = Train(**fields)
    return policy_of(replace(config, **effective(config, plain=False)), MEAN, STD)


def test_policies_by_name_and_what_comes_after():
    name = "rand-m9-mstd0.5-inc1"
    given = {"aa": name, "hue": 0.1, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.3, "solarize_prob": 0.4}
    after = {"hue": 0.1, "grayscale": 0.2, "blur": 0.3, "solarize": 0.4}
    assert effective_policy(**given) == Policy(hflip=0.5, named=name, **after, mean=MEAN, std=STD)
    config = Train(**given)
    words = sentence(replace(config, **effective(config, plain=False)), None)
    assert (
        words.partition("), ")[2]
        == f"hflip 0.5, {name}, hue by up to 0.1, grayscale 0.2, gaussian blur 0.3, solarize 0.4"
    )
    listed_ = {"augmentation": [name, {"hue": {"max": 0.1}}, "random_grayscale", {"gaussian_blur": {"p": 0.3}}]}
    assert effective_policy(**listed_, solarize_prob=0.4) == replace(effective_policy(**given), hflip=0.0)


def test_three_augment_comes_with_its_jitter():
    slight = dict.fromkeys(("brightness", "contrast", "saturation"), (0.7, 1.3))
    assert effective_policy(aa="3aug") == Policy(hflip=0.5, named="3aug", **slight, mean=MEAN, std=STD)
    alone = Policy(hflip=0.5, named="3aug", mean=MEAN, std=STD)
    assert effective_policy(aa="3aug", color_jitter=(0.0, 0.0, 0.0)) == alone
    assert effective_policy(aa="3aug", contrast=(0.5, 1.0)) == replace(alone, contrast=(0.5, 1.0))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--aa", "rand-m9-x3"), "--aa: rand-m9-x3: 'x3' is no part of rand; it takes m, n, p"),
        (("--aa", "trivail"), "--aa trivail: unknown policy; did you mean trivial"),
        (("--aa", "autoaugmentt"), "unknown augmentation policy 'autoaugmentt'"),
        (("--hue", "0.6"), "--hue 0.6: give a share of the colour circle, from 0 to 0.5"),
        (("--solarize-prob", "2"), "--solarize-prob 2: give a probability, from 0 to 1"),
        (("--no-aug", "--hue", "0.1"), "--hue"),
    ],
)
def test_policies_that_are_none(flags, message, tmp_path, cli):
    ran = cli("train", tmp_path / "nowhere", *flags)
    assert ran.code == 2 and message in ran.err, ran.err
