"""The augmentation kernels as compiled for an H200, without a GPU: resources, instructions, accesses, predicted time.

    python benchmarks/kernels.py                       # the kernels of this checkout, with the Triton installed here
    python benchmarks/kernels.py --before ../older     # and those of another checkout, in the same table
    python benchmarks/kernels.py --before ../older --python /other/environment/bin/python    # with its Triton

What `apply` would launch for a batch of photographs is compiled for sm_90. Registers, spills and the widths of accesses
are read from the machine code. How often instructions are executed, and which memory they touch, is counted by
executing the PTX on the CPU (`ptx`), for some images of the batch, whose result must have the reference's bits. An
instruction on 64 bits counts as two, and one that only moves or widens a register as none. Policies that need
statistics of the images are counted twice: with the pass in CUDA C++, compiled by NVRTC, for the images that it takes;
and with the Triton pass for all.

Nothing is measured. Three times are predicted per kernel: `issue`, all warp instructions at 132 multiprocessors x 4 per
cycle; `lines`, the lines of 128 bytes that parts of warps touch at one a cycle for each multiprocessor's L1 cache; and
`bytes`, the bytes that must be read and written at 4.3 TB/s, the rate of a copy kernel on an H200. The clock is 1.98
GHz. A policy's prediction goes from the sum over kernels of the largest of the three (perfect overlap) to the sum of
all (none). `written` is how many bytes of sectors (32 bytes) stores touch for each byte that they write: 1 where
sectors are written whole. Not in the model: conflicts of banks, what atomic additions take beyond their issue, slow
conversions, latency at low occupancy, gaps between launches, the tail of a launch.
"""

import argparse
import collections
import dataclasses
import functools
import importlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import ptx
import torch
import triton
from images import photograph
from PIL import Image
from rich.console import Console

from fastimg.augment import Plan, Policy, draw
from fastimg.augment.lines import line_of
from fastimg.augment.reference import augment, normalisation_table

POLICIES = {
    "normalise": Policy(),
    "flips": Policy(hflip=0.5),
    "trivial": Policy(hflip=0.5, trivial=True),
    "trivial, erase": Policy(hflip=0.5, trivial=True, erase=0.1),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "uint8": torch.uint8}
POINTERS = {torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64"}
CLOCK = 1.98e9  # Hz, as benchmarks/gpu.py found it on an H200 and on an H100
ISSUED = 132 * 4 * CLOCK  # warp instructions per second: multiprocessors x schedulers x clock
TOUCHED = 132 * CLOCK  # lines per second
MOVED = 4.3e12  # bytes a second
LOCAL = ("STL", "LDL")  # spilled registers are stored to memory and loaded again
COUNTS = ["CUDA C++", "Triton"]  # what counts the levels of images that it can count
FREE = {"mov", "cvta", "ret", "bra", "bar"}  # instructions that are none, or few, in machine code
WIDENED = {"cvt.u64", "cvt.u32", "cvt.u16", "cvt.s64", "cvt.s32"}

Instruction = tuple[int, str]  # address, text


@dataclass(frozen=True)
class Compiled:
    """A kernel's machine code and the PTX that it was made from.

    The code is disassembled with Triton's own tools when it is asked for; executing the PTX does not take it.
    """

    cubin: bytes
    text: str
    stated: int | None = None  # the bytes of shared memory per program, where the compiler tells them

    @functools.cached_property
    def code(self) -> tuple[Instruction, ...]:
        """Without the padding after the last instruction."""
        lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", self._dumped("-sass"), re.MULTILINE)
        return tuple((int(address, 16), instruction) for address, instruction in lines if instruction != "NOP")

    @property
    def registers(self) -> int:
        return self._used["REG"]

    @property
    def shared(self) -> int:
        """Bytes per program."""
        return self._used["SHARED"] if self.stated is None else self.stated

    @functools.cached_property
    def _used(self) -> dict[str, int]:
        """The assembler's report."""
        return {name: int(used) for name, used in re.findall(r"\b(REG|SHARED):(\d+)", self._dumped("-res-usage"))}

    def _dumped(self, flag: str) -> str:
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            return subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout

    @property
    def spills(self) -> int:
        """The number of instructions that store or load spilled registers."""
        return sum(text.startswith(LOCAL) for text in bare(self.code))


@dataclass(frozen=True)
class Executed:
    """A launch that was executed."""

    name: str
    compiled: Compiled
    program: ptx.Program
    moved: int  # bytes that it must read and write

    def row(self, images: int, pixels: int, batch: int) -> dict[str, Any]:
        """Its data, of which the times are for a whole batch."""
        code, traffic = self.compiled.code, ptx.totals(self.program.traffic)
        lines, warps = sum(one.lines for one in traffic.values()), self.instructions()
        stored = traffic.get("st")
        return {
            "kernel": self.name,
            "registers": self.compiled.registers,
            "spills": self.compiled.spills,
            "shared_bytes": self.compiled.shared,
            "loads": widths(code, "LDG"),
            "stores": widths(code, "STG"),
            "instructions_per_value": round(32 * warps / (3 * pixels * images), 2),
            "lines_per_256_pixels": round(256 * lines / (pixels * images), 1),
            "written": round(ptx.SECTOR * stored.sectors / stored.moved, 2) if stored else None,
            "issue_ms": round(1e3 * warps * batch / images / ISSUED, 4),
            "lines_ms": round(1e3 * lines * batch / images / TOUCHED, 4),
            "bytes_ms": round(1e3 * self.moved * batch / images / MOVED, 4),
        }

    def instructions(self) -> int:
        """How many of machine code, about, all warps executed."""
        executed = self.program.executed.items()
        return sum(number * cost(name) for name, number in executed)


@dataclass(frozen=True)
class Executing:
    """Stands for a Triton kernel: launches are compiled for an H200, executed on tensors of the CPU, and noted.

    `tensors` are those that the kernel may touch, beside its arguments.
    """

    kernel: Any
    note: Callable[[Executed, Sequence[int], Mapping[str, Any]], None] = lambda one, grid, values: None
    tensors: Sequence[torch.Tensor] = ()

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(*given: Any, **named: Any) -> None:
            options = {name: named.pop(name) for name in ("num_warps", "enable_fp_fusion") if name in named}
            values = dict(zip(self.kernel.arg_names, given, strict=False)) | named
            ordered = {name: values[name] for name in self.kernel.arg_names}
            compiled, kept = compiled_for(self.kernel, ordered, options)
            program = ptx.Program(compiled.text)
            program.run(grid, 32 * options.get("num_warps", 4), kept, compiled.shared, self.tensors)
            self.note(Executed(self.kernel.fn.__name__, compiled, program, 0), grid, ordered)

        return launch


def cost(name: str) -> int:
    """What an instruction of PTX, such as `add.s64`, counts as."""
    first, _, kind = name.partition(".")
    if first in FREE or name in WIDENED:
        return 0
    return 2 if kind.endswith("64") and first not in ("ld", "st", "atom", "red") else 1


def main() -> None:
    """Compile, execute, print, and append the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bf16", "fp16"])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=128, help="images that are executed, as a sample of the batch")
    parser.add_argument("--before", type=Path, help="another checkout, to include its kernels in the table")
    parser.add_argument("--python", default=sys.executable, help="Python of the environment whose Triton compiles")
    parser.add_argument("--quick", action="store_true", help="only flips of a few images to bf16, to test the script")
    parser.add_argument("--json", action="store_true", help="print records instead of a table, and append nothing")
    parser.add_argument("--out", type=Path, default=measure.RESULTS / "kernels.jsonl")
    args = parser.parse_args()
    if args.before and not (args.before / "augment" / "fused").is_dir():
        parser.error(f"--before {args.before}: not a checkout, which has augment/fused")
    if shutil.which(args.python) is None:
        parser.error(f"--python {args.python}: no such program")
    if args.quick:
        args.policies, args.dtypes, args.images = ["flips"], ["bf16"], 4
    if args.before or args.python != sys.executable:
        checkouts = {"before": args.before, "after": Path(__file__).resolve().parents[1]}
        records = [r for name, path in checkouts.items() if path for r in elsewhere(path, args, name)]
    else:
        records = list(here(args))
    if args.json:
        print(json.dumps(records))
        return
    for record in records:
        measure.append(args.out, record)
    report(records, f"{args.batch_size} x 3 x {args.size} x {args.size} uint8 on an H200, predicted")


def elsewhere(checkout: Path, args: argparse.Namespace, source: str) -> list[dict[str, Any]]:
    """The records of another checkout's kernels, or for another Triton, made in a separate process."""
    python = os.path.abspath(args.python) if os.sep in args.python else args.python  # a link stays one
    command = [python, str(Path(__file__).resolve()), "--json", "--policies", *args.policies]
    command += ["--dtypes", *args.dtypes, "--batch-size", str(args.batch_size), "--size", str(args.size)]
    paths = os.pathsep.join((str(checkout.resolve()), str(Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command += ["--images", str(args.images)]
    made = subprocess.run(command, env=environment, cwd=checkout, stdout=subprocess.PIPE, check=True)
    return [{**record, "source": source} for record in json.loads(made.stdout)]


def here(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per kernel and policy, and one of the total, for the importable kernels and the installed Triton."""
    commit = measure.environment()["commit"]
    setting = {"batch_size": args.batch_size, "size": args.size, "images": args.images}
    drawn = [photograph(seed, (args.size, args.size)) for seed in range(min(args.images, 16))]
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(jpeg))) for jpeg in drawn])
    pictures = torch.from_numpy(decoded[np.arange(args.images) % len(decoded)]).permute(0, 3, 1, 2)
    for policy in args.policies:
        plan = draw(POLICIES[policy], np.arange(args.images), 0, 0) if policy != "normalise" else None
        for dtype, counts in itertools.product(args.dtypes, COUNTS if plan is not None and plan.passes else [""]):
            found = executed(plan, pictures, POLICIES[policy], DTYPES[dtype], counts)
            rows = [one.row(args.images, args.size**2, args.batch_size) for one in found]
            about = {"benchmark": "kernels", "source": "after", "triton": triton.__version__, "commit": commit}
            about |= {"statistics": counts} if counts else {}
            times = [[one[f"{name}_ms"] for name in ("issue", "lines", "bytes")] for one in rows]
            low, high = sum(map(max, times)), sum(map(sum, times))
            total = {"kernel": "all", "low_ms": round(low, 4), "high_ms": round(high, 4)}
            for one in (*rows, total):
                yield {**about, "policy": policy, "dtype": dtype, **one, **setting}


def executed(
    plan: Plan | None, images: torch.Tensor, policy: Policy, dtype: torch.dtype, counts: str = ""
) -> list[Executed]:
    """The launches of `apply` for a batch, executed on the CPU; `counts` is one of COUNTS.

    Raises AssertionError if the result is not the reference's.
    """
    fused = importlib.import_module("fastimg.augment.fused.launches")
    found: list[Executed] = []
    size = images[0].numel()

    def note(one: Executed, grid: Sequence[int], values: Mapping[str, Any]) -> None:
        moved = 0
        if one.name == "_pixels":
            moved = len(images) * size * (1 + dtype.itemsize)
        elif one.name == "_statistics":
            moved = grid[0] // triton.cdiv(size // 3, values["BLOCK"]) * size
        found.append(dataclasses.replace(one, moved=moved))

    class Counter:
        missing = None if counts == COUNTS[0] else "for comparison"
        tensors: Sequence[torch.Tensor] = ()

        def launch(self, blocks: int, values: Sequence[int]) -> None:
            compiled = counting_kernel()
            program = ptx.Program(compiled.text)
            program.run((blocks,), 256, values, compiled.shared, self.tensors)
            found.append(Executed("statistics.cu", compiled, program, blocks // values[-3] * size))

    counter = Counter()

    def count(used: Any, *given: Any) -> None:
        counter.tensors = [value for value in given if isinstance(value, torch.Tensor)]
        kept["count"](used, *given)

    replaced = {"counter_of": lambda device: counter, "count": count, "_INTERPRETED": True}
    replaced |= {name: Executing(getattr(fused, name), note) for name in ("_tables", "_statistics", "_pixels")}
    kept = {name: getattr(fused, name) for name in replaced}
    table = normalisation_table(policy, dtype)
    try:
        for name, value in replaced.items():
            setattr(fused, name, value)
        got = fused.fused(plan, images, table, dtype, None, line_of(policy, dtype))
    finally:
        for name, value in kept.items():
            setattr(fused, name, value)
    assert torch.equal(got, augment(plan, images, table)), "the compiled kernels do not have the reference's bits"
    return found


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


_COMPILED: dict[tuple[Any, ...], Compiled] = {}


def compiled_for(kernel: Any, values: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Compiled, list[Any]]:
    """A launched kernel, compiled for sm_90, and the arguments that it still has."""
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    signature, constants, attributes, kept = {}, {}, {}, []
    for position, (name, value) in enumerate(values.items()):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        elif kernel.params[position].is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[(position,)] = "constexpr", value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        aligned = isinstance(value, torch.Tensor) or (signature[name] == "i32" and value % 16 == 0)
        if aligned:  # as Triton specialises a launch
            attributes[(position,)] = [["tt.divisibility", 16]]
        if signature[name] != "constexpr":
            kept.append(value)
    key = (id(kernel), *map(str, (signature, constants, attributes)))
    if key not in _COMPILED:
        source = compiler.ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=target, options=dict(options))
        _COMPILED[key] = Compiled(made.asm["cubin"], made.asm["ptx"], made.metadata.shared)
    return _COMPILED[key], kept


def counting_kernel() -> Compiled:
    """statistics.cu, compiled by NVRTC."""
    counting = importlib.import_module("fastimg.augment.fused.counting")
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    key = ("statistics.cu",)
    if key not in _COMPILED:
        _, program = nvrtc.nvrtcCreateProgram(counting.SOURCE.read_bytes(), b"statistics.cu", 0, [], [])
        nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=compute_90", b"--std=c++17"])
        text = bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
        nvrtc.nvrtcGetPTX(program, text)
        _COMPILED[key] = Compiled(counting.compiled("sm_90"), text.rstrip(b"\0").decode())
    return _COMPILED[key]


def report(records: Sequence[Mapping[str, Any]], title: str) -> None:
    """One row per kernel, and one per policy."""
    hidden = ("benchmark", "commit", "batch_size", "size", "images", "low_ms", "high_ms")
    rows = []
    for record in records:
        shown = {name: "" if value is None else value for name, value in record.items() if name not in hidden}
        if record["kernel"] == "all":
            shown |= {"bytes_ms": f"{record['low_ms']:.3f} - {record['high_ms']:.3f}"}
        rows.append({name.removesuffix("_bytes"): str(value) for name, value in shown.items()})
    measure.show(Console(width=200), title, rows)


if __name__ == "__main__":
    main()
