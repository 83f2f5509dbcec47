"""Which draft is trained, and for how long: arithmetic, without measuring anything."""

from dataclasses import replace
from pathlib import Path

import pytest

from fastimg.config import yaml_file
from fastimg.errors import UserError
from fastimg.inspect.scan import Duplicates
from fastimg.suggest.decision import PATIENCE, Option, decide
from fastimg.suggest.drafts import drafts, few, mirrors
from fastimg.suggest.machine import Machine
from fastimg.suggest.notes import about_data
from fastimg.suggest.resemblance import NearCopies
from fastimg.suggest.starts import Network, Start, from_scratch
from fastimg.suggest.survey import Sizes, Survey, TextLengths
from fastimg.suggest.timing import Timing

CPU = Machine(device="cpu", name="a processor", cores=2, free=8 << 30, host_free=8 << 30)
GPU = replace(CPU, device="cuda", name="a GPU")
NET = Network(arch="resnet18", native=224, convolutional=True, parameters=11_000_000)
TRAINED = Start(arch="resnet18", weights=Path("/w.safetensors"), why="at hand")


def data(train=2000, shorter=300, classes=("cat", "dog"), counts=None, **changes):
    """A survey of pictures."""
    found = Survey(
        path=Path("D"),
        content="images",
        splits={"train": train + 100},
        train=train,
        val=100,
        val_origin="10%",
        val_fraction=None,
        classes=classes,
        counts=counts or (train // len(classes),) * len(classes),
        targets={},
        looked_at=train + 100,
        unreadable=0,
        unreadable_names=(),
        sizes=Sizes(width=shorter, height=shorter, shorter=shorter, smallest=shorter, largest=shorter),
        words=None,
        formats={"jpeg": train},
        tiled=0.0,
        mean_bytes=1e4,
        copies=Duplicates(0, 0, [], [], 0),
        near=NearCopies(),
        folder=True,
    )
    return replace(found, **changes)


def timing(start=2.0, encode=0.0, sample=0.01, val=0.01, save=0.5, batch=64, **changes):
    return Timing(start=start, encode=encode, sample=sample, val=val, save=save, batch=batch, **changes)


def draft(kind, survey=None, start=TRAINED, net=NET, machine=CPU):
    """The draft of a kind; of several, the first."""
    return next(each for each in drafts(start, net, survey or data(), machine) if each.kind == kind)


def options(survey, tuned=0.01, head=0.0001, encode=0.005):
    return [
        Option(draft("fine-tuning", survey), timing(sample=tuned)),
        Option(draft("head", survey), timing(sample=head, encode=encode, val=0.0001)),
    ]


def test_seconds_of_a_run():
    t = timing(start=2, encode=0.1, sample=0.01, val=0.02, save=0.5)
    assert t.before(100, 10) == pytest.approx(2 + 11)
    assert t.epoch(100, 10) == pytest.approx(1 + 0.2 + 0.5)
    assert t.run(100, 10, 3) == pytest.approx(13 + 3 * 1.7)


def test_all_of_a_network_is_trained_where_that_is_quick():
    survey = data()
    chosen = decide(options(survey), survey, None)
    assert chosen.option.draft.kind == "fine-tuning" and (chosen.length.name, chosen.length.value) == ("epochs", 5)
    assert chosen.seconds == pytest.approx(2 + 5 * (20 + 1 + 0.5))
    assert "frozen encoder" in chosen.notes[0]


def test_else_its_classifier_and_the_note_says_what_the_rest_would_take():
    survey = data()
    chosen = decide(options(survey, tuned=0.2), survey, None)
    assert chosen.option.draft.kind == "head" and chosen.length.value == 20
    assert "5 epochs" in chosen.notes[0] and f"{PATIENCE / 60:.0f} min" in chosen.notes[0]


def test_where_nothing_is_quick_the_quickest_classifier_is_trained():
    survey = data(train=1_000_000)
    slow, slower = (options(survey, tuned=1, encode=encode)[1] for encode in (0.1, 0.2))
    assert decide([slower, slow], survey, None).option is slow
    scratch = Option(draft("scratch", survey, Start(arch="resnet18", why="new")), timing(sample=1.0))
    assert decide([scratch], survey, None).option is scratch


@pytest.mark.parametrize(
    ("limit", "kind", "epochs"), [(40, "head", 30), (60, "fine-tuning", 2), (100_000, "fine-tuning", 20)]
)
def test_a_time_decides_how_many_epochs(limit, kind, epochs):
    survey = data()
    chosen = decide(options(survey), survey, limit)
    assert chosen.option.draft.kind == kind
    assert chosen.length.value == epochs and chosen.seconds <= limit


def test_a_time_of_less_than_an_epoch_trains_on_a_part_of_it():
    survey = data(train=1_000_000)
    option = Option(draft("scratch", survey, Start(arch="resnet18", why="new")), timing())
    chosen = decide([option], survey, 100)
    assert chosen.length.name == "duration" and chosen.length.value == f"{int((85 - 2 - 1.5) / 0.01)}sp"
    assert chosen.seconds <= 100


@pytest.mark.parametrize("kind", ["head", "fine-tuning"])
def test_too_short_a_time_says_what_is_needed(kind):
    survey = data()
    option = next(each for each in options(survey) if each.draft.kind == kind)
    with pytest.raises(UserError, match=r"--max-time 1s is too short: .*give --max-time \d+s or more") as refused:
        decide([option], survey, 1)
    needed = float(str(refused.value).rsplit("--max-time ", 1)[1].split("s")[0])
    assert decide([option], survey, needed).seconds <= needed


def test_few_samples_train_a_classifier_alone():
    assert few(data(train=240)) and few(data(train=2000, classes=tuple("abcdefghijklmnopqrstuvwxyz" * 2)))
    assert not few(data())
    assert [each.kind for each in drafts(TRAINED, NET, data(train=240), CPU)] == ["head"]


def test_a_draft_is_a_configuration_of_train():
    small = data(train=240, val_fraction=0.2)
    settings = draft("head", small).settings()
    assert settings == {
        "arch": "resnet18",
        "weights": "/w.safetensors",
        "freeze": "backbone",
        "head": "mlp",
        "batch_size": 16,
        "val_fraction": 0.2,
    }
    config = draft("head", small).train()
    assert config.freeze == "backbone" and config.weights == Path("/w.safetensors")


@pytest.mark.parametrize(
    ("shorter", "native", "convolutional", "size"),
    [
        (300, 224, True, None),
        (140, 224, True, None),
        (100, 224, True, 128),
        (8, 224, True, 128),
        (100, 224, False, None),
    ],
)
def test_pictures_are_not_enlarged_without_a_reason(shorter, native, convolutional, size):
    net = replace(NET, native=native, convolutional=convolutional)
    assert draft("fine-tuning", data(shorter=shorter), net=net).settings().get("img_size") == size


def test_tiny_pictures_from_random_weights():
    few_digits = data(train=1600, shorter=8, classes=("0", "1"))
    start = from_scratch(few_digits, CPU)
    settings = draft("scratch", few_digits, start, replace(NET, native=160)).settings()
    assert settings["img_size"] == 32 and settings["hflip"] == 0.0 and settings["scale"] == [0.6, 1.0]
    many = data(train=50_000, shorter=32, classes=("cat", "dog"))
    recipe = draft("scratch", many, from_scratch(many, GPU), replace(NET, native=32), GPU)
    assert recipe.settings() == {"recipe": "cifar-fast"} and recipe.train().arch == "fastimg/airnet"


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (("0", "1", "2"), "0, 1, 2"),
        (("zero", "one"), "zero, one"),
        (("turn_left", "turn_right"), "turn_left"),
        (("cat", "dog"), ""),
        (("bright", "cleft"), ""),
    ],
)
def test_names_of_classes_that_say_that_left_and_right_matter(classes, words):
    assert (words in mirrors(data(classes=classes))) if words else mirrors(data(classes=classes)) == ""
    tuned = draft("fine-tuning", data(classes=classes))
    assert tuned.settings().get("hflip") == (0.0 if words else None)
    assert any("hflip: 0" in note for note in tuned.notes) is not bool(words)


def test_rare_classes():
    assert "logit_adjust" not in draft("fine-tuning", data(counts=(1800, 200))).settings()
    suggested = draft("fine-tuning", data(counts=(1900, 100)))
    assert suggested.settings()["logit_adjust"] == 1.0
    assert any("dog has 100" in each.why and "1,900" in each.why for each in suggested.suggestions)


def test_long_texts_are_noted():
    texts = data(content="text", sizes=None, words=TextLengths(median=180, p95=600, mean=230.0))
    start = Start(arch="hf:x", why="at hand")
    net = Network(arch="hf:x", native=0, convolutional=False, parameters=22_000_000, tokens=256)
    found = draft("fine-tuning", texts, start, net)
    assert "256 tokens" in found.notes[0] and "600" in found.notes[0]
    assert "img_size" not in found.settings() and "hflip" not in found.settings()
    assert yaml_file.combined(found.settings()).arch == "hf:x"


def test_raw_pixels_are_named_where_reading_limits_and_memory_holds_them(monkeypatch):
    gains = dict.fromkeys(("jpeg", "tiled", "png"), (3.0,) * 6)
    monkeypatch.setattr("fastimg.bench.raw_pixels._GAINS", gains)
    found, slow = data(train=10_000, shorter=64), timing(waits=0.4)

    def notes(survey=found, measured=slow, once=False, available=1 << 30):
        return " ".join(about_data(survey, measured, once, available))

    assert "`fastimg convert D DST --format beton --raw-below 13KB`" in notes()
    assert "124 MB, which memory holds; a loader reads them about 3.0x as fast" in notes()
    for other in (
        notes(measured=timing(waits=0.01)),
        notes(once=True),
        notes(available=200 << 20),
        notes(survey=data(shorter=600)),
        notes(survey=replace(found, formats={"webp": 10_000})),
    ):
        assert "--raw-below" not in other
