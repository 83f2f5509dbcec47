"""Plans that the loader's threads draw are those that the trainer would draw, wherever it finds them."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastimg.augment import Policy, ahead, draw
from fastimg.data.planning import Planning, plan_of
from fastimg.embeddings.text_rows import PairedLoader
from fastimg.loaders import Batch, Loader, Sampling
from fastimg.loaders.batch import copied
from fastimg.loaders.decoders.arrays import ArrayDecoder
from fastimg.loaders.preparation import PreparedBatch

CPU = torch.device("cpu")
POLICIES = {
    "flips": Policy(hflip=0.5),
    "trivial": Policy(trivial=True, hflip=0.5, erase=0.5),
    "mixed": Policy(trivial=True, mixup=0.3, cutmix=1.0),
    "named": Policy(named="rand-m9-mstd0.5-inc1", hflip=0.5),
    "augmix": Policy(named="augmix-m5-w2"),
    "blurred": Policy(blur=0.5, solarize=0.3, grayscale=0.2),
}


@pytest.fixture
def to_gpu(monkeypatch):
    """Plans are worked out as for images on a GPU, and their words travel."""
    pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
    monkeypatch.setattr(ahead, "backend_of", lambda device: "fused")


@pytest.fixture
def files(tmp_path, encode):
    for i in range(23):
        file = tmp_path / str(i % 3) / f"{i:02d}.jpeg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(encode((10 * i, 90, 200 - 5 * i), (40 + i, 60 - i), seed=i, kind="JPEG"))
    return tmp_path


def equal(one, other):
    """Whether two plans, or parts of them, have the same values."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if hasattr(one, "__dataclass_fields__") and not isinstance(one, Policy):
        return all(equal(getattr(one, n), getattr(other, n)) for n in one.__dataclass_fields__ if n != "ahead")
    return one == other


def check(batch, policy, seed, epoch, size):
    """The batch has the plan that is drawn for its keys, worked out for its size, and its words."""
    assert isinstance(batch, PreparedBatch)
    plan = plan_of(policy, batch, seed, epoch)
    wanted = draw(policy, batch.keys, seed, epoch)
    assert equal(plan, wanted)
    for stage, drawn in zip(plan.stages, wanted.stages, strict=True):
        assert stage.ahead.is_of(stage, *size) and torch.equal(stage.sized(*size).words, drawn.sized(*size).words)
        if batch.words is not None:
            launches = importlib.import_module("fastimg.augment.fused.launches")
            assert torch.equal(stage.ahead.sent, launches.launch_of(drawn, *size).words)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("travel", [False, True])
def test_every_batch_has_its_plan(files, name, travel, request):
    """In each epoch, of several sizes, in a last batch that is padded, after an early end, and of a copy."""
    if travel:
        request.getfixturevalue("to_gpu")
    policy = POLICIES[name]
    with Loader(files, batch_size=5, crop=24, seed=3, workers=2, order="random", padding="zeros") as loader:
        loader.prepare(Planning(policy, CPU))
        for epoch, size in enumerate((24, 17, 33, 24)):
            loader.set_size(size)
            for number, batch in enumerate(loader):
                assert (batch.words is None) == (not travel)
                check(batch, policy, 3, epoch, (size, size))
                own = copied(batch)
                assert isinstance(own, PreparedBatch) and not batch.fields
                if travel:
                    assert own.words.data_ptr() != batch.words.data_ptr() and torch.equal(own.words, batch.words)
                if epoch == 1 and number == 2:
                    break


def test_samples_that_come_again_have_plans_of_their_own(files):
    policy = POLICIES["trivial"]
    sampling = Sampling(np.arange(1, 24) ** 3.0)
    with Loader(files, batch_size=6, crop=24, seed=1, sampling=sampling, workers=2) as loader:
        loader.prepare(Planning(policy, CPU))
        for batch in loader:
            check(batch, policy, 1, 0, (24, 24))
        assert batch.repeats is not None


def test_epochs_that_show_the_crops_of_earlier_ones(files):
    policy = POLICIES["trivial"]
    with Loader(files, batch_size=6, crop=24, seed=1, crop_epochs=2, workers=2) as loader:
        loader.prepare(Planning(policy, CPU))
        for epoch in range(3):
            for batch in loader:
                check(batch, policy, 1, epoch % 2, (24, 24))


def test_a_plan_of_another_epoch_or_policy_is_drawn_anew(files):
    policy = POLICIES["trivial"]
    with Loader(files, batch_size=6, crop=24, seed=1, workers=2) as loader:
        loader.prepare(Planning(policy, CPU))
        for batch in loader:
            for other, seed, epoch in ((policy, 1, 5), (policy, 2, 0), (POLICIES["flips"], 1, 0)):
                plan = plan_of(other, batch, seed, epoch)
                assert plan.ahead is None and equal(plan, draw(other, batch.keys, seed, epoch))


def test_images_beside_texts(files):
    policy = POLICIES["trivial"]
    with Loader(files, batch_size=6, crop=24, seed=1, workers=2) as loader:
        paired = PairedLoader(loader, SimpleNamespace(fields=lambda ids, device: {"text": ids}), CPU)
        paired.prepare(Planning(policy, CPU))
        for batch in paired:
            assert batch.fields["text"] is not None
            check(batch, policy, 1, 0, (24, 24))


def test_a_batch_without_a_plan():
    """Of other loaders, and of images that are kept on the device."""
    batch = Batch(torch.zeros(4, 3, 8, 8), torch.zeros(4), torch.arange(4), torch.ones(4), 4)
    plan = plan_of(POLICIES["trivial"], batch, 3, 2)
    assert plan.ahead is None and equal(plan, draw(POLICIES["trivial"], torch.arange(4), 3, 2))


def test_embeddings_have_a_plan_and_no_words(to_gpu):
    planning = Planning(POLICIES["mixed"], CPU)
    assert planning.count_words(4, (16,)) == 0
    made = planning.make(np.arange(4), 0, 0, (16,), np.empty(0, np.int32))
    assert made.plan.ahead is None and made.plan.mixing is not None
    assert ArrayDecoder((16,), np.dtype("f4")).fields[0].shape == (16,)


def test_preparing_comes_before_reading(files):
    with Loader(files, batch_size=6, crop=24, workers=2) as loader:
        next(iter(loader))
        with pytest.raises(RuntimeError, match="prepare comes before the first iteration"):
            loader.prepare(Planning(POLICIES["flips"], CPU))


def test_an_error_of_the_preparation_ends_the_iteration(files):
    class Failing(Planning):
        def make(self, *_):
            raise ValueError("no plan")

    with Loader(files, batch_size=6, crop=24, workers=2) as loader:
        loader.prepare(Failing(POLICIES["flips"], CPU))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^no plan$"):
                next(iter(loader))
