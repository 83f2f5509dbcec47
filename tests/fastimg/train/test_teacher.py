"""Distillation: the loss is Hinton's, and the teacher sees what the student sees, as it was trained to."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fastimg.config.commands import Train
from fastimg.errors import UsageError, UserError
from fastimg.loaders.containers.targets import Target
from fastimg.models.precision import choose
from fastimg.models.ranks import Ranks
from fastimg.models.registry import Preprocessing
from fastimg.train.checkpoints.format import load_model, read_card
from fastimg.train.choices import refusals
from fastimg.train.distillation import teacher as teachers
from fastimg.train.distillation.loss import Distillation
from fastimg.train.distillation.teacher import Teacher, load
from fastimg.train.tasks.classification import ClassTask
from fastimg.train.tasks.joint import Losses, Tasks

CLASSES = ("blue", "green", "red")
CPU = torch.device("cpu")


def own(size: int = 32, mean: float = 0.5, std: float = 0.25) -> Preprocessing:
    triple = (mean, mean, mean)
    return Preprocessing(
        train_size=size, val_size=size, val_resize=size, interpolation="bilinear", mean=triple, std=(std, std, std)
    )


def one_class(classes: tuple[str, ...]) -> Tasks:
    return Tasks.one_class(ClassTask(target=Target(name="label", kind="class", classes=classes), outputs=len(classes)))


def built(config: Train, classes: tuple[str, ...] = CLASSES, student: Preprocessing | None = None) -> Teacher:
    alone = Ranks(0, 1, 1, CPU, None)
    made = load(config, one_class(classes), student or own(), choose(CPU, False, "auto"), alone)
    assert made is not None
    return made


def test_the_loss_is_the_papers(trained: Any) -> None:
    teacher = built(Train(teacher=str(trained.run)))
    teacher = replace(teacher, model=replace(teacher.model, module=nn.Sequential(nn.Flatten(), nn.Linear(12, 3))))
    teacher = replace(teacher, preprocessing=own(2), renormalisation=None, order=None)
    made = Distillation(source=teacher, temperature=3.0, weight=0.3)
    torch.manual_seed(0)
    images, logits, loss = torch.randn(5, 3, 2, 2), torch.randn(5, 3, requires_grad=True), torch.rand(5)
    given = made.blended(Losses(loss, (loss,)), logits, made.logits(images)).total
    theirs = teacher.model.module(images).detach()
    p, q = (theirs / 3).softmax(1), (logits / 3).softmax(1)
    expected = 0.7 * loss + 0.3 * 9 * (p * (p.log() - q.log())).sum(1)
    torch.testing.assert_close(given, expected)
    (slope,) = torch.autograd.grad(given.sum(), logits)
    torch.testing.assert_close(slope, 0.3 * 3 * (q - p).detach())  # T^2 times the slope of softmax at T
    assert all(weight.grad is None for weight in teacher.model.module.parameters())


def test_a_teacher_sees_the_crop_as_it_was_trained(trained: Any) -> None:
    """Normalised anew, resized, its outputs in the order of the student's classes; the same as by hand."""
    model, card = load_model(trained.run)
    order = ("red", "blue", "green")
    student = own(48, 0.4, 0.3)
    made = built(Train(teacher=str(trained.run)), order, student)
    levels = torch.rand(4, 3, 48, 48)
    size = card.preprocessing.val_size
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (card.preprocessing.mean, card.preprocessing.std))
    resized = nn.functional.interpolate((levels - mean) / std, (size, size), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected = model.module(resized)[:, [card.classes.index(name) for name in order]]
    torch.testing.assert_close(made.logits((levels - 0.4) / 0.3), expected, rtol=1e-4, atol=1e-4)
    assert f"on crops resized to {size}" in made.words[0]


def test_a_run_with_a_teacher_goes_on_to_the_bit(
    trained: Any, cli: Callable[..., Any], tmp_path: Path, fast: tuple[str, ...]
) -> None:
    """And the teacher is no part of what is saved."""
    flags = ("--teacher", trained.run, "--mixup", "0.2", "--output", tmp_path, "--seed", "1", "--sched", "constant")
    assert cli("train", trained.images, *fast, *flags, "--warmup", "1ba", "--name", "short").code == 0
    ran = cli("train", trained.images, "--resume", tmp_path / "short", "--epochs", "2")
    assert ran.code == 0, ran.err
    assert "teacher" in ran.out and "temperature 4, weight 0.5" in ran.out
    assert cli("train", trained.images, *fast, *flags, "--warmup", "1ba", "--name", "long", "--epochs", "2").code == 0
    short, long = (load_file(tmp_path / name / "last/model.safetensors") for name in ("short", "long"))
    assert short.keys() == load_file(trained.run / "last/model.safetensors").keys()
    assert all(torch.equal(short[name], long[name]) for name in short)


def test_teachers_that_cannot_teach(trained: Any, tmp_path: Path) -> None:
    run = str(trained.run)
    with pytest.raises(UserError, match="knows 'red', too; it has 3 classes and the dataset 2"):
        built(Train(teacher=run), ("blue", "green"))
    with pytest.raises(UserError, match="does not know 'cat'"):
        built(Train(teacher=run), ("blue", "cat", "green"))
    several = replace(one_class(CLASSES), all=one_class(CLASSES).all * 2)
    with pytest.raises(UsageError, match="speaks of the classes of one target alone"):
        load(Train(teacher=run), several, own(), choose(CPU, False, "auto"), Ranks(0, 1, 1, CPU, None))
    with pytest.raises(UsageError, match="there is no such checkpoint; give a run"):
        built(Train(teacher="test_resnet"))
    with pytest.raises(UsageError, match="--teacher-weights has no effect with a checkpoint"):
        built(Train(teacher=run, teacher_weights=tmp_path))
    with pytest.raises(UsageError, match="--kd-weight has no effect without --teacher"):
        refusals.check(Train(kd_weight=0.5))
    with pytest.raises(UsageError, match="compares softmax probabilities"):
        refusals.check(Train(teacher=run, bce_loss=True))


def several_targets(monkeypatch: pytest.MonkeyPatch, trained: Any, *stated: dict[str, Any]) -> nn.Module:
    """The teacher's checkpoint predicts other targets: its outputs are the numbers 0, 1, 2, ..., whatever it sees."""
    model, card = load_model(trained.run)
    outputs = sum(target["outputs"] for target in stated)
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))
    module(torch.zeros(1, 3, card.preprocessing.val_size, card.preprocessing.val_size))
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].bias.copy_(torch.arange(outputs))
    card = replace(card, targets=stated, num_classes=outputs)
    monkeypatch.setattr(teachers, "load_model", lambda path: (replace(model, module=module), card))
    return module


AGE = {"name": "age", "kind": "number", "outputs": 1, "mean": 3.0, "std": 1.0}
COLOUR = {"name": "colour", "kind": "class", "outputs": 3, "classes": ["red", "green", "blue"]}
TAGS = {"name": "tags", "kind": "multilabel", "outputs": 3, "classes": ["red", "green", "blue"]}


@pytest.mark.parametrize(
    ("stated", "outputs"),
    [((AGE, COLOUR), [3.0, 2.0, 1.0]), ((COLOUR, AGE), [2.0, 1.0, 0.0]), ((TAGS, AGE, COLOUR), [6.0, 5.0, 4.0])],
)
def test_of_several_targets_the_class_teaches(
    stated: tuple[dict[str, Any], ...], outputs: list[float], trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    several_targets(monkeypatch, trained, *stated)
    made = built(Train(teacher=str(trained.run)))  # of blue, green, red
    assert made.logits(torch.zeros(2, 3, 32, 32)).tolist() == [outputs] * 2


def test_outputs_that_are_no_classes_do_not_teach(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    several_targets(monkeypatch, trained, TAGS)
    with pytest.raises(UserError, match=r"predicts tags \(multilabel\), none of which has the dataset's 3 classes"):
        built(Train(teacher=str(trained.run)))
    several_targets(monkeypatch, trained, COLOUR, COLOUR | {"name": "other"})
    with pytest.raises(UserError, match="more than one of which has the dataset's 3 classes"):
        built(Train(teacher=str(trained.run)))
    model, card = load_model(trained.run)
    monkeypatch.setattr(teachers, "load_model", lambda path: (model, replace(card, pair={"text": {}})))
    with pytest.raises(UsageError, match="reads texts beside images; give one of images"):
        built(Train(teacher=str(trained.run)))


def test_a_teacher_of_another_size_takes_bf16(trained: Any) -> None:
    """As under bf16 autocast on a CPU, where torch cannot resize it."""
    made = built(Train(teacher=str(trained.run)), student=own(48, 0.4, 0.3))
    made = replace(made, precision=choose(CPU, True, "bf16"))
    images = torch.rand(2, 3, 48, 48)
    exact = made.logits(images)
    assert (made.logits(images.bfloat16()) - exact).abs().max() < 0.05 * exact.abs().max() + 0.05


def test_towers_that_are_kept_show_a_teacher_no_images(trained: Any) -> None:
    asked = Train(teacher=str(trained.run), text_arch="hf:bert", freeze="image")
    with pytest.raises(UsageError, match="--freeze image trains on kept embeddings; add --cache-embeddings off"):
        refusals.check(asked)
    refusals.check(replace(asked, cache_embeddings="off"))


def test_a_teacher_by_its_architecture(trained: Any, tmp_path: Path) -> None:
    weights = load_file(trained.run / "best/model.safetensors")
    save_file(weights, tmp_path / "plain.safetensors")
    made = built(Train(teacher="test_resnet", teacher_weights=tmp_path / "plain.safetensors"))
    assert read_card(trained.run / "best/model.safetensors").arch == "test_resnet"
    for name, value in made.model.module.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert not made.model.module.training


def test_a_teachers_named_outputs_are_put_in_order(trained: Any) -> None:
    """By an architecture and a run's weights, which name its classes: blue, green, red."""
    file = trained.run / "best/model.safetensors"
    made = built(Train(teacher="test_resnet", teacher_weights=file), ("red", "blue", "green"))
    weights = load_file(file)["fc.weight"]
    assert torch.equal(made.model.module.fc.weight, weights[[2, 0, 1]])
    with pytest.raises(UserError, match="does not know 'cat'"):
        built(Train(teacher="test_resnet", teacher_weights=file), ("blue", "cat", "green"))
