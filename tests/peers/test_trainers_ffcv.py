"""FFCV's Loader and `FFCVLoader`: the same batches from the same pipelines, alone and in a trainer."""

import functools
import pickle
from collections import Counter

import numpy as np
import pytest
import simplejpeg
import torch
from ffcv.fields.basics import FloatDecoder, IntDecoder
from ffcv.fields.rgb_image import (
    CenterCropRGBImageDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    Convert,
    Cutout,
    ImageMixup,
    ModuleWrapper,
    NormalizeImage,
    Poison,
    RandomBrightness,
    RandomContrast,
    RandomHorizontalFlip,
    RandomSaturation,
    RandomTranslate,
    ReplaceLabel,
    Squeeze,
    ToDevice,
    ToTensor,
    ToTorchImage,
    View,
)
from scipy import stats

from fastimg.data import ffcv_steps
from fastimg.loaders import DataError, FFCVLoader
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField

from .clients import apart

MEAN, STD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def colour(number):
    return [10 + 4 * number, 250 - 4 * number, (53 * number) % 256]


def write_beton(path, count, size=None, label_first=False):
    """Images of one colour each, every other one a JPEG, of several sizes unless one is given."""
    fields = {"image": BetonField("rgb"), "label": BetonField("int")}
    with BetonWriter(path, dict(reversed(fields.items())) if label_first else fields, count) as beton:
        for number in range(count):
            pixels = np.full((*(size or (40 + number, 50)), 3), colour(number), np.uint8)
            jpeg = simplejpeg.encode_jpeg(pixels, 98, colorsubsampling="444")
            beton.add({"image": jpeg if number % 2 else pixels, "label": number % 3})
    return path


def pipelines(decoder, *steps, dtype=np.float32):
    normalise = NormalizeImage(MEAN, STD, dtype)
    return {
        "image": [decoder, *steps, normalise, ToTensor(), ToTorchImage()],
        "label": [IntDecoder(), ToTensor(), Squeeze(1)],
    }


def seen(images):
    """The colour of each image."""
    means = images.float().mean((2, 3)) * torch.tensor(STD) + torch.tensor(MEAN)
    return [tuple(colour) for colour in means.round().int().tolist()]


@pytest.fixture(scope="module")
def beton(tmp_path_factory):
    return write_beton(tmp_path_factory.mktemp("betons") / "some.beton", 21)


def test_an_evaluation_has_ffcvs_batches(beton):
    def loader(kind):
        given = pipelines(CenterCropRGBImageDecoder((32, 32), ratio=224 / 256), dtype=np.float16)
        return kind(str(beton), 8, 2, order=OrderOption.SEQUENTIAL, drop_last=False, pipelines=given)

    theirs = [tuple(tensor.clone() for tensor in batch) for batch in loader(Loader)]
    ours = loader(FFCVLoader)
    batches = list(ours)
    assert len(batches) == len(ours) == len(theirs) == 3
    for (images, targets), (expected, labels) in zip(batches, theirs, strict=True):
        assert torch.equal(images, expected) and images.dtype == expected.dtype
        assert images.stride() == expected.stride() and torch.equal(targets, labels) and targets.dtype == labels.dtype
    ours.close()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_images_are_normalised_by_ffcvs_table(dtype, beton):
    decoder, normalise = CenterCropRGBImageDecoder((8, 8), 1), NormalizeImage(MEAN, STD, dtype)
    tensors = [ToTensor(), ToTorchImage()]
    plain = next(iter(FFCVLoader(beton, 21, 1, pipelines={"image": [decoder, *tensors], "label": None})))[0]
    given = {"image": [decoder, *tensors, normalise], "label": None}  # in FFCV's order on a GPU
    images = next(iter(FFCVLoader(beton, 21, 1, pipelines=given)))[0]
    table = torch.from_numpy(normalise.lookup_table.view(dtype))
    expected = torch.stack([table[plain[:, channel].int(), channel] for channel in range(3)], 1)
    assert torch.equal(images, expected) and images.is_contiguous(memory_format=torch.channels_last)


def test_crops_are_ffcvs_boxes(tmp_path):
    """Where nothing is resized, pixels show the boxes."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 37, 52, 3), dtype=np.uint8)
    with BetonWriter(tmp_path / "noise.beton", {"image": BetonField("rgb")}, 6) as beton:
        for pixels in noise:
            beton.add({"image": pixels})
    decoder = CenterCropRGBImageDecoder((29, 29), ratio=0.8)
    given = {"image": [decoder, ToTensor()]}
    (expected,) = next(iter(Loader(str(tmp_path / "noise.beton"), 6, 1, pipelines=given)))
    given = {"image": [decoder, ToTensor()]}  # FFCV has taken the decoder out of its list
    (images,) = next(iter(FFCVLoader(tmp_path / "noise.beton", 6, 1, pipelines=given)))
    assert images.shape == (6, 29, 29, 3) and torch.equal(images, expected)


def test_a_default_pipeline_and_the_order_of_fields(tmp_path):
    path = write_beton(tmp_path / "same.beton", 6, (8, 12), label_first=True)
    theirs = [tensor.clone() for tensor in next(iter(Loader(str(path), 4, 1, pipelines={})))]
    ours = next(iter(FFCVLoader(path, 4, 1)))
    assert [tensor.shape for tensor in ours] == [(4, 1), (4, 8, 12, 3)]
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    (images,) = next(iter(FFCVLoader(path, 4, 1, pipelines={"label": None})))
    assert torch.equal(images, ours[1])


def test_operations_after_the_decoder(beton):
    class Halved(torch.nn.Module):
        def forward(self, images):
            return images / 2

    decoder = RandomResizedCropRGBImageDecoder((16, 16))
    image = [decoder, ToTensor(), ToDevice(torch.device("cpu")), ToTorchImage(channels_last=False)]
    label = [IntDecoder(), ToTensor(), Squeeze(), Convert(torch.int32), View(torch.uint8), ToDevice("cpu")]
    given = {"image": [*image, Convert(torch.float16), Halved(), ModuleWrapper(Halved())], "label": label}
    with FFCVLoader(beton, 21, 1, pipelines=given) as loader:
        images, labels = next(iter(loader))
        assert images.dtype == torch.float16 and images.is_contiguous() and labels.shape == (21 * 4,)
        assert torch.allclose(images[:, :, 0, 0] * 4, torch.tensor([colour(n) for n in range(21)]).half(), atol=2)


def test_a_random_order_of_every_sample(beton):
    decoder = RandomResizedCropRGBImageDecoder((16, 16), scale=(0.25, 1))
    given = pipelines(decoder, RandomHorizontalFlip())
    for order in (OrderOption.RANDOM, OrderOption.QUASI_RANDOM):
        with FFCVLoader(beton, 7, 2, order=order, seed=1, pipelines=given) as loader:
            epochs = [[pixel for images, _ in loader for pixel in seen(images)] for _ in range(2)]
            assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
            assert len(set(epochs[0])) == 21 and loader.indices.tolist() == list(range(21))
    with FFCVLoader(beton, 4, 2, indices=[3, 1, 4, 15, 9], drop_last=False, pipelines=given) as some:
        labels = [labels.tolist() for _, labels in some]
        assert labels == [[0, 1, 1, 0], [0]] and len(some) == 2


def test_sizes_may_grow_and_shrink_between_epochs(beton):
    decoder = RandomResizedCropRGBImageDecoder((16, 16))
    with FFCVLoader(beton, 4, 1, pipelines=pipelines(decoder)) as loader:
        for side in (16, 24, 48, 8):
            decoder.output_size = (side, side)
            assert {images.shape for images, _ in loader} == {(4, 3, side, side)}
        copy = pickle.loads(pickle.dumps(loader))
        assert next(iter(copy))[0].shape[2] == 8 and copy.epoch == loader.epoch + 1 == 4
        copy.close()
        decoder.scale = (0.5, 1)
        with pytest.raises(RuntimeError, match="changed after the loader was made"):
            next(iter(loader))


def test_an_epoch_is_continued(beton):
    def loader():
        return FFCVLoader(
            beton,
            4,
            1,
            order=OrderOption.RANDOM,
            seed=3,
            pipelines=pipelines(RandomResizedCropRGBImageDecoder((16, 16)), RandomHorizontalFlip(), Cutout(5)),
        )

    with loader() as first, loader() as second:
        batches = iter(first)
        next(batches), next(batches)
        second.load_state_dict(first.state_dict())
        assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, second, strict=True))


def theirs(operation, images):
    """uint8 images [B, H, W, 3] after one of FFCV's operations."""
    _, query = operation.declare_state_and_memory(STATE(images.shape[1:]))
    memory = None if query is None else np.empty((len(images), *query.shape), np.uint8)
    return operation.generate_code()(images.copy(), memory)


def STATE(shape):
    from ffcv.pipeline.state import State

    return State(jit_mode=True, device=torch.device("cpu"), dtype=np.dtype("u1"), shape=shape)


def ours(operation, images):
    step = ffcv_steps.STEPS[type(operation).__name__](operation)
    given = torch.from_numpy(images).permute(0, 3, 1, 2)
    before = given.clone()
    changed = step(given, np.arange(len(images)), 5, 2, 1)
    assert torch.equal(given, before)
    return changed.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("operation", [RandomTranslate(2, (1, 2, 3)), Cutout(4, (9, 8, 7))])
def test_moved_images_are_ffcvs(operation):
    """All places that there are, each as often."""
    np.random.seed(0)
    images = np.tile(np.random.default_rng(1).integers(20, 256, (1, 8, 9, 3), dtype=np.uint8), (3000, 1, 1, 1))
    found, expected = (Counter(image.tobytes() for image in change(operation, images)) for change in (ours, theirs))
    assert found.keys() == expected.keys() and len(found) in (25, 5 * 6)
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


@pytest.mark.parametrize("kind", [RandomBrightness, RandomContrast, RandomSaturation])
def test_changed_colours_are_distributed_as_ffcvs(kind):
    np.random.seed(0)
    image = np.random.default_rng(2).integers(60, 140, (1, 6, 6, 3), dtype=np.uint8)
    images = np.tile(image, (1500, 1, 1, 1))
    found, expected = (change(kind(0.5, 0.3), images).astype(float) for change in (ours, theirs))
    shares = [np.mean((changed != image).any((1, 2, 3))) for changed in (found, expected)]
    assert shares == pytest.approx([0.3, 0.3], abs=0.04)
    for place in ((0, 0, 0), (3, 2, 1)):
        levels = [changed[:, *place] for changed in (found, expected)]
        assert np.allclose(*(np.percentile(each, [1, 5, 10, 50, 90, 95, 99]) for each in levels), atol=5)
        assert stats.ks_2samp(*(each + np.random.uniform(-2, 2, len(each)) for each in levels)).pvalue > 1e-3


@pytest.mark.parametrize(
    ("image", "label", "words"),
    [
        ([ImageMixup(0.2, True)], [], r"ImageMixup: give Policy\(mixup=alpha\)"),
        ([Poison(np.zeros((4, 4)), np.zeros((4, 4)), [1])], [], "Poison: leave it out, and apply it to the batches"),
        ([], [ReplaceLabel([1], 2)], "ReplaceLabel of labels"),
        ([NormalizeImage(MEAN, STD, np.float32), Cutout(2)], [], "Cutout after images were normalised"),
        ([Convert(torch.float16), NormalizeImage(MEAN, STD, np.float32)], [], "no uint8 any more"),
        ([torch.nn.Identity()], [], "Identity before ToTorchImage"),
        ([SimpleRGBImageDecoder()], [], "SimpleRGBImageDecoder that is not the first"),
        ([object()], [], "builtins.object: give a torch.nn.Module"),
        ([], [FloatDecoder()], "FloatDecoder of labels: read numbers"),
    ],
)
def test_what_is_unknown_is_refused_by_name(image, label, words, beton):
    given = {"image": [CenterCropRGBImageDecoder((8, 8), 1), *image, ToTensor()], "label": [*label, ToTensor()]}
    with pytest.raises(ValueError, match=words):
        FFCVLoader(beton, 2, pipelines=given)


def test_arguments_that_cannot_be_taken(beton, tmp_path, monkeypatch):
    given = pipelines(CenterCropRGBImageDecoder((8, 8), 1))
    for arguments, words in (
        ({"order": "SHUFFLED"}, "give OrderOption.RANDOM"),
        ({"custom_fields": {"mask": object}}, "does not read custom fields"),
        ({"pipelines": {"image": None}}, "leave out the pipeline None of 'image'"),
    ):
        with pytest.raises(TypeError, match=words):
            FFCVLoader(beton, 2, **{"pipelines": given, **arguments})
    with pytest.raises(ValueError, match=r"has no field 'target'; its fields are image, label"):
        FFCVLoader(beton, 2, pipelines={"target": []})
    with pytest.raises(ValueError, match="images of several sizes as they are"):
        FFCVLoader(beton, 2)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError):
        FFCVLoader(tmp_path, 2, pipelines=given)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="each of 2 processes reads all samples; give distributed=True"):
        assert len(FFCVLoader(beton, 2, pipelines=given)) == 10
    assert len(FFCVLoader(beton, 2, distributed=True, drop_last=False, pipelines=given)) == 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    write_beton(folder / "train.beton", 32)
    write_beton(folder / "val.beton", 21)
    return folder


OPTIONS = ["--workers", 1, "--size", 32]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory, run_client):
    """What each rank wrote, with a loader and a seed: run once, as FFCV compiles for most of it."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def run(head, seed=0, ranks=1):
        out = folder / f"{head}-{seed}-{ranks}"
        return run_client("ffcv_train", data, out, "--loader", head, "--seed", seed, *OPTIONS, ranks=ranks)

    return run


def nearest(colours):
    """The numbers of the images that have these colours."""
    known = torch.tensor([colour(number) for number in range(32)]).float()
    return sorted(torch.cdist(torch.tensor(colours).float(), known).argmin(1).tolist())


@pytest.mark.slow
@pytest.mark.parametrize(("head", "ranks"), [("ffcv", 1), ("fastimg", 1), ("fastimg", 2)])
def test_a_trainer_sees_what_it_saw(head, ranks, trained):
    """Every image once an epoch; FFCV would repeat one of the 21 in an evaluation on two ranks."""
    found = trained(head, ranks=ranks)
    for epoch in range(2):
        assert nearest([each for part in found for each in part["seen"][epoch]]) == list(range(32))
    assert [part["steps"] for part in found] == [8 // ranks] * ranks
    assert [part["counted"] for part in found] == ([21] if ranks == 1 else [11, 10])
    assert nearest([each for part in found for each in part["evaluated"]]) == list(range(21))


def test_a_trainer_continues_within_an_epoch(data, tmp_path, run_client):
    def run(*options):
        given = ("--loader", "fastimg", *OPTIONS, *options)
        return run_client("ffcv_train", data, tmp_path / "seen", *given)[0]["seen"]

    whole = run()
    first = run("--stop-after", 3, "--checkpoint", tmp_path / "point")
    rest = run("--resume", tmp_path / "point")
    assert first[0] + rest[0] == whole[0] and rest[1] == whole[1]


@pytest.mark.slow
def test_losses_lie_within_the_spread_of_seeds(trained):
    ffcvs, ours = ([trained(head, seed)[0]["losses"] for seed in range(3)] for head in ("ffcv", "fastimg"))
    assert apart(ffcvs, ours) < 2
