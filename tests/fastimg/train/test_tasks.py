"""The losses of tasks equal torch's, their scores scikit-learn's, and a missing target adds exactly nothing."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    mean_absolute_error,
    precision_recall_curve,
    r2_score,
)

from fastimg.augment.mixing import Mixture
from fastimg.loaders import Batch
from fastimg.loaders.containers.targets import Target, TargetColumn
from fastimg.models.ranks import Ranks
from fastimg.train.losses import LossSettings
from fastimg.train.metrics import Meter
from fastimg.train.tasks.classification import ClassTask
from fastimg.train.tasks.joint import Tasks
from fastimg.train.tasks.lookup import TargetLookup
from fastimg.train.tasks.ranking import ranked_scores
from fastimg.train.tasks.regression import NumberTask
from fastimg.train.tasks.score import TargetScores
from fastimg.train.tasks.tagging import MultilabelTask
from fastimg.train.tasks.task import Truth

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, 1, CPU, None)
COUNT = 40
BREED = Target(name="breed", kind="class", classes=("a", "b", "c"))
TAGS = Target(name="tags", kind="multilabel", classes=("x", "y", "z", "never"))
AGE = Target(name="age", kind="number")


def three(**settings: Any) -> Tasks:
    """A class, labels and a number: eight outputs."""
    tasks = (
        ClassTask(target=BREED, outputs=3),
        MultilabelTask(target=TAGS),
        NumberTask(target=AGE, mean=1000.0, std=5.0),
    )
    return Tasks(all=tasks, **{"weights": (1.0, 1.0, 1.0), **settings})


def drawn() -> tuple[torch.Tensor, tuple[Truth, ...], torch.Tensor]:
    """Logits [COUNT, 8], the three targets, each missing for some, and weights."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(COUNT, 4, generator=generator) < 0.4).to(torch.uint8)
    labels[:, 3] = 0
    values = (torch.randint(0, 3, (COUNT,), generator=generator), labels, torch.randn(COUNT, generator=generator))
    present = (torch.rand(COUNT, generator=generator) < 0.8 for _ in values)
    truths = tuple(Truth(value, there) for value, there in zip(values, present, strict=True))
    weight = (torch.rand(COUNT, generator=generator) < 0.9).float()
    return torch.randn(COUNT, 8, generator=generator).round(decimals=1), truths, weight


def test_losses_are_torchs_and_nothing_where_a_target_is_missing():
    logits, truths, _ = drawn()
    each = three().losses(logits, truths).each
    expected = (
        F.cross_entropy(logits[:, :3], truths[0].values, reduction="none"),
        F.binary_cross_entropy_with_logits(logits[:, 3:7], truths[1].values.float(), reduction="none").sum(dim=1),
        F.smooth_l1_loss(logits[:, 7], truths[2].values, reduction="none"),
    )
    for own, other, truth in zip(each, expected, truths, strict=True):
        assert truth.present is not None
        assert torch.equal(own[truth.present], other[truth.present])
        assert (own[~truth.present] == 0).all()


def test_the_weighted_sum_and_learned_variances():
    logits, truths, _ = drawn()
    weighted = three(weights=(1.0, 0.5, 2.0)).losses(logits, truths)
    assert torch.equal(weighted.total, weighted.each[0] + 0.5 * weighted.each[1] + 2.0 * weighted.each[2])
    learned = three(learned=True).to(CPU)
    assert learned.log_variances is not None
    with torch.no_grad():
        learned.log_variances.copy_(torch.tensor([0.3, -0.2, 1.0]))
    s = learned.log_variances.detach()
    there = torch.stack([truth.present for truth in truths if truth.present is not None]).float()
    kendall = torch.tensor([1.0, 1.0, 0.5])[:, None] * torch.exp(-s)[:, None] * torch.stack(weighted.each)
    torch.testing.assert_close(learned.losses(logits, truths).total, ((kendall + 0.5 * s[:, None]) * there).sum(dim=0))


@pytest.mark.parametrize("learned", [False, True])
def test_what_stands_in_a_missing_target_changes_no_bit_of_any_gradient(learned):
    """Neither infinity nor NaN nor a class that does not exist; and what is missing for all has no gradient at all."""
    logits, truths, weight = drawn()
    garbage = (-7, 255, float("nan"))
    nobody = torch.zeros(COUNT, dtype=torch.bool)

    def gradients(truths: tuple[Truth, ...]) -> list[torch.Tensor]:
        tasks = three(learned=learned).to(CPU)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            trunk = torch.nn.Linear(5, 8)
        inputs = logits[:, :5]
        (tasks.losses(trunk(inputs), truths).total * weight).sum().backward()
        return [p.grad for p in (trunk.weight, trunk.bias, *tasks.parameters) if p.grad is not None]

    clean = gradients(truths)
    dirty = []
    for truth, value in zip(truths, garbage, strict=True):
        assert truth.present is not None
        rows = truth.present if truth.values.ndim == 1 else truth.present[:, None]
        dirty.append(Truth(torch.where(rows, truth.values, torch.tensor(value).to(truth.values.dtype)), truth.present))
    for one, other in zip(clean, gradients(tuple(dirty)), strict=True):
        assert torch.equal(one, other)
    without = gradients((*truths[:2], Truth(truths[2].values, nobody)))
    assert (without[0][7] == 0).all() and (without[1][7] == 0).all()
    assert torch.equal(without[0][:7], clean[0][:7]) and torch.equal(without[1][:7], clean[1][:7])


def validated(tasks: Tasks, logits: torch.Tensor, truths: tuple[Truth, ...], weight: torch.Tensor) -> Any:
    """What a validation in batches of eight counts."""
    meter = Meter(tasks, CPU, whole=True)
    for at in range(0, COUNT, 8):
        rows = slice(at, at + 8)
        part = tuple(Truth(t.values[rows], None if t.present is None else t.present[rows]) for t in truths)
        meter.add(logits[rows], tasks.evaluation_losses(logits[rows], part), part, weight[rows])
    return meter.read(ALONE)


def test_scores_are_scikit_learns():
    logits, truths, weight = drawn()
    score = validated(three(), logits, truths, weight)
    assert isinstance(score, TargetScores) and score.samples == int(weight.sum())
    breed, tags, age = ((truth.weighed(weight) > 0).numpy() for truth in truths)
    found = score.values
    classes = logits[:, :3].argmax(dim=1).numpy()
    true = truths[0].values.numpy()
    assert found["breed.top1"] == pytest.approx((classes == true)[breed].mean())
    assert found["breed.balanced_accuracy"] == pytest.approx(balanced_accuracy_score(true[breed], classes[breed]))
    labels, shares = truths[1].values.numpy()[tags], logits[:, 3:7].double().sigmoid().numpy()[tags]
    own = [0, 1, 2]  # no sample has the fourth, for which scikit-learn has no precision either
    precisions = [average_precision_score(labels[:, i], logits[tags, 3 + i].numpy()) for i in own]
    assert found["tags.map"] == pytest.approx(np.mean(precisions))
    thresholds = np.array(score.thresholds["tags"])
    assert thresholds[3] == 0.5
    f1 = f1_score(labels[:, own], (shares >= thresholds)[:, own], average=None)
    assert found["tags.f1"] == pytest.approx(f1.mean())
    for i in own:
        precision, recall, _ = precision_recall_curve(labels[:, i], shares[:, i])
        best = np.max(2 * precision * recall / np.maximum(precision + recall, 1e-12))
        assert f1[i] == pytest.approx(best)
    numbers, predicted = truths[2].values.numpy()[age] * 5 + 1000, logits[:, 7].numpy()[age] * 5 + 1000
    assert found["age.mae"] == pytest.approx(mean_absolute_error(numbers, predicted), rel=1e-5)
    assert found["age.r2"] == pytest.approx(r2_score(numbers, predicted), rel=1e-4)
    losses = three().evaluation_losses(logits, truths).total
    assert score.loss == pytest.approx(float((losses * weight).sum() / weight.sum()), rel=1e-6)


def test_average_precision_with_ties_and_one_sample():
    generator = torch.Generator().manual_seed(3)
    scores = torch.randint(0, 3, (60, 70), generator=generator).float()  # more labels than are ranked at a time
    truth = torch.rand(60, 70, generator=generator) < 0.3
    expected = [average_precision_score(truth[:, i].numpy(), scores[:, i].numpy()) for i in range(70)]
    assert ranked_scores(scores, truth).precision.tolist() == pytest.approx(expected)
    one = ranked_scores(torch.tensor([[2.0]]), torch.tensor([[True]]))
    assert (one.precision.item(), one.f1.item()) == (1.0, 1.0)
    assert one.thresholds.item() == pytest.approx(torch.tensor(2.0).sigmoid().item() / 2)


def test_a_target_that_no_sample_has_is_left_out_of_the_scores():
    logits, truths, weight = drawn()
    nobody = torch.zeros(COUNT, dtype=torch.bool)
    score = validated(three(), logits, tuple(Truth(truth.values, nobody) for truth in truths), weight)
    assert dict(score.values) == {} and score.loss == 0.0 and score.samples > 0


def test_counting_of_several_targets_never_waits_for_the_device():
    """Meta tensors have no values: reading one would fail."""
    tasks, meta = three(), torch.device("meta")
    meter = Meter(tasks, meta, whole=True)
    logits, truths, weight = drawn()
    moved = tuple(Truth(t.values.to(meta), t.present.to(meta)) for t in truths if t.present is not None)
    meter.add(logits.to(meta), tasks.losses(logits.to(meta), moved), moved, weight.to(meta))


def test_a_mixed_target_is_there_where_both_partners_have_it():
    tasks = Tasks(all=three().all[:2], weights=(1.0, 1.0))
    there = torch.tensor([True, False, True, True])
    labels = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.uint8)
    truths = (Truth(torch.tensor([0, 1, 2, 0])), Truth(labels, there))
    mixture = Mixture(torch.tensor([0.75, 1.0, 1.0, 0.5]), torch.tensor([1, 0, 1, 2]))
    classes, mixed = tasks.mixed(truths, mixture)
    assert classes.present is None
    assert classes.values.tolist() == [[0.75, 0.25, 0], [0, 1, 0], [0, 0, 1], [0.5, 0, 0.5]]
    assert mixed.present is not None and mixed.present.tolist() == [False, False, True, True]  # the third is not mixed
    assert mixed.values[3].tolist() == [0.5, 0.5, 0, 0]


def test_soft_classes_are_smoothed_once():
    hard = Truth(torch.tensor([0, 2]))
    task = ClassTask(target=BREED, outputs=3, settings=LossSettings(smoothing=0.1))
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 2.0]])
    torch.testing.assert_close(task.loss(logits, task.mixed(hard, None)), task.loss(logits, hard))


def batch(ids: list[int]) -> Batch:
    count = len(ids)
    return Batch(
        inputs=torch.zeros(count, 1),
        targets=torch.arange(count),
        ids=torch.tensor(ids),
        weight=torch.ones(count),
        samples=count,
    )


def test_targets_are_looked_up_by_id_and_large_numbers_keep_their_spread():
    ages = np.array([1e9 + 1, np.nan, 1e9 + 3, 1e9 + 5])
    task = NumberTask(target=AGE, mean=1e9 + 3, std=2.0)
    labels = TargetColumn.of_labels([[2], None, [], [0, 1]], TAGS.classes, "tags")
    lookup = TargetLookup((None, labels, task.column(TargetColumn.of_numbers(ages, "age"))))
    own, tags, age = lookup.truths(batch([3, 1, 0]))
    assert own.values.tolist() == [0, 1, 2] and own.present is None
    assert tags.values.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert tags.present is not None and tags.present.tolist() == [True, False, True]
    assert age.filled().tolist() == [1.0, 0.0, -1.0]
    assert task.outputs_of(np.array([[1.0]], np.float32)).tolist() == [[1e9 + 5]]
