"""Batches as tuples and dicts, and what frameworks do with a Batch."""

import contextlib
import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from numba import njit

from fastimg.augment import Policy, apply, cpu, draw, mix
from fastimg.data import torchvision_steps
from fastimg.loaders import FilesDataset, Loader, View
from fastimg.loaders.migration import steps

OPTIONS = {"batch_size": 8, "crop": 16, "order": "sequential", "copy": True}
pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def loader(image_folder):
    with Loader(str(image_folder), **OPTIONS) as made:
        yield made


def test_tuples_leave_padding_out(loader):
    expected = [batch.inputs[: batch.samples] for batch in loader]
    tuples = loader.tuples()
    assert len(tuples) == 5 and tuples.batch_size == 8
    for _ in range(2):  # an epoch each
        found = list(tuples)
        assert all(torch.equal(images, each) for (images, _), each in zip(found, expected, strict=True))
    assert [len(targets) for _, targets in found] == [8, 8, 8, 8, 4]


def test_a_last_batch_is_left_out_on_request(image_folder):
    with Loader(str(image_folder), **OPTIONS, drop_last=True) as loader:
        dropped = loader.tuples()
        assert len(dropped) == len(list(dropped)) == 4 and dropped.drop_last


def test_a_policy_is_that_of_a_loop_of_ones_own(image_folder):
    policy = Policy(hflip=0.5, brightness=(0.5, 1.5))
    options = {"batch_size": 8, "crop": 16, "seed": 3}
    with Loader(str(image_folder), **options) as ours, Loader(str(image_folder), **options) as plain:
        for epoch in range(2):
            for (images, targets), batch in zip(ours.tuples(policy), plain, strict=True):
                kept = batch.weight > 0
                expected = apply(draw(policy, batch.ids, seed=3, epoch=epoch), batch.inputs)[kept]
                assert torch.equal(images, expected) and torch.equal(targets, batch.targets[kept])
                assert images.is_contiguous(memory_format=torch.channels_last)


def test_mixing_and_probabilities(loader):
    batch = next(iter(loader))
    policy = Policy(mixup=0.5)
    for classes in (None, 5):
        images, targets = next(iter(loader.tuples(policy, num_classes=classes, smoothing=0.1 if classes else 0.0)))
        epoch = loader.epoch
        plan = draw(policy, batch.ids, loader.config.seed, epoch)
        expected = mix(plan, batch.inputs, batch.targets, classes or 3, 0.1 if classes else 0.0)
        assert torch.equal(images, expected[0]) and torch.equal(targets, expected[1])
    _, targets = next(iter(loader.tuples(num_classes=4)))
    assert torch.equal(targets, torch.nn.functional.one_hot(batch.targets, 4).float())
    images, _ = next(iter(loader.tuples(Policy(), dtype=torch.bfloat16)))
    assert images.dtype == torch.bfloat16


def test_dicts_and_a_function_of_both(loader):
    (first, *_) = loader.dicts()
    assert [*first] == ["pixel_values", "labels"] and first["labels"].dtype == torch.int64
    (first, *_) = loader.dicts("x", "y", then=lambda images, targets: (images.float() / 255, targets + 1))
    assert first["x"].max() <= 1 and first["y"].min() == 1


def test_they_have_the_loaders_epoch_and_position(image_folder):
    def made():
        return Loader(str(image_folder), batch_size=5, crop=16, seed=1, drop_last=True).tuples(Policy(hflip=0.5))

    with made() as whole:
        first, second = list(whole), list(whole)
        whole.set_epoch(1)
        again = list(whole)
    with made() as stopped:
        batches = iter(stopped)
        next(batches), next(batches)
        state = stopped.state_dict()
        batches.close()
    with made() as continued:
        continued.load_state_dict(state)
        rest = list(continued)
    for found, expected in ((again, second), (rest, first[2:])):
        assert len(found) == len(expected)
        assert all(torch.equal(a[0], b[0]) for a, b in zip(found, expected, strict=True))


def test_iterations_at_once_are_epochs_of_their_own(image_folder):
    options = {"batch_size": 8, "crop": 16, "seed": 5}

    def images(batches):
        return [images for images, _ in batches]

    def same(one, other):
        return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

    with Loader(str(image_folder), **options) as alone:
        epochs = [images(alone.tuples()) for _ in range(4)]
    assert not same(epochs[0], epochs[1])
    with Loader(str(image_folder), **options) as loader:
        tuples = loader.tuples()
        pairs = list(zip(tuples, tuples.dicts("x", "y"), strict=True))
        assert same(images(first for first, _ in pairs), epochs[0])
        assert same([second["x"] for _, second in pairs], epochs[1])
        assert tuples.epoch == 1
        held = iter(tuples)
        begun = [next(held)]
        assert same(images(tuples), epochs[3])  # and that took over the count
        assert same(images(begun) + images(held), epochs[2])
        assert tuples.epoch == 3
        state = tuples.state_dict()
        for _ in tuples:  # left, and not held
            break
        before = tuples._loader
        next(iter(tuples))
        assert tuples._loader is before and tuples.epoch == 5
    with Loader(str(image_folder), **options) as other:
        other.load_state_dict(state)
        next(iter(other))
        assert other.epoch == 4


def test_views_are_a_list(image_folder):
    views = [View(crop=16, n=2), View(crop=8)]
    policy = Policy(hflip=0.5)
    with Loader(str(image_folder), batch_size=36, views=views, order="sequential") as loader:
        batch = next(iter(loader))
        images, targets = next(iter(loader.tuples(policy)))
        with pytest.raises(ValueError, match="leave mixup and cutmix out"):
            loader.tuples(Policy(mixup=0.2))
        assert [tuple(each.shape) for each in images] == [(36, 3, 16, 16)] * 2 + [(36, 3, 8, 8)]
        unpacked, _ = batch
        assert [each.shape for each in unpacked] == [each.shape for each in batch.views]
        flips = [torch.from_numpy(np.asarray(draw(policy, batch.ids, 0, 1, view).hflip)) for view in range(3)]
    assert not torch.equal(flips[0], flips[1]) and len(targets) == 36


def test_without_images_there_is_no_batch(tmp_path):
    (tmp_path / "0.jpg").write_bytes(b"no image")
    data = FilesDataset(tmp_path, ["0.jpg"], ("a",), [0])
    with Loader(data, batch_size=1, crop=8) as loader:
        tuples = loader.tuples()
        assert list(tuples) == [] and list(tuples.unreadable) == [0]


def test_settings_that_do_not_fit(loader, tmp_path):
    with pytest.raises(TypeError, match="of type str; give a Policy"):
        loader.tuples("hflip")
    with pytest.raises(ValueError, match=r"smoothing=0\.1 needs num_classes"):
        loader.tuples(smoothing=0.1)
    with pytest.raises(TypeError, match=r"no \[3\]: iterate over it"):
        loader.tuples()[3]


# A batch


def test_a_batch_unpacks_to_the_rows_that_count(loader):
    *_, last = loader
    images, targets = last
    assert len(last) == 8 and len(images) == len(targets) == last.samples == 4
    assert torch.equal(images, last.inputs[:4])
    first = next(iter(loader))
    images, targets = first
    assert images is first.inputs and targets is first.targets


def test_a_batch_moves(loader):
    batch = next(iter(loader))
    moved = batch.to("meta")
    assert moved.inputs.is_meta and moved.targets.is_meta and moved.weight.is_meta
    assert torch.equal(moved.ids, batch.ids) and moved.ready is None
    same = batch.to(torch.device("cpu"), non_blocking=True)
    assert torch.equal(same.inputs, batch.inputs) and same.samples == batch.samples
    assert torch.equal(pickle.loads(pickle.dumps(batch)).inputs, batch.inputs)


def test_a_batch_is_a_dataclass_whose_fields_may_be_set(loader):
    """As walks over collections do: a deep copy that shares the fields, then each field set."""
    batch = next(iter(loader))
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    walked = copy.deepcopy(batch, {id(value): value for value in values.values()})
    for name, value in values.items():
        setattr(walked, name, value.to(torch.int64) if isinstance(value, torch.Tensor) else value)
    assert walked.inputs.dtype == torch.int64 and batch.inputs.dtype == torch.uint8
    assert [len(each) for each in batch] == [8, 8]  # sizes that a search for the batch size finds


@pytest.fixture
def compilations(monkeypatch):
    """An augmentation that does nothing: it compiles a function, except inside `compiling_nothing`, which it counts."""
    new, plain, seconds = njit(lambda: 3), [], [0.0]

    class Augmentation:
        def normalised(self, images, *given):
            if not plain or plain[-1] != "inside":
                new()
            return images

        def seconds_to_compile(self, policies):
            return seconds[0]

        @contextlib.contextmanager
        def compiling_nothing(self):
            plain.append("inside")
            yield
            plain[-1] = "outside"

    monkeypatch.setattr(steps, "_given", [Augmentation])
    return new, plain, seconds


def test_what_the_first_batch_compiles_is_said(image_folder, compilations, caplog):
    new, plain, _ = compilations
    with Loader(str(image_folder), **OPTIONS) as loader:
        for policy in (None, Policy()):
            assert len(list(loader.tuples(policy))) == 5
            said = [record.message for record in caplog.records if "augmentation" in record.message]
            assert len(said) == (0 if policy is None else 2)
    assert said[0] == "compiling the augmentation, once per machine" and new.signatures and not plain


def test_little_is_augmented_without_compiled_code(image_folder, compilations):
    new, plain, seconds = compilations
    seconds[0] = 5.0
    with Loader(str(image_folder), **OPTIONS) as loader:
        tuples = loader.tuples(Policy())
        assert len(list(tuples)) == len(plain) == 5 and not new.signatures
        tuples._plain_seconds = 6.0  # so much was augmented so
        assert len(list(tuples)) == len(plain) == 5 and new.signatures
        again = loader.tuples(Policy())
        again.compile()
        assert len(list(again)) == len(plain) == 5
    seconds[0] = 1e-5
    with Loader(str(image_folder), **OPTIONS) as loader:  # much, for how little time that takes
        assert len(list(loader.tuples(Policy()))) == len(plain) == 5


@pytest.mark.parametrize("policy", [Policy(hflip=0.5), Policy(trivial=True), Policy(mixup=0.5, brightness=(0.5, 1.5))])
def test_without_compiled_code_the_bits_are_the_same(policy, image_folder, monkeypatch):
    made = []
    for seconds in (0.0, math.inf):
        monkeypatch.setattr(torchvision_steps, "seconds_to_compile", lambda policies, seconds=seconds: seconds)
        with Loader(str(image_folder), batch_size=8, crop=16, seed=3) as loader:
            made.append(list(loader.tuples(policy)))
    for one, other in zip(*made, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_how_long_a_policy_takes_to_compile(monkeypatch):
    mirrors, images = (njit(lambda: None) for _ in range(2))
    monkeypatch.setattr(cpu.images, "_mirror", mirrors)
    monkeypatch.setattr(cpu.images, "_images", images)
    flips, moves = Policy(hflip=0.5, erase=0.5), Policy(trivial=True)
    estimate = torchvision_steps.seconds_to_compile
    assert estimate([]) == 0 and 0 < estimate([flips]) < estimate([moves]) == estimate([flips, moves])
    mirrors()
    assert estimate([flips]) == 0 < estimate([moves])
    images()
    assert estimate([flips, moves]) == 0


@pytest.mark.parametrize(
    ("returned", "words"),
    [({"x": 1, "y": 2}, "has returned dict"), ((1, 2, 3), "has returned 3 values"), (None, "has returned NoneType")],
)
def test_a_function_returns_images_and_targets(returned, words, loader):
    with pytest.raises(TypeError, match=f"then= {words}; return two, the images and the targets, of which"):
        next(iter(loader.tuples(then=lambda images, targets: returned)))
