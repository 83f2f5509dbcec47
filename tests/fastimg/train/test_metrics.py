"""Metrics of training and validation."""

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score, top_k_accuracy_score

from fastimg.loaders.containers.targets import Target
from fastimg.models.ranks import Ranks
from fastimg.train.metrics import FirstBad, Meter, Trace, answer
from fastimg.train.tasks.classification import ClassTask, ranks_of
from fastimg.train.tasks.joint import Losses, Tasks
from fastimg.train.tasks.score import Score, shows_top5, zero_recall
from fastimg.train.tasks.task import Truth

ALONE = Ranks(0, 1, 1, torch.device("cpu"), None)


def one_class(classes=2):
    names = tuple(map(str, range(classes)))
    return Tasks.one_class(ClassTask(target=Target(name="label", kind="class", classes=names), outputs=classes))


def meter_of(classes=2, device="cpu", whole=False):
    return Meter(one_class(classes), torch.device(device), whole)


def add(meter, logits, losses, targets, weight):
    meter.add(logits, Losses(losses, (losses,)), (Truth(targets),), weight)


def test_means_over_the_samples_that_count():
    meter = meter_of()
    logits = torch.eye(6)[[0, 1, 5]] + torch.arange(6) * -0.01  # first choices 0, 1 and 5
    targets, weight = torch.tensor([0, 2, 4]), torch.tensor([1.0, 1.0, 0.0])
    add(meter, logits, torch.tensor([1.0, 2.0, 100.0]), targets, weight)
    add(meter, logits[:1], torch.tensor([3.0]), torch.tensor([5]), torch.tensor([1.0]))  # the sixth of six
    assert meter.read(ALONE) == Score(loss=2.0, top1=1 / 3, top5=2 / 3, samples=3)


def test_nothing_counted_is_no_division_by_zero():
    assert meter_of().read(ALONE) == Score(loss=0.0, top1=0.0, top5=0.0, samples=0)


def test_fewer_than_five_classes():
    meter = meter_of()
    add(meter, torch.eye(2), torch.zeros(2), torch.tensor([1, 1]), torch.ones(2))
    assert (meter.read(ALONE).top1, meter.read(ALONE).top5) == (0.5, 1.0)


def test_sums_do_not_lose_small_losses():
    """float32 would stop counting at 2**24."""
    meter = meter_of()
    meter.sums += torch.tensor([2.0**24, 0.0, 0.0, 2.0**24], dtype=torch.float64)
    add(meter, torch.zeros(1, 2), torch.ones(1), torch.tensor([0]), torch.ones(1))
    assert meter.read(ALONE).samples == 2**24 + 1


def top_of(logits, targets):
    """Sums of top-1 and top-5 hits."""
    classes = logits.shape[1]
    sums = one_class(classes).all[0].count(logits, torch.zeros(len(logits)), Truth(targets), torch.ones(len(logits)))
    return sums[1:3].tolist()


@pytest.mark.parametrize("classes", [2, 4, 5, 6, 10, 1000])
def test_ranks_are_those_of_others_where_no_logits_are_equal(classes):
    drawn = torch.Generator().manual_seed(classes)
    logits = torch.stack([torch.randperm(classes, generator=drawn) for _ in range(300)]).float() - classes / 2
    targets = torch.randint(0, classes, (300,), generator=drawn)
    ranked = logits.topk(min(5, classes), dim=1).indices == targets[:, None]
    assert top_of(logits, targets) == [int(ranked[:, 0].sum()), int(ranked.sum())]
    if classes > 5:
        theirs = [
            top_k_accuracy_score(targets, logits, k=k, labels=np.arange(classes), normalize=False) for k in (1, 5)
        ]
        assert top_of(logits, targets) == theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_of_equal_logits_the_lower_index_comes_first(dtype):
    """As a stable sort ranks them, so that a model whose outputs are all 0 is right by chance only."""
    drawn = torch.Generator().manual_seed(1)
    logits = torch.randint(-3, 4, (500, 12), generator=drawn).to(dtype)
    targets = torch.randint(0, 12, (500,), generator=drawn)
    order = logits.float().sort(dim=1, descending=True, stable=True).indices
    places = (order == targets[:, None]).int().argmax(dim=1)
    assert torch.equal(ranks_of(logits, targets), places)
    assert torch.equal(ranks_of(logits, targets) < 1, logits.argmax(dim=1) == targets)
    assert top_of(torch.zeros(12, 12), torch.arange(12)) == [1, 5]


@pytest.mark.parametrize("classes", [1, 3, 5, 12])
def test_a_logit_that_is_not_a_number_is_never_right(classes):
    logits, targets = torch.full((classes, classes), torch.nan), torch.arange(classes)
    assert top_of(logits, targets) == [0, 0]
    logits = torch.eye(classes)
    logits[0, 0] = torch.nan
    assert top_of(logits, targets)[0] == classes - 1  # only the row with NaN is wrong
    if classes > 5:
        logits = -torch.arange(12.0).repeat(12, 1)
        logits[:, 7] = torch.nan  # ranked before the others, as by topk
        others = top_of(logits[targets != 7], targets[targets != 7])
        assert others == [0, 4] and top_of(logits, targets) == others
        logits[:, 7] = torch.inf
        logits[:, 3] = -torch.inf
        assert top_of(logits, targets) == [1, 5] and ranks_of(logits, targets)[[7, 3]].tolist() == [0, 11]


@pytest.mark.parametrize(
    ("losses", "first"),
    [
        ([1.0, 0.0, -3.0], None),
        ([1.0, float("inf"), float("nan"), 2.0], 2),
        ([float("nan")], 1),
        ([1.0, 1.0, float("-inf"), 1.0], 3),
    ],
)
@pytest.mark.parametrize("before", [0, 2**40])
def test_the_first_loss_that_is_not_finite(losses, first, before):
    bad = FirstBad(torch.device("cpu"))
    for step, loss in enumerate(losses, start=before + 1):
        bad.begin(step)
        bad.note(torch.tensor(loss))
    assert bad.read(ALONE) == (first and before + first)


def test_views_of_an_image_and_their_weights():
    """Half for the image and its mirror image, half for the two shifted ones and theirs."""
    images = (
        torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(torch.float32).contiguous(memory_format=torch.channels_last)
    )
    seen = []

    def model(view):
        seen.append(view)
        return view.pow(2).sum(dim=3).mean(dim=1) + view[:, 0, :, 0]  # of more than sums of pixels, which a flip keeps

    averaged = answer(model, images, "mirror-shift")
    down, up = (np.roll(np.arange(4), 1), np.roll(np.arange(4), -1))
    right, left = (np.roll(np.arange(5), 1), np.roll(np.arange(5), -1))
    down[0], up[-1], right[0], left[-1] = 1, 2, 1, 3  # mirrored at the edge, which is not repeated
    pixels = images.numpy()
    views = [pixels, pixels[:, :, down][..., right], pixels[:, :, up][..., left]]
    expected = [torch.from_numpy(np.ascontiguousarray(flip)) for view in views for flip in (view, view[..., ::-1])]
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert all(view.is_contiguous(memory_format=torch.channels_last) for view in seen)
    weights = (1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8)
    by_hand = sum(weight * model(view).double() for weight, view in zip(weights, expected, strict=True))
    assert torch.allclose(averaged.double(), by_hand, rtol=1e-6)
    assert torch.equal(answer(model, images, "mirror"), answer(model, images, True))
    assert not torch.allclose(answer(model, images, "mirror"), averaged)


def test_top5_is_logged_from_ten_classes_on():
    score = Score(loss=1.0, top1=0.5, top5=0.9, samples=10)
    assert (shows_top5(9), shows_top5(10)) == (False, True)
    assert score.as_dict(9) == {"loss": 1.0, "top1": 0.5, "samples": 10}
    assert score.as_dict(10)["top5"] == 0.9


def counted(targets, chosen, weight, classes=6):
    meter = meter_of(classes, whole=True)
    for at in range(0, len(targets), 4):
        rows = slice(at, at + 4)
        logits = torch.nn.functional.one_hot(chosen[rows], classes).float()
        add(meter, logits, torch.zeros(len(logits)), targets[rows], weight[rows])
    return meter


def test_balanced_accuracy_is_the_mean_recall_of_present_classes():
    drawn = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 5, (50,), generator=drawn)  # the last of six classes has no sample
    chosen = torch.where(torch.rand(50, generator=drawn) < 0.5, targets, torch.randint(0, 6, (50,), generator=drawn))
    chosen[targets == 2] = 5  # a class that is never predicted correctly
    weight = (torch.rand(50, generator=drawn) < 0.8).float()
    score = counted(targets, chosen, weight).read(ALONE)
    kept = weight > 0
    recalls = recall_score(targets[kept], chosen[kept], labels=range(5), average=None)
    assert score.balanced_accuracy == pytest.approx(recalls.mean())
    assert score.top1 == pytest.approx((targets == chosen)[kept].double().mean())
    assert score.missed == (2,)


def test_rare_classes_weigh_as_much_as_others():
    """Fifty of one class and one of the other, all taken for the first."""
    score = counted(torch.tensor([0] * 50 + [1]), torch.zeros(51, dtype=torch.int64), torch.ones(51), 2).read(ALONE)
    assert score.top1 == pytest.approx(50 / 51) and (score.balanced_accuracy, score.missed) == (0.5, (1,))
    assert score.as_dict(2)["balanced_accuracy"] == 0.5 and score.as_dict(2)["zero_recall_classes"] == 1


def test_ranks_add_up_to_one_process():
    """A class may be on one rank only: the mean of the ranks' means would differ."""
    targets, chosen = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 0, 2])
    whole, first, second = (
        counted(targets[rows], chosen[rows], torch.ones(len(targets[rows]))) for rows in np.s_[:, :4, 4:]
    )
    first.sums += second.sums
    first._counters[0].by_class += second._counters[0].by_class
    assert first.read(ALONE) == whole.read(ALONE)
    assert whole.read(ALONE).balanced_accuracy == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)


def test_counting_never_waits_for_the_device():
    """Meta tensors have no values: whatever looked at one would fail."""
    meter, rows = meter_of(1000, "meta", whole=True), torch.empty(8, device="meta")
    targets = torch.empty(8, dtype=torch.int64, device="meta")
    add(meter, torch.empty(8, 1000, device="meta"), rows, targets, rows)
    with pytest.raises((NotImplementedError, RuntimeError)):
        meter.read(ALONE)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "1 class has a recall of 0: c0"),
        (10, "10 classes have a recall of 0: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9"),
        (1200, "1,200 classes have a recall of 0: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 1,190 more"),
    ],
)
def test_classes_that_are_never_found_are_named(count, words):
    assert zero_recall([f"c{i}" for i in range(count)]) == words


def count(meter, loss, samples=2):
    """A step of that loss."""
    add(
        meter, torch.eye(2)[:samples], torch.full((samples,), loss), torch.tensor([0, 0])[:samples], torch.ones(samples)
    )


def test_a_trace_has_every_step():
    meter, trace = meter_of(), Trace(1)
    count(meter, 9.0)  # before a resumption
    trace.begin(7, meter)
    assert trace.fetch(ALONE).read(one_class()) == []
    for step, loss in ((8, 1.0), (9, 2.0)):
        count(meter, loss)
        trace.note(step, meter, due=False)
    assert [(step, score.loss, score.top1, score.samples) for step, score in trace.fetch(ALONE).read(one_class())] == [
        (8, 1.0, 0.5, 2),
        (9, 2.0, 0.5, 2),
    ]
    trace.note(10, meter, due=False)  # nothing could be decoded
    count(meter, 4.0, samples=1)
    trace.note(11, meter, due=False)
    assert [(step, score.loss) for step, score in trace.fetch(ALONE).read(one_class())] == [(11, 4.0)]


def test_a_trace_of_many_steps_has_means():
    meter, trace = meter_of(), Trace(4)
    trace.begin(0, meter)
    for step in range(1, 11):
        count(meter, float(step))
        trace.note(step, meter, due=step == 10)
    found = [(step, score.loss, score.samples) for step, score in trace.fetch(ALONE).read(one_class())]
    assert found == [(4, 2.5, 8), (8, 6.5, 8), (10, 9.5, 4)]
