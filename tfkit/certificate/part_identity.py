"""What a certificate is about: the declaration of a part, the digests of its source, and where it was checked. No torch."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import fields
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tokenize import detect_encoding
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ..cpu.instruction_set import instruction_set
from ..distribution import NAME, version as tfkit_version
from ..errors import Diagnostic, InputError
from ..files import file_record, read_bytes

LEFT_OUT = frozenset({"summary", "reference", "auto", "source"})
"""Fields of an entry that change nothing of what it does."""


def declaration_of(entry: Any) -> dict[str, Any]:
    """The declaration of an entry as JSON data."""
    return {field.name: _plain(getattr(entry, field.name)) for field in fields(entry) if field.name not in LEFT_OUT}


def modules_of(entry: Any) -> list[str]:
    """The modules that the code of an entry is in, its functions included. Those of tfkit's contract are left out. So is that
    of its options, whose names and defaults are part of the declaration."""
    modules = set()
    for field in fields(entry):
        value = getattr(entry, field.name)
        if field.name in LEFT_OUT:
            continue
        if isinstance(value, str) and ":" in value:
            modules.add(value.partition(":")[0])
        elif callable(value) and field.name != "options":
            modules.add(str(value.__module__))
    return sorted(
        name for name in modules if name.split(".")[0] != "tfkit" or name.startswith(("tfkit.builtin.", "tfkit.cpu."))
    )


def digest(data: Any) -> str:
    """The SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def flattened(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings with their paths: `capabilities.mask_terms`."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from flattened(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, type) and issubclass(value, BaseModel):
        return {name: _default(field) for name, field in value.model_fields.items()}
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', '')}:{name}"


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=False)
    return "required" if field.is_required() else None if value is PydanticUndefined else _plain(value)


# Digests of the source of a part: the modules that its code is in, and those that they import in the same package.
#
# A digest covers the code without comments, docstrings and blank lines, so that such edits change no certificate. That text is
# compiled again: where Python reads other code in the source, its bytes are covered. So is a compiled module (`.so`). Packages
# on the way to a module are covered only if they are imported by name. Modules that are imported by a computed name are not
# seen. Nothing is imported.

MODULES = 1000
"""The largest number of modules of one part."""
MOST_BYTES = 2 << 20
"""And of Python in them: a megabyte takes a second."""
MOST_SEARCHED = 1_000_000_000
"""Characters that Python reads again and again in the f-strings of a module: half a second."""
TFKIT_PACKAGES = ("tfkit.builtin", "tfkit.cpu")
SUFFIXES = (*EXTENSION_SUFFIXES, ".py")
"""Of a module, the first that Python looks for before the others."""
# A string or a comment. The same for every version of Python, which the tokens of f-strings are not.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*', re.DOTALL
)
_IN_STRING = "\x02"
"""Stands for the end of a line of a string."""
_DOCSTRING = "'\x01'"
"""Stands for a docstring."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def source_digests(modules: Iterable[str], folder: Path | None = None) -> dict[str, str]:
    """The SHA-256 of each module of a part.

    Args:
        modules: the modules that the code is in. Imports are followed within their top-level packages.
        folder: a directory that is searched too, after the installed packages.

    Returns:
        The digests by name of the module, sorted. A module that is missing or unreadable has an empty digest.

    Raises:
        InputError: TFK098, the part has more modules than one can have.
    """
    waiting = sorted(set(modules))
    packages = tuple({package for module in waiting for package in _packages(module)})
    digests: dict[str, str] = {}
    read = 0
    while waiting:
        module = waiting.pop()
        if module in digests:
            continue
        if len(digests) == MODULES:
            raise InputError(Diagnostic("TFK098", f"{module} and what it imports are more than {MODULES:,} modules"))
        file = locate(module, folder)
        digests[module] = ""
        with suppress(OSError):
            if file is not None and file.suffix != ".py":
                digests[module] = file_record(file.resolve())["sha256"]
            elif file is not None:
                read += file.stat().st_size
                if read > MOST_BYTES:
                    message = f"{module} and the modules before it hold more than {MOST_BYTES:,} bytes of Python"
                    raise InputError(Diagnostic("TFK098", message, "a part imports less of its own package"))
                digests[module], imported = _read(file, module, folder)
                waiting += [name for name in imported if any(f"{name}.".startswith(f"{package}.") for package in packages)]
    return dict(sorted(digests.items()))


def _read(file: Path, module: str, folder: Path | None) -> tuple[str, list[str]]:
    """The digest of a Python file, and the modules that it imports."""
    data = read_bytes(file)
    try:
        if _searched(data) > MOST_SEARCHED:
            message = f"{module} has an f-string of very many fields, which Python takes long to read"
            raise InputError(Diagnostic("TFK098", message, "divide it into several strings"))
        tree = ast.parse(data)
        code = code_of(data, tree)
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # written for another Python
        return hashlib.sha256(data).hexdigest(), []
    covered = data if code is None else code.encode()
    return hashlib.sha256(covered).hexdigest(), list(_imported(tree, module, file.stem == "__init__", folder))


def _searched(data: bytes) -> int:
    """The characters of f-strings that Python reads: before 3.12 it looks for each field from the start of its string."""
    encoding, _ = detect_encoding(BytesIO(data).readline)
    text = data.decode(encoding, "replace")
    formatted = (token for token in _TOKEN.finditer(text) if "f" in text[max(0, token.start() - 2) : token.start()].lower())
    return sum(token[0].count("{") * len(token[0]) for token in formatted)


def code_of(data: bytes, tree: ast.Module) -> str | None:
    """The text of a module without comments, docstrings, blank lines and spaces at the end of lines. None if Python compiles
    this text to other code than the source: an encoding may make a comment code, or lines may end at other places."""
    lines = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (docstring := _docstring(node)):
            first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno) - 1
            before, after = lines[first][: docstring.col_offset], lines[last][docstring.end_col_offset :]
            lines[first : last + 1] = [b""] * (last - first) + [before + _DOCSTRING.encode() + after]
            docstring.value = ast.Constant(ast.literal_eval(_DOCSTRING))
    text = _TOKEN.sub(_kept, b"".join(lines).decode("utf-8", "replace"))
    code = _without_blanks(text)
    with suppress(SyntaxError, ValueError):
        if _equal(ast.parse(code.replace(_IN_STRING, "\n")), tree):
            return _without_blanks(code.replace(_DOCSTRING, "")).replace(_IN_STRING, "\n")
    return None


def _kept(token: re.Match[str]) -> str:
    """What is left of a string or a comment. The lines of a string are no lines of code."""
    return "" if token[0][0] == "#" else token[0].replace("\n", _IN_STRING)


def _without_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n") if line.strip())


def _equal(one: ast.AST, other: ast.AST) -> bool:
    """Whether two trees are the same code, wherever it stands."""
    pairs: list[tuple[Any, Any]] = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, ast.AST):
            pairs += [(getattr(one, name, None), getattr(other, name, None)) for name in one._fields]
        elif isinstance(one, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif one != other:
            return False
    return True


def locate(module: str, folder: Path | None = None) -> Path | None:
    """The file of a module, found without importing it. None if there is none."""
    first, *rest = module.split(".")
    for place in _places(first, folder):
        if not rest and place.is_file():
            return place if place.name.endswith(SUFFIXES) else None
        path = place.joinpath(*rest)
        stems = [path / "__init__", *([path] if rest else [])]
        files = [stem.with_name(stem.name + suffix) for stem in stems for suffix in SUFFIXES]
        for file in files:
            if file.is_file():
                return file
    return None


@cache
def _places(top: str, folder: Path | None) -> tuple[Path, ...]:
    """The directories of a top-level package, or the file of a top-level module."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations is not None:
        return tuple(map(Path, spec.submodule_search_locations))
    if spec is not None and spec.origin is not None:
        return (Path(spec.origin),)
    if folder is None:
        return ()
    return (folder / top, *(folder / f"{top}{suffix}" for suffix in SUFFIXES))


def _packages(module: str) -> tuple[str, ...]:
    """The packages within which imports are followed. For tfkit's own parts, `TFKIT_PACKAGES`."""
    first, *rest = module.split(".")
    return TFKIT_PACKAGES if first == "tfkit" and f"tfkit.{rest[0] if rest else ''}" in TFKIT_PACKAGES else (first,)


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Expr | None:
    first = node.body[0] if node.body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return first if is_text else None  # type: ignore[return-value]


def _imported(tree: ast.Module, module: str, is_package: bool, folder: Path | None) -> Iterator[str]:
    """The modules that a module imports, wherever in it."""
    parts = module.split(".")
    here = parts if is_package else parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            children = [f"{source}.{alias.name}" for alias in node.names]
            inside = source.split(".")[0] == parts[0]
            modules = [child for child in children if inside and locate(child, folder)]
            yield from modules
            if len(modules) < len(children):  # a name of the package itself
                yield source


NOTED = ("python",)
"""What is noted and not compared: the suite exercises no part of Python itself."""
_GPUS = "/proc/driver/nvidia/gpus"
_REQUIREMENT = re.compile(r"[\w.-]+")


def environment(device: str, distribution: str, gpu: str = "") -> dict[str, str]:
    """What the verdict of the suite depends on beside the part.

    Args:
        device: "cpu", "cuda" or "cuda:1".
        distribution: that registers the part; empty for a plain function.
        gpu: the name of the device, if torch was asked for it.

    Returns:
        Versions and names by what they are of.
    """
    facts = {"python": platform.python_version(), "machine": platform.machine()}
    packages = {"tfkit", "torch"}
    if distribution not in ("", NAME):
        packages |= _required_by(distribution) - {NAME}
    for package in sorted(packages):
        with suppress(PackageNotFoundError):
            facts[package] = (tfkit_version() if package == "tfkit" else version(package)).partition("+")[0]
    if device == "cpu":
        facts["instruction set"] = instruction_set()
    else:
        facts["gpu"] = gpu or gpu_here()
    return facts


def gpu_here() -> str:
    """The name of the first NVIDIA GPU as its driver gives it; empty without one."""
    with suppress(OSError):
        for folder in sorted(Path(_GPUS).iterdir()):
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
            if match := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE):
                return match[1]
    return ""


def _required_by(distribution: str) -> set[str]:
    """The packages that a distribution requires, without those of its extras."""
    with suppress(PackageNotFoundError):
        names = [
            _REQUIREMENT.match(requirement) for requirement in requires(distribution) or () if "extra ==" not in requirement
        ]
        return {name[0].lower() for name in names if name}
    return set()
