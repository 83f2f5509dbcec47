"""Converting and embedding on Ray nodes of one core against one machine with one core, on small images.

    build/peers/bin/python -W ignore benchmarks/cluster.py [--part convert|embed] [--images 20000] [-n 5]

Draws images, and has Ray start a cluster of its own here: a head without cores, and nodes that Ray counts as one core.
This machine alone, and the cluster of one node, have one core: the command, the head and the node share it. N nodes
have N cores, if there are as many. Each variant works on a few images and on many: the line through both times gives
the images per second, `rate`, and the time before the first image, `start_up`. `overhead` is how much longer the images
beyond the few took than on this machine alone in the same round. The bytes are compared. Rounds are interleaved; the
table has medians. A few thousand images take less time than the start-up varies by. In the environment with the group
`cluster`.
"""

import argparse
import contextlib
import hashlib
import io
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import measure
import numpy as np
from PIL import Image
from rich.console import Console

from fastimg.cli import run
from fastimg.wording import plural

_SHARD = "2MB"  # about as many images as embeddings of a shard of the cache
_PER_SHARD = 1024
_CORES = sorted(os.sched_getaffinity(0))


def main() -> int:
    """Measure, print, and append the results. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("convert", "embed"), default="convert")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("-n", "--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "cluster.jsonl")
    args = parser.parse_args()
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # nodes start Python, not uv
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported
    few = min(_PER_SHARD * max(args.nodes), args.images // 2)  # so that all nodes have work to begin with
    variants = [0, *args.nodes]
    found: dict[int, list[_Times]] = {nodes: [] for nodes in variants}
    environment = measure.environment()
    with tempfile.TemporaryDirectory(prefix="fastimg-cluster-") as name:
        folder = Path(name)
        sources = [_draw(folder / f"images-{count}", count) for count in (few, args.images)]
        weights = _weights(folder) if args.part == "embed" else None
        _timed(args.part, sources[0], folder / "out", ["--workers", "1"], weights)  # imports, compiles
        for _ in range(args.repeats):
            for nodes in variants:
                found[nodes].append(_round(args.part, nodes, sources, folder / "out", weights))
    rows = [_row(nodes, found[nodes], found[0], args.images, few) for nodes in variants]
    for nodes, row in zip(variants, rows, strict=True):
        shape = {"benchmark": "cluster", "part": args.part, "images": args.images, "few": few}
        raw = {"few_seconds": [each.few for each in found[nodes]], "seconds": [each.many for each in found[nodes]]}
        measure.append(args.out, {**shape, **measure.flat(row), **raw, "environment": environment})
    for row in rows:
        row |= {name: value.text() for name, value in row.items() if isinstance(value, measure.Spread)}
    measure.show(Console(width=None if sys.stdout.isatty() else 180), f"{args.part}, {args.images} images", rows)
    return 0


class _Times(NamedTuple):
    """Seconds for a few images and for many, and digests of what was written."""

    few: float
    many: float
    digests: tuple[str, str]

    @property
    def rest(self) -> float:
        return self.many - self.few


def _round(part: str, nodes: int, sources: list[Path], out: Path, weights: Path | None) -> _Times:
    """One variant, once; 0 nodes are this machine alone."""
    _pin(_CORES[: max(nodes, 1)])
    try:
        with _cluster(nodes) as address:
            more = ["--backend", "ray", "--address", address] if nodes else ["--workers", "1"]
            _quiet()  # else the few images take longer by what the cluster before, or this one, still does
            (few, first), (many, second) = (_timed(part, source, out, more, weights) for source in sources)
    finally:
        _pin(_CORES)
    return _Times(few, many, (first, second))


def _quiet() -> None:
    """Wait until the machine has been idle for a second, or a minute at most."""
    for _ in range(60):
        busy = _busy()
        time.sleep(1)
        if _busy() - busy < 0.1:
            return
    print("the machine was not idle for a minute", file=sys.stderr)


def _busy() -> float:
    """Seconds for which the machine's cores have worked."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def _row(nodes: int, times: list[_Times], alone: list[_Times], images: int, few: int) -> dict[str, Any]:
    rates = [(images - few) / each.rest for each in times]
    cores = min(max(nodes, 1), len(_CORES))
    return {
        "where": f"{plural(nodes, 'Ray node')} of 1 core" if nodes else "this machine",
        "cores": cores,
        "start_up": measure.Spread.of([each.few - few / rate for each, rate in zip(times, rates, strict=True)]),
        "rate": measure.Spread.of(rates),
        "overhead": measure.Spread.of([a.rest / b.rest - 1 for a, b in zip(times, alone, strict=True)]),
        "same_bytes": {each.digests for each in times} == {alone[0].digests},
    }


def _pin(cores: list[int]) -> None:
    """Have all threads of this process, and what they start, run on these cores."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def _draw(folder: Path, count: int) -> Path:
    """Two classes of JPEGs of 64 x 64 pixels, about 2 KB each, of which 512 are different."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(min(count, 512)):
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((64, 64), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        drawn.append(buffer.getvalue())
    for number in range(count):
        path = folder / f"c{number % 2}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        comment = b"\xff\xfe\x00\x06" + number.to_bytes(4, "big")  # so that no two files are the same
        path.write_bytes(drawn[number % len(drawn)][:2] + comment + drawn[number % len(drawn)][2:])
    return folder


def _weights(folder: Path) -> Path:
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", num_classes=2).state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


@contextlib.contextmanager
def _cluster(nodes: int):
    """A cluster's address; none without nodes."""
    if not nodes:
        yield None
        return
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 << 20, "num_gpus": 0}
    usual = {"worker_niceness": 0}  # else tasks, at 15, get what other programs leave of the cores
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": usual, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, **small)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def _timed(part: str, source: Path, out: Path, flags: list[str], weights: Path | None) -> tuple[float, str]:
    """Seconds of a command, and a digest of what it wrote."""
    shutil.rmtree(out, ignore_errors=True)
    if part == "convert":
        command = ["convert", str(source), str(out), "--shard-size", _SHARD, *flags]
    else:
        own = ["--arch", "test_resnet", "--weights", str(weights), "--img-size", "64", "--device", "cpu", "--no-amp"]
        command = ["embed", str(source), str(out / "vectors"), "--cache-dir", str(out / "cache"), *own, *flags]
    said = io.StringIO()
    began = time.perf_counter()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run(command)
    seconds = time.perf_counter() - began
    if code:
        sys.exit(f"{' '.join(command)}\n{said.getvalue()}")
    digest = hashlib.sha256()
    for path in sorted(path for path in out.rglob("*") if path.suffix in (".tar", ".idx", ".jsonl")):
        digest.update(path.read_bytes())
    return seconds, digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
