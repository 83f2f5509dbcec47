"""Everything that needs a GPU, in one command: correctness first, then speed. Needs no network and no dataset.

    python benchmarks/gpu.py                          on a CUDA machine, under ten minutes
    python benchmarks/gpu.py --only checks            or sections by name: --only loader,overlap
    python benchmarks/gpu.py --device cpu --quick     only tries the code; the numbers mean nothing

If a section fails, the error is printed and the other sections run; the exit status is then 1.
"""

import argparse
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import measure
import torch
from bench import Bench, Sizes, SkippedError
from gpu_checks import CHECKS
from gpu_measures import MEASURES
from images import write_photographs
from rich.console import Console

SECTIONS = {**CHECKS, **MEASURES}
GROUPS = {"checks": list(CHECKS), "measures": list(MEASURES)}


def main() -> int:
    """Run the sections. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to try the code")
    parser.add_argument("--data", type=Path, help="folder of images; without it JPEGs are made in a temporary folder")
    parser.add_argument("--images", type=int, help="how many JPEGs to make; 2000, or 24 with --quick")
    names = ", ".join([*GROUPS, *SECTIONS])
    parser.add_argument("--only", type=_sections, default=list(SECTIONS), help=f"comma-separated: {names}")
    parser.add_argument("--out", type=Path, help="results; default: results/gpu-NAME-DATE.jsonl")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here; --device cpu --quick tries the code without one")
    if args.data is not None and args.images is not None:
        parser.error("--images has no effect with --data; leave it out")

    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    torch.backends.cudnn.benchmark = True  # as the trainer sets them
    torch.set_float32_matmul_precision("high")
    sizes = Sizes.choose(device, args.quick)
    began = time.perf_counter()
    with _images(args.data, args.images or sizes.images, sizes.photograph) as folder:
        bench = Bench(
            device=device,
            sizes=sizes,
            folder=folder,
            data_name="made by images.py" if args.data is None else args.data.resolve().name,
            out=args.out or _default_out(device),
            console=Console(width=None if sys.stdout.isatty() else 140),
            environment=measure.environment(),
        )
        bench.console.print(f"{bench.environment}", highlight=False, markup=False)
        for name in args.only:
            _run(bench, name)
    failed = list(dict.fromkeys(bench.failed))
    verdict = f"failed: {', '.join(failed)}" if failed else "nothing failed"
    bench.console.print(f"{len(args.only)} sections in {time.perf_counter() - began:.0f} s; {verdict}", highlight=False)
    return 1 if failed else 0


def _run(bench: Bench, name: str) -> None:
    bench.section = name
    began = time.perf_counter()
    try:
        SECTIONS[name](bench)
    except SkippedError as reason:
        bench.console.print(f"{name}: skipped: {reason}", markup=False)
        bench.keep({"skipped": str(reason)})
    except Exception as error:  # noqa: BLE001 - shown, kept, and told by the exit status
        bench.console.print(f"{name}: FAILED\n{traceback.format_exc()}", markup=False, highlight=False)
        bench.keep({"error": type(error).__name__, "ok": False})
        bench.failed.append(name)
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    bench.console.print(f"[dim]{name}: {time.perf_counter() - began:.1f} s", highlight=False)


@contextmanager
def _images(data: Path | None, count: int, size: tuple[int, int]) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="fastimg-photographs-") as folder:
        write_photographs(Path(folder), count, size)
        yield Path(folder)


def _sections(text: str) -> list[str]:
    wanted = [name for word in text.split(",") for name in GROUPS.get(word, [word])]
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no section {', '.join(unknown)}; there are {', '.join([*GROUPS, *SECTIONS])}"
        )
    return [name for name in SECTIONS if name in wanted]


def _default_out(device: torch.device) -> Path:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return measure.RESULTS / f"gpu-{slug}-{datetime.now(UTC):%Y-%m-%d}.jsonl"


if __name__ == "__main__":
    sys.exit(main())
