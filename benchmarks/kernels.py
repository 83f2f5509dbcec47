"""Machine code of the augmentation kernels for an H200, without a GPU: registers, spills, instructions, predicted time.

    python benchmarks/kernels.py                       # the kernels of this checkout, with the Triton installed here
    python benchmarks/kernels.py --before ../older     # and those of another checkout, in the same table
    python benchmarks/kernels.py --before ../older --python /other/environment/bin/python    # with its Triton

The kernels that `apply` would launch for a batch are compiled for sm_90 and disassembled. A kernel's branches depend on
the operations drawn for an image, so instructions are counted along the image's path through the control flow graph,
and averaged over a drawn plan. A loop over a pixel's neighbours counts with its three or nine iterations. For
`_tables`, which has a jump table, all instructions are counted. Policies that need statistics of the images are counted
twice: with the pass in CUDA C++, compiled by NVRTC, for the images that it takes; and with the Triton pass for all.

Nothing is measured. Two times are predicted per kernel: `issue`, all warp instructions at 132 multiprocessors x 4 per
cycle x 1.75 GHz; and `bytes`, the bytes read and written at 4.3 TB/s, the rate of a copy kernel on an H200. A policy's
prediction goes from the sum over kernels of the larger of the two (perfect overlap) to the sum of both (none). Not in
the model: conflicts in the L1 cache, what atomic additions in shared memory take beyond their issue (a warp's additions
to the same bank are done one after the other), stores of half a sector, slow conversions, latency at low occupancy,
gaps between launches, the tail of a launch.
"""

import argparse
import collections
import functools
import importlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
import triton
from rich.console import Console

from fastimg.augment import Plan, Policy, apply, draw
from fastimg.augment.ops import STATISTICS, Op

POLICIES = {
    "normalise": Policy(),
    "flips": Policy(hflip=0.5),
    "trivial": Policy(hflip=0.5, trivial=True),
    "trivial, erase": Policy(hflip=0.5, trivial=True, erase=0.1),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "uint8": torch.uint8}
POINTERS = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64"}
ISSUED = 132 * 4 * 1.75e9  # warp instructions per second: multiprocessors x schedulers x clock
MOVED = 4.3e12  # bytes a second
LOCAL = ("STL", "LDL")  # spilled registers are stored to memory and loaded again

COUNTS = ["CUDA C++", "Triton"]  # what counts the levels of images that it can count

Instruction = tuple[int, str]  # address, text


@dataclass(frozen=True)
class Launch:
    """A recorded launch of `apply`."""

    kernel: Any
    programs: int
    values: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return "statistics.cu" if self.kernel is Counting else str(self.kernel.fn.__name__)


class Counting:
    """Stands for the kernel of statistics.cu in a `Launch`."""


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code, and the assembler's report on it."""

    code: tuple[Instruction, ...]
    registers: int
    shared: int  # bytes per program
    iterations: float  # of the loop on a path, which runs over a pixel's neighbours, or over pixels in statistics.cu

    @property
    def spills(self) -> int:
        """The number of instructions that store or load spilled registers."""
        return sum(opcode(text).startswith(LOCAL) for _, text in self.code)


def main() -> None:
    """Compile, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16", "fp16"])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--before", type=Path, help="another checkout, to include its kernels in the table")
    parser.add_argument("--python", default=sys.executable, help="Python of the environment whose Triton compiles")
    parser.add_argument("--quick", action="store_true", help="only flips to bf16, to test the script")
    parser.add_argument("--json", action="store_true", help="print records instead of a table, and append nothing")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "kernels.jsonl")
    args = parser.parse_args()
    if args.quick:
        args.policies, args.dtypes = ["flips"], ["bf16"]
    if args.before or args.python != sys.executable:
        checkouts = {"before": args.before, "after": Path(__file__).resolve().parents[1]}
        records = [r for name, path in checkouts.items() if path for r in elsewhere(path, args, name)]
    else:
        records = here(args)
    if args.json:
        print(json.dumps(records))
        return
    for record in records:
        measure.append(args.out, record)
    report(records, f"{args.batch_size} x 3 x {args.size} x {args.size} uint8 on an H200, predicted")


def elsewhere(checkout: Path, args: argparse.Namespace, source: str) -> list[dict[str, Any]]:
    """The records of another checkout's kernels, or for another Triton, made in a separate process."""
    command = [args.python, str(Path(__file__).resolve()), "--json", "--policies", *args.policies]
    command += ["--dtypes", *args.dtypes, "--batch-size", str(args.batch_size), "--size", str(args.size)]
    paths = os.pathsep.join((str(checkout.resolve()), str(Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.PIPE, check=True)
    return [{**record, "source": source} for record in json.loads(made.stdout)]


def here(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record per kernel and policy, and one of the total, for the importable kernels and the installed Triton."""
    commit = measure.environment()["commit"]
    setting = {"batch_size": args.batch_size, "size": args.size}
    records = []
    for policy in args.policies:
        plan = draw(POLICIES[policy], np.arange(args.batch_size), 0, 0) if policy != "normalise" else None
        for dtype, counts in itertools.product(args.dtypes, COUNTS if plan is not None and plan.passes else [""]):
            found = launches(plan, POLICIES[policy], DTYPES[dtype], args, counts)
            rows = [row(launch, plan, DTYPES[dtype]) for launch in found]
            about = {"benchmark": "kernels", "source": "after", "triton": triton.__version__, "commit": commit}
            about |= {"statistics": counts} if counts else {}
            low = sum(max(one["issue_ms"], one["bytes_ms"]) for one in rows)
            high = sum(one["issue_ms"] + one["bytes_ms"] for one in rows)
            total = {"kernel": "all", "low_ms": round(low, 4), "high_ms": round(high, 4)}
            records += [{**about, "policy": policy, "dtype": dtype, **one, **setting} for one in (*rows, total)]
    return records


def launches(
    plan: Plan | None, policy: Policy, dtype: torch.dtype, args: argparse.Namespace, counts: str = ""
) -> list[Launch]:
    """The launches of `apply` for a batch, without touching its memory; `counts` is one of COUNTS."""
    fused = importlib.import_module("fastimg.augment.fused.launches")
    found: list[Launch] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            def launch(*given: Any, **named: Any) -> None:
                options = {name: named.pop(name) for name in ("num_warps", "enable_fp_fusion")}
                values = dict(zip(self.kernel.arg_names, given, strict=False)) | named
                ordered = {name: values[name] for name in self.kernel.arg_names}
                found.append(Launch(self.kernel, grid[0], ordered, options))

            return launch

    class Counter:
        missing = None if counts == COUNTS[0] else "for comparison"

        def launch(self, blocks: int, given: Sequence[int]) -> None:
            names = ("pixels", "width", "groups", "blocks", "contrast", "equalize")
            found.append(Launch(Counting, blocks, dict(zip(names, given[-6:], strict=True)), {"num_warps": 8}))

    kernels = {name: getattr(fused, name) for name in ("_tables", "_statistics", "_pixels")}
    kept, counter_of = fused._INTERPRETED, getattr(fused, "counter_of", None)  # older checkouts have none
    fused.counter_of = lambda device: Counter()
    fused._INTERPRETED = True  # images on the CPU are accepted
    try:
        for name, kernel in kernels.items():
            setattr(fused, name, Recorder(kernel))
        images = torch.empty(args.batch_size, args.size, args.size, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        apply(plan, images, policy, dtype, backend="fused")
    finally:
        fused._INTERPRETED, fused.counter_of = kept, counter_of
        for name, kernel in kernels.items():
            setattr(fused, name, kernel)
    return found


def row(launch: Launch, plan: Plan | None, dtype: torch.dtype) -> dict[str, Any]:
    """The data of a launch: resources, widths of accesses, instructions per value, predicted times."""
    if launch.kernel is Counting:
        return counting_row(launch, plan)
    values, compiled = launch.values, assemble(launch)
    count = executed(launch, compiled, plan)
    pixels = values["HEIGHT"] * values["WIDTH"]
    images = len(values["images"]) if "images" in values else len(values["final"])
    warps, per_value, moved = launch.options["num_warps"], None, 0
    if launch.name != "_tables":
        images = launch.programs // math.ceil(pixels / per_program(launch))
        per_value = round(count * warps * 32 * launch.programs / (images * 3 * pixels), 2)
        moved = images * 3 * pixels * (1 + (dtype.itemsize if launch.name == "_pixels" else 0))
    return columns(launch, compiled, count, per_value, moved)


def columns(launch: Launch, compiled: Compiled, count: float, per_value: float | None, moved: int) -> dict[str, Any]:
    """The data of a launch of which a warp executes `count` instructions; `moved` bytes are read and written."""
    warps = launch.options["num_warps"]
    return {
        "kernel": launch.name,
        "registers": compiled.registers,
        "spills": compiled.spills,
        "shared_bytes": compiled.shared,
        "instructions_per_value": per_value,
        "loads": widths(compiled.code, "LDG"),
        "stores": widths(compiled.code, "STG"),
        "shuffles": sum(text.split()[0].startswith("SHFL") for text in bare(compiled.code)),
        "issue_ms": round(1e3 * launch.programs * warps * count / ISSUED, 4),
        "bytes_ms": round(1e3 * moved / MOVED, 4),
    }


def counting_row(launch: Launch, plan: Plan | None) -> dict[str, Any]:
    """The same for statistics.cu, of images in words without look-ups: its loop over groups of 16 pixels is counted by
    the mean over a block's threads."""
    assert plan is not None
    values, threads = launch.values, 32 * launch.options["num_warps"]
    counting = importlib.import_module("fastimg.augment.fused.counting")
    compiled = disassemble(counting.compiled("sm_90"), values["groups"] / (values["blocks"] * threads))
    drawn = [op for op in plan.ops.numpy().ravel() if op in STATISTICS]
    found = [path for path in paths(compiled) if path["LDG.E.128.CONSTANT"] and not path["LDG.E.U8.CONSTANT"]]
    atomics = {Op.EQUALIZE: "ATOMS.POPC.INC.32", Op.AUTOCONTRAST: "REDG.E.MAX.64.STRONG.GPU"}
    most = {}
    for op in STATISTICS:  # a warp's first lane, and every bin, adds to the counts
        mine = [path for path in found if all((path[name] > 0) == (op == kind) for kind, name in atomics.items())]
        most[op] = max(total(path) for path in mine if not path["LDG.E.U8"])
    images, shown = launch.programs // values["blocks"], 3 * values["pixels"]
    count = float(np.mean([most[Op(op)] for op in drawn]))
    assert len(drawn) == images
    per_value = round(count * threads * values["blocks"] / shown, 2)
    return columns(launch, compiled, count, per_value, images * shown)


def per_program(launch: Launch) -> int:
    """Pixels per program."""
    return int(
        launch.values["BLOCK"] if "BLOCK" in launch.values else launch.values.get("EACH", 8) * launch.values["THREADS"]
    )


def executed(launch: Launch, compiled: Compiled, plan: Plan | None) -> float:
    """Instructions of a warp, averaged over the images."""
    if launch.name == "_statistics":
        assert plan is not None
        drawn = plan.ops.numpy()[:, launch.values["COLUMN"]]
        drawn = drawn[np.isin(drawn, list(STATISTICS))]
        equal = fewest(compiled, counts_levels)
        bounds = fewest(compiled, finds_bounds)
        summed = fewest(compiled, lambda ops: not counts_levels(ops) and not finds_bounds(ops))
        counts = {Op.EQUALIZE: equal, Op.AUTOCONTRAST: bounds, Op.CONTRAST: summed}
        return float(np.mean([counts[Op(op)] for op in drawn]))
    if launch.name == "_tables":
        return len(compiled.code)  # with its jump table: more than any image executes
    words = launch.values["words"]
    if plan is None or not isinstance(words, torch.Tensor) or words.dim() < 2:
        return fewest(compiled, lambda ops: True)
    kinds = collections.Counter(map(tuple, kinds_of(launch, words.numpy())))
    return sum(number * path_of(launch, kind) for kind, number in kinds.items()) / len(words)


def kinds_of(launch: Launch, words: np.ndarray) -> np.ndarray:
    """The branches that images take, [B, 5]: in memory order, mirrored, looked up, colour, sharpness."""
    count, fixed = launch.values["COUNT"], 10
    ops = words[:, fixed : fixed + count]
    color = (ops == Op.COLOR).any(axis=1)
    sharp = (ops[:, -1:] == Op.SHARPNESS).any(axis=1)
    drawn = words[:, -1] if "PATHS" in launch.values else np.zeros(len(words), np.int32)
    runs = (drawn & launch.values.get("PATHS", 0) & 1) != 0
    table = launch.values.get("ENDING", 0) == 0  # then every image is looked up, on any path
    return np.stack(
        [runs, runs & (words[:, 0] < 0), (drawn & 2 != 0) & (count > 0) & (not table), color, sharp], axis=1
    )


def path_of(launch: Launch, kind: Sequence[bool]) -> float:
    """Instructions on the path of one kind of image, counted in a kernel compiled for that kind only."""
    runs, mirrored, looked, color, sharp = map(bool, kind)  # NumPy's bools add up to one
    values, table = dict(launch.values), launch.values.get("ENDING", 0) == 0
    if "PATHS" in values:
        values["PATHS"] = 1 if runs else 2
    compiled = assemble(Launch(launch.kernel, launch.programs, values, launch.options))
    found = list(paths(compiled))
    products = sorted({path["FMUL"] for path in found})  # only blends multiply: none, a colour's, a sharpness's
    loops = any(path["loop"] for path in found)

    def fits(ops: Mapping[str, float]) -> bool:
        if runs:
            each = 3 * launch.values.get("EACH", 8)
            if mirrored and not ops["gaps"]:  # checkouts that gather mirrored values byte by byte
                return ops["LDG.E.64"] == 0 and ops["LDG.E.U8"] == each * (1 + looked)
            return ops["LDG.E.U8"] == each * looked and mirrored == (ops["gaps"] > 0)
        blended = ops["FMUL"] > 0
        if loops and (ops["loop"] > 0) != sharp:
            return False
        if not sharp and blended != color and len(products) > 1:
            return False
        return sharp or table or looked == (ops["LDG.E.U8"] >= 48)

    return fewest(compiled, fits)


def fewest(compiled: Compiled, fits: Callable[[collections.Counter[str]], bool]) -> float:
    """The number of instructions on the shortest path that fits."""
    found = list(paths(compiled))
    words = max(path["LDG.E.64"] for path in found if fits(path))  # fewer are read behind an image's end
    return min(total(path) for path in found if fits(path) and path["LDG.E.64"] == words)


def total(path: Mapping[str, float]) -> float:
    return sum(number for name, number in path.items() if name not in ("loop", "gaps"))


def counts_levels(ops: Mapping[str, float]) -> bool:
    """Whether a path builds histograms: atomic additions in shared memory, or votes."""
    return any(name.startswith(("ATOMS.POPC", "VOTE.ANY")) for name in ops)


def finds_bounds(ops: Mapping[str, float]) -> bool:
    """Whether a path finds the least and the greatest level: atomic maxima in device memory."""
    return any(name.startswith(("RED", "ATOMG")) and ".MAX" in name for name in ops)


def paths(compiled: Compiled) -> Iterator[collections.Counter[str]]:
    """Every path from a kernel's entry to an exit: how often a warp on this path executes each opcode.

    A backward branch is a loop; its body is counted once per iteration.
    """
    code = compiled.code
    index = {address: number for number, (address, _) in enumerate(code)}
    loops = [
        (index[target], number)
        for number, (_, text) in enumerate(code)
        if (target := destination(text)) is not None and target in index and index[target] < number
    ]
    weights = [
        compiled.iterations if any(first <= number <= last for first, last in loops) else 1
        for number in range(len(code))
    ]
    blocks = _blocks(code, index)

    @functools.cache
    def onwards(start: int) -> tuple[tuple[tuple[str, float], ...], ...]:
        end, following = blocks[start]
        mine: collections.Counter[str] = collections.Counter()
        for number in range(start, end):
            mine[opcode(code[number][1])] += weights[number]
            if weights[number] != 1:
                mine["loop"] = 1
            if re.search(r"\bSTG.*\+0x(8|10)\]", code[number][1]):  # a thread's stores are side by side
                mine["gaps"] = 1
        if not following:
            return (tuple(mine.items()),)
        found = {
            tuple(sorted((mine + collections.Counter(dict(rest))).items())) for to in following for rest in onwards(to)
        }
        return tuple(found)

    for found in onwards(0):
        yield collections.Counter(dict(found))


def _blocks(code: Sequence[Instruction], index: Mapping[int, int]) -> dict[int, tuple[int, tuple[int, ...]]]:
    """First instruction of a block -> (the one after its last, the possible next blocks); no backward branches."""
    starts = {0}
    for number, (_, text) in enumerate(code):
        target = destination(text)
        if target is not None or opcode(text) in ("EXIT", "BRA"):
            starts.add(number + 1)
        if target is not None and target in index:
            starts.add(index[target])
    ordered = sorted(start for start in starts if start < len(code))
    blocks = {}
    for start, end in zip(ordered, (*ordered[1:], len(code)), strict=True):
        text, target = code[end - 1][1], destination(code[end - 1][1])
        following = [end] if end < len(code) and (text.startswith("@") or opcode(text) not in ("EXIT", "BRA")) else []
        if target is not None and target in index:
            if index[target] >= end:
                following.append(index[target])
            elif not following:
                following = [end]
        blocks[start] = end, tuple(dict.fromkeys(following))
    return blocks


def destination(text: str) -> int | None:
    """The target of a branch."""
    found = re.search(r"\bBRA\S*\s.*?(0x[0-9a-f]+)", text)
    return int(found.group(1), 16) if found else None


def opcode(text: str) -> str:
    """An instruction without its predicate."""
    return re.sub(r"^@!?U?P\w+\s+", "", text).split()[0].rstrip(";")


def bare(code: Sequence[Instruction]) -> Iterator[str]:
    return (re.sub(r"^@!?U?P\w+\s+", "", text) for _, text in code)


def widths(code: Sequence[Instruction], kind: str) -> str:
    """The number of accesses to device memory of each width in bits: `128 x 3, 8 x 24`."""
    found: collections.Counter[int] = collections.Counter()
    for text in bare(code):
        if text.startswith(kind):
            parts = text.split()[0].split(".")
            sizes = [int(part.lstrip("US")) for part in parts if re.fullmatch(r"[US]?(8|16|64|128)", part)]
            found[sizes[0] if sizes else 32] += 1
    return ", ".join(f"{bits} x {number}" for bits, number in sorted(found.items(), reverse=True))


_ASSEMBLED: dict[tuple[Any, ...], Compiled] = {}


def assemble(launch: Launch) -> Compiled:
    """Compile for sm_90 and disassemble, with Triton's own tools."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    signature, constants, attributes = {}, {}, {}
    for position, (name, value) in enumerate(launch.values.items()):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif launch.kernel.params[position].is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[(position,)] = "constexpr", value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        aligned = isinstance(value, torch.Tensor) or (signature[name] == "i32" and value % 16 == 0)
        if aligned:  # as Triton specialises a launch
            attributes[(position,)] = [["tt.divisibility", 16]]
    key = (id(launch.kernel), *map(str, (signature, constants, attributes)))
    if key not in _ASSEMBLED:
        source = compiler.ASTSource(launch.kernel, signature, constants, attributes)
        made = triton.compile(source, target=target, options=dict(launch.options))
        by_columns = "THREADS" in launch.values and launch.values["WIDTH"] % 8 == 0
        _ASSEMBLED[key] = disassemble(made.asm["cubin"], iterations=3 if by_columns else 9)
    return _ASSEMBLED[key]


def disassemble(cubin: bytes, iterations: float) -> Compiled:
    """Read the code and its resources, without the padding after the last instruction."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text, usage = (
            subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-sass", "-res-usage")
        )
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", text, re.MULTILINE)
    code = tuple((int(address, 16), instruction) for address, instruction in lines if instruction != "NOP")
    registers, shared = (int(found[1]) for name in ("REG", "SHARED") if (found := re.search(rf"{name}:(\d+)", usage)))
    return Compiled(code, registers, shared, iterations)


def report(records: Sequence[Mapping[str, Any]], title: str) -> None:
    """One row per kernel, and one per policy."""
    hidden = ("benchmark", "commit", "batch_size", "size", "low_ms", "high_ms")
    rows = []
    for record in records:
        shown = {name: "" if value is None else value for name, value in record.items() if name not in hidden}
        if record["kernel"] == "all":
            shown |= {"issue_ms": "", "bytes_ms": f"{record['low_ms']:.3f} - {record['high_ms']:.3f}"}
        rows.append({name.removesuffix("_bytes"): str(value) for name, value in shown.items()})
    measure.show(Console(width=190), title, rows)


if __name__ == "__main__":
    main()
