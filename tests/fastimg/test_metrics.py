"""What is counted."""

import torch

from fastimg.metrics import Meter, Score, shows_top5


def test_means_over_the_samples_that_count():
    meter = Meter(torch.device("cpu"))
    logits = torch.eye(6)[[0, 1, 5]] + torch.arange(6) * -0.01  # first choices 0, 1 and 5
    targets, weight = torch.tensor([0, 2, 4]), torch.tensor([1.0, 1.0, 0.0])
    meter.add(logits, torch.tensor([1.0, 2.0, 100.0]), targets, weight)
    meter.add(logits[:1], torch.tensor([3.0]), torch.tensor([5]), torch.tensor([1.0]))  # the sixth of six
    assert meter.read() == Score(loss=2.0, top1=1 / 3, top5=2 / 3, samples=3)


def test_nothing_counted_is_no_division_by_zero():
    assert Meter(torch.device("cpu")).read() == Score(loss=0.0, top1=0.0, top5=0.0, samples=0)


def test_fewer_than_five_classes():
    meter = Meter(torch.device("cpu"))
    meter.add(torch.eye(2), torch.zeros(2), torch.tensor([1, 1]), torch.ones(2))
    assert (meter.read().top1, meter.read().top5) == (0.5, 1.0)


def test_sums_do_not_lose_small_losses():
    """float32 would stop counting at 2**24."""
    meter = Meter(torch.device("cpu"))
    meter.sums += torch.tensor([2.0**24, 0.0, 0.0, 2.0**24], dtype=torch.float64)
    meter.add(torch.zeros(1, 2), torch.ones(1), torch.tensor([0]), torch.ones(1))
    assert meter.read().samples == 2**24 + 1


def test_top5_is_logged_from_ten_classes_on():
    score = Score(loss=1.0, top1=0.5, top5=0.9, samples=10)
    assert (shows_top5(9), shows_top5(10)) == (False, True)
    assert score.as_dict(9) == {"loss": 1.0, "top1": 0.5, "samples": 10}
    assert score.as_dict(10)["top5"] == 0.9
