"""Checks that batches and augmentation on a GPU equal the CPU's bit for bit. Imports no models, so it starts fast."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from bench import MODES, Bench, Mode

from fastimg.augment import Policy, apply, draw
from fastimg.augment.backends import backend_of
from fastimg.loaders.crop import Interpolation, Window
from fastimg.loaders.resample import resample


def parity(bench: Bench) -> None:
    """The two basic kernels at one size: augmentation, then the ragged resize."""
    size = bench.sizes.crop
    items = {
        f"augmentation, {name}": partial(_augmented, bench, [name], [(size, size)], (torch.bfloat16, torch.float32))
        for name in POLICIES
    }
    bench.each({**items, "ragged resize": partial(ragged_parity, bench, ("bilinear",))}, seconds=50)


def loader_parity(bench: Bench) -> None:
    """Two epochs on the device, while its stream is busy, compared with one thread on the CPU: bit for bit.

    If the GPU decodes, two runs are compared with each other, since its pixels differ from the CPU's (see
    `gpu_decode`).
    """
    cpu = torch.device("cpu")
    rows = []
    for mode in bench.modes(bench.device):
        expected = _epochs(bench, bench.device, None, mode) if mode == "gpu" else _epochs(bench, cpu, 1, "cpu")
        found = _epochs(bench, bench.device, None, mode)
        pairs = zip(expected, found, strict=True)
        equal = all(torch.equal(a.cpu(), b.cpu()) for rows in pairs for a, b in zip(*rows, strict=True))
        against = "again" if mode == "gpu" else "cpu, 1 thread"
        check = f"{bench.device.type}, all threads, {MODES[mode]} = {against}"
        rows.append({"check": check, "batches": len(found), "ok": equal})
    bench.report("batches, bit for bit", rows)


def _epochs(bench: Bench, device: torch.device, workers: int | None, mode: Mode) -> list[list[torch.Tensor]]:
    batch = bench.sizes.check_batch
    loader = bench.loader(4 * batch + 3, batch, device, workers, mode)  # the last batch is padded
    on_cuda = device.type == "cuda"
    burden = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16) if on_cuda else None
    kept = []
    for _ in range(2):
        for b in loader:
            if burden is not None:  # a few ms: copies run ahead, and must not overwrite what is still to be read
                for _ in range(20):
                    burden = torch.tanh(burden @ burden)
            kept.append([t.clone() for t in (b.inputs, b.targets, b.ids, b.weight)])
    unreadable = loader.unreadable
    loader.close()
    if unreadable:
        raise RuntimeError(f"{len(unreadable)} images could not be read: {next(iter(unreadable.values()))}")
    return kept


def ragged_parity(bench: Bench, filters: Sequence[Interpolation] = ("bilinear", "bicubic")) -> None:
    """The ragged kernel compared with `resample`, for boxes of any shape: bit for bit."""
    bench.need_cuda()
    from fastimg.loaders.backends.ragged import fill_table, place, resize, table_words

    rng = np.random.default_rng(0)
    size = bench.sizes.crop
    taps = 400
    rows = []
    for interpolation in filters:
        shapes = [(1, 1), (1, 900), (900, 1), (size, size), (3000, 2000)]
        shapes += [(int(w), int(h)) for w, h in rng.integers(1, 800, (59, 2))]
        tables = np.zeros((len(shapes), table_words(size, taps)), np.int32)
        expected = np.zeros((len(shapes), size, size, 3), np.uint8)
        images = []
        places = []
        for row, (width, height) in enumerate(shapes):
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            side = size if row % 2 else size + 32  # half of the boxes are as large as the output
            window = Window((0, 0, width, height), (side, side), ((side - size) // 2, (side - size) // 3))
            fitted = fill_table(window, size, interpolation, tables[row])
            assert fitted
            resample(pixels, window, interpolation, expected[row])
            images.append(torch.from_numpy(pixels).to(bench.device))
            places.append(place(images[-1].data_ptr(), (3, 3 * width, 1), window.box, 1))
        out = torch.empty(expected.shape, dtype=torch.uint8, device=bench.device)
        resize(torch.tensor(places, device=bench.device), torch.from_numpy(tables).to(bench.device), out)
        equal = torch.equal(out.cpu(), torch.from_numpy(expected))
        rows.append({"filter": interpolation, "images": len(shapes), "ok": equal})
    bench.report("ragged kernel = resample, bit for bit", rows)


# The policies: each operation alone, and all at once.
POLICIES = {
    "flip": Policy(hflip=0.5, vflip=0.25),
    "trivial": Policy(hflip=0.5, trivial=True),
    "all": Policy(
        hflip=0.5,
        vflip=0.5,
        rotate=30.0,
        brightness=(0.6, 1.4),
        contrast=(0.5, 2.0),
        saturation=(0.0, 2.0),
        trivial=True,
        erase=0.5,
    ),
}


def augment_parity(bench: Bench) -> None:
    """The device's augmentation compared with the reference on the CPU: bit for bit, in every type."""
    types = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)
    _augmented(bench, list(POLICIES), [(bench.sizes.crop, bench.sizes.crop), (37, 53)], types)


def _augmented(
    bench: Bench, names: Sequence[str], sizes: Sequence[tuple[int, int]], types: Sequence[torch.dtype]
) -> None:
    rows = []
    for name in names:
        policy = POLICIES[name]
        for height, width in sizes:
            images = torch.randint(0, 256, (bench.sizes.check_batch, 3, height, width), dtype=torch.uint8)
            plan = draw(policy, torch.arange(len(images)), 0, 0)
            for dtype in types:
                expected = apply(plan, images, policy, dtype, backend="reference")
                sent = images.to(bench.device, memory_format=torch.channels_last)
                found = apply(plan, sent, policy, dtype)
                rows.append(
                    {
                        "check": f"{name}, {height} x {width}, {str(dtype).removeprefix('torch.')}",
                        "backend": backend_of(sent.device),
                        "ok": torch.equal(found.cpu(), expected),
                    }
                )
    bench.report("augmentation = reference, bit for bit", rows)
