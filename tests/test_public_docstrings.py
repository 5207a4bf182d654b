"""Every public name has a docstring with a summary, which names the errors that the function itself raises."""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from textwrap import dedent
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
"""Options classes, with where their fields are described."""


def _own(function: Any) -> bool:
    return inspect.isfunction(function) and function.__module__.startswith(("tfkit", __name__))


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


def raised_by(public: Any) -> set[str]:
    """The classes of errors that the body of a function, or of a constructor, raises by name."""
    constructor = (
        "__post_init__" if hasattr(public, "__dataclass_fields__") else "__init__"
    )  # that of a dataclass has no source
    function = getattr(public, constructor, None) if inspect.isclass(public) else inspect.unwrap(public)
    if not _own(function):
        return set()
    raised = [node.exc for node in ast.walk(ast.parse(dedent(inspect.getsource(function)))) if isinstance(node, ast.Raise)]
    called = [error.func for error in raised if isinstance(error, ast.Call)]
    names = {called_name.id for called_name in called if isinstance(called_name, ast.Name) and called_name.id[0].isupper()}
    return names - {"NotImplementedError", "AttributeError"}


def missing_from(public: Callable[..., Any]) -> list[str]:
    """The parts that a docstring lacks."""
    doc = inspect.getdoc(public) or ""
    if not doc.partition("\n")[0].strip():
        return ["a summary"]
    return [f"`{name}` in Raises" for name in sorted(raised_by(public)) if not re.search(rf"[Rr]aises\b(?s:.*)\b{name}\b", doc)]


@pytest.mark.parametrize("name", sorted(CALLABLES))
def test_docstrings_have_a_summary_and_name_what_is_raised(name):
    assert missing_from(CALLABLES[name]) == []


@pytest.mark.parametrize("name", sorted(FIELDS_HAVE_DESCRIPTIONS))
def test_fields_of_options_classes_have_descriptions(name):
    for field, info in CALLABLES[name].model_fields.items():
        assert info.description or info.annotation.__doc__, field


def _silent_about_its_error(number: int) -> int:
    """Halve an even number."""
    if number % 2:
        raise ValueError(number)
    return number // 2


def test_a_docstring_without_a_summary_or_an_error_is_found():
    assert missing_from(_silent_about_its_error) == ["`ValueError` in Raises"]
    assert missing_from(lambda: None) == ["a summary"]
