"""The stages of a sample: timing arithmetic, the loader's own pixels, and images that cannot be decoded."""

import io
import threading

import numpy as np
import pytest
from PIL import ExifTags, Image

from fastimg.bench import stages
from fastimg.bench.stages import STAGES, Costs, read_rate, run_threads, take_apart
from fastimg.loaders import CenterCrop, DataError, FilesDataset, ImageDecoder, RandomResizedCrop, open_dataset
from fastimg.loaders.jpeg.rewriting.tiles import tile


class Ticks:
    """A clock that advances by one at every reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def tiled(image_folder, tmp_path, cli):
    """The image folder as tiled shards."""
    assert cli("convert", image_folder, tmp_path / "D", "--no-shuffle", "--tile", "16").code == 0
    data = open_dataset(tmp_path / "D")
    yield data
    data.close()


@pytest.mark.parametrize(
    "crop", [RandomResizedCrop(size=24), CenterCrop(size=24, resize=28), RandomResizedCrop(size=8)]
)
@pytest.mark.parametrize("scaling", [False, True])
def test_the_stages_make_the_loaders_pixels(tiled, crop, scaling):
    decoder = ImageDecoder(crop, dct_scaling=scaling)
    for epoch in range(3):
        ids = np.random.default_rng(epoch).permutation(len(tiled))
        costs = take_apart(tiled, ids, decoder, threads=1, seed=epoch)  # raises if a pixel differs
        assert costs.images == len(tiled) and costs.failed == 0
        assert costs.tiled == 27  # the other nine images are PNGs


def test_photographs_that_exif_turns(tmp_path):
    """Half of them tiled; what is compared is the first eight of each thread."""
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    for number in range(8):
        exif, buffer = Image.Exif(), io.BytesIO()
        exif[ExifTags.Base.Orientation] = 1 + number
        Image.fromarray(pixels).save(buffer, "JPEG", exif=exif)
        jpeg = buffer.getvalue()
        (tmp_path / f"{number}.jpg").write_bytes(tile(jpeg, width_px=16).jpeg if number % 2 else jpeg)
    data = FilesDataset(tmp_path, [f"{number}.jpg" for number in range(8)])
    costs = take_apart(data, np.arange(8), ImageDecoder(RandomResizedCrop(size=24)), threads=1)
    assert (costs.images, costs.failed, costs.tiled) == (8, 0, 4)


def test_pictures_are_decoded_as_in_the_loader(tmp_path, encode, monkeypatch):
    kinds = ("PNG", "WEBP", "BMP", "PPM", "GIF")
    for kind in kinds:
        (tmp_path / f"a.{kind.lower()}").write_bytes(encode(kind=kind))
    data = FilesDataset(tmp_path, [f"a.{kind.lower()}" for kind in kinds])
    by_pillow = []
    decode = stages.decode_box
    monkeypatch.setattr(stages, "decode_box", lambda *given: (by_pillow.append(given[1].format), decode(*given))[1])
    for channels in (3, 1):
        by_pillow.clear()
        decoder = ImageDecoder(RandomResizedCrop(size=8), channels=channels)
        costs = take_apart(data, np.arange(len(kinds)), decoder, threads=1)  # raises if a pixel differs
        assert (costs.images, costs.failed) == (len(kinds), 0)
        assert by_pillow == ["gif"]


def test_different_pixels_are_detected(tiled, monkeypatch):
    monkeypatch.setattr(stages._Thread, "_picture", lambda *_: None)
    monkeypatch.setattr(stages, "resample", lambda pixels, window, interpolation, out: out.fill(0))
    with pytest.raises(RuntimeError, match=r"\.png.*differ from the decoder's"):
        take_apart(tiled, np.arange(len(tiled)), ImageDecoder(RandomResizedCrop(size=24)), threads=1)


def test_every_image_counts_once_with_any_number_of_threads(tiled):
    decoder, ids = ImageDecoder(RandomResizedCrop(size=24)), np.arange(len(tiled))
    for threads in (1, 2, 3):
        costs = take_apart(tiled, ids, decoder, threads)
        assert costs.images == len(ids)
        assert all(costs.seconds[name] > 0 for name in STAGES)


def test_the_clock_is_read_where_stages_meet(tmp_path, encode):
    (tmp_path / "a.gif").write_bytes(encode(kind="GIF"))
    data = FilesDataset(tmp_path, ["a.gif"])
    costs = take_apart(data, np.array([0, 0, 0]), ImageDecoder(RandomResizedCrop(size=8)), threads=1, clock=Ticks())
    # Readings before and after reading a sample; then one before the compiled path, and four around the three stages.
    assert costs.seconds == {"read": 3.0, "splice": 3.0, "decode": 3.0, "resize": 3.0}
    assert costs.rate("decode") == 1.0


def test_undecodable_images_are_counted(tmp_path, encode):
    for name, data in (("a.jpg", encode()), ("b.jpg", b"nothing"), ("c.jpg", encode()[:300])):
        (tmp_path / name).write_bytes(data)
    data = FilesDataset(tmp_path, ["a.jpg", "b.jpg", "c.jpg"])
    costs = take_apart(data, np.arange(3), ImageDecoder(RandomResizedCrop(size=8)), threads=2)
    assert (costs.images, costs.failed) == (1, 2)


def test_costs_add_up():
    one, two = Costs(images=2, nbytes=10, failed=1), Costs(images=3, nbytes=5, tiled=3)
    one.seconds["decode"], two.seconds["decode"] = 1.0, 1.5
    one += two
    assert (one.images, one.nbytes, one.tiled, one.failed) == (5, 15, 3, 1)
    assert one.rate("decode") == 2.0


def test_reading_counts_images_and_bytes(tiled):
    images, nbytes = read_rate(tiled, np.arange(len(tiled)), threads=2, batch=8, clock=Ticks())
    total = sum(len(bytes(tiled.read(i, stages.Scratch()))) for i in range(len(tiled)))
    assert (images, nbytes) == (len(tiled), total)  # one second passes between the first and the last clock reading


def test_errors_of_threads_are_raised(tiled, monkeypatch):
    def broken(index, scratch):
        raise DataError("the disk is gone")

    monkeypatch.setattr(tiled, "read", broken)
    for call in (
        lambda: read_rate(tiled, np.arange(8), threads=2, batch=4),
        lambda: take_apart(tiled, np.arange(8), ImageDecoder(RandomResizedCrop(size=8)), threads=2),
    ):
        with pytest.raises(DataError, match="the disk is gone"):
            call()


def test_threads_run_side_by_side():
    meet = threading.Barrier(3, timeout=20)
    run_threads(lambda number: meet.wait(), 3)
