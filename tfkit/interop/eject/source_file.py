"""The file that is written: its constants, classes and functions. Equal code is written once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.environment import TemplateModule

from ...slots.options import Component

USUAL = {"D_IN": ("D_MODEL",), "D_OUT": ("D_MODEL",), "D_QUERY": ("HEAD_DIM", "D_STATE"), "D_KEY": ("HEAD_DIM", "D_MEMORY")}
"""Names of constants that are used instead of a special one where their value is equal."""


class Refused(Exception):
    """A template cannot write its part with these options. The argument says which."""


class Sizes:
    """The sizes of a class by name, as text: a constant of the file, or an argument where the uses of the class differ; in a
    method `self.NAME`."""

    def __init__(self, constants: Mapping[str, str], arguments: tuple[str, ...], in_method: bool = False) -> None:
        self._texts = dict(constants) | {name: f"self.{name}" if in_method else name for name in arguments}
        self._arguments = arguments
        if not in_method:
            self.own = Sizes(constants, arguments, in_method=True)

    @property
    def signature(self) -> str:
        return "".join(f", {name}: int" for name in self._arguments)

    def keep(self, *names: str) -> str:
        """The line of a constructor that keeps arguments for the methods."""
        kept = [name for name in names if name in self._arguments]
        return f"        {', '.join(f'self.{name}' for name in kept)} = {', '.join(kept)}\n" if kept else ""

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(name) from None


class SourceFile:
    """The code so far. Writing runs until it is known which sizes, by class, differ between its uses; `arguments` are those of
    the run before. No class, function or constant has the name of a variable, which stands for a node."""

    def __init__(self, arguments: Mapping[str, tuple[str, ...]], variables: Collection[str] = ()) -> None:
        self.arguments, self.variables = arguments, variables
        self.constants: dict[str, tuple[Any, str]] = {}
        self.classes: dict[str, str] = {}
        self.prefix = ""
        """The name of the node that is being written; it tells constants and classes of equal names apart."""
        self._names: dict[str, str] = {}
        self._sizes: dict[str, list[dict[str, int]]] = {}

    def differing(self) -> dict[str, tuple[str, ...]]:
        """By class, the sizes that differ between its uses."""
        differing = {}
        for key, uses in self._sizes.items():
            if names := tuple(name for name in uses[0] if len({use[name] for use in uses}) > 1):
                differing[key] = names
        return differing

    def const(self, name: str, value: Any, comment: str = "") -> str:
        """The name of a constant with this value."""
        wanted = (type(value), value)
        for usual in USUAL.get(name, ()):
            if self.constants.get(usual, (None,))[0] == value:
                return usual
        for known, (other, _) in self.constants.items():
            if (known == name or known.endswith(f"_{name}")) and (type(other), other) == wanted:
                return known
        longer = f"{self.prefix.upper()}_{name}"
        names = chain([name, longer], (f"{longer}_{number}" for number in count(2)))
        free = next(name for name in names if name not in self.constants and name not in self.variables)
        self.constants[free] = (value, comment)
        return free

    def refuse(self, reason: str) -> None:
        raise Refused(reason)

    def template(self, component: Component, **values: Any) -> TemplateModule:
        """The template of a component, with its options as `o`."""
        package, _, name = component.entry.source.partition(":")
        package_spec = find_spec(package)
        if package_spec is None or not package_spec.submodule_search_locations:
            raise Refused(f"`{package}` is no package, so its template `{name}` is not found")
        return render(Path(next(iter(package_spec.submodule_search_locations))) / name, file=self, entry=component.entry,
                      o=component.options, **values)  # fmt: skip

    def define(self, part: Any) -> tuple[str, str]:
        """Write the class or function of a template once. Returns its name, and the expression that constructs it:
        `FeedForward(D_MODEL, D_FF)`."""
        sizes: dict[str, int] = dict(getattr(part, "sizes", {}))
        key = part.title + part.code("@", Sizes({}, tuple(sizes)))
        arguments = tuple(self.arguments.get(key, ()))
        if key not in self._names:
            name = self._names[key] = self._free(part.title)
            texts = {size: self.const(size.upper(), value) for size, value in sizes.items() if size not in arguments}
            code = part.code(name, Sizes(texts, arguments))
            self.classes[name] = code.strip("\n")
        self._sizes.setdefault(key, []).append(sizes)
        name = self._names[key]
        constants = ", ".join(self.const(size.upper(), sizes[size]) for size in arguments)
        return name, f"{name}({constants})"

    def define_text(self, title: str, code: Callable[[str], str]) -> str:
        """Write a class or function without sizes once; returns its name."""
        key = title + code("@")
        if key not in self._names:
            self._names[key] = self._free(title)
            self.classes[self._names[key]] = code(self._names[key]).strip("\n")
        return self._names[key]

    def _free(self, title: str) -> str:
        if title[0].isupper():
            longer = "".join(word.capitalize() for word in self.prefix.split("_")) + title
        else:
            longer = f"{title}_of_{self.prefix}"
        names = chain([title, longer], (f"{longer}{number}" for number in count(2)))
        return next(name for name in names if name not in self.classes and name not in self.variables)

    # What the templates of nodes and sub-layers ask about the parts that they hold.

    def norm(self, component: Component, width: str, in_stack: bool = False) -> str:
        """The constructor of a norm over `width` features."""
        if component.entry.over_batch and not in_stack:
            raise Refused(f"{component.kind} outside of a stack, where no padding is at hand")
        part: Any = self.template(component)
        return str(part.new(self.define(part)[0] if hasattr(part, "code") else "", width)).strip()

    def activation(self, component: Component, x: str) -> str:
        """An activation of an expression."""
        part: Any = self.template(component)
        return str(part.call(self.define(part)[0] if part.title else "", x)).strip()

    def embedding_position(self, component: Component, site: Any) -> BoundPart | None:
        """A position scheme that acts on embeddings."""
        return BoundPart(self, component, site) if component.entry.acts else None

    def embedding_width(self, position: Component, site: Any, d_model: str) -> str:
        """The width of embeddings with the features of a position that are appended to them."""
        appended = position.entry.widens(position.options, site)
        return f"{d_model} + {self.const('D_POSITION', appended)}" if appended else d_model


class BoundPart:
    """A position scheme or a score function of one site; its methods are the macros of its template."""

    def __init__(self, file: SourceFile, component: Component, site: Any) -> None:
        self.part: Any = file.template(component, site=site)
        self.name, self.constructor = file.define(self.part)

    def new(self) -> str:
        """The constructor of its module; empty if it has none."""
        return str(self.part.new(self.name)).strip().replace(self.name, self.constructor, 1)

    def offers(self, macro: str) -> bool:
        """Whether its template has a macro."""
        return hasattr(self.part, macro)

    def called(self, macro: str, module: str, value: str) -> str:
        """A macro with the module that `new` makes, if it has one."""
        return str(getattr(self.part, macro)(module if self.new() else self.name, value)).strip()

    def __getattr__(self, macro: str) -> Callable[..., str]:
        return lambda *values: str(getattr(self.part, macro)(self.name, *values)).strip()


def render(path: Path, **values: Any) -> TemplateModule:
    """A template as a module of macros and variables, which reads these values."""
    return _environment(path.parent).get_template(path.name).make_module(values)


@cache
def _environment(directory: Path) -> Environment:
    """The compiled templates of a directory."""
    return Environment(
        loader=FileSystemLoader(directory), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
