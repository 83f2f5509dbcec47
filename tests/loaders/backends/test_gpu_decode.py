"""The decoder on the device gives the results of `ImageDecoder` through a whole loader.

The kernel is interpreted on the CPU (`TestInterpreted`, in its own process). libjpeg-turbo replaces the GPU's decoder,
so that only the path of the pixels can differ. tests/peers tests nvImageCodec itself.
"""

import io
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from fastimg.loaders import (
    CenterCrop,
    DataError,
    FilesDataset,
    ImageDecoder,
    Loader,
    LoaderConfig,
    RandomResizedCrop,
    WorkerError,
)
from fastimg.loaders.backends.nvcodec import SETS, DecodedImage, installed
from fastimg.loaders.batch import Field
from fastimg.loaders.decode import read_header
from fastimg.loaders.epochs.epochs import Epochs
from fastimg.loaders.jpeg.rewriting.tiles import tile
from fastimg.loaders.runtime.scratch import Encoded, Scratch

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
from fastimg.loaders.backends.gpu_decode import DeviceDecode
from fastimg.loaders.backends.tile_cuts import TileCuts
from fastimg.loaders.decoder import Decoder, SampleReader

pytestmark = pytest.mark.usefixtures("nothing_left")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RANDOM = ImageDecoder(RandomResizedCrop(size=16))


class Libjpeg:
    """A codec in place of the GPU's. It refuses JPEGs of height 47 when parsing, and gray ones when decoding."""

    def __init__(self, device="cpu"):
        self.device, self.calls = torch.device(device), []
        self.sets = [[] for _ in range(SETS)]  # of images that may still be read

    def parse(self, jpeg):
        return None if simplejpeg.decode_jpeg_header(jpeg)[0] == 47 else jpeg

    def decode(self, parsed, stream):
        assert (stream == 0) == (self.device.type == "cpu")
        self.calls.append(len(parsed))
        self.sets = [*self.sets[1:], [None if _gray(jpeg) else self._decoded(jpeg) for jpeg in parsed]]
        if stream:
            torch.cuda.synchronize()
        return [None if pixels is None else _decoded(pixels) for pixels in self.sets[-1]]

    def _decoded(self, jpeg):
        return torch.from_numpy(simplejpeg.decode_jpeg(jpeg, "RGB")).to(self.device)


def _decoded(pixels):
    return DecodedImage(pixels.data_ptr(), pixels.shape[1], pixels.shape[0], (3, pixels.stride(0), 1))


def _gray(jpeg):
    return simplejpeg.decode_jpeg_header(jpeg)[2] == "Gray"


def encoded(number, size, mode="RGB", kind="JPEG", orientation=1):
    """Structure and noise, so that misplaced pixels are visible."""
    y, x = np.mgrid[: size[1], : size[0]]
    noise = np.random.default_rng(number).integers(0, 80, x.shape)
    pixels = np.stack([x * 3 % 256, y * 5 % 256, (x * y + noise) % 256], axis=2).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, exif=exif, **({"quality": 92} if kind == "JPEG" else {}))
    return buffer.getvalue()


@pytest.fixture
def files(tmp_path):
    """Twenty images: tiled and not, of every orientation, gray, CMYK, PNG, tiny, long, and a broken one."""
    contents = [tile(encoded(i, (48 + 3 * i, 24 + 2 * i), orientation=1 + i)).jpeg for i in range(8)]
    contents += [encoded(20 + i, (40 + i, 20), orientation=8 - 2 * i) for i in range(2)]
    contents += [encoded(30, (40, 30), "L"), encoded(31, (35, 44), "CMYK"), encoded(32, (41, 33), kind="PNG")]
    contents += [encoded(33, (40, 47)), encoded(34, (1, 1)), encoded(35, (3, 30)), encoded(36, (50, 9))]
    contents += [tile(encoded(37, (64, 40), "L")).jpeg, b"nothing", encoded(38, (30, 30))]
    for i, content in enumerate(contents):
        (tmp_path / f"{i:02d}.img").write_bytes(content)
    assert sum(read_header(content).restarts for content in contents[:8]) == 8
    names = [f"{i:02d}.img" for i in range(len(contents))]
    return FilesDataset(tmp_path, names, ("a", "b"), [i % 2 for i in range(len(names))])


def epochs(dataset, decoder, count=1, batch=6, indices=None, device="cpu", **settings):
    """All batches of some epochs, copied, and their loader."""
    loader = Loader(dataset, decoder, LoaderConfig(batch_size=batch, workers=2, **settings), device, indices)
    try:
        return [copied(batch) for _ in range(count) for batch in loader], loader
    finally:
        loader.close()


def copied(batch):
    return [batch.samples, *(t.clone() for t in (batch.inputs, batch.targets, batch.ids, batch.weight))]


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one[0] == other[0]
        for tensor, wanted in zip(one[1:], other[1:], strict=True):
            assert torch.equal(tensor, wanted)
    return True


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize(
        ("crop", "interpolation"),
        [(RandomResizedCrop(size=16), "bilinear"), (CenterCrop(size=16, resize=18), "bicubic")],
    )
    def test_decoded_on_the_device(self, files, crop, interpolation):
        images = ImageDecoder(replace(crop, interpolation=interpolation))
        evaluates = isinstance(crop, CenterCrop)
        settings = {"order": "sequential"} if evaluates else {"count": 2, "seed": 4}
        expected, plain = epochs(files, images, **settings)
        codec = Libjpeg()
        found, loader = epochs(files, DeviceDecode(images, codec), **settings)
        assert same(found, expected)
        assert loader.unreadable == plain.unreadable and list(loader.unreadable) == [18]
        assert set(loader.rerouted) == {10, 13, 17} and "refused" in loader.rerouted[10]
        # The codec gets all other images, but not the CMYK, the PNG, the broken one, or an evaluation's padding.
        rows = torch.cat([ids[weight > 0] if evaluates else ids for *_, ids, weight in found]).numpy()
        assert sum(codec.calls) == np.isin(rows, [11, 12, 13, 18], invert=True).sum() >= 16

    def test_groups_are_cut_by_compiled_code(self, files, monkeypatch):
        """What is compiled before the threads begin gives the same batches."""
        expected, plain = epochs(files, RANDOM, count=2)
        taken = []
        real = TileCuts.cut

        def cut(cuts, *given):
            taken.append(real(cuts, *given))
            return taken[-1]

        monkeypatch.setattr(TileCuts, "cut", cut)
        loader = Loader(files, DeviceDecode(RANDOM, Libjpeg()), LoaderConfig(batch_size=6, workers=2))
        loader.compile()
        taken.clear()
        found = [copied(batch) for _ in range(2) for batch in loader]
        loader.close()
        assert same(found, expected) and loader.unreadable == plain.unreadable
        assert sum(part is not None for group in taken for part in group) >= 30

    def test_a_jpeg_of_too_many_taps(self, files, monkeypatch):
        expected, _ = epochs(files, RANDOM)
        monkeypatch.setattr("fastimg.loaders.backends.gpu_decode._MAX_TAPS", 6)
        codec = Libjpeg()
        found, _ = epochs(files, DeviceDecode(RANDOM, codec))
        assert same(found, expected) and 0 < sum(codec.calls) < 16

    def test_a_refused_image_that_cannot_be_decoded_at_all(self, files):
        path = Path(files.sample_name(10))
        path.write_bytes(path.read_bytes()[:400])
        found, loader = epochs(files, DeviceDecode(RANDOM, Libjpeg()), indices=np.array([0, 8, 10, 14, 18]))
        assert set(loader.unreadable) == {10, 18} and 10 in loader.rerouted
        for samples, inputs, _, ids, weight in found:
            assert samples == weight.sum()
            for row in np.flatnonzero(np.isin(ids.numpy(), [10, 18])):
                assert weight[row] == 0 and not inputs[row].any()
        with pytest.raises(DataError, match=r"10\.img: .*on_error=skip"):
            epochs(files, DeviceDecode(RANDOM, Libjpeg()), indices=np.array([0, 10, 19]), on_error="fail")

    def test_a_codec_that_fails_ends_the_run(self, files):
        class Failing(Libjpeg):
            def decode(self, parsed, stream):
                raise RuntimeError("out of memory")

        loader = Loader(files, DeviceDecode(RANDOM, Failing()), LoaderConfig(batch_size=4, workers=2))
        with pytest.raises(WorkerError, match="could not be made on cpu: RuntimeError\\('out of memory'\\)"):
            next(iter(loader))
        loader.close()

    def test_stopping_early_and_beginning_anew(self, files):
        some = np.array([0, 3, 5, 8, 10, 12, 14, 15, 16, 18, 19])
        expected, _ = epochs(files, RANDOM, count=2, indices=some, batch=3, seed=1)
        steps = len(expected) // 2
        decoder = DeviceDecode(RANDOM, Libjpeg())
        loader = Loader(files, decoder, LoaderConfig(batch_size=3, workers=2, seed=1), indices=some)
        left = iter(loader)
        next(left)
        next(left)
        state = loader.state_dict()
        loader.set_epoch(1)
        found = [copied(batch) for batch in loader]
        assert same(found, expected[steps : 2 * steps])
        left.close()  # an old iteration ends while another one is running
        loader.load_state_dict(state)
        found = [copied(batch) for batch in loader]
        assert same(found, expected[2:steps])
        loader.close()

    def test_sizes_that_change(self, files):
        some = np.array([0, 8, 10, 12, 18])
        loader = Loader(files, DeviceDecode(RANDOM, Libjpeg()), LoaderConfig(batch_size=3, workers=2), indices=some)
        memory, lanes = [slot.buffer.data_ptr() for slot in loader._slots], set()
        for number, size in enumerate((9, 16)):
            loader.set_size(size)
            found = [copied(batch) for batch in loader]
            lanes |= {(lane.fields.data_ptr(), lane.out.data_ptr()) for lane in loader._ring._lanes.values()}
            expected, _ = epochs(files, RANDOM.sized(size), number + 1, batch=3, indices=some)
            assert same(found, expected[number * len(loader) :]) and found[0][1].shape == (3, 3, size, size)
        assert len(lanes) == len(loader) == 2 and [slot.buffer.data_ptr() for slot in loader._slots] == memory
        loader.close()

    def test_words_of_a_preparation_travel_with_the_batch(self, files, numbering):
        with Loader(files, DeviceDecode(RANDOM, Libjpeg()), LoaderConfig(batch_size=6, workers=2, seed=4)) as loader:
            loader.prepare(numbering)
            for batch in loader:
                assert batch.made == (4, 0, (16, 16, 3)) and list(batch.fields) == []
                assert batch.words.tolist()[:6] == batch.ids.tolist()

    def test_closing_while_a_batch_is_decoded(self, files):
        class Slow(Libjpeg):
            def decode(self, parsed, stream):
                time.sleep(0.2)
                return super().decode(parsed, stream)

        loader = Loader(files, DeviceDecode(RANDOM, Slow()), LoaderConfig(batch_size=4, workers=2))
        batches = iter(loader)
        next(batches)
        loader.close()
        with pytest.raises(RuntimeError, match="this iteration is over"):
            next(batches)


def test_a_loaders_device_has_an_index(files, monkeypatch):
    """As a tensor's has: `torch.cuda.set_device`, for one, refuses a device without."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    planned = Epochs(files, LoaderConfig(batch_size=4), None, 1, torch.device("cuda"))
    assert planned.device == torch.device("cuda", 2)
    assert Epochs(files, LoaderConfig(batch_size=4), None, 1, torch.device("cuda", 1)).device.index == 1


def test_a_device_that_the_rings_thread_cannot_enter_ends_the_run(files):
    loader = Loader(files, DeviceDecode(RANDOM, Libjpeg()), LoaderConfig(batch_size=4, workers=2))
    loader._ring._device = torch.device("cuda")  # torch wants an index here, and says so without a GPU, too
    with pytest.raises(WorkerError, match="a batch could not be made on cuda: ValueError"):
        next(iter(loader))
    loader.close()


def test_an_iteration_that_is_over_decodes_nothing_more(files):
    class Waiting(Libjpeg):
        def decode(self, parsed, stream):
            begun.set()
            while loader._ring._thread is not None:  # until it is released
                time.sleep(0.001)
            return super().decode(parsed, stream)

    codec, begun = Waiting(), threading.Event()
    loader = Loader(files, DeviceDecode(RANDOM, codec), LoaderConfig(batch_size=4, workers=2))
    for slot in loader._slots:
        loader._ring.begin(slot)
    assert begun.wait(60) and len(loader._slots) > 2
    loader._ring.release()
    assert len(codec.calls) == 1
    loader.close()


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("codec", ["libjpeg", "nvcodec"])
def test_on_a_device(files, codec):
    """Decoded by libjpeg-turbo: the same bits. By the GPU: nearly the same pixels, and the same samples left out."""
    if codec == "nvcodec" and not installed():
        pytest.skip("needs the extra gpu")
    device = torch.device("cuda")
    expected, plain = epochs(files, RANDOM, count=3)
    decoder = DeviceDecode.on(device, RANDOM) if codec == "nvcodec" else DeviceDecode(RANDOM, Libjpeg(device))
    found, loader = epochs(files, decoder, count=3, device=device)
    assert loader.unreadable == plain.unreadable
    for ours, theirs in zip(found, expected, strict=True):
        difference = (ours[1].cpu().int() - theirs[1].int()).abs().float().mean()
        assert difference < 4 if codec == "nvcodec" else difference == 0
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours[2:], theirs[2:], strict=True))


def filled(fill, decoder, dataset, draws):
    """What `fill` does to rows for each sample, once for each draw [k * samples, d]: rows and failures."""
    rows = {field.name: np.zeros((len(draws), *field.shape), field.dtype) for field in decoder.fields}
    ids = np.arange(len(draws)) % len(dataset)
    failures = fill(decoder, SampleReader(dataset), ids.tolist(), draws, rows, Scratch())
    return rows, [(place, str(error)) for place, error in failures]


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
@pytest.mark.parametrize("crop", [RandomResizedCrop(size=16), CenterCrop(size=16, resize=18)], ids=["random", "centre"])
def test_a_group_is_cut_as_its_images_are_one_by_one(files, crop):
    """The same bytes, boxes, windows, tables and pixels, whatever the orientation, for what the device gets or not."""
    decoder = DeviceDecode(ImageDecoder(crop), Libjpeg())
    draws = decoder.draw(0, 0, np.arange(10 * len(files)))
    found, failed = filled(DeviceDecode.fill, decoder, files, draws)
    expected, failed_alone = filled(Decoder.fill, decoder, files, draws)
    assert failed == failed_alone and len(failed) == 10
    assert all(np.array_equal(found[name], expected[name]) for name in ("inputs", "place", "table"))
    cuts = [cut for cut in expected["cut"] if cut]
    assert list(found["cut"]) == list(expected["cut"]) and len(cuts) == 10 * 17
    assert len({cut.orientation for cut in cuts}) == 8


def group_of(contents):
    """Encoded samples as a group has them."""
    encoded = Encoded()
    encoded.begin(len(contents))
    for place, content in enumerate(contents):
        encoded.grow(place, len(content))[: len(content)] = np.frombuffer(content, np.uint8)
    encoded.take(np.array([len(content) for content in contents]), np.ones(len(contents), np.bool_))
    return encoded


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
def test_damaged_files_are_cut_within_their_room():
    """Bytes changed, and files that end early: what is handed on is a JPEG no longer than the file and two bytes."""
    rng, whole = np.random.default_rng(0), [tile(encoded(i, (96, 64), orientation=1 + i)).jpeg for i in range(8)]
    whole.append(encoded(9, (50, 40)))
    crop, cuts, tables = RANDOM.crop, TileCuts(), np.zeros((60, 2000), np.int32)
    taken = 0
    for _ in range(200):
        contents = []
        for number in rng.integers(0, len(whole), 60):
            content = np.frombuffer(whole[number], np.uint8).copy()
            content[rng.integers(0, len(content), rng.integers(0, 6))] = rng.integers(0, 256)
            contents.append(content[: len(content) if rng.random() < 0.7 else rng.integers(0, len(content))].tobytes())
        draws = RANDOM.draw(int(rng.integers(1 << 30)), 0, np.arange(60))
        parts = cuts.cut(group_of(contents), crop, draws, 10_000, 16, tables, len)
        for content, part in zip(contents, parts, strict=True):
            if part is not None:
                taken += 1
                assert (
                    part.parsed == len(part.jpeg)
                    and part.jpeg[:2] == b"\xff\xd8"
                    and len(part.jpeg) <= len(content) + 2
                )
                assert part.box[0] >= 0 and part.box[1] >= 0 and min(part.box[2:]) >= 1
    assert taken > 5000


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
def test_dct_scaling_is_refused():
    scaled = ImageDecoder(RandomResizedCrop(size=16), dct_scaling=True)
    with pytest.raises(ValueError, match="leave dct_scaling out"):
        DeviceDecode(scaled, Libjpeg())


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_under_the_interpreter(interpreted, compiled_decoder):
    interpreted(__file__, loops=True)


class Further(ImageDecoder):
    """A decoder with an additional field."""

    @property
    def fields(self):
        return *super().fields, Field("more", (), np.dtype(np.int64))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (
            ImageDecoder(RandomResizedCrop(size=(16, 24))),
            "crop 16 x 24: the GPU's resize makes only squares; give one side",
        ),
        (Further(RandomResizedCrop(size=16)), "fills only `inputs`; decode on the CPU for further fields"),
    ],
)
def test_fields_that_the_device_does_not_make(images, words):
    with pytest.raises(ValueError, match=words):
        DeviceDecode(images, Libjpeg())
    square = DeviceDecode(ImageDecoder(RandomResizedCrop(size=16)), Libjpeg())
    with pytest.raises(ValueError, match="crop 8 x 16: the GPU's resize makes only squares"):
        square.sized((8, 16))
