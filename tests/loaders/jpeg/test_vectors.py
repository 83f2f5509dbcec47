"""Vector code by AVX2's instructions, and in LLVM's terms for other machines: the same bits."""

import numpy as np
from numba import njit

from fastimg.loaders.jpeg.decoding import dct, vectors


def made(blocks, quantiser, planes):
    """Samples of pairs of blocks, whether they are sound, and the colours of planes; compiled anew at each call."""

    def kernel(blocks, quantiser, planes, samples, sound, colours):
        for i in range(sound.size):
            at = 128 * i
            sound[i] = dct.inverse_dct(blocks, at, at + 64, quantiser, 0, samples, at, at + 64, 8)
        for y in range(0, planes.size // 3, vectors.WIDE):
            size = planes.size // 3
            vectors.to_rgb(planes, y, planes, size + y, 2 * size + y, colours, y, size)

    samples, sound = np.zeros(blocks.size, np.uint8), np.zeros(blocks.size // 128, bool)
    colours = np.zeros(planes.size, np.uint8)
    njit(kernel)(blocks, quantiser, planes, samples, sound, colours)
    return samples, sound, colours


def summed(source, weights, taps, precision):
    """`weighted` of the first `taps` rows, compiled anew at each call."""

    def kernel(source, weights, taps, precision, out):
        vectors.weighted(source, 1, 99, weights, 2, taps, precision, out, 3, 2)

    out = np.zeros(3 + 2 * vectors.WIDE, np.uint8)
    compiled = njit(kernel)
    found = []
    for number in taps:
        held = weights.copy()
        held[2 + number] = 0
        compiled(source, held, number, precision, out)
        found.append(out[3:].copy())
    return found


def test_weighted_sums_of_any_number_of_rows(monkeypatch):
    rng = np.random.default_rng(0)
    taps, precision = (1, 2, 3, 5, 8, 9, 14), 14
    source = rng.integers(0, 256, 99 * 14).astype(np.uint8)
    weights = rng.integers(-9000, 16000, 17).astype(np.int16)
    here = summed(source, weights, taps, precision)
    for number, sums in zip(taps, here, strict=True):
        rows = source.reshape(14, 99)[:number, 1 : 1 + 2 * vectors.WIDE].astype(np.int64)
        whole = (weights[2 : 2 + number, None] * rows).sum(axis=0) + (1 << (precision - 1)) >> precision
        assert np.array_equal(sums, whole.clip(0, 255))
    monkeypatch.setattr(vectors, "has_avx2", lambda context: False)
    assert np.array_equal(summed(source, weights, taps, precision), here)


def test_machines_without_avx2_make_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    ranges = np.repeat([3, 30, 300, 3000, 32000], 40)
    blocks = np.concatenate([rng.integers(-limit, limit + 1, 128) for limit in ranges]).astype(np.int16)
    quantiser = rng.integers(1, 4, 64).astype(np.int16)
    planes = rng.integers(0, 256, 3 * 4096).astype(np.uint8)
    here = made(blocks, quantiser, planes)
    for module in (dct, vectors):
        monkeypatch.setattr(module, "has_avx2", lambda context: False)
    portable = made(blocks, quantiser, planes)
    for some, others in zip(portable, here, strict=True):
        assert np.array_equal(some, others)
    assert here[1][:80].all() and not here[1][-40:].any()
