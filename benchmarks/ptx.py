"""Executes a kernel's PTX on the CPU, all threads of its blocks in step, and counts what they move.

`Program(text).run(grid, threads, values)` computes what the kernel would: tensors are read and written where they lie.
An access outside of every tensor is an error, and so is one at an address that is not a multiple of its size. Known are
the instructions of the augmentation kernels; any other raises NotImplementedError. Races are not modelled, and
faults of ptxas, which makes machine code of PTX, are not seen. `fma` rounds a product and a sum from float64.

`Program.traffic` says how each access to device memory was made: how often, by how many bytes, and how many lines of
128 bytes and sectors of 32 bytes its warps touched. A warp's access goes in parts, each of as many neighbouring threads
as can move 128 bytes at once; `lines` are counted for each part, since each takes a cycle of the L1 cache for each
line.
"""

import collections
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ptx_machine import SECTOR, WARP, Array, Instruction, Machine, State, Traffic
from ptx_memory import Memory

__all__ = ["SECTOR", "Program", "Traffic", "totals"]


class Program:
    """A kernel, of the only entry of a PTX module."""

    def __init__(self, text: str) -> None:
        self.parameters = re.findall(r"^\s*\.param\s.*?(\w+)[,\s]*$", text[: text.index("{")], re.MULTILINE)
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.targets: dict[str, list[str]] = {}
        self.traffic: dict[int, Traffic] = {}
        self.executed: collections.Counter[str] = collections.Counter()  # names of instructions -> warps that did
        body = re.sub(r"//[^\n]*", "", text[text.index("{") :])
        body = body[: body.index(".section")] if ".section" in body else body
        pieces = re.split(r"([;{}:])", re.sub(r"\{([^{};]*)\}", lambda found: f"<{found[1]}>", body))
        self._read(re.sub(r"[{}]", "\n", "".join(pieces)))

    def _read(self, body: str) -> None:
        for line in re.split(r";|\n(?=\s*\$?\w+:)", body):
            text = line.strip()
            while label := re.match(r"(\$?\w+):\s*", text):
                name, text = label[1], text[label.end() :]
                self.labels[name] = len(self.code)
                if listed := re.match(r"\.branchtargets\s+(.*)", text, re.DOTALL):
                    self.targets[name], text = re.findall(r"\$?\w+", listed[1]), ""
            text = re.sub(r"^(\s*\.(loc|file|pragma|reg|local|reqntid|maxntid|shared)[^\n]*(\n|$))+", "", text).strip()
            text = " ".join(part for part in text.split("\n") if not part.strip().startswith("."))
            text = " ".join(text.split())
            if text and text != ")":
                self.code.append(_parsed(text))

    def run(
        self,
        grid: Sequence[int],
        threads: int,
        values: Sequence[torch.Tensor | float],
        shared: int = 0,
        tensors: Sequence[torch.Tensor] = (),
    ) -> None:
        """Execute a grid of blocks; `values` are the arguments without those that were compiled in.

        `tensors` are those that the kernel may touch, beside the ones among the values.
        """
        memory = Memory([*tensors, *(value for value in values if isinstance(value, torch.Tensor))])
        given: dict[str, Any] = {}
        for name, value in zip(self.parameters, values, strict=False):
            given[name] = value.data_ptr() if isinstance(value, torch.Tensor) else value
        count = math.prod(grid)
        blocks = np.stack(np.unravel_index(np.arange(count), tuple(reversed(grid)))[::-1])  # x varies fastest
        waiting = [State(0, blocks.T, {}, np.zeros((count, shared), np.uint8) if shared else None)]
        with np.errstate(all="ignore"):
            while waiting:
                waiting += self._step(waiting.pop(), threads, given, memory)

    def _step(self, state: State, threads: int, given: Mapping[str, Any], memory: "Memory") -> list[State]:
        """Execute up to a branch on which blocks differ, or to the end.

        Where threads of a block branch apart, those furthest behind go on first, until they have caught up.
        """
        machine = Machine(state, threads, given, memory, self.traffic)
        apart: list[tuple[int, Array]] = []  # threads that wait, and where
        mask = np.ones(machine.shape, np.bool_)
        while True:
            if apart:
                behind = min(range(len(apart)), key=lambda number: apart[number][0])
                at, others = apart[behind]
                if at < state.at:
                    apart[behind], state.at, mask = (state.at, mask), at, others
                for others in (others for at, others in apart if at == state.at):
                    mask = mask | others
                apart = [(at, others) for at, others in apart if at != state.at]
            one = self.code[state.at]
            self.executed[one.kind] += int(mask.reshape(-1, WARP).any(axis=1).sum()) if apart else mask.size // WARP
            active = machine.active(one) & mask
            if one.name in ("ret", "exit"):
                assert not apart, one.text
                return []
            state.at += 1
            if one.name == "bra":
                target = self.labels[one.operands[0]]
                if not active.any():
                    continue
                if (active == mask).all():
                    state.at = target
                elif not apart and (active == active[:, :1]).all():
                    there, here = state.parted(active[:, 0]), state.parted(~active[:, 0])
                    there.at = target
                    return [here, there]
                else:
                    apart.append((target, active))
                    mask = mask & ~active
            elif one.name == "brx":
                index = machine.value(one.operands[0], "u32")
                chosen = index[:, 0]
                assert not apart and (index == chosen[:, None]).all(), one.text
                parts = []
                for number in np.unique(chosen):
                    part = state.parted(chosen == number)
                    part.at = self.labels[self.targets[one.operands[1]][number]]
                    parts.append(part)
                return parts
            else:
                machine.execute(one, active, state.at - 1)


def _parsed(text: str) -> Instruction:
    guard = None
    if found := re.match(r"@(!?)(%\w+)\s+", text):
        guard, text = (found[2], bool(found[1])), text[found.end() :]
    name, _, rest = text.partition(" ")
    operands = tuple(part.strip() for part in re.split(r",(?![^<\[]*[>\]])", rest)) if rest else ()
    first, *parts = name.split(".")
    return Instruction(text, guard, first, tuple(parts), operands)


def totals(traffic: Mapping[int, Traffic]) -> dict[str, Traffic]:
    """The sums over all loads, and over all stores."""
    found: dict[str, Traffic] = collections.defaultdict(lambda: Traffic("", 0))
    for one in traffic.values():
        kept = found[one.kind]
        kept.kind = one.kind
        kept.warps, kept.moved = kept.warps + one.warps, kept.moved + one.moved
        kept.lines, kept.sectors = kept.lines + one.lines, kept.sectors + one.sectors
    return dict(found)
