"""Converting and embedding on Ray nodes of one core against one machine with one core, on small images.

    build/peers/bin/python -W ignore benchmarks/cluster.py [--part convert|embed] [--images 20000] [--nodes 1 2 3]

Draws images, and has Ray start a cluster of its own here: a head without cores, and nodes that Ray counts as one core.
Each variant works on a few images, too, which is its start-up: `rest` is the time less that of the few, `rate` images
per second of the rest, and `overhead` that of the rest over one machine with one thread. The bytes are compared. More
nodes than the machine has idle cores cannot be faster. In the environment with the group `cluster`.
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

import measure
import numpy as np
from PIL import Image
from rich.console import Console

from fastimg.cli import run

_FEW = 64
_SHARD = "2MB"


def main() -> int:
    """Measure, print, and append the results. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("convert", "embed"), default="convert")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "cluster.jsonl")
    args = parser.parse_args()
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # nodes start Python, not uv
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    environment = measure.environment()
    with tempfile.TemporaryDirectory(prefix="fastimg-cluster-") as name:
        folder = Path(name)
        few, many = (_draw(folder / f"images-{count}", count) for count in (_FEW, args.images))
        weights = _weights(folder) if args.part == "embed" else None
        flags = {0: ["--workers", "1"]} | {nodes: ["--backend", "ray"] for nodes in args.nodes}
        rows = []
        expected = ""
        base = 0.0
        for nodes, more in flags.items():
            with _cluster(nodes) as address:
                where = ["--address", address] if address else []
                start, _ = _timed(args.part, few, folder / "out", [*more, *where], weights)
                whole, found = _timed(args.part, many, folder / "out", [*more, *where], weights)
            rest = whole - start
            expected, base = expected or found, base or rest
            row = {
                "where": f"{nodes} Ray nodes of 1 core" if nodes else "this machine, 1 thread",
                "start_up_seconds": start,
                "rest_seconds": rest,
                "rate": (args.images - _FEW) / rest,
                "overhead": rest / base - 1,
                "same_bytes": found == expected,
            }
            rows.append(row)
            record = {"benchmark": "cluster", "part": args.part, "images": args.images, "n": 1, **measure.flat(row)}
            measure.append(args.out, {**record, "environment": environment})
    measure.show(Console(width=None if sys.stdout.isatty() else 140), f"{args.part}, {args.images} images", rows)
    return 0


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
