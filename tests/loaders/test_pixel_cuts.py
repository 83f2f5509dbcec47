"""Crops of stored pixels in compiled calls: the same rows as by a decoder, sample by sample, for less."""

import io
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from fastimg.loaders import FieldSelection, Loader, RandomResizedCrop
from fastimg.loaders import compiling_ahead as ahead
from fastimg.loaders.containers.betons.dataset import BetonDataset
from fastimg.loaders.containers.betons.files import BetonWriter
from fastimg.loaders.containers.betons.kinds import BetonField
from fastimg.loaders.containers.watch import FileWatch
from fastimg.loaders.crop import CenterCrop, Letterbox, RandomCrop
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders.fields import FieldsDecoder
from fastimg.loaders.decoders.images import ImageDecoder
from fastimg.loaders.decoders.pixel_cuts import PixelCuts
from fastimg.loaders.errors import ShardError
from fastimg.loaders.pool import Job, Pool
from fastimg.loaders.runtime import compiled
from fastimg.loaders.runtime.compiling_nothing import compiling_nothing
from fastimg.loaders.runtime.scratch import Scratch


def picture(rng, high, wide):
    return rng.integers(0, 256, (high, wide, 3), np.uint8)


def jpeg(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def written(path, images):
    with BetonWriter(path, {"image": BetonField("rgb"), "label": BetonField("int")}, len(images)) as beton:
        for number, image in enumerate(images):
            beton.add({"image": image, "label": number % 3})
    return BetonDataset(path)


@pytest.fixture
def mixed(tmp_path):
    """Pixels of all sizes, some of them JPEGs."""
    rng = np.random.default_rng(3)
    shapes = [*((h, w) for h in (1, 2, 7, 32) for w in (1, 8, 32)), *rng.integers(1, 90, (40, 2)).tolist(), (300, 500)]
    images = [picture(rng, *shape) for shape in shapes]
    return written(tmp_path / "mixed.beton", [jpeg(x) if n % 9 == 5 else x for n, x in enumerate(images)])


@pytest.fixture
def alike(tmp_path):
    """Pixels of one size."""
    rng = np.random.default_rng(4)
    return written(tmp_path / "alike.beton", [picture(rng, 12, 10) for _ in range(90)])


def filled(decoder, dataset, ids, epoch=0):
    rows = {field.name: np.full((len(ids), *field.shape), 77, field.dtype) for field in decoder.fields}
    draws = decoder.draw(1, epoch, np.array(ids))
    failures = decoder.fill(SampleReader(dataset), ids, draws, rows, Scratch())
    return rows, [(place, str(error)) for place, error in failures]


def assert_as_before(decoder, dataset, ids, epoch=0):
    """The rows of both paths; returns what failed."""
    rows, failures = filled(decoder, dataset, ids, epoch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PixelCuts, "cut", lambda *_: None)
        expected, told = filled(decoder, dataset, ids, epoch)
    assert failures == told
    kept = np.setdiff1d(np.arange(len(ids)), [place for place, _ in failures])
    for name, array in expected.items():
        assert torch.equal(torch.from_numpy(rows[name][kept]), torch.from_numpy(array[kept])), name
    return failures


CROPS = (
    *(RandomResizedCrop(size=size, interpolation=how) for size in (5, 32, (48, 20)) for how in ("bilinear", "bicubic")),
    CenterCrop(size=32, resize=32),
    CenterCrop(size=(7, 8), resize=(7, 8)),
    CenterCrop(size=24, resize=30, interpolation="bicubic"),
    RandomCrop(size=32, padding=4),
    RandomCrop(size=(7, 8), padding=6),
    RandomCrop(size=1, padding=0),
    Letterbox(size=20),
)


@pytest.mark.parametrize("crop", CROPS)
def test_rows_are_those_of_before(crop, mixed):
    ids = np.random.default_rng(5).permutation(len(mixed)).tolist()
    for epoch in range(3):
        for channels in (3, 1):
            assert_as_before(ImageDecoder(crop, channels=channels), mixed, ids, epoch)
    assert_as_before(ImageDecoder(crop, depth=16), mixed, ids[:20])


def test_many_that_keep_their_size(alike):
    for crop in (CenterCrop(size=(12, 10), resize=(12, 10)), CenterCrop(size=(8, 10), resize=(12, 10))):
        for ids in (list(range(90)), [3, 4, 5, 9, 10, 2, 2, 3], [7], list(range(89, -1, -1))):
            assert assert_as_before(ImageDecoder(crop), alike, ids) == []
            assert assert_as_before(ImageDecoder(crop, channels=1), alike, ids) == []


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("crop", [CenterCrop(size=(12, 10), resize=(12, 10)), RandomResizedCrop(size=9)])
def test_stored_pixels_need_nothing_else(crop, channels, alike, monkeypatch):
    monkeypatch.setattr(ImageDecoder, "_fill_group", lambda *_: pytest.fail("decoded"))
    decoder = ImageDecoder(crop, channels=channels)
    assert decoder.cuts_pixels(alike)
    filled(decoder, alike, list(range(90)))


def test_too_many_pixels_are_told_as_before(mixed):
    ids = list(range(len(mixed)))
    assert len(assert_as_before(ImageDecoder(RandomResizedCrop(size=8), max_pixels=900), mixed, ids)) > 5
    assert len(assert_as_before(ImageDecoder(CenterCrop(size=8, resize=8), max_pixels=200), mixed, ids)) > 5


def test_large_crops_are_left_to_others(tmp_path):
    rng = np.random.default_rng(6)
    dataset = written(
        tmp_path / "large.beton", [picture(rng, 1200, 1300), picture(rng, 20, 30), picture(rng, 900, 900)]
    )
    for channels in (3, 1):
        crop = RandomResizedCrop(size=16, scale=(0.9, 1))
        assert_as_before(ImageDecoder(crop, channels=channels), dataset, [0, 1, 2, 1])
        for size in (1200, 1270):  # in gray, what is read and what is made of it need room together
            assert_as_before(ImageDecoder(CenterCrop(size=16, resize=size), channels=channels), dataset, [1, 0, 2])


def test_fields_know_the_sizes(mixed):
    images = ImageDecoder(RandomResizedCrop(size=16))
    decoder = FieldsDecoder.of(images, FieldSelection(names=["label"] if "label" in mixed.fields else []), mixed)
    assert_as_before(decoder, mixed, list(range(len(mixed))))


def test_without_machine_code_the_batches_are_the_same(mixed, build, monkeypatch):
    def batches():
        with build(mixed, ImageDecoder(RandomResizedCrop(size=16)), seed=1) as loader:
            return [batch.inputs.clone() for batch in loader]

    monkeypatch.setattr("fastimg.loaders.loader.compile_ahead", lambda *_: False)
    expected = batches()
    monkeypatch.setattr(compiled, "is_ready", lambda function: False)
    assert all(torch.equal(a, b) for a, b in zip(batches(), expected, strict=True))


def test_a_resize_that_is_not_compiled_is_left_to_others(alike, monkeypatch):
    monkeypatch.setattr("fastimg.loaders.decoders.pixel_cuts.may_call", lambda function: "_read" in str(function))
    with compiling_nothing():
        assert_as_before(ImageDecoder(RandomResizedCrop(size=9)), alike, list(range(30)))


@pytest.mark.parametrize(("most", "kept"), [(1 << 28, True), (1000, False)])
def test_a_small_file_is_kept_in_memory_from_the_second_epoch_on(most, kept, mixed, monkeypatch):
    monkeypatch.setattr("fastimg.loaders.containers.betons.dataset.SMALL_FILES", most)
    monkeypatch.setattr(mixed, "stores_pixels", True)
    ids = list(range(len(mixed)))
    for crop in (RandomResizedCrop(size=16), CenterCrop(size=32, resize=32), RandomCrop(size=8, padding=3)):
        before = mixed._in_memory
        assert_as_before(ImageDecoder(crop), mixed, ids)
        assert_as_before(ImageDecoder(crop), mixed, ids[::-1])
        assert_as_before(ImageDecoder(crop, channels=1), mixed, ids)
        assert (mixed._in_memory is not None) == kept
        assert before is None or mixed._in_memory is before


def test_pixels_that_are_kept_are_not_read_again(alike, monkeypatch):
    ids = list(range(90))
    decoder = ImageDecoder(RandomResizedCrop(size=9))
    for _ in range(2):
        expected, _ = filled(decoder, alike, ids)
    alike._in_memory[1]["file"] = -1
    rows, failures = filled(decoder, alike, ids)
    assert not failures
    assert (rows["inputs"] == expected["inputs"]).all()


def test_a_file_that_shrinks_before_it_is_kept_is_told(alike):
    decoder = ImageDecoder(CenterCrop(size=(12, 10), resize=(12, 10)))
    filled(decoder, alike, list(range(90)))
    with alike.files()[0].open("r+b") as file:
        file.truncate(int(alike.reader.extents("image")[0][50]))
    alike._watch = FileWatch([])  # which looks only from time to time
    with pytest.raises(ShardError, match="shrank"):
        filled(decoder, alike, [1, 2])


def test_a_file_that_shrinks_is_told(alike):
    decoder = ImageDecoder(CenterCrop(size=(12, 10), resize=(12, 10)))
    with alike.files()[0].open("r+b") as file:
        file.truncate(int(alike.reader.extents("image")[0][50]))
    _, failures = filled(decoder, alike, [1, 60])
    assert failures and "shrank" in failures[0][1]


def test_subclasses_with_rows_of_their_own_are_asked(alike):
    class Inverted(ImageDecoder):
        def fill_row(self, data, draws, row, scratch):
            super().fill_row(data, draws, row, scratch)
            row["inputs"][...] = 255 - row["inputs"]

    crop = CenterCrop(size=(12, 10), resize=(12, 10))
    assert not Inverted(crop).cuts_pixels(alike)
    rows, _ = filled(Inverted(crop), alike, [4, 8])
    plain, _ = filled(ImageDecoder(crop), alike, [4, 8])
    assert torch.equal(torch.from_numpy(rows["inputs"]), torch.from_numpy(255 - plain["inputs"]))


def test_threads_take_many_small_rows_at_once(alike, monkeypatch):
    taken = []
    fill = ImageDecoder.fill

    def note(self, reader, ids, *given):
        taken.append(len(ids))
        return fill(self, reader, ids, *given)

    monkeypatch.setattr(ImageDecoder, "fill", note)
    for size, expected in ((8, {40}), (200, {20})):
        taken.clear()
        with Loader(alike, batch_size=40, crop=RandomResizedCrop(size=size), drop_last=True, workers=2) as loader:
            assert sum(batch.samples for batch in loader) == 80
        assert set(taken) == expected
    assert Job(ImageDecoder(RandomResizedCrop(size=8)), None, batches=2).least == 1


@pytest.mark.parametrize(("samples", "expected"), [(20_000, True), (10_000, False)])
def test_stored_pixels_make_up_for_compiling_sooner(samples, expected, alike, monkeypatch):
    looked_at = []
    monkeypatch.setattr(ahead, "compile_path", lambda decoder, dataset, ids, say: looked_at.append(len(ids)))
    chosen = np.arange(samples) % len(alike)
    ahead.compile_ahead(ImageDecoder(RandomResizedCrop(size=8)), alike, chosen, 1, 8)
    assert bool(looked_at) == expected


def test_neighbours_in_memory_are_those_that_were_asked_for(alike):
    decoder = ImageDecoder(CenterCrop(size=(12, 10), resize=(12, 10)))
    alone = [filled(decoder, alike, [index])[0]["inputs"][0] for index in range(len(alike))]
    filled(decoder, alike, list(range(len(alike))))
    assert alike._in_memory is not None
    for ids in ([*range(90)], [5, 6, 7, 7, 8, 3, 2, 3, 4, 89], [0], [88, 89], [*range(40, 90), *range(40)]):
        assert_as_before(decoder, alike, ids)
        assert np.array_equal(filled(decoder, alike, ids)[0]["inputs"], [alone[index] for index in ids])
    for index in (8, 9, 30):
        alike._in_memory[1]["width"][index] = 0  # not in memory: left to others
    assert_as_before(decoder, alike, list(range(90)))


@pytest.fixture
def no_threads(monkeypatch):
    """Threads of a pool that take no chunk: the consumer has to."""
    monkeypatch.setattr(Pool, "_work", lambda *_: None)


SAME = CenterCrop(size=(12, 10), resize=(12, 10))


def test_the_consumer_fills_tiny_rows_instead_of_waiting(alike, build, no_threads):
    with build(alike, ImageDecoder(SAME), order="sequential", workers=2) as loader:
        shown = torch.cat([batch.inputs[batch.weight > 0].clone() for batch in loader])
        assert loader.spent().busy > 0
    expected = filled(ImageDecoder(SAME), alike, list(range(len(alike))))[0]["inputs"]
    assert np.array_equal(shown.permute(0, 2, 3, 1).numpy(), expected)


def test_an_error_of_the_consumer_s_own_rows_is_raised(alike, build, no_threads, monkeypatch):
    def fail(*_):
        raise ShardError("changed")

    with build(alike, ImageDecoder(SAME), workers=1) as loader:
        monkeypatch.setattr(alike, "stored_pixels", fail)
        with pytest.raises(ShardError, match="changed"):
            next(iter(loader))
        monkeypatch.undo()
        assert sum(batch.samples for batch in loader) == len(alike)


def test_an_interrupt_while_the_consumer_fills_rows_ends_the_iteration(alike, build, monkeypatch):
    def interrupt(*_):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    with build(alike, ImageDecoder(SAME), workers=1) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "_work", lambda *_: None)
            patch.setattr(Pool, "_fill_chunk", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        assert not loader._pool._busy
        loader._pool = None
        assert sum(batch.samples for batch in loader) == len(alike)


def test_closing_waits_for_a_consumer_that_fills_rows(alike, build, no_threads, monkeypatch):
    begun, go_on, raised = threading.Event(), threading.Event(), []
    fill = Pool._try_rows

    def slow(*given):
        begun.set()
        assert go_on.wait(10)
        return fill(*given)

    monkeypatch.setattr(Pool, "_try_rows", slow)
    loader = build(alike, ImageDecoder(SAME), workers=1)

    def consume():
        try:
            list(loader)
        except RuntimeError as error:
            raised.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert begun.wait(10)
    closing = threading.Thread(target=loader.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    closing.join(10)
    consumer.join(10)
    assert not closing.is_alive() and not consumer.is_alive() and raised


@pytest.mark.parametrize("side", [8, 100])
def test_a_rank_whose_batch_is_all_padding(tmp_path, build, side):
    """Rows that the consumer fills, too, and larger ones."""
    dataset = written(tmp_path / "few.beton", [picture(np.random.default_rng(5), 12, 10) for _ in range(5)])
    options = {"order": "sequential", "world_size": 3, "batch_size": 4}
    for rank, samples in ((0, 4), (1, 1), (2, 0)):
        with build(dataset, ImageDecoder(CenterCrop(size=side, resize=side)), rank=rank, **options) as loader:
            assert [(batch.samples, bool(batch.inputs.any())) for batch in loader] == [(samples, samples > 0)]
    dataset.close()


def test_a_consumer_of_tiny_rows_waits_for_a_thread_that_makes_batches(alike, build, numbering, monkeypatch):
    """It takes rows of theirs then, and does not look for them all the time."""
    taken = []
    fill_chunk = Pool._fill_chunk

    def noted(pool, number, thread, chunk, scratch):
        if thread is threading.main_thread():
            taken.append(chunk.is_empty)
        fill_chunk(pool, number, thread, chunk, scratch)

    def make(*given):
        time.sleep(0.01)
        return kept(*given)

    kept = numbering.make
    monkeypatch.setattr(numbering, "make", make)
    monkeypatch.setattr(Pool, "_fill_chunk", noted)
    with build(alike, ImageDecoder(CenterCrop(size=8, resize=8)), batch_size=10, workers=3) as loader:
        loader.prepare(numbering)
        assert sum(batch.samples for batch in loader) == 90
    assert sum(taken) <= 4 * 9
