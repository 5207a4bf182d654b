"""Triton's interpreter, but for work that it repeats or throws away: two thirds of its time.

It replaces the functions of `triton.language` at every launch, and restores them after it. It also replaces them at every call
of a function within a kernel, although the launch has done so. Here only the first call of a launch does that, for each set of
modules that functions see.

For every sum, difference and product of integers it computes whether one overflows, and drops the answer: the assertion that
takes it does nothing unless `debug` is on, which it never is. That is left out here. It makes types and shapes anew for every
intermediate result; here those that are equal are made once. And it broadcasts blocks of one shape to that shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from triton import language
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def patch() -> None:
    """Change the interpreter of this process."""
    _patch_once_a_launch()
    _drop_unused_checks()
    _make_types_once()
    _leave_equal_shapes()


def _patch_once_a_launch() -> None:
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[frozenset[str]] = set()

    @cache
    def seen(function: Callable[..., Any]) -> frozenset[str]:
        names = function.__globals__.values()
        return frozenset(each.__name__ for each in (language, language.core) if any(name is each for name in names))

    def once(function: Callable[..., Any]) -> Any:
        if seen(function) in patched:
            return interpreter._LangPatchScope()
        patched.add(seen(function))
        return patch(function)

    def launched(self: Any, *arguments: Any, **named: Any) -> None:
        patched.clear()
        launch(self, *arguments, **named)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = once, launched


def _drop_unused_checks() -> None:
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)


def _make_types_once() -> None:
    make_block, unwrap, numpy_type = core.block_type.__init__, core._unwrap_if_constexpr, interpreter._get_np_dtype
    blocks: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    numpy_types: dict[str, Any] = {}
    nested = (list, tuple, core.tuple)

    def unwrapped(value: Any) -> Any:
        if isinstance(value, core.constexpr):
            return value.value
        return unwrap(value) if isinstance(value, nested) else value

    def block(self: Any, element_ty: Any, shape: Sequence[Any]) -> None:
        key = element_ty.name, tuple(map(unwrapped, shape))
        if key not in blocks:
            make_block(self, element_ty, shape)
            blocks[key] = {name: value for name, value in vars(self).items() if name != "element_ty"}
        self.element_ty = element_ty
        vars(self).update(blocks[key])

    @cache
    def sized(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = sized(type.shape if type.is_block() else ())

    def numpy_type_of(made: Any) -> Any:
        if made.name not in numpy_types:
            numpy_types[made.name] = numpy_type(made)
        return numpy_types[made.name]

    core._unwrap_if_constexpr, core.block_type.__init__, core.tensor.__init__ = unwrapped, block, tensor
    interpreter._get_np_dtype = numpy_type_of


def _leave_equal_shapes() -> None:
    broadcast = TritonSemantic.broadcast_impl_value

    def values(self: Any, one: Any, other: Any) -> tuple[Any, Any]:
        blocks = one.type.is_block() and other.type.is_block()
        return (one, other) if blocks and one.type.shape == other.type.shape else broadcast(self, one, other)

    TritonSemantic.broadcast_impl_value = values
