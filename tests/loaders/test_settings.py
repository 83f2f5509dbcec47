"""Settings that cannot be are refused where they are given, with what was wrong and what to do."""

import json
import re

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode

from fastimg.loaders import (
    CenterCrop,
    Crop,
    DataError,
    FilesDataset,
    ImageDecoder,
    Letterbox,
    Loader,
    LoaderConfig,
    LongestSide,
    RandomCrop,
    RandomResizedCrop,
    Sampling,
    View,
    ViewDecoder,
)
from fastimg.loaders.decoders.bands import BandsDecoder
from fastimg.loaders.random import hashes

N = 23
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left")


# LoaderConfig


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"order": "sequental"}, "order='sequental': give random, quasi-random, sequential or length"),
        ({"order": None}, "order=None: give random"),
        ({"padding": "foo"}, "padding='foo': give samples or zeros"),
        ({"on_error": "raise"}, "on_error='raise': give skip or fail"),
        ({"on_error": None}, "on_error=None: give skip or fail"),
        ({"rank": -1}, "rank=-1: with world_size=1, ranks are numbered 0 to 0"),
        ({"rank": 1}, "rank=1: with world_size=1, ranks are numbered 0 to 0"),
        ({"rank": 2, "world_size": 2}, "rank=2: with world_size=2, ranks are numbered 0 to 1"),
        ({"world_size": 0}, "world_size=0: give the number of processes, 1 or more"),
        ({"world_size": -2}, "world_size=-2: give the number of processes"),
        ({"together": -5}, "together=-5: give a number of texts, 1 or more"),
        ({"together": 0}, "together=0: give a number of texts"),
    ],
)
def test_values_that_cannot_be(settings, sentence, numbers, stamp):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        LoaderConfig(**{"batch_size": 4} | settings)
    if settings != {"order": None}:  # of a Loader, that leaves the choice to it
        with pytest.raises(ValueError, match=re.escape(sentence)):
            Loader(numbers(N), stamp(), **{"batch_size": 4, "rank": 0, "world_size": 1} | settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 8.0),
        ("batch_size", True),
        ("batch_size", "8"),
        ("prefetch", 2.5),
        ("block", 2.5),
        ("block", "shards"),
        ("window", 64.0),
        ("together", 4.0),
        ("crop_epochs", 1.5),
        ("workers", 2.0),
        ("seed", None),
        ("seed", 1.5),
        ("seed", np.float64(1)),
        ("rank", False),
        ("rank", np.False_),
        ("world_size", torch.tensor(True)),
        ("world_size", torch.tensor(1.0)),
        ("world_size", torch.tensor([1])),
    ],
)
def test_numbers_that_are_not_whole(name, value, numbers, stamp):
    sentence = re.escape(f"{name}={value!r}: give a whole number, an int")
    with pytest.raises(TypeError, match=sentence):
        LoaderConfig(**{"batch_size": 4} | {name: value})
    if (name, value) != ("seed", None):  # of a Loader, that is torch's seed
        with pytest.raises(TypeError, match=sentence):
            Loader(numbers(N), stamp(), **{"batch_size": 4, "rank": 0, "world_size": 1} | {name: value})


@pytest.mark.parametrize("number", [int, np.int16, np.uint8, np.int64, np.array, torch.tensor])
def test_whole_numbers_of_other_libraries_become_ints(number):
    values = {"batch_size": 4, "window": 64, "together": 5, "crop_epochs": 2, "workers": 2, "prefetch": 3}
    values |= {"block": 8, "seed": 3, "rank": 1, "world_size": 2}
    config = LoaderConfig(**{name: number(value) for name, value in values.items()})
    assert {name: getattr(config, name) for name in values} == values
    assert {type(getattr(config, name)) for name in values} == {int}
    assert config == LoaderConfig(**values)


def test_a_sampling_is_one():
    with pytest.raises(TypeError, match="sampling is of type list; give a Sampling of weights, or None"):
        LoaderConfig(batch_size=4, sampling=[1, 2])
    LoaderConfig(batch_size=4, sampling=Sampling(np.ones(2)))


def test_what_may_be_none():
    config = LoaderConfig(batch_size=4, together=None, padding=None, crop_epochs=None, workers=None, prefetch=None)
    assert config == LoaderConfig(batch_size=4)
    assert LoaderConfig(batch_size=4, block="shard", seed=-1).block == "shard"


# Arguments of Loader


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"max_pixels": -1}, ValueError, "max_pixels=-1: give the largest number of pixels (width x height), 1 or"),
        ({"max_pixels": 0}, ValueError, "max_pixels=0: give the largest number"),
        ({"max_pixels": "1000"}, TypeError, "max_pixels='1000': give a whole number"),
        ({"max_pixels": True}, TypeError, "max_pixels=True: give a whole number"),
        ({"max_pixels": 1e6}, TypeError, "max_pixels=1000000.0: give a whole number"),
        ({"crop": True}, ValueError, "crop True: give the side of a square in pixels, or (height, width)"),
        ({"crop": 8.0}, ValueError, "crop 8.0: give the side"),
        ({"crop": (8, False)}, ValueError, "crop (8, False): give the side"),
        ({"crop": (8, 8, 8)}, ValueError, "crop (8, 8, 8): give the side"),
        ({"device": "foo"}, ValueError, 'device \'foo\': give "cpu", "cuda" or "cuda:N"'),
        ({"device": "cuda:x"}, ValueError, "device 'cuda:x': give"),
        ({"device": [0]}, ValueError, "device [0]: give"),
        ({"data": [1, 2]}, TypeError, "data is of type list; give a path of shards, a .beton or an image folder, or"),
        ({"data": None}, TypeError, "data is of type NoneType; give a path"),
    ],
)
def test_arguments_that_cannot_be(arguments, error, sentence, files):
    with pytest.raises(error, match=re.escape(sentence)):
        Loader(**{"data": files, "batch_size": 4, "crop": 8} | arguments)


def test_views_have_the_same_limit_of_pixels(files):
    with pytest.raises(ValueError, match="max_pixels=-1: give the largest number"):
        Loader(files, batch_size=4, views=[View(crop=8)], max_pixels=-1)
    with Loader(files, batch_size=4, views=[View(crop=8)], max_pixels=np.int64(10**6)) as loader:
        assert next(iter(loader)).views[0].shape == (4, 3, 8, 8)


@pytest.mark.parametrize(
    ("crop", "order", "sentence"),
    [
        (20, "random", "each is resized to 20 x 20 pixels or more for a crop of 20; give 400 or more"),
        (20, "sequential", "each is resized to 23 x 23 pixels or more for a crop of 20; give 529 or more"),
        ((10, 40), "random", "each is resized to 10 x 40 pixels or more for a crop of 10 x 40; give 400 or more"),
        (RandomCrop(size=20, padding=2), "random", "each is resized to 20 x 20 pixels or more"),
        (
            CenterCrop(size=8, resize=30),
            "random",
            "each is resized to 30 x 30 pixels or more for a crop of 8; give 900",
        ),
    ],
)
def test_a_limit_of_pixels_that_no_crop_fits_into(crop, order, sentence, files):
    """Each image would be refused as too long and thin."""
    with pytest.raises(ValueError, match=f"max_pixels=399: no image could be decoded, as {re.escape(sentence)}"):
        Loader(files, batch_size=4, crop=crop, order=order, max_pixels=399)


def test_a_limit_of_pixels_that_a_view_does_not_fit_into(files):
    for views in ([View(crop=8), View(crop=20)], [View(crop=20, n=2)]):
        with pytest.raises(ValueError, match=r"max_pixels=399: no image .* for a crop of 20; give 400 or more"):
            Loader(files, batch_size=4, views=views, max_pixels=399)
        with pytest.raises(ValueError, match="max_pixels=399: no image"):
            ViewDecoder(tuple(views), max_pixels=399)


def test_a_canvas_may_be_larger_than_the_limit_of_pixels(files):
    """The image on it is not."""
    with Loader(files, batch_size=4, crop=Crop.letterbox((40, 400)), max_pixels=4000) as loader:
        assert next(iter(loader)).inputs.shape == (4, 3, 40, 400) and loader.unreadable == {}


# Indices


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        ([0, 5, -1, 23], "indices[2] is -1, but the 23 samples of numbers are numbered 0 to 22; leave it out"),
        (np.array([3, 23, -1]), "indices[1] is 23, but the 23 samples"),
        (np.array([2**63], np.uint64), "indices[0] is 9223372036854775808, but"),
        (np.arange(N) > 3, "indices is a mask of bools; use np.flatnonzero(mask)"),
        ([True, False], "indices is a mask of bools"),
        (torch.arange(N) > 3, "indices is a mask of bools"),
        ([1.0, 2.0], "indices is float64 of shape [2]; give the ids of samples, whole numbers [n]"),
        (torch.tensor([1.5]), "indices is float32 of shape [1]"),
        ([[1, 2]], "indices is int64 of shape [1, 2]"),
        (3, "indices is int64 of shape []"),
        ({1, 2}, "indices is object of shape []"),
        (["1"], "indices is <U1 of shape [1]"),
    ],
)
def test_indices_that_are_no_samples(indices, sentence, numbers, build):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        build(numbers(N), indices=indices)


@pytest.mark.parametrize("order", ["random", "quasi-random", "sequential"])
def test_indices_of_other_types_are_the_same(order, numbers, run, build):
    chosen = [4, 0, 22, 7, 7, 3]
    expected = run(numbers(N), indices=np.array(chosen), order=order)
    state = None
    for same in (
        chosen,
        tuple(chosen),
        torch.tensor(chosen),
        torch.tensor(chosen, dtype=torch.uint8),
        np.array(chosen, np.int16),
        np.array(chosen, np.uint64),
    ):
        assert run(numbers(N), indices=same, order=order) == expected
        loader = build(numbers(N), indices=same, order=order)
        assert loader.indices.dtype == np.int64
        assert state in (None, loader.state_dict())
        state = loader.state_dict()
    assert run(numbers(N), indices=range(2, 9), order=order) == run(numbers(N), indices=np.arange(2, 9), order=order)


@pytest.mark.parametrize("empty", [[], np.zeros(0, np.int64), np.zeros(0), torch.tensor([]), range(0)])
def test_no_indices_are_no_samples(empty, numbers, build):
    with pytest.raises(DataError, match="0 samples to read; give others"):
        build(numbers(N), indices=empty)


# Seeds and epochs


@pytest.mark.parametrize("number", [np.int64, np.int32, np.uint64, torch.tensor])
def test_seeds_and_epochs_of_other_types_are_the_same(number, numbers, build, read):
    ours, theirs = build(numbers(N), seed=3), build(numbers(N), seed=number(3))
    ours.set_epoch(2)
    theirs.set_epoch(number(2))
    assert json.loads(json.dumps(theirs.state_dict())) == ours.state_dict()
    assert read(theirs) == read(ours)
    assert json.loads(json.dumps(theirs.state_dict())) == ours.state_dict()
    ours.close()
    theirs.close()
    ids = np.arange(5)
    assert hashes(number(3), number(2), ids, 1).tolist() == hashes(3, 2, ids, 1).tolist()


def test_epochs_that_cannot_be(numbers, build):
    loader = build(numbers(N))
    before = loader.state_dict()
    with pytest.raises(ValueError, match="epoch=-1: epochs are numbered from 0"):
        loader.set_epoch(-1)
    for epoch in (1.5, None, True):
        with pytest.raises(TypeError, match=f"epoch={epoch}: give a whole number"):
            loader.set_epoch(epoch)
    assert loader.state_dict() == before


# States


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({}, "as it lacks epoch, position, samples, seed, order, fingerprint; give what state_dict() has returned"),
        (None, "but of type NoneType; give what state_dict() has returned"),
        ("epoch", "but of type str; give"),
        ([("epoch", 1)], "but of type list; give"),
    ],
)
def test_what_is_no_state(state, sentence, numbers, build):
    with pytest.raises(ValueError, match=r"not a state of a Loader, .*" + re.escape(sentence)):
        build(numbers(N)).load_state_dict(state)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"position": -5}, "(position=-5 of 23 samples in epoch=0); give what state_dict() has returned"),
        ({"position": 24}, "(position=24 of 23 samples in epoch=0)"),
        ({"position": 1.5}, "(position=1.5: give a whole number, an int)"),
        ({"position": None}, "(position=None: give a whole number, an int)"),
        ({"epoch": -1}, "(position=8 of 23 samples in epoch=-1)"),
        ({"epoch": -2, "position": 23}, "(position=23 of 23 samples in epoch=-2)"),
        ({"epoch": "1"}, "(epoch='1': give a whole number, an int)"),
        ({"samples": "23"}, "(samples='23': give a whole number, an int)"),
    ],
)
def test_positions_that_cannot_be(changed, sentence, numbers, build):
    loader = build(numbers(N))
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    batches.close()
    loader.close()
    again = build(numbers(N))
    with pytest.raises(ValueError, match=re.escape(f"not a state of a Loader {sentence}")):
        again.load_state_dict(state | changed)
    again.load_state_dict(state)  # with other ranks and batches, too
    build(numbers(N), batch_size=3, rank=1, world_size=2).load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state


# Crops

SQUARES = [
    lambda **given: RandomResizedCrop(**{"size": 8} | given),
    lambda **given: CenterCrop(**{"size": 8, "resize": 9} | given),
    lambda **given: RandomCrop(**{"size": 8, "padding": 1} | given),
    lambda **given: Letterbox(**{"size": 8} | given),
    lambda **given: LongestSide(**{"size": 8} | given),
    lambda size=8, **given: View(**{"crop": size} | given),
]


@pytest.mark.parametrize("make", SQUARES)
def test_filters_and_sizes_that_there_are_not(make):
    for interpolation in ("nearest", "Bicubic", None, InterpolationMode.BICUBIC, 3):
        sentence = re.escape(f"interpolation={interpolation!r}; give bilinear or bicubic")
        with pytest.raises(ValueError, match=sentence):
            make(interpolation=interpolation)
    assert make(interpolation=InterpolationMode.BICUBIC.value).interpolation == "bicubic"
    for size in (0, -8, 8.0, "8", None, True, (8, 0), (8, 8, 8), (8,), (8, True), np.array([8, 8]), torch.tensor(8.0)):
        with pytest.raises(ValueError, match=re.escape(f"size {size!r}: give the side of a square in pixels")):
            make(size=size)


@pytest.mark.parametrize("make", [SQUARES[0], SQUARES[-1]])
@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("scale", (2, 3), "give two numbers above 0 and up to 1, the smaller one first"),
        ("scale", (0.5, 1.01), "give two numbers above 0 and up to 1"),
        ("scale", (1, 0.1), "give two numbers above 0 and up to 1"),
        ("scale", (0, 0), "give two numbers above 0 and up to 1"),
        ("scale", (0, 1), "give two numbers above 0 and up to 1"),
        ("scale", (-1, 0.1), "give two numbers above 0 and up to 1"),
        ("scale", (float("nan"), 1), "give two numbers above 0 and up to 1"),
        ("scale", (0.1, float("nan")), "give two numbers above 0 and up to 1"),
        ("scale", 0.5, "give two numbers above 0 and up to 1"),
        ("scale", None, "give two numbers above 0 and up to 1"),
        ("scale", (0.1, 0.2, 0.3), "give two numbers above 0 and up to 1"),
        ("scale", ("0.1", "1"), "give two numbers above 0 and up to 1"),
        ("ratio", (2, 0.5), "give two numbers above 0, the smaller one first"),
        ("ratio", (0, 1), "give two numbers above 0, the smaller one first"),
        ("ratio", (1, float("inf")), "give two numbers above 0, the smaller one first"),
        ("ratio", 1.0, "give two numbers above 0, the smaller one first"),
    ],
)
def test_boxes_that_cannot_be(make, name, value, sentence):
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}; {sentence}")):
        make(**{name: value})


def test_pairs_may_be_lists():
    crop = RandomResizedCrop(size=8, scale=[0.2, 1], ratio=np.array([0.5, 2.0]))
    assert crop == RandomResizedCrop(size=8, scale=(0.2, 1), ratio=(0.5, 2.0)) and hash(crop)
    draws = np.linspace(0.1, 0.9, 22).tolist()
    assert crop.window(90, 70, draws) == RandomResizedCrop(size=8, scale=(0.2, 1), ratio=(0.5, 2)).window(90, 70, draws)
    assert View(crop=8, scale=[0.2, 1]) == View(crop=8, scale=(0.2, 1))


def test_paddings_that_cannot_be():
    for padding in (1.5, 4.0, None, True):
        with pytest.raises(TypeError, match=f"padding={padding}: give a whole number"):
            RandomCrop(size=8, padding=padding)
    with pytest.raises(ValueError, match="a padding of -1 pixels: a crop of 8 has room for 0 to 7"):
        RandomCrop(size=8, padding=-1)
    assert type(RandomCrop(size=8, padding=np.int64(2)).padding) is int


@pytest.mark.parametrize("scaling", ["foo", "", None, 2, "LOW"])
def test_scalings_that_there_are_not(scaling):
    sentence = re.escape(f'dct_scaling={scaling!r}: give True, False, "low" or "eighths"')
    with pytest.raises(ValueError, match=sentence):
        ImageDecoder(CenterCrop(size=8, resize=9), dct_scaling=scaling)
    for known in (False, True, "low", "eighths"):
        ImageDecoder(CenterCrop(size=8, resize=9), dct_scaling=known)


def test_limits_of_pixels():
    crop = CenterCrop(size=8, resize=9)
    with pytest.raises(ValueError, match="max_pixels=0: give the largest number of pixels"):
        ImageDecoder(crop, max_pixels=0)
    with pytest.raises(TypeError, match="max_pixels='9': give a whole number"):
        ImageDecoder(crop, max_pixels="9")
    assert type(ImageDecoder(crop, max_pixels=np.int64(9)).max_pixels) is int


# Labels of files


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, 1], "2 labels for 3 paths; give one label for each"),
        ([0, 1, 0, 1], "4 labels for 3 paths; give one label for each"),
        ([], "0 labels for 3 paths"),
        ([[0], [1], [1]], "labels of shape [3, 1] for 3 paths"),
        (1, "labels of shape [] for 3 paths"),
        ([0, 2, 3], "labels[1] is 2; give 0 to 1 for 2 classes, or -1 for a file without a label"),
        ([0, 1, -2], "labels[2] is -2; give 0 to 1 for 2 classes, or -1"),
        ([0.0, 1.5, 1.0], "labels of type float64; give whole numbers, the places of classes"),
        (torch.tensor([0.0, 1.0, 1.0]), "labels of type float32; give whole numbers"),
        (["0", "1", "1"], "labels of type <U1; give whole numbers"),
        ([0, None, 1], "labels of type object; give whole numbers"),
    ],
)
def test_labels_that_cannot_be(labels, sentence, tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}: {sentence}")):
        FilesDataset(tmp_path, ["a", "b", "c"], ("x", "y"), labels)


def test_labels_without_names_of_classes(tmp_path):
    paths = ["a", "b", "c"]
    assert FilesDataset(tmp_path, paths, labels=[7, -1, 900]).labels.tolist() == [7, -1, 900]
    with pytest.raises(ValueError, match=re.escape("labels[1] is -3; give 0 or more, or -1 for a file without")):
        FilesDataset(tmp_path, paths, labels=[7, -3, 900])


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda labels: np.array(labels, np.int8)])
def test_labels_of_any_kind(kind, tmp_path):
    dataset = FilesDataset(tmp_path, ["a", "b", "c"], ("x", "y"), kind([1, -1, 0]))
    assert dataset.labels.dtype == np.int64 and dataset.labels.tolist() == [1, -1, 0]
    assert FilesDataset(tmp_path, [], ("x", "y"), kind([])).labels.tolist() == []


@pytest.mark.parametrize(
    "decoder",
    [
        lambda **more: ImageDecoder(CenterCrop(size=8, resize=8), **more),
        lambda **more: ViewDecoder((View(crop=8),), **more),
        lambda **more: BandsDecoder(CenterCrop(size=8, resize=8), 4, "uint8", **more),
    ],
)
def test_every_decoder_checks_its_limit(decoder):
    assert decoder(max_pixels=np.int32(100)).max_pixels == 100
    with pytest.raises(ValueError, match="max_pixels=0: give the largest number of pixels"):
        decoder(max_pixels=0)
    with pytest.raises(TypeError, match="max_pixels"):
        decoder(max_pixels=1e6)


@pytest.mark.parametrize(
    "decoder",
    [
        lambda scaling: ImageDecoder(CenterCrop(size=8, resize=8), dct_scaling=scaling),
        lambda scaling: ViewDecoder((View(crop=8),), dct_scaling=scaling),
    ],
)
def test_every_decoder_of_jpegs_checks_its_scaling(decoder):
    with pytest.raises(ValueError, match="dct_scaling='lowest': give True, False"):
        decoder("lowest")
