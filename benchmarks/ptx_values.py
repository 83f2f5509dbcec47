"""Types of PTX as NumPy's, and conversions between them."""

from typing import Any

import numpy as np
from ptx_memory import Array

TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "pred": np.bool_} | {
    f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}") for kind in "usb" for bits in (8, 16, 32, 64)
}


def as_type(bits: Array, dtype: np.dtype[Any]) -> Array:
    """The bits of registers as a type of their size, or the lowest of them."""
    if bits.dtype == np.bool_ or dtype == np.bool_:
        return bits.astype(dtype)
    if bits.dtype.itemsize == dtype.itemsize:
        return bits.view(dtype)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


def bits_of(values: Array, width: int) -> Array:
    """Values as the bits of a register: whole numbers are extended by their sign, if they have one."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    if values.dtype.kind == "i":
        return values.astype(f"i{width // 8}").view(f"u{width // 8}")
    return values.astype(f"u{width // 8}")


def shifted(value: Array, amount: Array, left: bool) -> Array:
    """Shifts by as many bits as there are, or more, leave nothing, or the sign."""
    bits = 8 * value.dtype.itemsize
    less = np.minimum(amount, bits - 1).astype(value.dtype)
    if left:
        return np.where(amount < bits, value << less, 0).astype(value.dtype)
    if value.dtype.kind == "i":
        return value >> less
    return np.where(amount < bits, value >> less, 0).astype(value.dtype)


def towards_zero(value: Array) -> Array:
    """float64 as float32, rounded towards zero."""
    near = value.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(value), np.nextafter(near, np.float32(0)), near)


def brain(value: Array) -> Array:
    bits = value.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def half(value: Array) -> Array:
    return value.astype(np.float16).view(np.uint16)
