"""What scripts give to torch's DataLoader, and read of it."""

import contextlib
import inspect
import pickle
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torchvision import transforms
from torchvision.datasets import CIFAR10, ImageFolder

from fastimg.loaders import DataError, ImageFolderLoader, Loader

TRANSFORM = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
pytestmark = pytest.mark.usefixtures("watchdog")


@pytest.fixture
def dataset(image_folder):
    return ImageFolder(image_folder, TRANSFORM)


def test_attributes_are_a_data_loaders(dataset):
    theirs = DataLoader(dataset, 5, drop_last=True)
    with ImageFolderLoader(dataset, batch_size=5, drop_last=True, num_workers=2) as ours:
        assert ours.dataset is dataset and ours.num_workers == theirs.num_workers == 0
        assert len(ours.sampler) == len(theirs.sampler) and len(ours.batch_sampler) == len(theirs.batch_sampler)
        for name in ("batch_size", "drop_last", "pin_memory", "collate_fn", "worker_init_fn", "timeout", "generator"):
            assert hasattr(ours, name), name
        assert (ours.batch_size, ours.drop_last) == (ours.batch_sampler.batch_size, ours.batch_sampler.drop_last)
        with pytest.raises(TypeError, match=r"no \[0\]: iterate over it"):
            ours[0]
        with pytest.raises(TypeError, match="does not list indices"):
            list(ours.sampler)


@pytest.mark.parametrize(
    ("places", "options", "kind", "words"),
    [
        ((8,), {}, TypeError, "only data and transform come without names"),  # as DataLoader(dataset, 8, True)
        ((8, True), {}, TypeError, "only data and transform come without names"),
        ((None, 8), {}, TypeError, "only data and transform come without names"),
        ((), {"num_workers": -1}, ValueError, "num_workers=-1: give a number of threads"),
        ((), {"num_workers": "4"}, TypeError, "num_workers='4': give a whole number"),
        ((), {"generator": 3}, TypeError, "no torch.Generator; give it as seed"),
        ((), {"then": 3}, TypeError, "then=3: give a function"),
        ((), {"views": TRANSFORM}, TypeError, "views is a list with a transform for each"),
        ((), {"sampler": SubsetRandomSampler([])}, DataError, "0 samples to read"),
    ],
)
def test_arguments_that_cannot_be(places, options, kind, words, dataset):
    with pytest.raises(kind, match=words):
        ImageFolderLoader(dataset, *places, **options)


def test_a_loader_of_this_package_is_no_dataset(image_folder):
    with Loader(image_folder, batch_size=4, crop=8) as loader:
        for batches in (loader, loader.tuples()):
            with pytest.raises(TypeError, match=r"no \[0\]: .*not to be wrapped in one"):
                next(iter(DataLoader(batches)))


def test_a_folder_has_the_attributes_of_an_image_folder(image_folder, dataset):
    with ImageFolderLoader(image_folder, TRANSFORM) as loader:
        ours = loader.dataset
        for name in ("classes", "class_to_idx", "samples", "imgs", "targets", "target_transform"):
            assert getattr(ours, name) == getattr(dataset, name)
        assert ours.transform is TRANSFORM and len(ours) == len(dataset)


def test_a_samplers_epoch_is_the_loaders(dataset):
    with ImageFolderLoader(dataset, batch_size=36, shuffle=True) as loader:
        targets = [next(iter(loader))[1] for _ in range(2)]
        loader.sampler.set_epoch(0)
        assert torch.equal(next(iter(loader))[1], targets[0])
        loader.batch_sampler.sampler.set_epoch(1)
        assert torch.equal(next(iter(loader))[1], targets[1])


def test_samplers_are_taken_over(dataset):
    everything = sorted(dataset.targets)
    for arguments, expected, same in (
        ({"sampler": SequentialSampler(dataset)}, everything, True),
        ({"sampler": RandomSampler(dataset)}, everything, False),
        ({"sampler": SubsetRandomSampler([0, 1, 30])}, sorted(dataset.targets[i] for i in (0, 1, 30)), None),
        ({"batch_sampler": BatchSampler(RandomSampler(dataset), 10, drop_last=False)}, everything, False),
        ({"collate_fn": default_collate, "sampler": None}, everything, True),
    ):
        with ImageFolderLoader(dataset, **arguments) as loader:
            targets = torch.cat([targets for _, targets in loader]).tolist()
            assert sorted(targets) == expected and (same is None or (targets == dataset.targets) == same)
            assert loader.batch_size == (10 if "batch_sampler" in arguments else 1)


def test_weights_are_drawn_by(dataset):
    weights = [float(target == 1) for target in dataset.targets]
    with ImageFolderLoader(dataset, batch_size=36, sampler=WeightedRandomSampler(weights, 36)) as loader:
        ((_, targets),) = loader
    assert targets.tolist() == [1] * 36


def test_a_distributed_sampler(dataset):
    loaders, samplers = [], []
    for rank in range(2):
        samplers.append(DistributedSampler(dataset, 2, rank, shuffle=True, seed=5))
        loaders.append(ImageFolderLoader(dataset, batch_size=9, sampler=samplers[-1], num_workers=1))
    epochs = []
    for epoch in (0, 3, 0):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        epochs.append([torch.cat([images for images, _ in loader]) for loader in loaders])
        assert [len(loader.sampler) for loader in loaders] == [18, 18]
    assert all(len(images) == 18 for images in epochs[0])
    assert torch.equal(epochs[0][0], epochs[2][0]) and not torch.equal(epochs[0][0], epochs[1][0])
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(("n", "ranks", "batch_size"), [(36, 2, 8), (35, 2, 8), (33, 4, 8), (36, 3, 5), (17, 2, 8)])
def test_each_rank_has_the_images_that_its_sampler_lists(n, ranks, batch_size, dataset):
    part = Subset(dataset, range(n))
    known = torch.stack([image for image, _ in part]).flatten(1)
    for rank in range(ranks):
        sampler = DistributedSampler(part, ranks, rank, shuffle=False)
        with ImageFolderLoader(part, batch_size=batch_size, sampler=sampler, num_workers=1) as loader:
            images = torch.cat([images for images, _ in loader]).flatten(1)
        read = torch.cdist(images, known).argmin(1).tolist()
        listed = list(sampler)
        assert read == listed[: len(read)] and len(read) == len(range(rank, n, ranks))  # without its repetitions


def test_a_samplers_epoch_before_the_loader_was_made(dataset):
    sampler = DistributedSampler(dataset, 1, 0)
    sampler.set_epoch(2)
    with ImageFolderLoader(dataset, batch_size=36, sampler=sampler) as loader:
        epochs = [next(iter(loader))[1] for _ in range(2)]
        assert loader.epoch == 3
        loader.set_epoch(2)
        assert torch.equal(next(iter(loader))[1], epochs[0])
    copy = pickle.loads(pickle.dumps(loader))  # the sampler, too, says 2
    copy.set_epoch(3)
    assert torch.equal(next(iter(copy))[1], epochs[1])
    copy.close()


def counted(dataset, ranks, batch_size, drop_last, rest):
    """An evaluation as of pytorch/examples' main.py: how often each image is counted, summed up over the ranks.

    What the samplers leave over, each rank counts for itself, by a loader `rest`, when the sum is known.
    """
    known = torch.stack([image for image, _ in dataset]).flatten(1)
    seen, loaders = Counter(), []
    for rank in range(ranks):
        sampler = DistributedSampler(dataset, ranks, rank, shuffle=False, drop_last=drop_last)
        loader = ImageFolderLoader(dataset, batch_size=batch_size, sampler=sampler, shuffle=False, num_workers=1)
        assert len(loader) == len(DataLoader(dataset, batch_size, sampler=sampler))
        loaders.append(loader)
    first = len(loader.sampler) * ranks
    if first < len(loader.dataset):
        loaders.append(rest(Subset(loader.dataset, range(first, len(loader.dataset))), batch_size=batch_size))
    for loader in loaders:
        batches = [images for images, _ in loader]
        assert len(batches) == len(loader)
        seen.update(torch.cdist(torch.cat(batches).flatten(1), known).argmin(1).tolist())
    return seen


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize(("n", "ranks", "batch_size"), [(36, 2, 8), (35, 2, 8), (35, 3, 1), (34, 4, 4)])
def test_an_evaluation_over_ranks_counts_every_image_once(n, ranks, batch_size, ours, dataset, monkeypatch):
    part = Subset(dataset, range(n))
    for variable, value in (("RANK", 1), ("WORLD_SIZE", ranks)):
        monkeypatch.setenv(variable, str(value))
    with pytest.warns(match="so each of them reads all") if ours and n % ranks else contextlib.nullcontext():
        found = counted(part, ranks, batch_size, True, ImageFolderLoader if ours else DataLoader)
    assert found == Counter(range(n))
    found = counted(part, ranks, batch_size, False, None)  # nothing is left over
    assert found.keys() == set(range(n)) and (batch_size == 1 or sum(found.values()) == n)


def test_a_generator_is_a_seed(dataset):
    with (
        ImageFolderLoader(dataset, batch_size=36, shuffle=True, seed=7) as one,
        ImageFolderLoader(dataset, batch_size=36, shuffle=True, generator=torch.Generator().manual_seed(7)) as other,
    ):
        assert torch.equal(next(iter(one))[1], next(iter(other))[1])


class Backwards(torch_data.Sampler):
    def __iter__(self):
        return iter(range(35, -1, -1))


class Mine(RandomSampler):
    pass


def test_what_cannot_be_taken_is_refused_with_the_way_out(dataset):
    for arguments, words in (
        ({"collate_fn": lambda batch: batch}, "cannot take collate_fn.*give then="),
        ({"sampler": Backwards()}, r"cannot take the sampler .*\.Backwards: give .*a Subset of the samples as data"),
        ({"sampler": DistributedSampler(range(5), 1, 0)}, "is of 5 samples, and the data has 36"),
        ({"sampler": Mine(dataset)}, r"cannot take the sampler .*\.Mine: give one of torch's own"),
        ({"sampler": RandomSampler(dataset, num_samples=5)}, r"RandomSampler\(num_samples=5\) of 36 .*islice"),
        ({"sampler": RandomSampler(dataset, True, 1000)}, r"RandomSampler\(replacement=True\): leave replacement out"),
        ({"sampler": RandomSampler(dataset, False, 72)}, r"RandomSampler\(num_samples=72\) of 36 .*more epochs"),
        ({"sampler": SubsetRandomSampler([3, 36])}, r"indices\[1\] is 36: give numbers from 0 to 35"),
        ({"sampler": WeightedRandomSampler([1.0, 2.0], 5)}, "of 2 weights: give 36 weights"),
        ({"sampler": WeightedRandomSampler([1.0] * 36, 5)}, r"WeightedRandomSampler\(num_samples=5\) of 36 .*islice"),
        ({"sampler": WeightedRandomSampler([1.0] * 36, 36, False)}, r"\(replacement=False\): leave replacement out"),
        ({"sampler": SequentialSampler(dataset), "shuffle": True}, "leave out one of them"),
        ({"batch_sampler": [[1], [2]]}, "cannot take the batch_sampler list: give torch's own BatchSampler"),
        (
            {"batch_sampler": BatchSampler(RandomSampler(dataset), 9, False), "shuffle": True, "batch_size": 9},
            "batch_sampler and shuffle and batch_size exclude each other: leave these out",
        ),
        ({"batch_size": None}, "give batch_size"),
        ({"generator": torch.Generator(), "seed": 1}, "not both"),
        ({"batchsize": 1}, "no argument 'batchsize'"),
    ):
        with pytest.raises(TypeError, match=words):
            ImageFolderLoader(dataset, **arguments)


def test_every_argument_of_a_data_loader_has_an_answer(dataset):
    """A number, a flag or nothing for each: none is unknown."""
    names = [*inspect.signature(DataLoader.__init__).parameters][2:]  # without self and the dataset
    for name in names:
        with ImageFolderLoader(dataset, **{name: 1 if name == "batch_size" else None}):
            pass


def test_a_loader_says_what_it_has_in_their_place(image_folder):
    for name in [*inspect.signature(DataLoader.__init__).parameters][3:]:  # it has batch_size
        if name == "drop_last":
            continue
        with pytest.raises(TypeError, match=f"Loader has no argument '{name}': (give|leave it out)"):
            Loader(str(image_folder), batch_size=4, crop=8, **{name: None})
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        Loader(str(image_folder), batchsize=4, crop=8)


class Skipping(BatchSampler):
    """As accelerate's, of which `skip_first_batches` makes a DataLoader."""

    def __init__(self, batch_sampler, count):
        self.batch_sampler, self.count = batch_sampler, count

    def __iter__(self):
        for number, indices in enumerate(self.batch_sampler):
            if number >= self.count:
                yield indices

    def __len__(self):
        return len(self.batch_sampler) - self.count


@pytest.mark.parametrize("moved", [False, True])
def test_a_data_loader_of_its_batch_sampler_has_its_batches(dataset, moved):
    options = {"batch_size": 5, "shuffle": True, "seed": 2}
    with ImageFolderLoader(dataset, **options) as whole, ImageFolderLoader(dataset, **options) as ours:
        list(whole)
        expected, after = list(whole), list(whole)
        skipped = DataLoader(
            ours.dataset,
            batch_sampler=Skipping(ours.batch_sampler, 3),
            collate_fn=ours.collate_fn,
            num_workers=ours.num_workers,
            prefetch_factor=ours.prefetch_factor,
            persistent_workers=ours.persistent_workers,
        )
        skipped.batch_sampler.batch_sampler.set_epoch(1)
        if moved:  # as a state has said already
            ours.load_state_dict(ours.state_dict() | {"epoch": 1, "position": 15})
        rest = list(skipped)
        again = list(ours)
    for found, batches in ((rest, expected[3:]), (again, after)):
        assert len(found) == len(batches)
        assert all(torch.equal(a[0], b[0]) for a, b in zip(found, batches, strict=True))
    with pytest.raises(TypeError, match="not for samples of its dataset"):
        next(iter(DataLoader(dataset, 4, collate_fn=ours.collate_fn)))


def test_frameworks_see_whether_it_shuffles(dataset):
    for shuffle in (False, True):
        with ImageFolderLoader(dataset, batch_size=5, shuffle=shuffle) as ours:
            assert isinstance(ours.sampler, SequentialSampler) is not shuffle
            assert repr(ours) == f"ImageFolderLoader(36 samples, batches of 5, {'shuffled' if shuffle else 'in order'})"


def test_batches_of_an_image_folder_as_dicts(dataset):
    with ImageFolderLoader(dataset, batch_size=36) as ours:
        ((images, targets),) = ours
        (first,) = ours.dicts()
        (other,) = pickle.loads(pickle.dumps(ours.dicts("x", "y")))
    assert torch.equal(first["pixel_values"], images) and torch.equal(first["labels"], targets)
    assert torch.equal(other["x"], images) and torch.equal(other["y"], targets)


def test_a_function_of_the_batch(dataset):
    def double(images, targets):
        return images * 2, targets.float()

    with (
        ImageFolderLoader(dataset, batch_size=36, then=double) as ours,
        ImageFolderLoader(dataset, None, batch_size=36) as plain,
    ):
        ((images, targets),) = ours
        ((expected, labels),) = plain
    assert torch.equal(images, expected * 2) and torch.equal(targets, labels.float())


def numbers_of(count):
    """CIFAR's form of as many images, of which each is a class of its own."""
    data = object.__new__(CIFAR10)
    data.data, data.targets = np.zeros((count, 2, 2, 3), np.uint8), list(range(count))
    data.classes, data.transform, data.target_transform = list(range(count)), transforms.PILToTensor(), None
    return data


@pytest.mark.parametrize("seed", range(12))
def test_ranks_share_an_epoch_whatever_its_size(seed):
    """As many steps on each rank, none without samples, each sample once; and the rest of it after a resume."""
    chosen = random.Random(seed)
    ranks, size, count = (
        chosen.choice([1, 2, 3, 4]),
        chosen.choice([1, 2, 3, 8]),
        chosen.choice([4, 5, 7, 8, 9, 17, 31]),
    )
    shuffle, drop_last = chosen.random() < 0.6, chosen.random() < 0.4
    data = numbers_of(count)
    if chosen.random() < 0.4:
        data = Subset(data, chosen.sample(range(count), max(ranks, count - 3)))
    options = {"batch_size": size, "shuffle": shuffle, "drop_last": drop_last, "seed": 3, "num_workers": 1}
    epochs = []
    for rank in range(ranks):
        with ImageFolderLoader(data, rank=rank, world_size=ranks, **options) as loader:
            epochs.append([targets.tolist() for _, targets in loader])
            assert len(loader) == len(epochs[-1])
            loader.set_epoch(0)
            done = chosen.randrange(len(loader)) if len(loader) else 0
            batches = iter(loader)
            for _ in range(done):
                next(batches)
            state = loader.state_dict()
            if done:
                batches.close()
                loader.load_state_dict(state)
                loader.set_epoch(0)
                assert [targets.tolist() for _, targets in loader] == epochs[-1][done:]
    assert len({len(epoch) for epoch in epochs}) == 1 and all(batch for epoch in epochs for batch in epoch)
    seen = Counter(target for epoch in epochs for batch in epoch for target in batch)
    if drop_last:
        assert set(seen.values()) <= {1} and len(seen) == len(data) // (ranks * size) * ranks * size
    else:
        assert sorted(seen) == sorted(data.indices if isinstance(data, Subset) else range(count))
        alone = len(data) % (ranks * size)  # in the last step; where it is fewer than ranks, some have the same
        assert (size == 1 and 0 < alone < ranks) or set(seen.values()) == {1}
