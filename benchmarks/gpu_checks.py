"""Checks that a GPU computes the same as the CPU. Each check reports rows with `ok`."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gpu_test_log
import measure
import torch
import torch.distributed as dist
from bench import MODES, Bench, SkippedError
from gpu_loaders import epoch_rate
from gpu_summary import read
from images import list_images
from step import Stepper
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fastimg.loaders.decode import decode, read_header
from fastimg.loaders.extras import install
from fastimg.loaders.runtime.scratch import Scratch
from fastimg.train.optimisers.construction import build_optimizer


def amp(bench: Bench) -> None:
    """One step in bf16 (and fp16 on a GPU) compared with float32 from the same weights: finite, and close."""
    images, targets = bench.random_batch(bench.sizes.check_batch)
    dtypes = [torch.bfloat16] + ([torch.float16] if bench.device.type == "cuda" else [])
    rows = []
    for arch in bench.sizes.check_archs:
        with _full_float32():
            loss, gradient = _gradient(
                Stepper(arch, bench.device, torch.float32, size=bench.sizes.crop), images, targets
            )
        for dtype in dtypes:
            found, other = _gradient(Stepper(arch, bench.device, dtype, size=bench.sizes.crop), images, targets)
            difference = abs(found - loss) / loss
            cosine = float(torch.nn.functional.cosine_similarity(gradient, other, dim=0))
            rows.append(
                {
                    "arch": arch,
                    "type": str(dtype).removeprefix("torch."),
                    "loss": round(found, 5),
                    "float32": round(loss, 5),
                    "gradient_cosine": round(cosine, 5),
                    "ok": bool(torch.isfinite(other).all()) and difference < 0.02 and cosine > 0.9,
                }
            )
    bench.report("loss within 2 %, cosine of gradients above 0.9", rows)


def _gradient(stepper: Stepper, images: torch.Tensor, targets: torch.Tensor) -> tuple[float, torch.Tensor]:
    scaled = stepper.scaler.is_enabled()  # a scale that does not overflow; a real run first searches for one
    stepper.scaler = torch.amp.GradScaler(images.device.type, init_scale=1024.0, enabled=scaled)
    loss = float(stepper.backward(images, targets))
    gradients = [p.grad.float().flatten() for p in stepper.module.parameters() if p.grad is not None]
    return loss, torch.cat(gradients).double() / stepper.scaler.get_scale()


@contextmanager
def _full_float32() -> Iterator[None]:
    """Disable TF32, which the trainer allows."""
    precision = torch.get_float32_matmul_precision()
    allowed = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = allowed


def fp16_scaler(bench: Bench) -> None:
    """fp16 with the gradient scaler: the loss falls, and a gradient that overflows is dropped and halves the scale."""
    bench.need_cuda()
    stepper = Stepper(bench.sizes.check_archs[0], bench.device, torch.float16, size=bench.sizes.crop)
    images, targets = bench.random_batch(16)
    losses = torch.stack([stepper(images, targets) for _ in range(30)]).tolist()
    scale = stepper.scaler.get_scale()
    before = [p.detach().clone() for p in stepper.module.parameters()]
    stepper.backward(images, targets)
    gradient = next(p.grad for p in stepper.module.parameters() if p.grad is not None)
    gradient.fill_(float("inf"))
    stepper.scaler.step(stepper.optimizer)
    stepper.scaler.update()
    kept = all(torch.equal(a, b) for a, b in zip(before, stepper.module.parameters(), strict=True))
    halved = stepper.scaler.get_scale() == scale / 2
    learns = all(map(_finite, losses)) and losses[-1] < losses[0]
    row = {"first_loss": round(losses[0], 4), "last_loss": round(losses[-1], 4), "scale": scale}
    bench.report(
        "30 steps, then an overflow", [{**row, "dropped": kept, "halved": halved, "ok": learns and kept and halved}]
    )


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def compiled(bench: Bench) -> None:
    """torch.compile of a small model: three steps compared with eager mode, and the number of graphs."""
    rows = []
    images, targets = bench.random_batch(bench.sizes.check_batch)
    for arch in bench.sizes.compile_archs:
        torch._dynamo.reset()
        counters.clear()
        eager = Stepper(arch, bench.device, size=bench.sizes.crop)
        stepper = Stepper(arch, bench.device, size=bench.sizes.crop)
        stepper.module = torch.compile(stepper.module, backend=bench.sizes.compile_backend)  # type: ignore[assignment]
        expected = torch.stack([eager(images, targets) for _ in range(3)])
        found = torch.stack([stepper(images, targets) for _ in range(3)])
        graphs = counters["stats"]["unique_graphs"]
        breaks = sum(counters["graph_break"].values())
        difference = float(((found - expected).abs() / expected.abs()).max())
        row = {"arch": arch, "backend": bench.sizes.compile_backend, "graphs": graphs, "graph_breaks": breaks}
        rows.append({**row, "loss_difference": round(difference, 6), "ok": graphs >= 1 and difference < 0.02})
    bench.report("compiled against eager, 3 steps", rows)


def fsdp2(bench: Bench) -> None:
    """`fully_shard` over one rank, with each optimiser: three steps in float32 compared with the unsharded model."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    backend = "nccl" if bench.device.type == "cuda" else "gloo"
    rows = []
    with tempfile.TemporaryDirectory() as folder, _full_float32():
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            for opt in ("adamw", "sgd"):
                row = {"arch": bench.sizes.check_archs[1], "backend": backend, "optimizer": opt}
                try:
                    rows.append({**row, **_sharded_against_plain(bench, opt)})
                except NotImplementedError as error:  # an operation that sharded tensors do not support
                    rows.append({**row, "ok": False, "error": str(error).splitlines()[0]})
        finally:
            dist.destroy_process_group()
    bench.report("sharded against plain, 3 steps", rows)


def _sharded_against_plain(bench: Bench, opt: Literal["adamw", "sgd"]) -> dict[str, float | bool]:
    images, targets = bench.random_batch(bench.sizes.check_batch)
    mesh = init_device_mesh(bench.device.type, (1,))
    plain, sharded = (
        Stepper(bench.sizes.check_archs[1], bench.device, torch.float32, size=bench.sizes.crop) for _ in range(2)
    )
    for block in sharded.module.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(sharded.module, mesh=mesh)
    for stepper in (plain, sharded):
        momentum = 0.9 if opt == "sgd" else None
        stepper.optimizer = build_optimizer(stepper.module, opt, lr=1e-3, weight_decay=1e-4, momentum=momentum)
    expected = torch.stack([plain(images, targets) for _ in range(3)])
    found = torch.stack([sharded(images, targets) for _ in range(3)])
    difference = float((found - expected).abs().max())
    return {"loss": round(float(found[-1]), 5), "difference": difference, "ok": difference < 1e-4}


def gpu_decode(bench: Bench) -> None:
    """Other JPEG decoders compared with fastimg's: reported, and for nvImageCodec, which `--decode gpu` uses, bounded.

    Then the loader's rate with nvImageCodec and on the CPU, alternating.
    """
    items = {"decoders": partial(_decoders, bench)}
    if "gpu" in bench.modes(bench.device):
        items["rates"] = partial(_decoding_rates, bench)
    bench.each(items, seconds=60)


def _decoding_rates(bench: Bench) -> None:
    loaders = {
        mode: bench.loader(16 * bench.sizes.batch, bench.sizes.batch, bench.device, None, mode) for mode in MODES
    }
    for loader in loaders.values():
        loader.compile()  # as training of as many images as ImageNet has does by itself
    speeds = measure.interleaved(
        {mode: partial(epoch_rate, loader) for mode, loader in loaders.items()}, bench.sizes.repeats
    )
    rows = [
        {
            "by": MODES[mode],
            "images_per_second": speeds[mode],
            "threads": loader.workers,
            "rerouted": len(loader.rerouted),
        }
        for mode, loader in loaders.items()
    ]
    for loader in loaders.values():
        loader.close()
    bench.report(f"the loader, batch {bench.sizes.batch}", rows)


def _decoders(bench: Bench) -> None:
    from torchvision.io import ImageReadMode, decode_jpeg  # deprecated since 0.29, to be removed

    rows: list[dict[str, Any]] = []
    paths = [bench.folder / name for name in list_images(bench.folder)]
    encoded = [data for data in (path.read_bytes() for path in paths[:64]) if _plain_jpeg(data)]
    expected = [torch.from_numpy(decode(data, read_header(data), Scratch())) for data in encoded]  # [H, W, 3]
    for device in dict.fromkeys(("cpu", bench.device.type)):
        tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in encoded]
        found = decode_jpeg(tensors, mode=ImageReadMode.RGB, device=device)
        measure.synchronise(bench.device)  # a hardware decoder may ignore the stream
        absolute = torch.cat(
            [(a.permute(1, 2, 0).cpu().int() - b.int()).abs().flatten() for a, b in zip(found, expected, strict=True)]
        )
        row = {"decoder": f"torchvision, {device}", "images": len(encoded)}
        mean = float(absolute.float().mean())
        largest = int(absolute.max())
        differ = float((absolute > 0).float().mean())
        rows.append({**row, "mean_difference": round(mean, 4), "largest": largest, "share_unequal": round(differ, 4)})
    if "gpu" in bench.modes(bench.device):
        rows.append(_codec_against_cpu(bench))
    else:
        bench.console.print(
            f"{bench.section}: nvImageCodec is skipped; it needs CUDA and `{install('gpu')}`", markup=False
        )
        bench.keep({"title": "nvImageCodec", "skipped": "needs CUDA and the extra gpu"})
    bench.report("levels of 0-255, against fastimg's decoder", rows)


def _codec_against_cpu(bench: Bench) -> dict[str, Any]:
    """Whole batches of resized crops from the loader with --decode gpu and with --decode cpu."""
    batch = bench.sizes.check_batch
    sums = [0.0, 0.0, 0.0]
    refused = 0
    pair = [bench.loader(4 * batch, batch, bench.device, None, mode) for mode in ("gpu", "cpu")]
    for ours, theirs in zip(*pair, strict=True):
        difference = (ours.inputs.int() - theirs.inputs.int()).abs()
        sums[0] += float(difference.float().mean())
        sums[1] = max(sums[1], float(difference.max()))
        sums[2] += float((difference > 0).float().mean())
    refused = len(pair[0].rerouted)
    for one in pair:
        one.close()
    mean = sums[0] / 4
    differ = sums[2] / 4
    return {
        "decoder": "nvImageCodec in the loader, crops",
        "images": 4 * batch,
        "mean_difference": round(mean, 4),
        "largest": int(sums[1]),
        "share_unequal": round(differ, 4),
        "refused": refused,
        "ok": mean < 2,
    }


def _plain_jpeg(data: bytes) -> bool:
    header = read_header(data)
    return header.turbo and header.orientation == 1


def marked_tests(bench: Bench) -> None:
    """Run the tests marked `gpu` that have not passed at this commit, those of training first; name those that failed.

    If time runs out, the tests that have ended are reported, and how many have not: the next call runs those.
    """
    bench.need_cuda()
    files = marked_files(measure.ROOT / "tests")
    passed = _passed_before(bench)
    run_tests(bench, list(map(str, files)), processes=4, title="pytest -m gpu", leave_out=passed)


def _passed_before(bench: Bench) -> list[str]:
    """The tests that a record names as passed on this kind of GPU at this commit."""
    keys = ("gpu", "torch", "commit")
    here = [bench.environment.get(key) for key in keys]
    kept = [r for r in read(bench.out) if r.get("section") == bench.section and "passed_tests" in r]
    return [name for r in kept if [r["environment"].get(key) for key in keys] == here for name in r["passed_tests"]]


def run_tests(bench: Bench, tests: Sequence[str], processes: int, title: str, leave_out: Sequence[str] = ()) -> None:
    """Run those of `tests`, files or names, that are marked `gpu`, in so many processes, and report what they gave."""
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "-p", "gpu_test_log", "--no-header"]
    options += ["-p", "no:benchmark"]  # pytest-benchmark warns beside xdist, and a warning is an error here
    options += ["--continue-on-collection-errors"]
    if importlib.util.find_spec("xdist"):
        options += ["-n", str(processes), "--dist", "worksteal"]
    else:  # pyproject.toml's options are for xdist
        options += ["-o", "addopts=--import-mode=importlib --strict-markers -ra"]
    options += [f"--deselect={name}" for name in leave_out]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "tests.jsonl"
        paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONPATH": paths, gpu_test_log.VARIABLE: str(log)}
        command = [sys.executable, "-m", "pytest", *options, *tests]
        code = _run_tests(command, environment, max(1.0, bench.left() - _TELLING))
        if code is None:
            bench.console.print("time is up: the next `gpu.py --only tests` with the same --out runs the others")
        noted = gpu_test_log.read(log)
    if code == 5:
        raise SkippedError("pytest found no test marked gpu that is still to pass")
    outcomes = noted.outcomes
    counts = {name: list(outcomes.values()).count(name) for name in ("passed", "failed", "skipped")}
    failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
    not_ended = max(0, noted.collected - len(outcomes))
    row: dict[str, Any] = {"tests": noted.collected, **counts, "not_ended": not_ended, "exit_status": code}
    ok = not failed and code in (0, None)
    reasons = {bench.without_paths(reason): None for reason in noted.reasons.values()}  # each once, in order
    row |= {"failures": " ".join(failed), "reasons": " | ".join(reasons), "running": " ".join(noted.running)}
    bench.report(title, [{**row, "left_out": len(leave_out), "ok": ok}])
    bench.keep({"title": title, "passed_tests": [name for name, outcome in outcomes.items() if outcome == "passed"]})


_TELLING = 8.0  # seconds in which pytest prints the failures so far


def _run_tests(command: list[str], environment: dict[str, str], seconds: float) -> int | None:
    """The exit status of pytest, or None if the time ran out. It is then interrupted, and prints what has failed."""
    process = subprocess.Popen(command, cwd=measure.ROOT, env=environment)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=_TELLING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def marked_files(tests: Path) -> list[Path]:
    """The files with tests marked `gpu`: training first, then what else runs models, loaders, and kernels last."""
    order = ("fastimg/train", "fastimg", "loaders", "augment")
    texts = {path: path.read_text(encoding="utf-8") for path in tests.rglob("*.py")}
    shared = [path.stem for path, text in texts.items() if _MARK in text and not path.name.startswith("test_")]
    found = [
        path
        for path, text in texts.items()
        if path.name.startswith("test_") and (_MARK in text or any(f"{name} import" in text for name in shared))
    ]
    found = [path for path in found if "peers" not in path.relative_to(tests).parts]

    def place(path: Path) -> tuple[int, Path]:
        below = path.relative_to(tests).as_posix()
        return next((n for n, start in enumerate(order) if below.startswith(start)), len(order)), path

    return sorted(found, key=place)


_MARK = "mark." + "gpu"  # in two parts: this file has no such tests
