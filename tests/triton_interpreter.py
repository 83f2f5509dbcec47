"""Triton's interpreter, a few times as fast, with the same results: for a process that only interprets kernels.

Blocks are small in tests, so nearly all its time goes to finding out what each operation is about, again and again.
"""

import dataclasses
import importlib
import inspect
import math
import types
from typing import Any

import pytest


def quicken(patched: pytest.MonkeyPatch) -> None:
    """Keep what does not change between operations.

    Triton's language is prepared once instead of at every call, sums and products are not repeated with 64 bits to
    detect overflows, and what is derived from types is kept.
    """
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.interpreter_builder
    patched.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
    prepare_once(patched, interpreter)
    keep_types(patched, interpreter)
    keep_operands(patched, interpreter)


def prepare_once(patched: pytest.MonkeyPatch, interpreter: types.ModuleType) -> None:
    """Functions of Triton's language are replaced for good. They are those of the modules that a kernel's file sees."""
    prepare, language, semantic = interpreter._patch_lang, interpreter.tl, interpreter.interpreter_semantic
    prepared, kept = set(), types.SimpleNamespace(restore=lambda: None)

    def prepare_new(function: Any) -> Any:
        if (file := id(function.__globals__)) not in prepared:
            seen = [found for found in function.__globals__.values() if inspect.ismodule(found)]
            if (modules := (language in seen, language.core in seen)) not in prepared:
                prepare(function)
            prepared.update((file, modules))
        return kept

    def replace(place: Any, name: str, member: Any, builder: Any, scope: Any = None) -> None:
        def call(*given: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return member(*given, **named)

        patched.setattr(place, name, call)

    patched.setattr(interpreter, "_patch_lang", prepare_new)
    patched.setattr(interpreter, "_patch_attr", replace)


def keep_types(patched: pytest.MonkeyPatch, interpreter: types.ModuleType) -> None:
    """Tensors whose types are equal share one type, and all that is derived from it."""
    language = interpreter.tl.core
    of_block, of_tensor, of_numpy = language.block_type.__init__, language.tensor.__init__, interpreter._get_np_dtype
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    tensors: dict[tuple[Any, ...], dict[str, Any]] = {}
    numpys: dict[Any, Any] = {}

    def key_of(of: Any) -> tuple[Any, ...]:
        return of.name, of.address_space if of.is_ptr() else None

    def make_block(block: Any, element: Any, shape: Any) -> None:
        key = *key_of(element), *[getattr(size, "value", size) for size in shape]
        if key not in blocks:
            of_block(block, element, shape)
            blocks[key] = dict(vars(block))
        vars(block).update(blocks[key])

    def make_tensor(tensor: Any, handle: Any, of: Any) -> None:
        attributes = vars(tensor)
        if "of_tensors" not in vars(of):
            shape = of.shape if of.is_block() else ()
            kept = tensors.setdefault((*key_of(of.scalar), *shape), {})
            if not kept:
                of_tensor(tensor, handle, of)
                kept.update(attributes)
            of.of_tensors = kept
            if of.is_block():
                blocks[(*key_of(of.scalar), *shape)]["of_tensors"] = kept
        attributes.update(of.of_tensors)
        attributes["handle"] = handle

    def numpy_of(of: Any) -> Any:
        if of.scalar.is_ptr():
            return of_numpy(of)
        if of.scalar not in numpys:
            numpys[of.scalar] = of_numpy(of)
        return numpys[of.scalar]

    patched.setattr(language.block_type, "__init__", make_block)
    patched.setattr(language.block_type, "to_ir", lambda block, builder: block)  # it has no other form when interpreted
    patched.setattr(language.tensor, "__init__", make_tensor)
    patched.setattr(interpreter, "_get_np_dtype", numpy_of)


def keep_operands(patched: pytest.MonkeyPatch, interpreter: types.ModuleType) -> None:
    """What is done to two operands depends on their types, and on the value of a number among them."""
    core, semantic = interpreter.tl.core, type(interpreter.interpreter_semantic)
    tensor = core.tensor
    check, convert, of_blocks = semantic.binary_op_type_checking_impl, semantic.cast, semantic.broadcast_impl_value
    plain, of_constant = {tensor, int, float, bool, core.dtype, core.block_type}, core._unwrap_if_constexpr
    unchanged: set[tuple[Any, ...]] = set()
    constants: dict[tuple[Any, ...], Any] = {}

    def checked(self: Any, left: Any, right: Any, *flags: bool, **named: bool) -> Any:
        options = flags, *named.items()
        if type(left) is type(right) is tensor:
            key = id(left.type), id(right.type), options
            if key in unchanged:
                return left, right
            found = check(self, left, right, *flags, **named)
            if found[0] is left and found[1] is right:
                unchanged.add(key)
            return found
        if type(left) is not tensor and type(right) is not tensor:
            return check(self, left, right, *flags, **named)
        place = type(left) is tensor  # of the number
        number, other = (right, left) if place else (left, right)
        key = id(other.type), place, type(number), number, math.copysign(1, number), options
        if key not in constants:
            found = check(self, left, right, *flags, **named)
            if found[not place] is not other:
                return found
            constants[key] = found[place]
            constants[key].handle.data.flags.writeable = False
        return (left, constants[key]) if place else (constants[key], right)

    def broadcast(self: Any, left: Any, right: Any) -> Any:
        if (key := (id(left.type), id(right.type))) in unchanged:
            return left, right
        found = of_blocks(self, left, right)
        if found[0] is left and found[1] is right:
            unchanged.add(key)
        return found

    def unwrap(value: Any) -> Any:
        return value if type(value) in plain else of_constant(value)

    def cast(self: Any, value: Any, to: Any, *rounding: Any, **named: Any) -> Any:
        return value if value.dtype is to else convert(self, value, to, *rounding, **named)

    patched.setattr(semantic, "binary_op_type_checking_impl", checked)
    patched.setattr(semantic, "broadcast_impl_value", broadcast)
    patched.setattr(semantic, "cast", cast)
    patched.setattr(core, "_unwrap_if_constexpr", unwrap)
