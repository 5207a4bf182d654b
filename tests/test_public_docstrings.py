"""The docstrings of the public names have Google sections: `Args:` names every parameter, `Returns:` is there for a result."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol, get_origin

import pytest

MODULES = [
    "tfkit",
    "tfkit.plugin",
    "tfkit.plugin.flash_calls",
    "tfkit.plugin.model_parts",
    "tfkit.inspection",
    "tfkit.commands",
]

FIELDS_HAVE_DESCRIPTIONS = {
    "tfkit.ModelSpec": "a pydantic options class: `Field(description=...)` documents each field, also in the JSON Schema",
    "tfkit.Recipe": "a pydantic options class: `Field(description=...)` documents each field, also in the JSON Schema",
}
"""Classes without `Args:`, with the reason."""


def _own(function: Any) -> bool:
    return inspect.isfunction(function) and function.__module__.startswith("tfkit")


def _documented(public: Any) -> bool:
    if get_origin(public) is not None:
        return False  # an alias such as Callable[...], which Python 3.10 takes for a class
    if inspect.isclass(public):
        return Protocol not in public.__bases__
    return _own(inspect.unwrap(public)) if callable(public) else False


def public_callables() -> Iterator[tuple[str, Any]]:
    """Every function, class and public method of the public modules, once."""
    seen: set[int] = set()
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            public = getattr(importlib.import_module(module), name)
            if id(public) in seen or not _documented(public):
                continue
            seen.add(id(public))
            yield f"{module}.{name}", public
            for method, value in vars(public).items() if inspect.isclass(public) else ():
                function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                if not method.startswith("_") and method not in getattr(public, "__dataclass_fields__", ()) and _own(function):
                    yield f"{module}.{name}.{method}", function


CALLABLES = dict(public_callables())


def section(doc: str, *names: str) -> str:
    """The text of a section: the lines after its heading that are indented further."""
    found = re.search(rf"^(?:{'|'.join(names)}):\n((?:[ ]+.*\n|\n)*)", f"{inspect.cleandoc(doc)}\n", re.MULTILINE)
    return found[1] if found else ""


def described(public: Any) -> set[str]:
    """The parameters that `Args:`, or `Attributes:` of a dataclass, name in the docstring, or in that of a base class."""
    docs = (
        [each.__dict__.get("__doc__") or "" for each in public.__mro__] if inspect.isclass(public) else [public.__doc__ or ""]
    )
    return {
        name for doc in docs for name in re.findall(r"^ +\*{0,2}(\w+): \S", section(doc, "Args", "Attributes"), re.MULTILINE)
    }


def missing_from(name: str, public: Callable[..., Any]) -> list[str]:
    """The parts that a docstring lacks."""
    if not (public.__doc__ or "").strip():
        return ["a docstring"]
    if inspect.isclass(public) and issubclass(public, dict):  # its constructor is that of dict
        return []
    signature = inspect.signature(public)
    parameters = [each for each in signature.parameters if each not in ("self", "cls")]
    lacking = [f"`{each}` in Args" for each in parameters if each not in described(public)]
    returns = None if inspect.isclass(public) else signature.return_annotation
    if returns not in (None, "None", inspect.Signature.empty) and not section(public.__doc__ or "", "Returns", "Yields"):
        lacking.append("Returns")
    return lacking


@pytest.mark.parametrize("name", sorted(CALLABLES.keys() - FIELDS_HAVE_DESCRIPTIONS))
def test_docstrings_name_every_parameter_and_the_result(name):
    assert missing_from(name, CALLABLES[name]) == []


@pytest.mark.parametrize("name", sorted(FIELDS_HAVE_DESCRIPTIONS))
def test_fields_of_options_classes_have_descriptions(name):
    for field, info in CALLABLES[name].model_fields.items():
        assert info.description or info.annotation.__doc__, field


def test_a_docstring_without_a_parameter_or_a_result_is_found():
    def half(first: int, second: int) -> int:
        """Add.

        Args:
            first: a number.
        """
        return first + second

    assert missing_from("half", half) == ["`second` in Args", "Returns"]
