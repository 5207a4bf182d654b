"""What the source of a kernel says about where it may change its path: its numbers, and which of its lines have run.

    source = read_source(attend)      the functions that it reaches inside of its own package
    source.integers, source.floats    numbers, those in comparisons, remainders and shifts first
    with source.traced(): ...         notes the lines that run
    source.not_reached()              "kernel.py:40-42": lines that never ran

Read are Python functions with what they call in the same package, closures, defaults and constants of modules, kernels of
Triton, and the C and CUDA files of the package. Nothing is imported or run for it. A compiled function has no source: then
nothing is known, and the report says so.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

MAX_FUNCTIONS, MAX_FILES, MAX_ENTRIES, MAX_BYTES = 400, 40, 20_000, 1 << 20
"""Of one kernel. What is beyond is not read."""
MAX_NUMBER = 1 << 26
MAX_NAMED = 6
"""Places that a sentence names."""
NATIVE = frozenset({".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".hip", ".metal"})
DECIDING, BOUNDING, OTHER = 0, 1, 2
"""Numbers by what surrounds them: comparisons, remainders and shifts; bounds, sizes and defaults; anything else."""

Number = int | float
Ranked = dict[Number, int]

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}  # fmt: skip
_NATIVE_DECIDING = re.compile(r"(?:[<>]=?|[=!]=|%|>>|<<|&)\s*(\d{1,8}(?:\.\d+)?)\b")
_NATIVE_NAMED = re.compile(r"(?:#\s*define\s+\w+|constexpr[^=;\n]*=|\bconst\b[^=;\n]*=)\s*\(?(\d{1,8}(?:\.\d+)?)\b")


@dataclass
class Source:
    """The source of a kernel.

    Args:
        numbers: each with its rank.
        codes: the code objects whose lines count.
        files: that were read.
    """

    numbers: Ranked = field(default_factory=dict)
    codes: dict[CodeType, frozenset[int]] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    _left: dict[CodeType, set[int]] = field(default_factory=dict)

    @property
    def integers(self) -> list[int]:
        """Whole numbers above 1, the deciding ones first and in the order of their size."""
        whole = {int(abs(number)): rank for number, rank in self._ranked() if float(number).is_integer()}
        return sorted((number for number in whole if number > 1), key=lambda number: (whole[number], number))

    @property
    def floats(self) -> list[float]:
        """Numbers that may be a probability, a scale or a size of scores; the deciding ones first."""
        ranks = {abs(float(number)): rank for number, rank in self._ranked() if number}
        return sorted(ranks, key=lambda number: (ranks[number], number))

    def _ranked(self) -> list[tuple[Number, int]]:
        """By falling rank, so that of a number with two signs the better rank stays."""
        return sorted(self.numbers.items(), key=lambda item: -item[1])

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Notes which lines run meanwhile, in this thread. Where another tool traces already, nothing is noted."""
        if not self.codes or sys.gettrace() is not None or threading.current_thread() is not threading.main_thread():
            yield
            return
        left = self._left or {code: set(lines) for code, lines in self.codes.items()}
        self._left = left

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            lines = left.get(frame.f_code)
            if not lines:  # another function, or one whose lines have all run
                return None
            lines.discard(frame.f_lineno)
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)

    def not_reached(self) -> list[str]:
        """The lines that never ran, as "kernel.py:40-42"."""
        by_file: dict[str, set[int]] = {}
        for code, lines in self._left.items():
            if lines:
                by_file.setdefault(code.co_filename, set()).update(lines)
        return [f"{Path(file).name}:{first}-{last}" if last > first else f"{Path(file).name}:{first}"
                for file, lines in sorted(by_file.items()) for first, last in _spans(lines)]  # fmt: skip

    def evidence(self) -> str:
        """What is known of the kernel, in words."""
        names = ", ".join(sorted({Path(file).name for file in self.files}))
        if not self.files:
            return "the source cannot be read: sizes are drawn without it"
        count = len(self.integers)
        words = f"{count} number{'s' * (count != 1)} in {names}"
        if not self._left:
            return f"{words}; which lines ran was not noted"
        lines, missing = sum(map(len, self.codes.values())), self.not_reached()
        reached = f"{lines - sum(map(len, self._left.values()))} of {lines} lines ran"
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        return f"{words}; {reached}" + (f", never {', '.join(missing[:MAX_NAMED])}{more}" if missing else "")


def read_source(*functions: Any) -> Source:
    """The source of functions and of what they reach inside of their own packages."""
    reader = _Reader()
    for function in functions:
        reader.start(function)
    return reader.source


class _Reader:
    def __init__(self) -> None:
        self.source = Source()
        self.seen: set[int] = set()
        self.packages: set[str] = set()

    def start(self, function: Any) -> None:
        self.packages.add(_package(_module_of(function)))
        waiting = [function]
        while waiting and len(self.source.codes) < MAX_FUNCTIONS:
            waiting += self._read(waiting.pop())
        self._native(function)

    def _read(self, value: Any) -> Iterable[Any]:
        """Reads a value, and gives those that it leads to."""
        value = _unwrapped(value)
        if id(value) in self.seen:
            return ()
        self.seen.add(id(value))
        if isinstance(value, functools.partial):
            return (value.func, *value.args, *value.keywords.values())
        if isinstance(value, bool) or value is None:
            return ()
        if isinstance(value, (int, float)):
            self._note(value, BOUNDING)
            return ()
        if isinstance(value, (tuple, list, set, frozenset)) and len(value) <= 64:
            return tuple(value)
        if isinstance(value, dict) and len(value) <= 64:
            return (*value.keys(), *value.values())
        if isinstance(value, (staticmethod, classmethod)):
            return (value.__func__,)
        if isinstance(value, FunctionType):
            return self._function(value) if self._own(value) else ()
        if isinstance(value, type):
            return (*vars(value).values(), *value.__bases__) if self._own(value) else ()
        if callable(getattr(value, "__func__", None)):
            return (value.__func__, value.__self__)
        if not isinstance(value, (str, bytes, ModuleType)) and self._own(type(value)):
            return (type(value), *vars(value).values()) if hasattr(value, "__dict__") else (type(value),)
        return ()

    def _own(self, value: Any) -> bool:
        module = getattr(value, "__module__", "") or ""
        return _package(module) in self.packages

    def _function(self, function: FunctionType) -> list[Any]:
        code = function.__code__
        reached: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                reached.append(cell.cell_contents)
            except ValueError:  # it is still empty
                continue
        node = self._node(code)
        for inner in _codes(code):
            lines = {line for *_, line in inner.co_lines() if line is not None} - {inner.co_firstlineno}
            self.source.codes[inner] = frozenset(lines - (_unwanted(node) if node is not None else set()))
            for name in inner.co_names:
                value = function.__globals__.get(name)
                reached.append(value)
                if isinstance(value, ModuleType) and _package(value.__name__) in self.packages:
                    reached += [vars(value).get(other) for other in inner.co_names]
        if node is None:
            for constant in code.co_consts:
                reached.append(constant)
        else:
            self._numbers(node, function.__globals__)
        return reached

    def _node(self, code: CodeType) -> ast.AST | None:
        """The syntax tree of a function, where its file can be read."""
        file = code.co_filename
        if file not in self.source.files and len(self.source.files) == MAX_FILES:
            return None
        functions = _functions_of(file)
        if functions is None:
            return None
        self.source.files.add(file)
        return functions.get(code.co_firstlineno)

    def _numbers(self, tree: ast.AST, names: dict[str, Any]) -> None:
        """The numbers below a node, by what surrounds them."""

        def walk(node: ast.AST, rank: int) -> None:
            value = _value(node, names)
            if value is not None:
                self._note(value, rank)
            if isinstance(node, ast.Compare) or (
                isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv, ast.LShift, ast.RShift, ast.BitAnd))
            ):
                rank = DECIDING
            elif isinstance(node, (ast.Call, ast.Slice, ast.arguments, ast.keyword)):
                rank = min(rank, BOUNDING)
            elif isinstance(node, (ast.stmt, ast.Lambda)):
                rank = OTHER
            for child in ast.iter_child_nodes(node):
                walk(child, rank)

        walk(tree, OTHER)

    def _native(self, function: Any) -> None:
        """The numbers in C and CUDA files beside the module of a function."""
        module = sys.modules.get(_module_of(function))
        file = getattr(module, "__file__", None)
        if file is None or _package(module.__name__ if module else "") in ("tfkit", "torch"):
            return
        root = Path(file).parent
        inside = islice(root.rglob("*"), MAX_ENTRIES) if (root / "__init__.py").exists() else ()
        for number, path in enumerate(sorted(path for path in inside if path.suffix in NATIVE)):
            if number == MAX_FILES or path.is_symlink() or not path.is_file():
                break
            with path.open(encoding="utf-8", errors="replace") as text:
                content = text.read(MAX_BYTES)
            self.source.files.add(str(path))
            for pattern in (_NATIVE_DECIDING, _NATIVE_NAMED):
                for written in pattern.findall(content):
                    self._note(float(written) if "." in written else int(written), DECIDING)

    def _note(self, number: Number, rank: int) -> None:
        if number == number and abs(number) <= MAX_NUMBER:
            self.source.numbers[number] = min(rank, self.source.numbers.get(number, OTHER))


@functools.lru_cache(maxsize=64)
def _functions_of(file: str) -> dict[int, ast.AST] | None:
    """The functions of a file by the lines that they or their decorators begin in; None for a file that cannot be read."""
    try:
        with open(file, encoding="utf-8") as text:
            tree = ast.parse(text.read(MAX_BYTES))
    except (OSError, SyntaxError, ValueError):
        return None
    functions: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", ())
            functions |= {line: node for line in (node.lineno, *(one.lineno for one in decorators)) if line not in functions}
    return functions


def _package(module: str) -> str:
    """The distribution's own part of a module's name. The backends of tfkit are one package each."""
    parts = module.split(".")
    return ".".join(parts[:3]) if parts[0] == "tfkit" else parts[0]


def _unwrapped(value: Any) -> Any:
    """A function below its decorators, caches and the wrapper of Triton."""
    for _ in range(10):
        inner = getattr(value, "__wrapped__", None)
        if inner is None and type(value).__module__.startswith("triton"):
            inner = getattr(value, "fn", None)
        if inner is None or isinstance(value, type):
            return value
        value = inner
    return value


def _module_of(function: Any) -> str:
    while isinstance(function := _unwrapped(function), functools.partial):
        function = function.func
    return getattr(function, "__module__", "") or ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _unwanted(tree: ast.AST) -> set[int]:
    """Lines that no call needs to reach: documentation, declarations of names, and what raises."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if constant or isinstance(node, (ast.Raise, ast.Assert, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom)):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    return lines


def _value(node: ast.AST, names: dict[str, Any]) -> Number | None:
    """The number that an expression of constants is, such as `1 << 14`, `-30.0`, `2 * BLOCK`."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, names)
        return None if value is None else -value
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _value(node.left, names), _value(node.right, names)
    if left is None or right is None:
        return None
    try:
        if isinstance(node.op, (ast.Pow, ast.LShift)):
            small = isinstance(left, int) and isinstance(right, int) and 0 <= right <= 26 and abs(left) <= 16
            return (left**right if isinstance(node.op, ast.Pow) else left << right) if small else None  # type: ignore[operator]
        return _OPERATORS[type(node.op)](left, right) if type(node.op) in _OPERATORS else None
    except (ArithmeticError, ValueError):
        return None


def _spans(lines: set[int]) -> Iterator[tuple[int, int]]:
    """Lines that follow each other, as first and last."""
    ordered = sorted(lines)
    first = 0
    for at, line in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] > line + 1:
            yield ordered[first], line
            first = at + 1
