"""What instructions of PTX do to registers and memory, for all threads of some blocks at once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ptx_memory import Array, Memory
from ptx_values import TYPES, as_type, bits_of, brain, half, shifted, towards_zero

WARP, LINE, SECTOR = 32, 128, 32
_REGISTER = re.compile(r"%([a-z]+)\d*")
_WIDTHS = {"p": 8, "rs": 16, "h": 16, "r": 32, "f": 32, "rd": 64, "fd": 64}
_COMPARED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_COMPARED |= {f"{name}u": how for name, how in _COMPARED.items()}  # true for NaN, which no kernel makes
_PLAIN: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
}


@dataclass
class Traffic:
    """Accesses to device memory by one instruction."""

    kind: str  # "ld" or "st"
    bytes: int  # of a thread
    warps: int = 0
    moved: int = 0  # bytes
    lines: int = 0
    sectors: int = 0


@dataclass(frozen=True)
class Instruction:
    text: str
    guard: tuple[str, bool] | None  # a predicate, and whether it is negated
    name: str
    parts: tuple[str, ...]  # of its name
    operands: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Its name and the type of its operands."""
        return f"{self.name}.{self.parts[-1]}" if self.parts else self.name


@dataclass
class State:
    """Some blocks that are at the same instruction: registers are [blocks, threads]."""

    at: int
    blocks: Array  # [blocks, dimensions]: x, y and z
    registers: dict[str, Array] = field(default_factory=dict)
    shared: Array | None = None  # [blocks, bytes]

    def parted(self, chosen: Array) -> "State":
        registers = {name: values[chosen] for name, values in self.registers.items()}
        return State(self.at, self.blocks[chosen], registers, None if self.shared is None else self.shared[chosen])


class Machine:
    """Executes instructions other than branches for one state."""

    def __init__(
        self, state: State, threads: int, given: Mapping[str, Any], memory: Memory, traffic: dict[int, Traffic]
    ) -> None:
        self.state, self.threads, self.given, self.memory, self.traffic = state, threads, given, memory, traffic
        self.shape = (len(state.blocks), threads)

    def active(self, one: Instruction) -> Array:
        if one.guard is None:
            return np.ones(self.shape, np.bool_)
        name, negated = one.guard
        found: Array = self.value(name, "pred")
        return ~found if negated else found

    def value(self, operand: str, kind: str) -> Array:
        """An operand's values [blocks, threads] in a type."""
        dtype = np.dtype(TYPES[kind])
        if operand.startswith("%") and operand not in ("%SP", "%SPL"):
            if operand.startswith("%ctaid."):
                place = self.state.blocks[:, "xyz".index(operand[-1])]
                return np.broadcast_to(place[:, None], self.shape).astype(dtype)
            if operand == "%tid.x":
                return np.broadcast_to(np.arange(self.threads), self.shape).astype(dtype)
            if operand not in self.state.registers:  # LLVM names some that it does not use
                self.put(operand, np.full(self.shape, 0xA5A5A5A5A5A5A5A5, np.uint64), np.True_)
            bits = self.state.registers[operand]
            return bits if kind == "pred" else as_type(bits, dtype)
        if operand == "global_smem" or operand.startswith("_Z"):  # the only thing in shared memory
            return np.full(self.shape, 0, dtype)
        if found := re.fullmatch(r"0[fd]([0-9A-Fa-f]+)", operand):
            bits = np.array(int(found[1], 16), np.uint32 if operand[1] == "f" else np.uint64)
            return np.broadcast_to(as_type(bits, dtype), self.shape)
        number = int(operand.rstrip("U"), 0)
        if dtype.kind == "b":
            return np.full(self.shape, bool(number))
        return np.full(self.shape, number & ((1 << (8 * dtype.itemsize)) - 1), f"u{dtype.itemsize}").view(dtype)

    def put(self, register: str, values: Array, active: Array) -> None:
        kind = _REGISTER.match(register)
        assert kind is not None, register
        width = _WIDTHS[kind[1]]
        bits = values.astype(np.bool_) if kind[1] == "p" else bits_of(values, width)
        if not active.all() and register in self.state.registers:
            bits = np.where(active, bits, self.state.registers[register])
        self.state.registers[register] = bits

    def execute(self, one: Instruction, active: Array, number: int) -> None:
        if one.name in ("ld", "st"):
            self._move(one, active, number)
        elif one.name in ("atom", "red"):
            self._add(one, active)
        elif one.name in ("bar", "membar", "fence"):
            return
        elif one.name == "mov":
            self._mov(one, active)
        elif one.name in ("shfl", "redux", "vote"):
            self._across(one, active)
        elif one.name in ("ldmatrix", "stmatrix"):
            self._matrices(one, active)
        else:
            self.put(one.operands[0], self._computed(one), active)

    def _computed(self, one: Instruction) -> Array:
        kind, given = one.parts[-1], one.operands[1:]
        name = one.name
        if name == "setp":
            left, right = (self.value(operand, kind) for operand in given[:2])
            found = _COMPARED[one.parts[0]](left, right)
            if len(one.parts) > 2:
                found = _PLAIN[one.parts[1]](found, self.value(given[2], "pred"))
            return found
        if name == "selp":
            bits = f"b{kind[1:]}"
            return np.where(self.value(given[2], "pred"), self.value(given[0], bits), self.value(given[1], bits))
        if name == "cvt":
            return self._converted(one)
        if name == "not":
            return ~self.value(given[0], kind)
        if name in ("shl", "shr"):
            value, amount = self.value(given[0], kind), self.value(given[1], "u32")
            return shifted(value, amount, left=name == "shl")
        if name == "bfe":
            value, start, length = self.value(given[0], kind), self.value(given[1], "u32"), self.value(given[2], "u32")
            wide = shifted(value, start, left=False).astype(np.int64)
            unused = 64 - length.astype(np.int64)
            assert (length > 0).all(), one.text
            wide = wide << unused
            return (wide >> unused if kind.startswith("s") else shifted(wide.view(np.uint64), unused, False)).astype(
                value.dtype
            )
        if name == "bfi":
            new, old, start, length = (self.value(operand, "u32") for operand in given)
            mask = shifted(
                shifted(np.full(self.shape, 1, np.uint32), length, left=True) - np.uint32(1), start, left=True
            )
            return (shifted(new, start, left=True) & mask) | (old & ~mask)
        if name == "prmt":
            return self._permuted(given)
        if name == "shf":
            low, high = (self.value(operand, "u32").astype(np.uint64) for operand in given[:2])
            amount = self.value(given[2], "u32").astype(np.uint64)
            amount = amount & np.uint64(31) if "wrap" in one.parts else np.minimum(amount, np.uint64(32))
            both = (high << np.uint64(32)) | low
            both = both << amount >> np.uint64(32) if one.parts[0] == "l" else both >> amount
            return (both & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        if name in ("cvta", "abs"):
            value = self.value(given[0], kind)
            return np.abs(value) if name == "abs" else value
        if name == "dp2a":
            assert one.parts[0] == "lo" and kind == "u32", one.text
            pairs, levels, total = (self.value(operand, "u32") for operand in given)
            low, high = (pairs & 0xFFFF) * (levels & 0xFF), (pairs >> 16) * ((levels >> 8) & 0xFF)
            return total + low + high
        if name == "popc":
            digits = np.unpackbits(self.value(given[0], f"u{kind[1:]}").copy().view(np.uint8), axis=-1)
            return digits.reshape(*self.shape, -1).sum(axis=-1, dtype=np.uint32)
        if kind in ("s16x2", "u16x2"):
            pairs = [self.value(operand, "u32").view(np.uint16) for operand in given]
            return _PLAIN[name](*pairs).view(np.uint32)
        return self._arithmetic(one, kind, given)

    def _arithmetic(self, one: Instruction, kind: str, given: Sequence[str]) -> Array:
        name = one.name
        if name in ("mul", "mad"):
            if kind in ("f32", "f64"):
                assert name == "mul" and "rn" in one.parts, one.text
                return self.value(given[0], kind) * self.value(given[1], kind)
            wide = np.int64 if kind.startswith("s") else np.uint64
            bits = int(kind[1:])
            left, right = (self.value(operand, kind).astype(wide) for operand in given[:2])
            if "hi" in one.parts and bits == 64:
                exact = left.astype(object) * right.astype(object) >> 64
                return exact.astype(wide)
            product = left * right
            if "hi" in one.parts:
                product = product >> wide(bits)
            result = f"{kind[0]}{2 * bits}" if "wide" in one.parts else kind
            if name == "mad":
                product = product + self.value(given[2], result).astype(wide)
            return product.astype(TYPES[result])
        if name == "fma":
            a, b, c = (self.value(operand, kind).astype(np.float64) for operand in given)
            return towards_zero(a * b + c) if "rz" in one.parts else (a * b + c).astype(np.float32)
        if name in ("div", "rem"):
            left, right = self.value(given[0], kind), self.value(given[1], kind)
            if kind in ("f32", "f64"):
                return left / right
            quotient = np.trunc(left.astype(np.float64) / right).astype(left.dtype)  # exact: both have 32 bits
            return quotient if name == "div" else left - quotient * right
        if name in _PLAIN:
            values = [self.value(operand, kind) for operand in given]
            if name in ("and", "or", "xor") and kind == "pred":
                return {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[name](*values)
            return _PLAIN[name](*values)
        raise NotImplementedError(one.text)

    def _converted(self, one: Instruction) -> Array:
        *how, to, kind = one.parts
        if to in ("bf16x2", "f16x2"):
            high, low = (self.value(operand, kind) for operand in one.operands[1:])
            narrow = brain if to == "bf16x2" else half
            return (narrow(high).astype(np.uint32) << np.uint32(16)) | narrow(low)
        if to in ("bf16", "f16"):
            return (brain if to == "bf16" else half)(self.value(one.operands[1], kind))
        value = self.value(one.operands[1], kind)
        if "rzi" in how:
            value = np.trunc(value)
        return value.astype(TYPES[to])

    def _permuted(self, given: Sequence[str]) -> Array:
        low, high, chosen = (self.value(operand, "u32") for operand in given)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        result = np.zeros(self.shape, np.uint32)
        for number in range(4):
            which = (chosen >> np.uint32(4 * number)) & np.uint32(15)
            byte = (both >> (8 * (which & np.uint32(7)).astype(np.uint64))) & np.uint64(255)
            byte = np.where(which & 8, np.where(byte & np.uint64(128), 255, 0), byte)
            result |= byte.astype(np.uint32) << np.uint32(8 * number)
        return result

    def _mov(self, one: Instruction, active: Array) -> None:
        to, given = one.operands
        bits = int(one.parts[-1][1:]) if one.parts[-1] != "pred" else 0
        if to.startswith("<"):
            names = [name.strip() for name in to[1:-1].split(",")]
            each = bits // len(names)
            value = self.value(given, f"u{bits}")
            for number, name in enumerate(names):
                if name != "_":
                    self.put(name, (value >> np.array(each * number, value.dtype)).astype(f"u{each // 8}"), active)
        elif given.startswith("<"):
            names = [name.strip() for name in given[1:-1].split(",")]
            each = bits // len(names)
            wide = [self.value(name, f"u{each}").astype(f"u{bits // 8}") for name in names]
            value = np.zeros(self.shape, f"u{bits // 8}")
            for number, part in enumerate(wide):
                value |= part << np.array(each * number, value.dtype)
            self.put(to, value, active)
        elif not given.startswith(("__local", "%SP")) and to not in ("%SP", "%SPL"):
            self.put(to, self.value(given, one.parts[-1] if bits else "pred"), active)

    def _address(self, operand: str) -> Array:
        base, _, offset = operand.strip("[] ").partition("+")
        wide = base.strip().startswith("%rd")
        found = self.value(base.strip(), "u64" if wide else "u32").astype(np.uint64)
        return found + np.uint64(int(offset or "0", 0) & (2**64 - 1))

    def _move(self, one: Instruction, active: Array, number: int) -> None:
        place = one.operands[0 if one.name == "st" else 1]
        listed = one.operands[1 if one.name == "st" else 0]
        names = [name.strip() for name in listed.strip("<>").split(",")]
        kind = one.parts[-1]
        item = np.dtype(TYPES[kind]).itemsize
        if "param" in one.parts:
            value = self.given[place.strip("[]")]
            data = np.array(value, np.float32).view(np.uint32) if isinstance(value, float) else np.array(value)
            self.put(names[0], np.broadcast_to(data.astype(TYPES[kind]), self.shape), active)
            return
        addresses, size = self._address(place), item * len(names)
        if "global" in one.parts:
            self._count(one, addresses - self.memory.starts(addresses), active, size, number)
        if one.name == "st":
            parts = [np.ascontiguousarray(self.value(name, f"u{8 * item}")).view(np.uint8) for name in names]
            values = np.concatenate([part.reshape(*self.shape, item) for part in parts], axis=2)
            if "global" in one.parts:
                self.memory.write(addresses[active], values[active], one.text)
            else:
                self._shared(addresses, size, active)[...] = values[active]
                assert self.state.shared is not None
                block = np.nonzero(active)[0]
                spots = addresses[active].astype(np.int64)[:, None] + np.arange(size)
                self.state.shared[block[:, None], spots] = values[active]
            return
        found = np.zeros((*self.shape, size), np.uint8)
        if "global" in one.parts:
            found[active] = self.memory.read(addresses[active], size, one.text)
        else:
            found[active] = self._shared(addresses, size, active)
        items = found.reshape(*self.shape, len(names), item).view(f"u{item}")[..., 0]
        for position, name in enumerate(names):
            value = items[:, :, position]
            if kind.startswith("s"):
                value = value.view(TYPES[kind])
            self.put(name, value, active)

    def _shared(self, addresses: Array, size: int, active: Array) -> Array:
        assert self.state.shared is not None
        spots = addresses[active].astype(np.int64)[:, None] + np.arange(size)
        return self.state.shared[np.nonzero(active)[0][:, None], spots]

    def _count(self, one: Instruction, addresses: Array, active: Array, size: int, number: int) -> None:
        kept = self.traffic.setdefault(number, Traffic(one.name, size))
        warps = active.reshape(-1, WARP)
        kept.warps += int(warps.any(axis=1).sum())
        kept.moved += int(active.sum()) * size
        for unit, threads in ((LINE, min(WARP, LINE // size)), (SECTOR, WARP)):
            first = np.where(active, addresses // np.uint64(unit), np.uint64(2**63)).reshape(-1, threads)
            ordered = np.sort(first, axis=1)
            fresh = np.ones(ordered.shape, np.bool_)
            fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
            total = int((fresh & (ordered != 2**63)).sum())
            if unit == LINE:
                kept.lines += total
            else:
                kept.sectors += total

    def _matrices(self, one: Instruction, active: Array) -> None:
        """Tiles of 8 x 8 16-bit numbers in shared memory: each of a warp's threads has the address of a row."""
        assert active.all() and self.state.shared is not None, one.text
        listed, place = one.operands if one.name == "ldmatrix" else one.operands[::-1]
        names = [name.strip() for name in listed.strip("<>").split(",")]
        rows = self._address(place).astype(np.int64).reshape(-1, WARP)[:, : 8 * len(names)]
        block = np.repeat(np.arange(self.shape[0]), self.threads // WARP)
        spots = rows.reshape(-1, len(names), 8)[..., None] + np.arange(16)
        where = (block[:, None, None, None], spots)
        if one.name == "ldmatrix":
            tiles = self.state.shared[where].view(np.uint16)  # [warps, tiles, 8, 8]
            tiles = tiles.swapaxes(2, 3) if "trans" in one.parts else tiles
            words = np.ascontiguousarray(tiles).view(np.uint32).reshape(len(tiles), len(names), WARP)
            for number, name in enumerate(names):
                self.put(name, words[:, number].reshape(self.shape), active)
            return
        found = [np.ascontiguousarray(self.value(name, "u32")).reshape(-1, WARP) for name in names]
        tiles = np.stack(found, axis=1).view(np.uint16).reshape(-1, len(names), 8, 8)
        tiles = tiles.swapaxes(2, 3) if "trans" in one.parts else tiles
        self.state.shared[where] = np.ascontiguousarray(tiles).view(np.uint8).reshape(spots.shape)

    def _add(self, one: Instruction, active: Array) -> None:
        kind, change = one.parts[-1], "max" if "max" in one.parts else "add"
        place, amount = one.operands[-2:]
        dtype = np.dtype(TYPES[kind])
        addresses, values = self._address(place)[active], self.value(amount, kind)[active]
        with_ = np.maximum if change == "max" else np.add
        if "global" in one.parts:
            spots, where = np.unique(addresses, return_inverse=True)
            now = self.memory.read(spots, dtype.itemsize, one.text).view(dtype)[:, 0].copy()
            with_.at(now, where, values)
            self.memory.write(spots, now[:, None].view(np.uint8), one.text)
        else:
            assert self.state.shared is not None
            words = self.state.shared.view(dtype)
            with_.at(words, (np.nonzero(active)[0], addresses.astype(np.int64) // dtype.itemsize), values)

    def _across(self, one: Instruction, active: Array) -> None:
        assert active.all(), one.text
        to, given = one.operands[0].partition("|")[0], one.operands[1]
        lanes = np.arange(WARP)
        if one.name == "vote":
            bits = self.value(given, "pred").reshape(-1, WARP)
            if given.startswith("!"):
                bits = ~bits
            found = (bits.astype(np.uint32) << lanes.astype(np.uint32)).sum(axis=1, dtype=np.uint32)
            self.put(to, np.repeat(found, WARP).reshape(self.shape), active)
            return
        kind = one.parts[-1]
        values = self.value(given, kind).reshape(-1, WARP)
        if one.name == "redux":
            with_ = {"add": np.add, "max": np.maximum, "min": np.minimum, "or": np.bitwise_or}[one.parts[1]]
            found = with_.reduce(values, axis=1, dtype=values.dtype)
            self.put(to, np.repeat(found, WARP).reshape(self.shape), active)
            return
        amount = self.value(one.operands[2], "u32").reshape(-1, WARP).astype(np.int64)
        clamp = self.value(one.operands[3], "u32").reshape(-1, WARP)
        assert (clamp == (0 if one.parts[1] == "up" else 31)).all(), one.text
        source = {"idx": amount & 31, "bfly": lanes ^ amount, "up": lanes - amount, "down": lanes + amount}[
            one.parts[1]
        ]
        inside = (source >= 0) & (source < WARP)
        source = np.where(inside, source, lanes)
        self.put(to, np.take_along_axis(values, source, axis=1).reshape(self.shape), active)
