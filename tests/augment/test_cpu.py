"""The compiled path equals the reference bit for bit: every operation, size, type, layout and number of threads."""

import os
import subprocess
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from numba.core.runtime import _nrt_python, rtsys

from fastimg.augment import Policy, apply, draw
from fastimg.augment.backends import backend_of
from fastimg.augment.cpu import images as cpu_images
from fastimg.augment.cpu.levels import _smooth
from fastimg.augment.cpu.results import ResultPool
from fastimg.augment.cpu.threads import in_threads
from fastimg.augment.ops import smooth

pytestmark = pytest.mark.usefixtures("threads")
EVERYTHING = Policy(
    hflip=0.5,
    vflip=0.5,
    rotate=30,
    brightness=(0.5, 1.5),
    contrast=(0.5, 1.5),
    saturation=(0.5, 1.5),
    trivial=True,
    erase=0.3,
    erase_value=(1.0, 2.0, -1.0),
)
POLICIES = {
    "everything": EVERYTHING,
    "trivial": Policy(hflip=0.5, trivial=True),
    "flips": Policy(hflip=0.5, vflip=0.5, erase=0.2),
    "rotation": Policy(rotate=180, hflip=0.5),
    "jitter": Policy(brightness=(0.0, 3.0), contrast=(0.0, 3.0), saturation=(0.0, 3.0)),
    "rotated contrast": Policy(rotate=10, contrast=(0.2, 2.0), trivial=True),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8]
SIZES = [(1, 1), (1, 7), (7, 1), (2, 2), (2, 5), (3, 3), (5, 2), (37, 53), (64, 64)]


def images(batch, height, width, seed=0):
    """Noise, ramps, one colour, and few levels, alternating."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (batch, height, width, 3), dtype=np.uint8)
    pixels[1::4] = pixels[1::4] // 3 + np.linspace(0, 100, width).astype(np.uint8)[:, None]
    pixels[2::4] = pixels[2::4, :1, :1]
    pixels[3::4] = pixels[3::4] // 80 * 80
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1)], ids=str)
@pytest.mark.parametrize("step", [0, 1, 1000])
def test_axes_of_length_1_have_any_stride(size, step):
    """torch and NumPy call them contiguous, and compiled code computes addresses from shapes."""
    for batch in (1, 2):
        plain = images(batch, *size).permute(0, 2, 3, 1).contiguous()
        strides = [step if count == 1 else stride for count, stride in zip(plain.shape, plain.stride(), strict=True)]
        odd = plain.as_strided(plain.shape, strides).permute(0, 3, 1, 2)
        plan = draw(EVERYTHING, np.arange(batch), 1, 1)
        expected = apply(plan, plain.permute(0, 3, 1, 2), EVERYTHING, torch.float32, backend="reference")
        for backend in ("reference", "cpu"):
            assert torch.equal(apply(plan, odd, EVERYTHING, torch.float32, backend=backend), expected)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_equal_the_reference(policy, size):
    batch = 240 if max(size) < 60 else 80
    source, plan = images(batch, *size), draw(policy, np.arange(batch), 1, 1)
    for dtype in DTYPES:
        expected = apply(plan, source, policy, dtype, backend="reference")
        got = apply(plan, source, policy, dtype, backend="cpu")
        assert torch.equal(got, expected), [i for i in range(batch) if not torch.equal(got[i], expected[i])]
        assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(16, 16), (16, 5), (9, 6), (7, 17)], ids=str)
def test_bits_of_results_that_caches_do_not_hold(size, monkeypatch):
    """They are streamed to memory where rows are whole cache lines, as those of 16 pixels are."""
    monkeypatch.setattr(cpu_images, "_STREAMED", 0)
    source = images(240, *size)
    for policy in (EVERYTHING, POLICIES["flips"]):
        for plan in (draw(policy, np.arange(240), 1, 1), None):
            for dtype in DTYPES:
                expected = apply(plan, source, policy, dtype, backend="reference")
                assert torch.equal(apply(plan, source, policy, dtype, backend="cpu"), expected)


def test_nothing_behind_a_result_is_written():
    """Not by vectors, nor by pixels copied with the byte behind them; sizes with every remainder."""
    for width in range(1, 36):
        source, plan = images(3, 4, width), draw(EVERYTHING, np.arange(3), width, 0)
        whole = torch.full((5, 4, width, 3), 7.0)
        out = whole[1:4].permute(0, 3, 1, 2)
        assert torch.equal(
            apply(plan, source, EVERYTHING, out=out), apply(plan, source, EVERYTHING, backend="reference")
        )
        assert (whole[0] == 7).all() and (whole[4] == 7).all()


def test_calls_for_fewer_images_than_threads_start_no_new_ones(monkeypatch):
    before, called, started = torch.get_num_threads(), [], []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread) or start(thread))
    torch.set_num_threads(4)
    try:
        for count in (16, 3) * 20:
            in_threads(lambda first, last: called.append(last - first), count)
    finally:
        torch.set_num_threads(before)
    assert sum(called) == 19 * 20 and len(started) <= 3


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads(threads):
    source, before = images(67, 19, 23), torch.get_num_threads()
    plan = draw(EVERYTHING, np.arange(67), 2, 0)
    expected = apply(plan, source, EVERYTHING, backend="reference")
    torch.set_num_threads(threads)
    try:
        for size in (67, 1, 2):
            part = draw(EVERYTHING, np.arange(size), 2, 0)
            assert torch.equal(apply(part, source[:size], EVERYTHING), expected[:size])
    finally:
        torch.set_num_threads(before)


def test_any_layout():
    source, plan = images(12, 20, 30), draw(EVERYTHING, np.arange(12), 2, 0)
    expected = apply(plan, source, EVERYTHING)
    padded = torch.zeros(12, 3, 40, 64, dtype=torch.uint8)
    padded[:, :, 5:25, 3:63:2] = source
    for other in (source.contiguous(), padded[:, :, 5:25, 3:63:2], source.flip(3).flip(3)):
        assert torch.equal(apply(plan, other, EVERYTHING), expected)
    assert torch.equal(apply(plan, source[:1].expand(12, -1, -1, -1), EVERYTHING)[0], expected[0])


def test_images_of_changing_size():
    """Scratch memory is kept between calls."""
    for size in ((40, 50), (3, 90), (64, 64), (2, 2), (90, 3), (50, 40)):
        source, plan = images(30, *size), draw(EVERYTHING, np.arange(30), 2, 0)
        assert torch.equal(apply(plan, source, EVERYTHING), apply(plan, source, EVERYTHING, backend="reference"))


def test_callers_do_not_disturb_each_other():
    source, plan = images(40, 33, 31), draw(EVERYTHING, np.arange(40), 2, 0)
    expected = apply(plan, source, EVERYTHING)
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(apply(plan, source, EVERYTHING), expected):
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_in_inference_mode():
    source, plan = images(4, 9, 8), draw(EVERYTHING, np.arange(4), 2, 0)
    expected = apply(plan, source, EVERYTHING)
    with torch.inference_mode():
        assert torch.equal(apply(plan, source, EVERYTHING), expected)
        assert torch.equal(apply(plan, source.clone(), EVERYTHING), expected)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_only_the_result_is_allocated(policy):
    """In the steady state only small Python objects are allocated, and numba's notes on the arrays passed to it."""
    source, plan = images(64, 96, 96), draw(policy, np.arange(64), 2, 0)
    out = apply(plan, source, policy)
    for _ in range(20):  # until every thread has its scratch
        apply(plan, source, policy, out=out)
    _nrt_python.memsys_enable_stats()
    tracemalloc.start()
    try:
        before = rtsys.get_allocation_stats()
        apply(plan, source, policy, out=out)
        after = rtsys.get_allocation_stats()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        _nrt_python.memsys_disable_stats()
    arrays, calls = 14, 8 * torch.get_num_threads()
    assert after.alloc - before.alloc <= arrays * calls and after.alloc - after.free == before.alloc - before.free
    assert peak < 100_000 < source[0].numel() * 4  # less than one image


def test_memory_of_a_released_result_is_reused():
    results, shape = ResultPool(capacity=2), (4, 100, 100, 3)
    first = results.tensor(shape, torch.float32)
    address = first.data_ptr()
    assert address % 64 == 0 and first.is_contiguous() and first.shape == shape and first.dtype == torch.float32
    part = first.permute(0, 3, 1, 2)[1:, :, 3]  # shares its storage
    del first
    second = results.tensor(shape, torch.float32)
    assert second.data_ptr() != address
    array = part.numpy()
    del part
    assert results.tensor(shape, torch.float32).data_ptr() not in (address, second.data_ptr())
    del array, second
    kept = {results.tensor(shape, torch.float32).data_ptr() for _ in range(5)}
    assert len(kept) == 1
    assert results.tensor((4, 90, 100, 3), torch.float32).data_ptr() in kept
    assert results.tensor((4, 2, 100, 3), torch.float32).data_ptr() not in kept  # no large buffer for a small result
    assert results.tensor(shape, torch.bfloat16).dtype == torch.bfloat16


def test_memory_of_a_referenced_result_is_not_reused():
    source = images(20, 64, 64)
    plans = [draw(EVERYTHING, np.arange(20), seed, 0) for seed in range(6)]
    held = [apply(plan, source, EVERYTHING) for plan in plans]
    for plan, got in zip(plans, held, strict=True):
        assert torch.equal(got, apply(plan, source, EVERYTHING, backend="reference"))
    weights = torch.ones(3, requires_grad=True)
    loss = (apply(plans[0], source, EVERYTHING) * weights.view(3, 1, 1)).sum()  # held only by autograd
    apply(plans[1], source, EVERYTHING)
    loss.backward()
    torch.testing.assert_close(weights.grad, held[0].sum((0, 2, 3)))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_out(backend):
    source, plan = images(6, 9, 8), draw(EVERYTHING, np.arange(6), 2, 0)
    for dtype in DTYPES:
        expected = apply(plan, source, EVERYTHING, dtype)
        out = torch.empty_like(expected)
        assert apply(plan, source, EVERYTHING, dtype, backend=backend, out=out) is out
        assert torch.equal(out, expected)
        for wrong in (out[:5], out[:, :, :8], out.contiguous(), out.to(torch.float64)):
            with pytest.raises(ValueError, match="out must be"):
                apply(plan, source, EVERYTHING, dtype, backend=backend, out=wrong)


def test_backends():
    assert backend_of(torch.device("cpu")) == "cpu" and backend_of(torch.device("meta")) == "reference"
    with pytest.raises(ValueError, match="backend must be one of reference, cpu, fused; got 'gpu'"):
        apply(None, images(2, 4, 4), Policy(), backend="gpu")
    with pytest.raises(ValueError, match="the cpu backend needs images on the CPU; they are on meta"):
        apply(None, torch.empty(2, 3, 4, 4, dtype=torch.uint8, device="meta"), Policy(), backend="cpu")


def test_division_by_13():
    total = torch.arange(13 * 255 + 1, dtype=torch.int32)
    assert [int(_smooth(t)) for t in total.tolist()] == smooth(total, torch.zeros_like(total)).tolist()


FORKED = """
import os
import numpy as np, torch
from fastimg.augment import Policy, apply, draw
torch.set_num_threads(2)
policy, images = Policy(trivial=True), torch.arange(16 * 3 * 9 * 8).to(torch.uint8).view(16, 3, 9, 8)
plan = draw(policy, np.arange(16), 0, 0)
expected = apply(plan, images, policy).numpy().tobytes()
child = os.fork()
if not child:
    os._exit(0 if apply(plan, images, policy).numpy().tobytes() == expected else 3)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_threads_of_its_own(python):
    subprocess.run([python, "-W", "ignore", "-c", FORKED], check=True, timeout=120)
