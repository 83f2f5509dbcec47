"""Several views of one image: each has the bits of a loader with its crop alone, from one read and one decode."""

import io
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastimg.loaders import (
    CenterCrop,
    ImageDecoder,
    ImageError,
    Letterbox,
    Loader,
    LongestSide,
    RandomCrop,
    RandomResizedCrop,
    View,
    ViewDecoder,
)
from fastimg.loaders.containers.datasets import open_dataset
from fastimg.loaders.crop import shape_of
from fastimg.loaders.decoder import SampleReader
from fastimg.loaders.decoders.view_cuts import ViewCuts
from fastimg.loaders.jpeg.decoding import union
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Scratch

from .picture_files import bmp, png, ppm, tiff

KINDS = ("tiled", "plain", "png", "turned", "turned and untiled", "restarts", "progressive")


def photograph(kind, width, height, sampling=2, seed=0):
    """An encoded image with structure at several scales."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).integers(0, 60, (height, width))
    pixels = np.stack([128 + 90 * np.sin(x / 9) + noise / 3, 255 * y / height, (x * y) % 251], axis=2)
    image, buffer, exif = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), io.BytesIO(), Image.Exif()
    if kind == "png":
        image.save(buffer, "PNG")
        return buffer.getvalue()
    exif[0x0112] = 1 + seed % 8 if "turned" in kind else 1
    options = {"restart_marker_blocks": 3} if kind == "restarts" else {"progressive": kind == "progressive"}
    image.save(buffer, "JPEG", quality=90, subsampling=sampling, exif=exif, **options)
    return tile(buffer.getvalue()).jpeg if kind in ("tiled", "turned") else buffer.getvalue()


def filled(decoder, data, draws):
    """The pixels of each crop, in order."""
    row = {field.name: np.full(field.shape, 7, np.uint8) for field in decoder.fields}
    with patch.object(union, "is_ready", lambda kind: True):  # untiled JPEGs do not wait for a compilation elsewhere
        decoder.fill_row(memoryview(data), draws, row, Scratch())
    return [crop for field in decoder.fields for crop in row[field.name]]


def alone(decoder, data, draws):
    """The pixels of each crop, by decoders that know of no other crop."""
    begin, found = 0, []
    for crop in decoder.crops:
        single = ImageDecoder(crop, decoder.max_pixels, decoder.dct_scaling, decoder.compiled)
        out = np.full((*shape_of(crop), 3), 9, np.uint8)
        single.fill_row(memoryview(data), draws[begin : begin + crop.draws], {"inputs": out}, Scratch())
        found.append(out)
        begin += crop.draws
    return found


def attempted(fill, *arguments):
    try:
        return fill(*arguments)
    except ImageError as error:
        return str(error)


@st.composite
def some_views(draw):
    sizes = st.sampled_from([1, 7, 24, (9, 40), 64, 150])
    scales = st.sampled_from([(0.01, 0.05), (0.05, 0.4), (0.4, 1.0), (1.0, 1.0)])
    filters = st.sampled_from(["bilinear", "bicubic"])
    resized = st.builds(View, crop=sizes, n=st.integers(1, 3), scale=scales, interpolation=filters)
    others = st.sampled_from(
        [CenterCrop(size=20, resize=24), RandomCrop(size=16, padding=4), Letterbox(size=20), LongestSide(size=24)]
    )
    return tuple(draw(st.lists(st.one_of(resized, resized, st.builds(View, crop=others)), min_size=1, max_size=4)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_each_view_has_the_bits_of_its_crop_alone(kind, data):
    width, height = data.draw(st.integers(3, 230)), data.draw(st.integers(3, 170))
    seed = data.draw(st.integers(0, 99))
    encoded = photograph(kind, width, height, data.draw(st.sampled_from([0, 1, 2])), seed)
    scaling, compiled = data.draw(st.booleans()), data.draw(st.sampled_from([True, True, False]))
    decoder = ViewDecoder(data.draw(some_views()), dct_scaling=scaling, compiled=compiled)
    draws = decoder.draw(seed, 0, np.array([seed]))[0].tolist()
    for found, expected in zip(filled(decoder, encoded, draws), alone(decoder, encoded, draws), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_files_of_several_formats_are_cut_for_each_view(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    sizes = [(64, 48), (5, 90), (1, 1), (200, 30)]
    files = [make(rng, *size) for size in sizes for make in (bmp, ppm, tiff)]
    files += [files[0][:-100], files[1][:-100], png(rng, 30, 20)]
    (tmp_path / "a").mkdir()
    for number, data in enumerate(files):
        (tmp_path / "a" / f"{number:02}.bmp").write_bytes(data)
    dataset = open_dataset(tmp_path)
    seen = []
    decode = ViewDecoder._decode
    monkeypatch.setattr(ViewDecoder, "_decode", lambda *given: (seen.append(given[1]), decode(*given))[1])
    for channels in (3, 1):
        decoder = ViewDecoder(
            (View(crop=24, n=2), View(crop=CenterCrop(size=20, resize=24), name="b")), channels=channels
        )
        draws = decoder.draw(0, 0, np.arange(len(files)))
        made = []
        for use in (True, False):
            seen.clear()
            rows = {each.name: np.zeros((len(files), *each.shape), np.uint8) for each in decoder.fields}
            with monkeypatch.context() as other:
                if not use:
                    other.setattr(ViewCuts, "decode", lambda _, encoded, places, *others: places)
                failures = decoder.fill(SampleReader(dataset), list(range(len(files))), draws, rows, Scratch())
            made.append((rows, [(place, str(error)) for place, error in failures]))
            assert len(seen) == (2 if use else len(files))  # the damaged ones
        (rows, told), (expected, said) = made
        assert told == said and len(told) == 2
        for name in rows:
            np.testing.assert_array_equal(rows[name], expected[name])


def test_an_untiled_jpeg_is_left_to_libjpeg_until_its_decoder_is_compiled(monkeypatch):
    decoder, encoded = ViewDecoder((View(crop=32, n=2),)), memoryview(photograph("plain", 90, 70))
    draws = decoder.draw(0, 0, np.array([1]))[0].tolist()
    kept, found = [], {}
    for ready in (True, False):
        monkeypatch.setattr(union, "is_ready", lambda kind, ready=ready: ready)
        whole = {field.name: np.zeros(field.shape, np.uint8) for field in decoder.fields}
        with patch.object(union, "_crop_untiled", side_effect=union._crop_untiled) as called:
            decoder.fill_row(encoded, draws, whole, Scratch())
        kept.append(called.called)
        found[ready] = whole["inputs"]
    assert kept == [True, False]
    np.testing.assert_array_equal(found[True], found[False])


@settings(max_examples=40)
@given(data=st.data())
def test_damaged_images_too(data):
    """Some crops may be whole where others are damaged: either all are as they are alone, or the sample is refused."""
    kind = data.draw(st.sampled_from(KINDS))
    encoded = bytearray(photograph(kind, 160, 120, seed=data.draw(st.integers(0, 9))))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(20, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    del encoded[data.draw(st.sampled_from([len(encoded), len(encoded) * 2 // 3])) :]
    views = (View(crop=32, n=3, scale=(0.02, 0.1)), View(crop=64, scale=(0.4, 1)))
    decoder = ViewDecoder(views, dct_scaling=data.draw(st.booleans()))
    draws = decoder.draw(0, 0, np.array([1]))[0].tolist()
    found = attempted(filled, decoder, bytes(encoded), draws)
    expected = attempted(alone, decoder, bytes(encoded), draws)
    assert isinstance(found, str) == isinstance(expected, str)
    if not isinstance(found, str):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_scales_of_one_image_differ_as_they_do_alone():
    """One crop is decoded whole, others at a half, a quarter and an eighth, all from the same coefficients."""
    views = [View(crop=CenterCrop(size=size, resize=size)) for size in (400, 128, 60, 20)]
    decoder = ViewDecoder(views, dct_scaling=True)
    for sampling in (0, 1, 2):
        encoded = photograph("tiled", 600, 400, sampling)
        for found, expected in zip(filled(decoder, encoded, []), alone(decoder, encoded, []), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_libjpeg_decodes_once(monkeypatch):
    decoder = ViewDecoder((View(crop=32, n=5),), compiled=False)
    draws, calls, real = decoder.draw(0, 0, np.array([1]))[0].tolist(), [], simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: calls.append(1) or real(*a, **k))
    filled(decoder, photograph("plain", 90, 70), draws)
    assert calls == [1]


def test_draws_of_a_crop_do_not_depend_on_the_others():
    ids = np.arange(50)
    few = ViewDecoder((View(crop=224, n=2),)).draw(3, 4, ids)
    many = ViewDecoder((View(crop=96, name="a"), View(crop=32, scale=(0.05, 0.4), n=7))).draw(3, 4, ids)
    np.testing.assert_array_equal(few, many[:, : few.shape[1]])
    np.testing.assert_array_equal(few[:, :22], ImageDecoder(RandomResizedCrop(size=8)).draw(3, 4, ids))
    assert abs(np.corrcoef(few[:, 0], few[:, 22])[0, 1]) < 0.3
    assert len(np.unique(many)) == many.size


def test_memory_is_that_of_one_whole_picture():
    """However many crops there are."""
    encoded = memoryview(photograph("tiled", 800, 600))
    whole, many = Scratch(), Scratch()
    out = np.zeros((168, 224, 3), np.uint8)
    ImageDecoder(CenterCrop(size=(168, 224), resize=(168, 224))).fill_row(encoded, [], {"inputs": out}, whole)
    decoder = ViewDecoder((View(crop=224, n=4), View(crop=96, n=20)))
    rows = {field.name: np.zeros(field.shape, np.uint8) for field in decoder.fields}
    for number in range(5):
        decoder.fill_row(encoded, decoder.draw(0, number, np.array([0]))[0].tolist(), rows, many)
    assert 0 < many.nbytes <= 1.1 * whole.nbytes


VIEWS = (View(crop=24, n=2, scale=(0.4, 1), name="global"), View(crop=(8, 12), n=3, scale=(0.05, 0.4)))


def test_batches_of_views(files, build):
    loader = build(files, ViewDecoder(VIEWS), batch_size=4)
    crops = {}
    for batch in loader:
        assert [tuple(view.shape) for view in batch.views] == [(4, 3, 24, 24)] * 2 + [(4, 3, 8, 12)] * 3
        assert all(view.dtype == torch.uint8 and view.stride(1) == 1 for view in batch.views)
        assert batch.inputs.data_ptr() == batch.views[0].data_ptr() and not batch.fields
        for name, begin, end in (("global", 0, 2), ("1", 2, 5)):
            joined = batch.views_of(name)
            assert torch.equal(joined, torch.cat(batch.views[begin:end]))
            assert joined.data_ptr() == batch.views[begin].data_ptr()
            assert joined.is_contiguous(memory_format=torch.channels_last)
        crops |= {index: batch.inputs[row].clone() for row, index in enumerate(batch.ids.tolist())}
    with pytest.raises(KeyError, match="no view is called 'local'; there are global, 1"):
        batch.views_of("local")
    loader.close()
    single = build(files, ImageDecoder(RandomResizedCrop(size=24, scale=(0.4, 1))), batch_size=4)
    for batch in single:
        assert batch.views == []
        for row, index in enumerate(batch.ids.tolist()):
            assert torch.equal(batch.inputs[row], crops[index])
    single.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_views_on_a_gpu_equal_those_on_the_host(files):
    with (
        Loader(files, batch_size=4, views=VIEWS, device="cuda") as there,
        Loader(files, batch_size=4, views=VIEWS) as here,
    ):
        for batch, expected in zip(there, here, strict=True):
            assert all(torch.equal(a.cpu(), b) for a, b in zip(batch.views, expected.views, strict=True))
            assert batch.views_of("global").data_ptr() == batch.inputs.data_ptr()


def test_copied_batches_keep_their_views(files):
    with (
        Loader(files, batch_size=4, views=VIEWS, copy=True) as loader,
        Loader(files, batch_size=4, views=VIEWS) as other,
    ):
        kept = list(loader)
        for own, batch in zip(kept, other, strict=True):
            assert own.inputs.data_ptr() == own.views[0].data_ptr()
            assert own.views_of("1").data_ptr() == own.views[2].data_ptr()
            assert all(torch.equal(a, b) for a, b in zip(own.views, batch.views, strict=True))


def test_an_unreadable_image_has_no_views(files, spoil, build):
    """Nor has padding."""
    spoil(files, 5)
    loader = build(files, ViewDecoder(VIEWS), order="sequential", batch_size=10)
    batches = [(b.weight.tolist(), [view.clone() for view in b.views]) for b in loader]
    assert [sum(weight) for weight, _ in batches] == [9, 10, 3] and batches[0][0][5] == 0
    assert all(not view[5].any() and view[4].any() for view in batches[0][1])
    assert all(not view[3:].any() and view[2].any() for view in batches[2][1])
    assert list(loader.unreadable) == [5]
    loader.close()


def test_going_on_in_the_middle(files, build):
    """With another number of threads; the state is that of any loader."""
    first = build(files, ViewDecoder(VIEWS), seed=3)
    batches = iter(first)
    next(batches), next(batches)
    state = first.state_dict()
    rest = [[view.clone() for view in batch.views] for batch in batches]
    second = build(files, ViewDecoder(VIEWS), seed=3, workers=1)
    second.load_state_dict(state)
    for expected, batch in zip(rest, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, batch.views, strict=True))
    plain = build(files, ImageDecoder(RandomResizedCrop(size=8)), seed=3)
    plain.load_state_dict(state)
    for loader in (first, second, plain):
        loader.close()


def test_sizes_of_views_are_fixed(files, build):
    loader = build(files, ViewDecoder(VIEWS))
    with pytest.raises(TypeError, match="views have sizes of their own"):
        loader.set_size(16)
    loader.close()


def test_a_subclass_may_fill_rows_itself(files, build):
    class Dark(ViewDecoder):
        def fill_row(self, data, draws, row, scratch):
            super().fill_row(data, draws, row, scratch)
            row["inputs"][1] = 0

    loader = build(files, Dark(VIEWS))
    batch = next(iter(loader))
    assert batch.views[0].any() and not batch.views[1].any() and batch.views[2].any()
    loader.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"n": 0}, "n=0; give the number of crops"),
        ({"n": 1.5}, "n=1.5; give the number of crops"),
        ({"crop": 0}, "size 0: give the side"),
        ({"scale": (0.5, 0.1)}, r"scale=\(0.5, 0.1\); give two numbers above 0"),
        ({"scale": (0, 1)}, "scale="),
        ({"ratio": (float("nan"), 1)}, "ratio="),
        ({"interpolation": "nearest"}, "interpolation='nearest'; give bilinear or bicubic"),
        ({"name": ""}, "name=''; give a text"),
        ({"crop": CenterCrop(size=8, resize=8), "scale": (0.1, 1)}, "give them to the CenterCrop"),
    ],
)
def test_views_that_cannot_be(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        View(**{"crop": 8} | settings)


@pytest.mark.parametrize(
    ("views", "sentence"),
    [
        ([], "views is an empty list"),
        ([View(crop=8, name="a"), View(crop=9, name="a")], "two views are called 'a'"),
        ([View(crop=8, name="1"), View(crop=9)], "two views are called '1'"),
        ([224], "views holds 224; give Views"),
    ],
)
def test_lists_that_cannot_be(views, sentence):
    with pytest.raises(ValueError, match=sentence):
        ViewDecoder(views)


def test_a_loader_with_views_has_no_other_crop(files):
    with pytest.raises(TypeError, match="crop and views were given"):
        Loader(files, batch_size=4, crop=8, views=VIEWS)
    with pytest.raises(TypeError, match="crop, views, max_pixels, channels and depth are the decoder's"):
        Loader(files, ViewDecoder(VIEWS), batch_size=4, views=VIEWS)
    with pytest.raises(TypeError, match=r"give a list of Views .*crop_epochs=2"):
        Loader(files, batch_size=4, views=2)
    with pytest.raises(TypeError, match="fields move with one crop, but views have several"):
        Loader(files, batch_size=4, views=VIEWS, fields=["boxes"])
    with pytest.raises(TypeError, match="or views, or a decoder"):
        Loader(files, batch_size=4)


def test_a_list_is_made_a_tuple():
    """So that a decoder is a value."""
    assert ViewDecoder(list(VIEWS)) == ViewDecoder(VIEWS) != replace(ViewDecoder(VIEWS), dct_scaling=True)
    assert ViewDecoder(VIEWS).describe() == "JPEGs decoded on the CPU, views 2 x 24x24, 3 x 8x12"
