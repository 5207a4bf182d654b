"""Finds the function and the signature that a command line names. Only the words of its user are imported, never a file's."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from tfkit import Diagnostic, InputError

from .adaptor import Signature

CODE = "TFK094"


def function_named(target: str) -> Callable[..., Any]:
    """The function of "module:name"; the working directory is searched last. Raises InputError."""
    candidate = object_named(target, "--callable")
    if not callable(candidate):
        raise error_of(f"--callable: `{target}` is a {type(candidate).__name__}, not a function", "name a function")
    function: Callable[..., Any] = candidate
    return function


def object_named(target: str, option: str) -> Any:
    """The object of "module:name". Raises InputError."""
    module_name, colon, name = target.partition(":")
    if not (colon and name and all(part.isidentifier() for part in (*module_name.split("."), *name.split(".")))):
        fix = "write the module, a colon and the name, for instance my_package.kernels:attention"
        raise error_of(f"{option}: `{target}` is not MODULE:NAME", fix)
    resolved: Any = imported(option, module_name)
    at = module_name
    for part in name.split("."):
        if not hasattr(resolved, part):
            public = [attribute for attribute in dir(resolved) if not attribute.startswith("_")]
            raise error_of(f"{option}: `{at}` has no `{part}`", nearest(part, public, "it has"))
        resolved, at = getattr(resolved, part), f"{at}.{part}"
    return resolved


def imported(option: str, module_name: str) -> Any:
    """The module of this name; the working directory is searched last. Raises InputError."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file there hides an installed module
    try:
        return import_module(module_name)
    except ModuleNotFoundError as reason:
        if reason.name is None or not f"{module_name}.".startswith(f"{reason.name}."):
            raise _failed(option, module_name, reason) from None
        fix = f"install it, or run the command in the directory that holds {module_name.partition('.')[0]}"
        raise error_of(f"{option}: there is no module `{reason.name}`", fix) from None
    except Exception as reason:  # whatever the author's module raises is the answer
        raise _failed(option, module_name, reason) from None


def transformers_function(name: str) -> Callable[..., Any]:
    """The function of transformers' AttentionInterface, or "eager", which is Llama's. Raises InputError."""
    try:
        from transformers import AttentionInterface
    except ImportError as reason:
        raise error_of(f"--huggingface: transformers cannot be imported: {reason}", "pip install transformers") from None
    if name == "eager":
        from transformers.models.llama.modeling_llama import eager_attention_forward

        return eager_attention_forward
    known: Mapping[str, Any] = AttentionInterface()  # type: ignore[no-untyped-call]
    if name not in known:
        raise error_of(
            f"--huggingface: transformers has no attention function `{name}`", nearest(name, ["eager", *known], "known")
        )
    function: Callable[..., Any] = known[name]
    return function


def check_features(names: Iterable[str], known: Iterable[str], signature: str) -> frozenset[str]:
    """The features. Raises InputError for one that the signature has not."""
    asked, features = frozenset(names), sorted(known)
    for name in sorted(asked - set(features)):
        raise error_of(f"--supports: the signature {signature} has no feature `{name}`", nearest(name, features, "features"))
    return asked


def check_form(name: str, function: Callable[..., Any], signature: Signature, call: Any) -> None:
    """Raises InputError if Python cannot even pass the arguments of a plain call."""
    try:
        takes = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        takes.bind(*call.arguments, **call.keywords)
    except TypeError as reason:
        has = ", ".join(map(str, takes.parameters.values())) or "none"
        message = f"{name} cannot be called as {signature.name}: {reason}. Its parameters: {has}"
        raise error_of(message, f"the form is {signature.definition}; choose another --signature or write one") from None


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """The nearest name as a question, or all of them."""
    names = list(known)
    near = get_close_matches(name, names, 1)
    return f"did you mean `{near[0]}`?" if near else f"{what}: {', '.join(names[:20]) or 'nothing'}"


def _failed(option: str, module: str, reason: Exception) -> InputError:
    cause = " ".join(str(reason).split())[:300]
    return error_of(f"{option}: importing `{module}` raised {type(reason).__name__}: {cause}", "repair the module")


def error_of(message: str, fix: str) -> InputError:
    return InputError(Diagnostic(CODE, message, fix))
