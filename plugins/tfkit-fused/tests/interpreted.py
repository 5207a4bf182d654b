"""Triton's interpreter, but for work that it repeats: a third of its time.

It replaces the functions of `triton.language` at every launch, and restores them after it. It also replaces them at every call
of a function within a kernel, although the launch has done so. Here only the first call of a launch does that, for each set of
modules that functions see.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from triton import language
from triton.runtime import interpreter


def patch_once_a_launch() -> None:
    """Change the interpreter of this process."""
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
