"""Groups of arrays that compiled code cuts: the pixels, and the errors, of those that are cut one by one."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastimg.loaders import CenterCrop, RandomResizedCrop, float_resize, resample
from fastimg.loaders.containers.bands import StoredBands
from fastimg.loaders.containers.fields import packed_npy
from fastimg.loaders.containers.npy import npy_bytes
from fastimg.loaders.crop import RandomCrop, Window
from fastimg.loaders.decoder import Decoder, SampleReader
from fastimg.loaders.decoders import bands_queue
from fastimg.loaders.decoders.bands import BandsDecoder
from fastimg.loaders.decoders.bands_queue import BandsQueue
from fastimg.loaders.folders.folder import FilesDataset
from fastimg.loaders.runtime.scratch import Scratch

DTYPES = ("uint8", "uint16", "float32")


def some(high, wide, bands=4, dtype="uint16", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        return (rng.normal(size=(bands, high, wide)) * 10.0 ** rng.integers(-30, 30)).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, (bands, high, wide), dtype, endpoint=True)


def filled(decoder, contents, draws, folder, one_by_one=False):
    """The rows of files of these contents, as bits, and the errors by place; `one_by_one` they are torch's."""
    for number, content in enumerate(contents):
        (folder / f"{number}.npy").write_bytes(content)
    files = FilesDataset(folder, [f"{number}.npy" for number in range(len(contents))])
    (field,) = decoder.fields
    rows = {field.name: np.zeros((len(contents), *field.shape), field.dtype)}
    fill = Decoder.fill if one_by_one else type(decoder).fill
    with pytest.MonkeyPatch.context() as patched:
        if one_by_one:
            patched.setattr(resample, "resize_box", lambda *_: False)
        failures = fill(decoder, SampleReader(files), range(len(contents)), draws, rows, Scratch())
    return rows["inputs"].view(f"u{field.dtype.itemsize}"), {place: str(error) for place, error in failures}


def by_compiled_code(monkeypatch):
    """How many samples each later call of the queue fills."""
    counts = []
    cut = BandsQueue.cut

    def counted(*arguments):
        found = cut(*arguments)
        counts.append(int(found.sum()))
        return found

    monkeypatch.setattr(BandsQueue, "cut", counted)
    return counts


CROPS = st.sampled_from(
    [
        RandomResizedCrop(size=(9, 14), scale=(0.2, 1.0)),
        RandomResizedCrop(size=(40, 33), scale=(0.05, 0.5), interpolation="bicubic"),
        RandomResizedCrop(size=(64, 2), interpolation="bicubic"),
        CenterCrop(size=16, resize=18),
        CenterCrop(size=(13, 24), resize=(14, 24), interpolation="bicubic"),
        RandomCrop(size=8, padding=3),
    ]
)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=5),
    bands=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    crop=CROPS,
    seed=st.integers(0, 2**20),
)
def test_pixels_are_those_of_arrays_that_are_cut_one_by_one(tmp_path_factory, sizes, bands, dtype, crop, seed):
    contents = [npy_bytes(some(*size, bands, dtype, seed + number)) for number, size in enumerate(sizes)]
    decoder = BandsDecoder(crop, bands, dtype)
    draws = decoder.draw(seed, 0, np.arange(len(sizes)))
    folder = tmp_path_factory.mktemp("files")
    found, failures = filled(decoder, contents, draws, folder)
    wanted, expected = filled(decoder, contents, draws, folder, one_by_one=True)
    assert (found == wanted).all() and failures == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_a_group_are_cut_by_compiled_code(dtype, tmp_path, monkeypatch):
    counts = by_compiled_code(monkeypatch)
    crop = RandomResizedCrop(size=20)
    contents = [npy_bytes(some(30 + number, 41, 3, dtype)) for number in range(4)]
    contents += [packed_npy(some(20, 41, 3, dtype)), npy_bytes(some(20, 20, 1, dtype)[0])]
    decoder = BandsDecoder(crop, 3, dtype)
    _, failures = filled(decoder, contents, decoder.draw(0, 0, np.arange(6)), tmp_path)
    assert failures == {5: "it has 1 bands, and the model reads 3"} and counts == [5]
    one = BandsDecoder(crop, 1, dtype)
    _, failures = filled(one, contents[5:], one.draw(0, 0, np.arange(1)), tmp_path)
    assert not failures and counts == [5, 1]


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_torch_adds_in_a_known_order(capability):
    """For each kind of processor that torch has code for; what this one lacks, torch leaves out."""
    program = "from fastimg.loaders import float_resize as f; assert f.order_of_sums() != f.UNKNOWN"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stderr


def test_where_torch_adds_in_another_order_it_resizes(tmp_path, monkeypatch):
    monkeypatch.setattr(bands_queue, "order_of_sums", lambda: float_resize.UNKNOWN)
    counts = by_compiled_code(monkeypatch)
    decoder = BandsDecoder(CenterCrop(size=16, resize=16), 4, "uint16")
    contents = [npy_bytes(some(*size)) for size in ((16, 16), (31, 40))]
    found, _ = filled(decoder, contents, np.zeros((2, 0)), tmp_path)
    wanted, _ = filled(decoder, contents, np.zeros((2, 0)), tmp_path, one_by_one=True)
    assert (found == wanted).all() and counts == [1]


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 5)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    layout=st.sampled_from(["packed", "planes", "turned", "flipped", "repeated"]),
    dtype=st.sampled_from(DTYPES),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    data=st.data(),
)
def test_single_arrays_in_any_layout_are_resized_as_by_torch(shape, size, layout, dtype, interpolation, data):
    high, wide, bands = shape
    pixels = {
        "packed": lambda: np.ascontiguousarray(some(high, wide, bands, dtype).transpose(1, 2, 0)),
        "planes": lambda: some(high, wide, bands, dtype).transpose(1, 2, 0),
        "turned": lambda: some(wide, high, bands, dtype).transpose(2, 1, 0),
        "flipped": lambda: some(high, wide, bands, dtype).transpose(1, 2, 0)[::-1, ::-1],
        "repeated": lambda: np.broadcast_to(some(high, wide, 1, dtype).transpose(1, 2, 0), shape),
    }[layout]()
    left, top = data.draw(st.integers(0, wide - 1)), data.draw(st.integers(0, high - 1))
    box = (left, top, data.draw(st.integers(1, wide - left)), data.draw(st.integers(1, high - top)))
    at = data.draw(st.integers(0, size[0] - 1)), data.draw(st.integers(0, size[1] - 1))
    window = Window(box, size, at)
    out, wanted = (np.zeros((size[1] - at[1], size[0] - at[0], bands), dtype) for _ in range(2))
    float_resize.order_of_sums()  # has the machine code made
    resample.resample_deep(pixels, window, interpolation, out)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resample, "resize_box", lambda *_: False)
        resample.resample_deep(pixels, window, interpolation, wanted)
    assert out.tobytes() == wanted.tobytes()


def test_strips_whose_places_floats_do_not_tell_apart_are_left_to_torch():
    float_resize.order_of_sums()
    out = np.zeros((1, 64, 1), np.uint8)
    for wide, expected in ((5_000_000, False), (500_000, True)):
        strip = np.full((1, wide, 1), 9, np.uint8)
        assert float_resize.resize_box(strip, (64, 1), (0, 0), "bilinear", out) == expected
        resample.resample_deep(strip, Window((0, 0, wide, 1), (64, 1), (0, 0)), "bilinear", out)
        assert (out == 9).all()


def header(said, values, version=b"\x01\x00", length=None):
    text = said.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + (len(text) if length is None else length).to_bytes(2, "little") + text + values


WHOLE = some(16, 16).tobytes()
SAID = "{'descr': '<u2', 'fortran_order': False, 'shape': (4, 16, 16), }"
ODD = {
    "as it is": header(SAID, WHOLE),
    "Fortran's order": npy_bytes(np.asfortranarray(some(16, 16))).replace(b"False", b"True "),
    "big-endian": npy_bytes(some(16, 16).astype(">u2")),
    "another type": npy_bytes(some(16, 16).astype(np.int16)),
    "objects": header("{'descr': '|O', 'fortran_order': False, 'shape': (4, 16, 16), }", WHOLE),
    "too few values": header(SAID, WHOLE[:-1]),
    "too many values": header(SAID, WHOLE + b"!"),
    "no values": header(SAID, b""),
    "8 TB": header("{'descr': '<u2', 'fortran_order': False, 'shape': (4, 1000000, 1000000), }", WHOLE),
    "numbers beyond 64 bits": header(SAID.replace(" 16", f" {2**70}", 1), WHOLE),
    "a product of 2**64 bytes": header(
        "{'descr': '<u2', 'fortran_order': False, 'shape': (4, 1152921504606846976, 2), }", WHOLE
    ),
    "no rows": header("{'descr': '<u2', 'fortran_order': False, 'shape': (4, 0, 16), }", b""),
    "a number with a zero before it": header(SAID.replace(" 16", " 016", 1), WHOLE),
    "four axes": header("{'descr': '<u2', 'fortran_order': False, 'shape': (4, 16, 8, 2), }", WHOLE),
    "one axis": header("{'descr': '<u2', 'fortran_order': False, 'shape': (1024,), }", WHOLE),
    "other bands": header("{'descr': '<u2', 'fortran_order': False, 'shape': (8, 8, 16), }", WHOLE),
    "too many pixels": npy_bytes(some(100, 50)),
    "too long and thin": npy_bytes(some(2000, 1)),
    "version 2": header(SAID, b"", b"\x02\x00", 120)[:12] + header(SAID, WHOLE)[10:],
    "version 9": header(SAID, WHOLE, b"\x09\x00"),
    "a header beyond the file": header(SAID, WHOLE, length=60000),
    "a short header": header(SAID, WHOLE, length=50),
    "no end": header(SAID[:-1], WHOLE),
    "words behind the end": header(SAID + "x", WHOLE),
    "other keys": header(SAID.replace("'descr'", "'other'"), WHOLE),
    "spaces in other places": header(SAID.replace(", 16", ",16"), WHOLE),
    "a comma behind the last number": header(SAID.replace("16)", "16,)"), WHOLE),
    "an archive": b"PK\x03\x04" + bytes(100),
    "nothing": b"",
    "the magic alone": b"\x93NUMPY",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_what_they_are_one_by_one(name, tmp_path):
    decoder = BandsDecoder(CenterCrop(size=8, resize=12), 4, "uint16", max_pixels=4000)
    contents = [npy_bytes(some(20, 30)), ODD[name], npy_bytes(some(16, 16))]
    found, failures = filled(decoder, contents, np.zeros((3, 0)), tmp_path)
    wanted, expected = filled(decoder, contents, np.zeros((3, 0)), tmp_path, one_by_one=True)
    assert (found == wanted).all() and failures == expected


def test_floats_that_are_no_numbers_are_named(tmp_path):
    array = some(9, 9, dtype="float32")
    array[3, 8, 8] = -np.inf
    decoder = BandsDecoder(CenterCrop(size=8, resize=8), 4, "float32")
    _, failures = filled(
        decoder, [npy_bytes(array), npy_bytes(some(9, 9, dtype="float32"))], np.zeros((2, 0)), tmp_path
    )
    assert failures == {0: "1 of its 324 values are NaN or infinite, the first of them in band 3, counted from 0"}


def test_shapes_that_a_field_states():
    """A header with other numbers is not that of the field, also where its values are as many."""
    shape = np.zeros(2, np.int64)
    head = np.frombuffer(bands_queue._head_of("<u2"), np.uint8)
    data = np.frombuffer(packed_npy(some(6, 10)), np.uint8)
    for stored, begin in (
        (StoredBands(), 128),
        (StoredBands(6, 10, may_be_flat=False), 128),
        (StoredBands(10, 6), -1),
        (StoredBands(6, 10, headed=False), 0),
    ):
        stated = np.array([4, stored.height, stored.width, stored.may_be_flat], np.int64)
        assert bands_queue._find_values(data, head if stored.headed else head[:0], stated, shape) == begin
        assert begin < 0 or shape.tolist() == [6, 10]
