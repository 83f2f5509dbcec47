"""The ragged kernel equals `resample` bit for bit: interpreted on the CPU, compiled for an H200, and run on a GPU.

Triton decides on import whether to interpret kernels, so `TestInterpreted` runs in its own process.
"""

import importlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fastimg.loaders.crop import CenterCrop, RandomResizedCrop, Window
from fastimg.loaders.decode import upright
from fastimg.loaders.resample import resample

triton = pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
ragged = importlib.import_module("fastimg.loaders.backends.ragged")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FILTERS = ["bilinear", "bicubic"]
TAPS = 400


def noise(width, height, seed=0):
    """uint8 [H, W, 3]; with few levels if the seed is odd, so that sums overshoot."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return pixels // 128 * 255 if seed % 2 else pixels


def expected(pixels, window, size, interpolation):
    out = np.zeros((size, size, 3), np.uint8)
    resample(pixels, window, interpolation, out)
    return torch.from_numpy(out)


def table_of(window, size, interpolation, taps=TAPS):
    table = np.full(ragged.table_words(size, taps), 99, np.int32)
    assert ragged.fill_table(window, size, interpolation, table)
    return table


def resized(images, size, interpolation, device="cpu"):
    """Run a batch of (tensor [H, W, 3] of any strides, orientation, box as stored, window) through the kernel."""
    places = [
        ragged.place(t.data_ptr(), (t.stride(1), t.stride(0), t.stride(2)), box, orientation)
        for t, orientation, box, _ in images
    ]
    tables = np.stack([table_of(window, size, interpolation) for *_, window in images])
    out = torch.full((len(images), size, size, 3), 77, dtype=torch.uint8, device=device)
    ragged.resize(torch.tensor(places, device=device), torch.from_numpy(tables).to(device), out)
    return out.cpu()


def check(pixels, windows, size, interpolation, device="cpu"):
    images = [(torch.from_numpy(p).to(device), 1, w.box, w) for p, w in zip(pixels, windows, strict=True)]
    found = resized(images, size, interpolation, device)
    for at, (p, w) in enumerate(zip(pixels, windows, strict=True)):
        assert torch.equal(found[at], expected(p, w, size, interpolation)), (p.shape, w)


def random_windows(rng, count, most, size):
    """Boxes of any position and shape, resized to any size; half of them with a window of the output."""
    for number in range(count):
        width, height = rng.integers(1, most, 2).tolist()
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        box = (x, y, int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1)))
        to = (size, size) if number % 2 else tuple(int(size + rng.integers(0, 30)) for _ in range(2))
        yield noise(width, height, number), Window(box, to, tuple(int(rng.integers(0, n - size + 1)) for n in to))


class TestInterpreted:
    __test__ = INTERPRETED

    @pytest.mark.parametrize("interpolation", FILTERS)
    @pytest.mark.parametrize("size", [1, 7, 32])
    def test_boxes_of_any_shape(self, interpolation, size):
        pairs = list(random_windows(np.random.default_rng(size), 10, 50, size))
        check([p for p, _ in pairs], [w for _, w in pairs], size, interpolation)

    @pytest.mark.parametrize("interpolation", FILTERS)
    def test_single_pixels_and_strips(self, interpolation):
        shapes = [(1, 1), (1, 61), (61, 1), (2, 1), (150, 2), (2, 150), (16, 16), (17, 15)]
        windows = [Window((0, 0, *shape), (16, 16), (0, 0)) for shape in shapes]
        check([noise(*shape, seed) for seed, shape in enumerate(shapes)], windows, 16, interpolation)

    def test_crops_of_training_and_evaluation(self):
        rng = np.random.default_rng(3)
        random, centre = RandomResizedCrop(size=24), CenterCrop(size=24, resize=32)
        pixels = [noise(int(w), int(h), i) for i, (w, h) in enumerate(rng.integers(20, 90, (6, 2)))]
        for crop in (random, centre):
            windows = [crop.window(p.shape[1], p.shape[0], rng.random(crop.draws).tolist()) for p in pixels]
            check(pixels, windows, 24, "bilinear")

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientations_and_planes(self, orientation):
        stored, window = noise(37, 26, orientation), Window((5, 3, 20, 15), (18, 16), (2, 0))
        seen = upright(stored, orientation)
        across, down = seen.shape[1], seen.shape[0]
        boxes = {  # where upright (5, 3, 20, 15) is stored
            1: (5, 3, 20, 15),
            2: (across - 25, 3, 20, 15),
            3: (across - 25, down - 18, 20, 15),
            4: (5, down - 18, 20, 15),
            5: (3, 5, 15, 20),
            6: (3, across - 25, 15, 20),
            7: (down - 18, across - 25, 15, 20),
            8: (down - 18, 5, 15, 20),
        }
        assert np.array_equal(upright(_cut(stored, boxes[orientation]), orientation), seen[3:18, 5:25])
        interleaved = torch.from_numpy(stored)
        planar = interleaved.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        rows_apart = torch.cat([interleaved, interleaved], dim=1)[:, : interleaved.shape[1]]
        images = [(layout, orientation, boxes[orientation], window) for layout in (interleaved, planar, rows_apart)]
        for found in resized(images, 16, "bilinear"):
            assert torch.equal(found, expected(seen, window, 16, "bilinear"))

    def test_nothing_beyond_the_box_is_read(self):
        """The box is cut first: pixels around it do not affect the result."""
        window = Window((10, 10, 9, 9), (40, 40), (0, 0))
        one, other = noise(30, 30), noise(30, 30, 2)
        other[10:19, 10:19] = one[10:19, 10:19]
        check([one, other], [window, window], 40, "bicubic")

    def test_rows_without_an_image_and_rows_left_alone(self):
        pixels, window = torch.from_numpy(noise(30, 20)), Window((0, 0, 30, 20), (16, 16), (0, 0))
        tables = np.stack([table_of(window, 16, "bilinear")] * 3)
        tables[0], tables[1, 0] = 0, ragged.LEFT_ALONE
        places = torch.tensor([[0] * 4, [0] * 4, ragged.place(pixels.data_ptr(), (3, 90, 1), window.box, 1)])
        out = torch.full((3, 16, 16, 3), 77, dtype=torch.uint8)
        ragged.resize(places, torch.from_numpy(tables), out)
        assert not out[0].any() and (out[1] == 77).all()
        assert torch.equal(out[2], expected(pixels.numpy(), window, 16, "bilinear"))

    def test_an_empty_batch(self):
        out = torch.empty(0, 8, 8, 3, dtype=torch.uint8)
        ragged.resize(torch.empty(0, 4, dtype=torch.int64), torch.empty(0, 50, dtype=torch.int32), out)


def _cut(pixels, box):
    x, y, width, height = box
    return pixels[y : y + height, x : x + width]


@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_under_the_interpreter(interpreted):
    interpreted(__file__, loops=True)


def matrix(table, size, pixels, axis):
    """The weights of an axis as [size, pixels], and their fractional bits, read from a table."""
    taps = table[axis]
    starts = table[ragged.HEADER + axis * size :][:size]
    first = ragged.HEADER + 2 * size + (table[0] * size if axis else 0)
    weights = np.zeros((size, pixels + taps))
    columns = starts[:, None] + np.arange(taps)
    weights[np.arange(size)[:, None], columns] = table[first:][: taps * size].reshape(taps, size).T
    assert not weights[:, pixels:].any()
    return weights[:, :pixels], int(table[2 + axis])


def by_matrices(pixels, table, size):
    """The kernel's computation in float64, which represents its integers exactly."""
    (across, bits_x), (down, bits_y) = (matrix(table, size, n, axis) for axis, n in enumerate(pixels.shape[1::-1]))
    rows = np.einsum("sw,hwc->hsc", across, pixels.astype(np.float64), optimize=True)
    rows = np.clip(np.floor((rows + 2 ** (bits_x - 1)) / 2**bits_x), 0, 255)
    both = np.einsum("th,hsc->tsc", down, rows, optimize=True)
    return torch.from_numpy(np.clip(np.floor((both + 2 ** (bits_y - 1)) / 2**bits_y), 0, 255).astype(np.uint8))


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
@pytest.mark.parametrize("interpolation", FILTERS)
def test_tables_give_torchs_bits_for_photographs(interpolation):
    """Sizes that are too slow for the interpreter: the tables' arithmetic with matrices."""
    rng = np.random.default_rng(11)
    sizes = [tuple(rng.integers(1, 700, 2).tolist()) for _ in range(40)] + [(1800, 1200), (9, 2000), (224, 224)]
    for number, (width, height) in enumerate(sizes):
        to = (224, 224) if number % 3 else (224 + int(rng.integers(0, 60)), 224 + int(rng.integers(0, 60)))
        window = Window((0, 0, width, height), to, ((to[0] - 224) // 2, (to[1] - 224) // 3))
        pixels = noise(width, height, number)
        found = by_matrices(pixels, table_of(window, 224, interpolation), 224)
        assert torch.equal(found, expected(pixels, window, 224, interpolation)), window


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
def test_a_table_that_is_too_small():
    table = np.zeros(ragged.table_words(16, 6), np.int32)
    assert ragged.fill_table(Window((0, 0, 16, 16), (16, 16), (0, 0)), 16, "bilinear", table)
    assert list(table[:2]) == [2, 2] and list(table[4:6]) == [16, 16]
    for box in ((0, 0, 99, 16), (0, 0, 16, 99), (0, 0, 99, 99)):
        assert not ragged.fill_table(Window(box, (16, 16), (0, 0)), 16, "bilinear", table)


@pytest.mark.skipif(INTERPRETED, reason="needs no interpreter")
@pytest.mark.parametrize("at", [(-1, 0), (0, -1), (1, 0), (0, 1)])
def test_a_window_that_reaches_beyond_the_image_has_no_table(at):
    table = np.zeros(ragged.table_words(16, 6), np.int32)
    assert not ragged.fill_table(Window((0, 0, 16, 16), (16, 16), at), 16, "bilinear", table)


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("size", [224, 37])
def test_the_kernel_compiles_for_an_h200(size, tmp_path, monkeypatch):
    """Needs no device; nothing is spilled."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"out": "*u8", "places": "*i64", "tables": "*i32", "stride": "i32"}
    constants = {"SIZE": size, "ROWS": ragged.ROWS, "BLOCK": ragged.BLOCK}
    source = compiler.ASTSource(ragged._resize, signature, constants)
    found = triton.compile(source, target=target, options=ragged.OPTIONS)
    assert "st.local" not in found.asm["ptx"] and "st.global" in found.asm["ptx"] and len(found.asm["cubin"]) > 1000


@pytest.mark.skipif(INTERPRETED, reason="compiles")
@pytest.mark.parametrize("interpolation", FILTERS)
def test_the_compiled_kernel_executed_on_the_cpu(interpolation, monkeypatch):
    """As PTX, by benchmarks/ptx.py; nothing outside of the images is read."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    kernels = importlib.import_module("kernels")
    pairs = list(random_windows(np.random.default_rng(3), 12, 60, 21))
    tensors = [torch.from_numpy(pixels) for pixels, _ in pairs]
    monkeypatch.setattr(ragged, "_resize", kernels.Executing(ragged._resize, tensors=tensors))
    check([p for p, _ in pairs], [w for _, w in pairs], 21, interpolation)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or INTERPRETED, reason="needs a CUDA device")
@pytest.mark.parametrize("interpolation", FILTERS)
def test_on_a_device(interpolation):
    pairs = list(random_windows(np.random.default_rng(5), 64, 500, 224))
    check([p for p, _ in pairs], [w for _, w in pairs], 224, interpolation, "cuda")
