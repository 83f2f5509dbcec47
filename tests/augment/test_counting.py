"""The statistics pass in CUDA C++: executed on the CPU, compiled for an H200, and launched on a fake device."""

import importlib
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastimg.augment.ops import Op, luma

pytest.importorskip("triton", reason="needs Triton, which torch brings on Linux")
counting = importlib.import_module("fastimg.augment.fused.counting")

from .cuda_on_cpu import counter_on_cpu  # noqa: E402


@pytest.fixture(scope="module")
def counter():
    return counter_on_cpu()


OPS = [Op.EQUALIZE, Op.AUTOCONTRAST, Op.CONTRAST]


def expected(images, ops, tables=None):
    """counts int64 [B, 770], by bincount."""
    counts = torch.zeros(len(images), 770, dtype=torch.int64)
    for count, image, op, number in zip(counts, images, ops, range(len(images)), strict=True):
        levels = image.reshape(3, -1).to(torch.int64)
        if tables is not None:
            levels = tables[number].view(3, 256).to(torch.int64).gather(1, levels)
        for channel in range(3):
            if op == Op.EQUALIZE:
                count[256 * channel :][:256] = torch.bincount(levels[channel], minlength=256)
            elif op == Op.AUTOCONTRAST:
                count[256 * channel :][:2] = torch.stack([255 - levels[channel].min(), levels[channel].max()])
        if op == Op.CONTRAST:
            count[768] = luma(*levels.to(torch.int32)).sum()
    return counts


def layouts(rng, height, width):
    """Three images [3, 3, H, W], as they may lie in memory."""
    whole = torch.from_numpy(rng.integers(3, 250, (6, height + 2, width + 3, 3), dtype=np.uint8))
    last = whole[:3, :height, :width].contiguous().permute(0, 3, 1, 2)
    odd = torch.empty(last.numel() + 1, dtype=torch.uint8)[1:].view(3, height, width, 3)
    return {
        "channels last": last,
        "contiguous": last.contiguous(),
        "a window": whole[1:4, 1:-1, 2:-1].permute(0, 3, 1, 2),
        "every other": whole[::2, :height, :width].permute(0, 3, 1, 2),
        "blue first": last.contiguous().flip(1).transpose(2, 3).contiguous().transpose(2, 3),
        "at an odd address": odd.copy_(last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
        "the same": last[:1].expand(3, -1, -1, -1),
    }


def there(images, device):
    """The same images on a device, as they lie in memory."""
    memory = torch.empty(0, dtype=torch.uint8).set_(images.untyped_storage()).to(device)
    return memory.as_strided(images.shape, images.stride(), images.storage_offset())


def counted(counter, images, ops, rows, tables=None):
    words = torch.full((len(images), 5), -1, dtype=torch.int32)
    words[:, 2], words[: len(rows), 4] = torch.tensor(ops), torch.tensor(rows)
    counts = torch.zeros(len(images), 770, dtype=torch.int64)
    counting.count(counter, counts, images, words[:, 2], words[:, 4], len(rows), tables)
    return counts


@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (3, 5), (37, 53), (16, 24), (131, 128)], ids=str)
def test_counts_of_any_layout(counter, shape):
    """For each operation, in one block or two; in words or byte by byte, and both."""
    rng = np.random.default_rng(0)
    for number, (name, images) in enumerate(layouts(rng, *shape).items()):
        ops = OPS[number % 3 :] + OPS[: number % 3]
        assert torch.equal(counted(counter, images, ops, [0, 1, 2]), expected(images, ops)), name
        blocks, values = counter.launches[-1]
        assert blocks == (6 if shape == (131, 128) else 3)
        pixels, groups = shape[0] * shape[1], values[-4]  # groups of 16 pixels that are read in words
        whole = name == "the same" or (name == "channels last" and pixels % 16 == 0)
        assert groups == (pixels // 16 if whole else 0)


def test_only_the_images_that_are_listed(counter):
    images = next(iter(layouts(np.random.default_rng(1), 16, 16).values()))
    ops = [Op.EQUALIZE, Op.IDENTITY, Op.CONTRAST]
    counts, all_ = counted(counter, images, ops, [2]), expected(images, ops)
    assert torch.equal(counts[2], all_[2]) and not counts[:2].any()
    assert torch.equal(counted(counter, images, ops, [2, 0]), all_)


@pytest.mark.parametrize("op", OPS)
def test_levels_are_looked_up_beforehand(counter, op):
    rng = np.random.default_rng(2)
    tables = torch.from_numpy(rng.integers(0, 256, (3, 4, 768), dtype=np.uint8))[:, 2]
    for name, images in layouts(rng, 17, 16).items():
        assert torch.equal(counted(counter, images, [op] * 3, [1, 2, 0], tables), expected(images, [op] * 3, tables)), (
            name
        )


def test_extremes(counter):
    """One level: all in one bin; and the least and the greatest there are."""
    for level in (0, 255):
        images = torch.full((3, 64, 64, 3), level, dtype=torch.uint8).permute(0, 3, 1, 2)
        assert torch.equal(counted(counter, images, OPS, [0, 1, 2]), expected(images, OPS))


def test_it_compiles_for_an_h200():
    """Needs no device. Images in one piece are read by 16 bytes; a warp's equal levels are one addition."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("compiles")
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings, which torch brings with CUDA")
    sys.path.append(str(counting.SOURCE.resolve().parents[2] / "benchmarks"))
    try:
        kernels = importlib.import_module("kernels")
    finally:
        sys.path.pop()
    compiled = kernels.counting_kernel()
    assert compiled.spills == 0 and compiled.registers <= 64 and compiled.shared <= 27 * 1024
    text = "\n".join(kernels.bare(compiled.code))
    assert "ATOMS.POPC.INC" in text and kernels.widths(compiled.code, "LDG").startswith("128 x 18")
    with pytest.raises(counting.CountingError, match="NVRTC for sm_1: "):
        counting.compiled("sm_1")


class FakeCUDA:
    """cuda.bindings, and torch.cuda's device and stream; notes calls."""

    def __init__(self, fails=None):
        self.calls, self.fails, self.device = [], fails, 0
        for name in ("nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"):
            setattr(self, name, self.answer(name))
        for name in ("nvrtcDestroyProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "cuLaunchKernel"):
            setattr(self, name, self.answer(name))
        for name in ("cuModuleLoadData", "cuModuleGetFunction"):
            setattr(self, name, self.answer(name))
        self.nvrtcGetErrorString = lambda status: (0, b"NVRTC_ERROR_COMPILATION")

    def answer(self, name):
        values = {"nvrtcGetCUBINSize": 5, "nvrtcGetProgramLogSize": 12, "cuModuleGetFunction": "the function"}

        def call(*given):
            self.calls.append((name, self.device, given))
            if name == "nvrtcGetProgramLog":
                given[1][:] = b"bad options\0"
            status = int(name == self.fails)
            return (status, values[name]) if name in values else (status, "program") if "Create" in name else (status,)

        return call


@pytest.fixture
def cuda(monkeypatch):
    def install(fails=None):
        fake = FakeCUDA(fails)
        fake.__name__ = "cuda.bindings.fake"
        for name in ("cuda", "cuda.bindings", "cuda.bindings.nvrtc", "cuda.bindings.driver"):
            monkeypatch.setitem(sys.modules, name, fake)

        class On:
            def __init__(self, device):
                self.device = device

            def __enter__(self):
                self.before, fake.device = fake.device, self.device.index

            def __exit__(self, *error):
                fake.device = self.before

        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "device", On)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0xABC))
        monkeypatch.setattr(counting, "_make_current", lambda device: fake.calls.append(("current", fake.device, ())))
        counting.counter_of.cache_clear()
        return fake

    yield install
    counting.counter_of.cache_clear()


def test_a_launch_on_a_fake_device(cuda):
    """Compiled once for the device's architecture, loaded on that device, launched on torch's stream."""
    fake = cuda()
    made = counting.counter_of(torch.device("cuda", 3))
    assert counting.counter_of(torch.device("cuda", 3)) is made and made.words == "CUDA C++"
    names = [name for name, _, _ in fake.calls]
    assert names.count("nvrtcCompileProgram") == names.count("cuModuleLoadData") == 1
    given = {name: (device, values) for name, device, values in fake.calls}
    assert b"--gpu-architecture=sm_90" in given["nvrtcCompileProgram"][1][2]
    assert given["nvrtcCreateProgram"][1][0] == counting.SOURCE.read_bytes()
    assert names.index("current") < names.index("cuModuleLoadData") and given["current"][0] == 3
    assert given["cuModuleLoadData"][0] == 3 and given["cuModuleGetFunction"][1][1] == b"statistics"
    images = torch.zeros(2, 224, 224, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    counts, words = torch.zeros(2, 770, dtype=torch.int64), torch.zeros(2, 7, dtype=torch.int32)
    tables = torch.zeros(2, 3, 768, dtype=torch.uint8)[:, 1]
    counting.count(made, counts, images, words[:, 3], words[1:, 5], 1, tables)
    name, _, (function, *numbers, stream, (values, types), extra) = fake.calls[-1]
    assert (name, function, extra) == ("cuLaunchKernel", "the function", 0) and stream == 0xABC
    assert numbers == [4, 1, 1, counting.THREADS, 1, 1, 0] and types == counting.TYPES
    assert values[:2] == (counts.data_ptr(), images.data_ptr()) and values[2:6] == (150528, 1, 672, 3)
    assert values[6:9] == (words[:, 3].data_ptr(), words[1:, 5].data_ptr(), 7)
    assert values[9:] == (tables.data_ptr(), 2304, 50176, 224, 3136, 4, int(Op.CONTRAST), int(Op.EQUALIZE))


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("nvrtcCompileProgram", "Triton (NVRTC for sm_90: bad options)"),
        ("cuModuleLoadData", "Triton (fake answered 1)"),
    ],
)
def test_why_triton_counts_is_told(cuda, fails, words):
    cuda(fails)
    assert counting.counter_of(torch.device("cuda", 0)).words == words


def test_without_the_library(cuda, monkeypatch):
    cuda()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    said = counting.counter_of(torch.device("cuda", 0)).words
    assert said.startswith("Triton (") and "cuda.bindings.nvrtc" in said


def test_a_launch_that_fails_is_an_error(cuda):
    fake = cuda("cuLaunchKernel")
    with pytest.raises(counting.CountingError, match="answered 1"):
        counting.LevelCounter("function").launch(1, ())
    assert fake.calls[-1][0] == "cuLaunchKernel"
    assert counting.counter_of(torch.device("cpu")).words == "Triton (no GPU with CUDA)"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    device = torch.device("cuda", 0)
    made = counting.counter_of(torch.empty(1, device=device).device)
    assert made.missing is None, made.missing
    for shape in ((1, 1), (37, 53), (224, 224)):
        for name, images in layouts(np.random.default_rng(0), *shape).items():
            words = torch.tensor([[int(op), row] for row, op in enumerate(OPS)], dtype=torch.int32, device=device)
            counts = torch.zeros(3, 770, dtype=torch.int64, device=device)
            moved = there(images, device)
            counting.count(made, counts, moved, words[:, 0], words[:, 1], 3, None)
            assert torch.equal(counts.cpu(), expected(images, OPS)), name
