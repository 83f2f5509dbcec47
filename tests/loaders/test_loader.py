"""The loader: every sample once, and the same bytes however it is run."""

import dataclasses
from itertools import chain

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from fastimg.loaders import (
    CenterCrop,
    DataError,
    FilesDataset,
    ImageDecoder,
    ImageError,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
)
from fastimg.loaders import loader as loader_module
from fastimg.loaders.batch import Field
from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.decoder import Cancelled, Decoder, SampleReader
from fastimg.loaders.jpeg.decoding.crops import CropQueue
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.random import uniforms
from fastimg.loaders.runtime.scratch import Scratch

N = 23  # of the fixture `files`
TRAINING = ImageDecoder(RandomResizedCrop(size=16))
pytestmark = pytest.mark.usefixtures("watchdog", "nothing_left")


# Contents of a batch


def test_a_batch(files, build):
    loader = build(files, TRAINING, batch_size=5)
    for batch in loader:
        assert batch.inputs.shape == (5, 3, 16, 16) and batch.inputs.dtype == torch.uint8
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
        assert (batch.targets.dtype, batch.ids.dtype, batch.weight.dtype) == (torch.int64, torch.int64, torch.float32)
        assert (batch.targets == batch.ids % 3).all()
        assert batch.samples == int(batch.weight.sum())
    assert repr(batch) == f"Batch({batch.samples} of 5 samples, inputs uint8 [5, 3, 16, 16], targets int64 [5], cpu)"
    assert len(loader) == 5 and loader.unreadable == {} and loader.wait_seconds > 0
    loader.close()


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"batch_size": 50}, {"order": "sequential"}])
def test_every_sample_is_read_once(options, run, numbers, real):
    batches = run(numbers(N), **options)
    assert sorted(real(batches)) == list(range(N)) and sum(batch[3] for batch in batches) == N
    for ids, targets, _, _, _ in batches:
        assert targets == [10 * i for i in ids]


def test_pixels_belong_to_the_id(run, numbers):
    for ids, _, _, _, inputs in run(numbers(300), batch_size=32, workers=5):
        pixels = np.frombuffer(inputs, np.uint8).reshape(32, 2, 3)
        assert (pixels[:, 0, 0] + 256 * pixels[:, 0, 1].astype(int)).tolist() == ids


def test_unknown_labels(files, run):
    files.labels[:] = -1
    assert {t for batch in run(files, TRAINING) for t in batch[1]} == {-1}


def test_a_part_of_a_dataset(run, numbers, real):
    part = np.array([3, 5, 8, 13, 21, 20, 1])
    batches = run(numbers(N), indices=part, batch_size=3)
    assert sorted(real(batches)) == sorted(part.tolist())
    assert all(targets == [10 * i for i in ids] for ids, targets, _, _, _ in batches)
    assert real(run(numbers(N), indices=part, batch_size=3, order="sequential")) == part.tolist()
    assert set(map(tuple, (b[0] for b in batches))).isdisjoint(map(tuple, (b[0] for b in run(numbers(N)))))


def test_sequential_order_is_padded_with_zeros_of_weight_0(files, build, read, real):
    decoder = ImageDecoder(CenterCrop(size=16, resize=16))
    loader = build(files, decoder, batch_size=9, prefetch=2, order="sequential")
    for _ in range(2):  # the slot of the last batch held the first one: its pixels must not remain
        batches = read(loader)
        assert real(batches) == list(range(N)) and len(batches) == 3
        assert batches[-1][2] == [1.0] * 5 + [0.0] * 4 and batches[-1][3] == 5
        row = 16 * 16 * 3
        assert batches[-1][4][5 * row :] == bytes(4 * row) and any(batches[-1][4][4 * row : 5 * row])
    loader.close()


def test_a_rank_with_only_padding(run, numbers):
    batches = run(numbers(5), batch_size=4, order="sequential", rank=1, world_size=3)
    assert [(weight, samples, set(inputs)) for _, _, weight, samples, inputs in batches] == [
        ([1.0, 0.0, 0.0, 0.0], 1, {4, 0} | {int(uniforms(0, 0, np.array([4]), 1, 1)[0, 0] * 256)})
    ]
    batches = run(numbers(5), batch_size=4, order="sequential", rank=2, world_size=3)
    assert [(weight, samples, set(inputs)) for _, _, weight, samples, inputs in batches] == [([0.0] * 4, 0, {0})]


def test_random_padding_repeats_real_images(run, numbers):
    *_, last = run(numbers(N), batch_size=5)
    assert last[2] == [1.0, 1.0, 1.0, 0.0, 0.0] and last[3] == 3
    pixels = np.frombuffer(last[4], np.uint8).reshape(5, 2, 3)
    assert pixels[:, 0, 0].tolist() == last[0]


# Fields of a custom decoder


class Boxes(ImageDecoder):
    """The example in `Decoder`: in addition to the pixels, the box of each crop."""

    @property
    def fields(self):
        return *super().fields, Field("box", (4,), np.dtype(np.int64), blank=-1)

    def fill_row(self, data, draws, row, scratch):
        super().fill_row(data, draws, row, scratch)
        row["box"][:] = self.crop.window(*read_header(data).size, draws).box


@pytest.fixture
def tiled_files(tmp_path, encode):
    """Tiled JPEGs, several of which are decoded per call, and a file that is not an image."""
    for i in range(9):
        content = tile(encode((10 * i, 90, 50), (90 + i, 80 - i), seed=i, kind="JPEG")).jpeg
        (tmp_path / f"{i}.jpg").write_bytes(b"nothing" if i == 4 else content)
    return FilesDataset(tmp_path, [f"{i}.jpg" for i in range(9)])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["files", "tiled_files"])
def test_further_fields_are_in_the_batch(kind, workers, request, build, read):
    data, crop = request.getfixturevalue(kind), TRAINING.crop
    options = {"batch_size": 4, "order": "sequential", "padding": "zeros", "workers": workers}
    with build(data, Boxes(crop), **options) as loader, build(data, TRAINING, **options) as plain:
        for epoch, other in enumerate(((batch for batch in plain), (batch for batch in plain))):
            for batch, expected in zip(loader, other, strict=True):
                assert torch.equal(batch.inputs, expected.inputs) and expected.fields == {}
                assert list(batch.fields) == ["box"] and batch.fields["box"].dtype == torch.int64
                draws = TRAINING.draw(0, epoch, batch.ids.numpy()).tolist()
                for row, index in enumerate(batch.ids.tolist()):
                    box = [-1] * 4  # padding, and undecodable images
                    if batch.weight[row]:
                        box = list(crop.window(*read_header(data.read(index, Scratch())).size, draws[row]).box)
                    assert batch.fields["box"][row].tolist() == box
        assert len(loader.unreadable) == (kind == "tiled_files")


class Twice(Decoder):
    """A decoder with its own `fill`, which sees every chunk, and a field of shape ()."""

    fields = (
        Field("inputs", (1, 1, 3), np.dtype(np.uint8), blank=9),
        Field("double", (), np.dtype(np.int32), blank=-1),
    )

    def __init__(self):
        self.chunks = []

    def fill(self, reader, ids, draws, rows, scratch):
        assert draws.shape == (len(ids), 0)
        self.chunks.append(list(ids))
        rows["inputs"][:, 0, 0] = np.array(ids)[:, None]
        failures = super().fill(reader, ids, draws, {"double": rows["double"]}, scratch)
        return [*failures, *((place, ImageError("seven")) for place, index in enumerate(ids) if index % 7 == 0)]

    def fill_row(self, data, draws, row, scratch):
        row["double"][...] = 2 * int.from_bytes(data, "little")


def test_a_decoder_that_fills_whole_chunks(numbers, build):
    decoder = Twice()
    with build(numbers(24), decoder, batch_size=8, workers=3) as loader:
        for batch in loader:
            for row, index in enumerate(batch.ids.tolist()):
                good = index % 7 != 0
                assert batch.weight[row] == good
                assert batch.fields["double"][row] == (2 * index if good else -1)
                assert batch.inputs[row].tolist() == [[[index if good else 9]]] * 3
        assert loader.unreadable == dict.fromkeys((0, 7, 14, 21), "seven")
    assert sorted(chain(*decoder.chunks)) == list(range(24)) and len(decoder.chunks) >= 9


def test_tiled_jpegs_are_decoded_several_in_one_call_unless_a_subclass_fills_rows_itself(tiled_files, monkeypatch):
    """Its `fill_row` would not be called for them."""
    rows = {"inputs": np.zeros((8, 16, 16, 3), np.uint8), "box": np.zeros((8, 4), np.int64)}
    ids = [0, 1, 2, 3, 5, 6, 7, 8]
    draws = TRAINING.draw(0, 0, np.array(ids))
    calls, whole = [], CropQueue.run
    monkeypatch.setattr(CropQueue, "run", lambda self, *args: calls.append(self._count) or whole(self, *args))
    for decoder, sizes in ((TRAINING, [8]), (Boxes(TRAINING.crop), [1] * 8)):
        assert decoder.fill(SampleReader(tiled_files), ids, draws, rows, Scratch()) == []
        assert calls == sizes
        calls.clear()


def test_a_cancelled_reader_reads_nothing(numbers):
    reader, scratch = SampleReader(numbers(3), lambda: True), Scratch()
    with pytest.raises(Cancelled):
        reader.read(0, scratch)
    assert reader.seconds == 0 and scratch.nbytes == 0


def test_a_decoder_is_derived_from_decoder(numbers):
    with pytest.raises(TypeError, match="Loader: Ellipsis is not a Decoder; derive it from"):
        Loader(numbers(N), type("Ellipsis", (), {})(), LoaderConfig(batch_size=4))


def test_object_fields_need_a_custom_ring(numbers, stamp, build):
    decoder = stamp()
    decoder.fields = (*stamp.fields, Field("note", (), np.dtype(object), blank=None))
    with pytest.raises(ValueError, match="the field 'note' is of type object"):
        build(numbers(N), decoder)


def test_a_decoder_without_inputs(numbers, stamp):
    decoder = stamp()
    decoder.fields = (Field("pixels", (1, 2, 3), np.dtype(np.uint8)),)
    with pytest.raises(ValueError, match="Stamp has no field called inputs; rename its first field"):
        Loader(numbers(N), decoder, LoaderConfig(batch_size=4))


# Rectangles


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", ["files", "tiled_files"])
@pytest.mark.parametrize("height, width", [(32, 48), (48, 32), (5, 33)])
def test_rectangles_are_torchvisions(kind, height, width, interpolation, request, build):
    """Every image, with its own box in training and its window in evaluation."""
    data, mode = request.getfixturevalue(kind), v2.InterpolationMode(interpolation)
    random = RandomResizedCrop(size=(height, width), interpolation=interpolation)
    centre = CenterCrop(size=(height, width), resize=(height + 6, width + 9), interpolation=interpolation)
    for crop in (random, centre):
        with build(data, ImageDecoder(crop), order="sequential") as loader:
            for batch in loader:
                assert batch.inputs.shape == (4, 3, height, width)
                draws = ImageDecoder(crop).draw(0, 0, batch.ids.numpy()).tolist()
                for row in torch.nonzero(batch.weight).flatten().tolist():
                    image = torch.tensor(decode(data.read(int(batch.ids[row]), Scratch()))).permute(2, 0, 1)
                    window = crop.window(image.shape[2], image.shape[1], draws[row])
                    x, y, w, h = window.box
                    if crop is random:
                        expected = v2.functional.resized_crop(image, y, x, h, w, [height, width], mode)
                    else:
                        resized = v2.functional.resize(image, list(window.size[::-1]), mode)
                        expected = v2.functional.center_crop(resized, [height, width])
                    assert torch.equal(batch.inputs[row], expected)


# The same bytes however it is run


def test_bytes_do_not_depend_on_workers_or_prefetch(files, run):
    expected = run(files, TRAINING, epochs=2, workers=1, prefetch=2)
    for workers, prefetch in ((1, 4), (2, 2), (2, 3), (5, 3), (5, 4)):
        assert run(files, TRAINING, epochs=2, workers=workers, prefetch=prefetch) == expected


def test_a_samples_pixels_do_not_depend_on_batch_or_rank(files, pixels_by_id, run):
    expected = pixels_by_id(run(files, TRAINING))
    assert len(set(expected.values())) == N
    assert pixels_by_id(run(files, TRAINING, batch_size=7)) == expected
    ranks = [batch for rank in range(3) for batch in run(files, TRAINING, batch_size=2, rank=rank, world_size=3)]
    assert pixels_by_id(ranks) == expected


def test_epochs_and_seeds_differ(files, build, read, real, pixels_by_id, run):
    loader = build(files, TRAINING)
    first, second = read(loader), read(loader)
    assert loader.epoch == 1
    loader.set_epoch(0)
    assert read(loader) == first and loader.epoch == 0
    loader.close()
    assert first != second and real(first) != real(second)
    ours, theirs = pixels_by_id(first), pixels_by_id(second)
    assert sum(ours[i] != theirs[i] for i in ours) > N // 2  # other crops, not just another order
    other = run(files, TRAINING, seed=1)
    assert real(other) != real(first) and pixels_by_id(other) != ours


def test_ranks_take_equal_steps_and_share_the_samples(run, numbers, real):
    for order in ("random", "sequential"):
        ranks = [run(numbers(N), batch_size=3, rank=rank, world_size=4, order=order) for rank in range(4)]
        assert {len(batches) for batches in ranks} == {2}
        assert sorted(i for batches in ranks for i in real(batches)) == list(range(N))


# What is refused


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"batch_size": -1}, {"prefetch": 1}, {"prefetch": 0}, {"workers": 0}]
)
def test_invalid_settings(options):
    with pytest.raises(ValueError, match="batch_size and workers must be 1 or more, prefetch 2 or more"):
        LoaderConfig(**({"batch_size": 4} | options))


def test_more_ranks_than_samples(build, numbers):
    with pytest.raises(DataError, match="numbers: 3 samples for 4 ranks; every rank needs at least one; start fewer"):
        build(numbers(3), rank=0, world_size=4)
    build(numbers(4), rank=0, world_size=4)
    build(numbers(3), rank=0, world_size=4, order="sequential")  # an evaluation pads
    for order in ("random", "sequential"):
        with pytest.raises(DataError, match="0 samples"):
            build(numbers(0), order=order)


def test_unsupported_devices(numbers, stamp):
    with pytest.raises(ValueError, match="device meta: the loader supports only cpu and cuda"):
        Loader(numbers(N), stamp(), LoaderConfig(batch_size=4), "meta")


def test_there_is_one_worker_per_core(monkeypatch, numbers, stamp, threads, read):
    monkeypatch.setattr(loader_module, "available_cpus", lambda: 3)
    loader = Loader(numbers(N), stamp(), LoaderConfig(batch_size=4))
    assert loader.workers == 3 and threads() == []  # none before the first batch
    read(loader)
    assert len(threads()) == 3
    loader.close()


def test_a_config_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LoaderConfig(batch_size=4).batch_size = 5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_on_a_gpu_equal_those_on_the_host(files, run, frozen):
    expected = run(files, TRAINING, epochs=3)
    loader = Loader(files, TRAINING, LoaderConfig(batch_size=4, workers=2, prefetch=2), "cuda")
    got = []
    for _ in range(3):
        for batch in loader:
            assert batch.inputs.is_cuda and batch.targets.is_cuda and batch.weight.is_cuda and not batch.ids.is_cuda
            torch.cuda._sleep(5_000_000)  # the consumer is slower than the copies
            got.append(
                dataclasses.replace(batch, **{n: getattr(batch, n).clone() for n in ("inputs", "targets", "weight")})
            )
    loader.close()
    assert [
        frozen(dataclasses.replace(b, inputs=b.inputs.cpu(), targets=b.targets.cpu(), weight=b.weight.cpu()))
        for b in got
    ] == expected
