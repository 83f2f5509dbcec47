"""Everything that needs a GPU, in two commands of less than ten minutes. Needs no network and no dataset.

    python benchmarks/gpu.py --data FOLDER            the numbers, most important first
    python benchmarks/gpu.py --data FOLDER --second   the tests marked gpu, decoders, other libraries, more steps
    python benchmarks/gpu.py --only steps,parity      sections by name, or first, second, checks, measures, all
    python benchmarks/gpu.py --only steps --rows "resnet50 bf16 default graphs 256,resnet18 fp16 1024"
    python benchmarks/gpu.py --plan                   what would run, in which order and for how long
    python benchmarks/gpu.py --device cpu --quick     only tests the code; the numbers mean nothing

FOLDER has photographs, tiled; `images.py` makes some of yours, or else noise like photographs. It runs from a checkout,
without installing anything. Each section runs in its own process with a time limit: if it
hangs, crashes or fails, the other sections still run, and its measurements up to then are kept. Records are appended to
--out as they are made. The exit status is 1 if something failed, 2 if nothing can run here, and 128 plus the signal's
number if it was interrupted.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpu_plan import FIRST, GROUPS, NEEDED, OPTIONAL, SECOND, SECTIONS, Section, fastest, missing, variant  # noqa: E402
from gpu_process import Child, Ended, StoppedError, stoppable  # noqa: E402
from gpu_section import LOST, NO_CUDA, Task  # noqa: E402
from gpu_summary import read, summary  # noqa: E402

_AGAIN = 10.0  # minimum seconds left for a new process to continue with a section's items
_BEFORE_IMAGES = "versions"  # a section that measures the disk and the memory
_PREPARING = 600.0  # time limit in seconds for making images and compiling their decoder while other sections run
_MADE = {True: 24, False: 2000}  # images by --quick


@dataclass
class Benchmark:
    """The arguments and the state of one call."""

    args: argparse.Namespace
    sections: list[Section]
    out: Path
    run: str
    scratch: Path
    failed: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    preparing: Child | None = None

    def task(self, name: str, seconds: float, skip: Sequence[str] = ()) -> Task:
        """The arguments of a section's process."""
        args = self.args
        made = 0 if args.data else args.images or _MADE[args.quick or args.device == "cpu"]
        return Task(
            section=name,
            device=args.device,
            quick=args.quick,
            folder=str(args.data.resolve() if args.data else self.scratch / "photographs"),
            shards=str(self.scratch / "shards"),
            data_name=args.data.resolve().name if args.data else "made by images.py",
            made=made,
            out=str(self.out),
            run=self.run,
            status=str(self.scratch / f"{name}.status"),
            seconds=seconds,
            skip=tuple(skip),
            rows=tuple(args.rows or ()),
            cifar=str(args.cifar.resolve()) if args.cifar else "",
            width=shutil.get_terminal_size((140, 24)).columns if sys.stdout.isatty() else 140,
        )

    def start(self, task: Task) -> Child:
        """Start its process."""
        sys.stdout.flush()
        child = Child(task.command(), Path(task.status), task.seconds)
        self.children.append(child)
        if self.args.verbose:
            say(f"{task.section}: process {child.pid}, {task.seconds:.0f} s")
        return child

    def keep(self, section: Section, record: dict[str, Any]) -> None:
        """Append a record about a section whose process cannot do so itself."""
        from fastimg.system.measurement import append

        known = next((r["environment"] for r in reversed(read(self.out, self.run)) if "environment" in r), {})
        common = {"benchmark": "gpu", "run": self.run, "section": section.record_as or section.name}
        append(self.out, {**common, "device": self.args.device, **record, "environment": known})


def main() -> int:
    """Run the sections, print the summary. Returns the exit status."""
    parser = _parser()
    args = parser.parse_args()
    if args.data is not None and args.images is not None:
        parser.error("--images has no effect with --data; leave it out")
    if args.data is not None and not args.data.is_dir():
        parser.error(f"--data {args.data}: no such folder")
    if args.cifar is not None and not args.cifar.is_dir():
        parser.error(f"--cifar {args.cifar}: no such folder")
    if args.only is not None and args.second:
        parser.error("--second has no effect with --only; write --only second, or leave it out")
    if args.rows is not None and "steps" not in (args.only or (SECOND if args.second else FIRST)):
        parser.error("--rows has no effect without the section steps; add --only steps")
    sections = [SECTIONS[name] for name in args.only or (SECOND if args.second else FIRST)]
    sections = [dataclasses.replace(s, seconds=args.limit.get(s.name, s.seconds)) for s in sections]
    if args.wheels is not None:
        try:
            _add_wheels(args.wheels)
        except (OSError, zipfile.BadZipFile) as error:
            parser.error(f"--wheels {args.wheels}: {error}")
    say(_missing_line())
    if args.plan:
        _plan(args, sections)
        return 0
    absent = missing(NEEDED)
    if absent:
        say(f"gpu.py: not installed: {', '.join(absent)}; every section needs them")
        return 2
    _add_to_path([str(ROOT)])
    out = args.out or _default_out(args.device)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.open("a").close()
    except OSError as error:
        parser.error(f"--out {out}: {error.strerror}; name another file")
    with tempfile.TemporaryDirectory(prefix="fastimg-gpu-") as scratch:
        (Path(scratch) / "photographs").mkdir()
        run = datetime.now(UTC).isoformat(timespec="seconds") + f" {os.getpid()}"
        return _main(Benchmark(args, sections, out, run, Path(scratch)))


def _main(benchmark: Benchmark) -> int:
    began = time.monotonic()
    code = 0
    try:
        with stoppable():
            code = _run_all(benchmark)
    except StoppedError as stop:
        code = 128 + stop.number
        benchmark.stopped.append(f"interrupted by {stop}")
    finally:
        for child in benchmark.children:
            child.stop(grace=2.0)
    if code == 2:
        return 2
    remarks = []
    if benchmark.failed or benchmark.stopped:
        names = [f"failed: {', '.join(dict.fromkeys(benchmark.failed))}"] if benchmark.failed else []
        remarks.append("; ".join([*names, *benchmark.stopped]))
    if benchmark.skipped:
        remarks.append(f"skipped: {'; '.join(benchmark.skipped)}")
    verdict = "" if remarks and benchmark.failed else "nothing failed; "
    seconds = time.monotonic() - began
    remarks.append(f"{verdict}{len(benchmark.sections)} sections in {seconds:.0f} s; records in {benchmark.out}")
    print("\nSummary")
    for line in summary(read(benchmark.out, benchmark.run), remarks):
        print(line)
    return code or (1 if benchmark.failed else 0)


def _run_all(benchmark: Benchmark) -> int:
    saved = 0.0  # seconds that earlier sections left unused
    if not any(section.name == _BEFORE_IMAGES for section in benchmark.sections):
        _prepare(benchmark)
    for section in benchmark.sections:
        began = time.monotonic()
        seconds = section.seconds + (saved if section.fills else 0.0)
        absent = missing(section.needs)
        if absent:
            _skip(benchmark, section, f"needs {', '.join(absent)}")
        elif section.images and (why := _not_prepared(benchmark, seconds)):
            benchmark.failed.append(section.name)
            benchmark.keep(section, {"error": why, "ok": False})
            say(f"{section.name}: FAILED: {why}")
        elif _run(benchmark, section, seconds - (time.monotonic() - began)) == NO_CUDA:
            say("gpu.py: no CUDA device here; --device cpu --quick tries the code without one")
            return 2
        took = time.monotonic() - began
        saved = max(0.0, saved + section.seconds - took)
        say(f"{section.name}: {took:.1f} s of {seconds:.0f}")
        if section.name == _BEFORE_IMAGES:
            _prepare(benchmark)
    return 0


def _run(benchmark: Benchmark, section: Section, seconds: float) -> int:
    """Run a section. After a crash, a new process continues with the items that no process has begun."""
    limit = time.monotonic() + seconds
    skip: list[str] = []
    while True:
        task = benchmark.task(section.name, limit - time.monotonic(), skip)
        child = benchmark.start(task)
        ended = child.wait()
        if ended.code in (0, NO_CUDA) and not ended.stopped:
            break
        if section.fills and ended.stopped and time.monotonic() >= limit:  # it uses all of its time
            break
        benchmark.failed.append(section.name)
        if ended.code == 1 and not ended.stopped:  # it has recorded what failed
            break
        _tell(benchmark, section, ended)
        begun = child.begun()
        behind = ended.item["behind"] if ended.item else 0
        if not behind or limit - time.monotonic() < _AGAIN:
            break
        skip += begun
        say(f"{section.name}: continuing after {begun[-1]}")
    return ended.code


def _tell(benchmark: Benchmark, section: Section, ended: Ended) -> None:
    """Record and print how a process ended, if it did not end by itself."""
    why = "the device was lost" if ended.code == LOST and not ended.stopped else ended.words()
    fields = dict(ended.item["fields"]) if ended.item else {}
    if ended.code != LOST or ended.stopped:  # otherwise it has recorded the error
        benchmark.keep(section, {**fields, "error": why, "ok": False})
    where = f" in {ended.item['item']}" if ended.item else ""
    benchmark.stopped.append(f"{section.name} {why}{where}")
    say(f"{section.name}: {why}{where}")


def _skip(benchmark: Benchmark, section: Section, why: str) -> None:
    benchmark.keep(section, {"skipped": why})
    benchmark.skipped.append(f"{section.name} {why}")
    say(f"{section.name}: skipped: {why}")


def _prepare(benchmark: Benchmark) -> None:
    """Start making images while sections run that do not need them."""
    if any(section.images for section in benchmark.sections):
        benchmark.preparing = benchmark.start(benchmark.task("prepare", _PREPARING))


def _not_prepared(benchmark: Benchmark, seconds: float) -> str:
    """Wait at most `seconds` for the images. Returns why there are none, or an empty string."""
    assert benchmark.preparing is not None
    if not benchmark.preparing.finished():
        say("waiting for the images and the code that decodes them")
    ended = benchmark.preparing.wait(at_most=seconds)
    return "" if ended.code == 0 else f"the images could not be made, or not be decoded: {ended.words()}"


def _plan(args: argparse.Namespace, sections: Sequence[Section]) -> None:
    """Print what would run."""
    for number, section in enumerate(sections, start=1):
        absent = missing(section.needs)
        note = f" (skipped: needs {', '.join(absent)})" if absent else ""
        say(f"{number:>2}. {section.name:<18}{section.seconds:>4} s  {section.what}{note}")
    if any(section.name == "steps" for section in sections) and args.device == "cuda" and not args.quick:
        rows = fastest(("resnet18", "resnet50"), 256, "cuda")
        say(f"    steps, in this order: {'; '.join(row.text() for row in rows)}")
    seconds = sum(section.seconds for section in sections if not missing(section.needs))
    say(f"    at most {seconds} s together ({seconds / 60:.1f} min); images are made meanwhile")


def _missing_line() -> str:
    absent = missing(OPTIONAL)
    if not absent:
        return "wheels: none missing"
    enabled = ", ".join(f"{module} ({OPTIONAL[module][1]})" for module in absent)
    names = " ".join(OPTIONAL[module][0] for module in absent)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    how = f"pip download --no-deps --only-binary=:all: --python-version {python} -d DIR {names}"
    return f"wheels: missing here, and what they enable: {enabled}; bring them: `{how}`, then --wheels DIR"


def _add_wheels(folder: Path) -> None:
    """Unpack the wheels of a folder next to them, and add the result to the path of this process and its children."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise FileNotFoundError("no wheels (*.whl) in it")
    site = folder / "unpacked"
    for wheel in wheels:
        target = site / wheel.stem
        if not target.exists():
            part = target.with_name(f".{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(part)
            part.rename(target)
    places = [place for wheel in wheels for place in _places(site / wheel.stem)]
    sys.path[1:1] = places
    _add_to_path(places)


def _add_to_path(places: Sequence[str]) -> None:
    """Add folders to the path of the processes that this one starts, and of their children."""
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])


def _places(unpacked: Path) -> Iterator[str]:
    """The folder in which the packages of an unpacked wheel lie."""
    yield str(unpacked.resolve())
    for data in unpacked.glob("*.data"):
        yield from (str((data / name).resolve()) for name in ("purelib", "platlib") if (data / name).is_dir())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to try the code")
    parser.add_argument("--second", action="store_true", help="the second call's sections instead of the first's")
    names = ", ".join([*GROUPS, *SECTIONS])
    parser.add_argument("--only", type=_sections, help=f"comma-separated: {names}")
    parser.add_argument("--limit", type=_limits, default={}, help="seconds of sections: steps=300,loader=60")
    parser.add_argument("--rows", type=_rows, help="rows of `steps` instead of all, as --plan names them: A,B")
    parser.add_argument("--plan", action="store_true", help="print what would run and for how long; run nothing")
    parser.add_argument("--data", type=Path, help="folder of images; without it JPEGs are made in a temporary folder")
    parser.add_argument("--images", type=int, help="how many JPEGs to make; 2000, or 24 with --quick or on a CPU")
    parser.add_argument(
        "--cifar", type=Path, help="folder of CIFAR-10 as cifar.py reads it; else scikit-learn's digits"
    )
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack and use")
    parser.add_argument("--out", type=Path, help="results; default: results/gpu-NAME-DATE.jsonl")
    parser.add_argument("--verbose", action="store_true", help="print the id of each process")
    return parser


def _sections(text: str) -> list[str]:
    wanted = [name for word in text.split(",") for name in GROUPS.get(word, [word])]
    _known(wanted)
    return [name for name in SECTIONS if name in wanted]


def _limits(text: str) -> dict[str, int]:
    limits = {}
    for part in text.split(","):
        name, _, seconds = part.partition("=")
        _known([name])
        if not seconds.isdigit() or int(seconds) < 1:
            raise argparse.ArgumentTypeError(f"{part}: write a section, =, and seconds, as in steps=300")
        limits[name] = int(seconds)
    return limits


def _rows(text: str) -> list[str]:
    try:
        return [variant(row).text() for row in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _known(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        there = ", ".join([*GROUPS, *SECTIONS])
        raise argparse.ArgumentTypeError(f"no section {', '.join(unknown)}; there are {there}")


def _default_out(device: str) -> Path:
    name = "cpu"
    if device == "cuda":
        name = "gpu"
        with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
            asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            name = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return ROOT / "benchmarks" / "results" / f"gpu-{slug}-{datetime.now(UTC):%Y-%m-%d}.jsonl"


def say(text: str) -> None:
    """Print a line and flush."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
