"""Vector code by AVX-512's instructions, by AVX2's, and in LLVM's terms for other machines: the same bits."""

import numpy as np
from numba import njit

from fastimg.loaders.jpeg.decoding import dct, memory, vectors
from fastimg.loaders.jpeg.decoding.entropy import lookups

ROW = 131  # bytes from one row to the next


def without(feature, monkeypatch):
    """Compile for a machine that lacks it from now on."""
    for module in (dct, lookups, memory, vectors):
        monkeypatch.setattr(module, feature, lambda context: False, raising=False)


def made(blocks, quantiser, planes):
    """Samples of fours of blocks, whether they are sound, and the colours of planes; compiled anew at each call."""

    def kernel(blocks, quantiser, planes, samples, sound, colours):
        for i in range(sound.size):
            at = 256 * i
            four = at, at + 64, at + 128, at + 192
            sound[i] = dct.inverse_dct(blocks, four, quantiser, 0, samples, four, 8)
        for y in range(0, planes.size // 3, vectors.WIDE):
            size = planes.size // 3
            vectors.to_rgb(planes, y, planes, size + y, 2 * size + y, colours, y, size)

    samples, sound = np.zeros(blocks.size, np.uint8), np.zeros(blocks.size // 256, bool)
    colours = np.zeros(planes.size, np.uint8)
    njit(kernel)(blocks, quantiser, planes, samples, sound, colours)
    return samples, sound, colours


def summed(source, weights, taps, precision, times):
    """`weighted` of the first `taps` rows, compiled anew at each call."""

    def kernel(source, weights, taps, precision, out, times):
        vectors.weighted(source, 1, ROW, weights, 2, taps, precision, out, 3, times)

    compiled = njit(kernel)
    found = []
    for number in taps:
        held = weights.copy()
        held[2 + number] = 0
        for count in times:
            out = np.zeros(3 + count * vectors.WIDE + 5, np.uint8)
            compiled(source, held, number, precision, out, count)
            assert not out[:3].any() and not out[-5:].any()
            found.append(out[3:-5])
    return found


def test_weighted_sums_of_any_number_of_rows(monkeypatch):
    rng = np.random.default_rng(0)
    taps, times, precision = (1, 2, 3, 5, 8, 9, 14), (0, 1, 2, 3), 14
    source = rng.integers(0, 256, ROW * 14).astype(np.uint8)
    weights = rng.integers(-9000, 16000, 17).astype(np.int16)
    expected = []
    for number in taps:
        for count in times:
            rows = source.reshape(14, ROW)[:number, 1 : 1 + count * vectors.WIDE].astype(np.int64)
            whole = (weights[2 : 2 + number, None] * rows).sum(axis=0) + (1 << (precision - 1)) >> precision
            expected.append(whole.clip(0, 255))
    for feature in (None, "has_avx512", "has_avx2"):
        if feature is not None:
            without(feature, monkeypatch)
        for some, sums in zip(summed(source, weights, taps, precision, times), expected, strict=True):
            assert np.array_equal(some, sums)


def test_machines_without_avx_make_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    ranges = np.repeat([3, 30, 300, 3000, 32000], 20)
    blocks = np.concatenate([rng.integers(-limit, limit + 1, 256) for limit in ranges]).astype(np.int16)
    quantiser = rng.integers(1, 4, 64).astype(np.int16)
    planes = rng.integers(0, 256, 3 * 4096).astype(np.uint8)
    here = made(blocks, quantiser, planes)
    assert here[1][:40].all() and not here[1][-20:].any()
    for feature in ("has_avx512", "has_avx2"):
        without(feature, monkeypatch)
        for some, others in zip(made(blocks, quantiser, planes), here, strict=True):
            assert np.array_equal(some, others)


def test_tables_of_two_symbols_without_gathers(monkeypatch):
    """Each entry is of the symbols that its bits begin with, on any machine."""
    counts = (0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 3)
    symbols = [0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07]
    symbols += [0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xA1, 0x08, 0x23, 0x42, 0xB1, 0xC1, 0x15, 0x52, 0xD1, 0xF0]
    symbols += [0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0A, 0x16]
    data = np.array([*counts, *symbols], np.uint8)
    tables = []
    for feature in (None, "has_avx512", "has_avx2"):
        if feature is not None:
            without(feature, monkeypatch)

        table = np.zeros(lookups.TABLE, np.int64)
        assert lookups.fill_table(data, 0, table, True, False)
        njit(lookups._add_values.py_func)(table)
        tables.append(table)
    assert all(np.array_equal(tables[0], table) for table in tables)
    seconds = tables[0][: lookups.SIZE] >> 16 & 255 != tables[0][: lookups.SIZE] >> 8 & 255
    assert seconds.mean() > 0.3
