"""Functions and layers of kernels in the form of Hugging Face's hub (https://huggingface.co/docs/kernels).

    DIR:FUNCTION       a checkout: the package below `torch-ext`, or the build below `build` that fits this machine
    OWNER/NAME:FUNCTION    a repository of the hub, which the library `kernels` downloads

A layer, `layers.Attention`, is a module without state of its own; its call is the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .locate import error_of, imported, nearest

OPTION = "--hf-kernel"
SIGNATURES = {
    "flash_attn_func": "flash_attn",
    "flash_attn_varlen_func": "flash_attn_varlen",
    "scaled_dot_product_attention": "sdpa",
    "memory_efficient_attention": "xformers",
}
"""The forms of functions by the names that they usually have."""


def divided(target: str) -> tuple[str, str]:
    """The place and the function of "PLACE:FUNCTION". Raises InputError."""
    place, colon, name = target.rpartition(":")
    if not (colon and place and all(part.isidentifier() for part in name.split("."))):
        fix = (
            "write the directory, a colon and the function: path/to/kernel:flash_attn_func, or path/to/kernel:layers.Attention"
        )
        raise error_of(f"{OPTION}: `{target}` is not DIR:FUNCTION", fix)
    return place, name


def hub_function(target: str) -> Callable[..., Any]:
    """The function, or the call of the layer. Raises InputError."""
    place, name = divided(target)
    resolved: Any = _module(place)
    at = place
    for part in name.split("."):
        if not hasattr(resolved, part) and isinstance(resolved, ModuleType):
            _import_below(resolved, part)
        if not hasattr(resolved, part):
            public = [attribute for attribute in dir(resolved) if not attribute.startswith("_")]
            raise error_of(f"{OPTION}: `{at}` has no `{part}`", nearest(part, public, "it has"))
        resolved, at = getattr(resolved, part), f"{at}.{part}"
    if isinstance(resolved, type):
        try:
            resolved = resolved()
        except Exception as reason:  # whatever the layer raises is the answer
            message = f"{OPTION}: the layer `{name}` cannot be made without arguments: {type(reason).__name__}: {reason}"
            raise error_of(message, "layers of the hub have no state of their own") from None
    if not callable(resolved):
        raise error_of(f"{OPTION}: `{name}` is a {type(resolved).__name__}, not a function", "name a function or a layer")
    function: Callable[..., Any] = resolved
    return function


def _import_below(module: ModuleType, name: str) -> None:
    """Imports a module of a package, which becomes an attribute of it."""
    try:
        setattr(module, name, import_module(f"{module.__name__}.{name}"))
    except ModuleNotFoundError:
        return


def _module(place: str) -> ModuleType:
    directory = Path(place)
    if not directory.is_dir():
        if place.count("/") != 1 or place.startswith((".", "/")):
            raise error_of(f"{OPTION}: there is no directory `{place}`", "name a checkout, or OWNER/NAME of the hub")
        return _from_library("get_kernel", place)
    if not any((directory / name).is_dir() for name in ("build", "torch-ext")) and not (directory / "metadata.json").is_file():
        raise error_of(f"{OPTION}: `{place}` has neither `torch-ext` nor `build`", "name the checkout of a kernel")
    packages = sorted(path.parent for path in directory.glob("torch-ext/*/__init__.py"))
    if (directory / "build").is_dir() or not packages:
        return _from_library("get_local_kernel", directory.resolve())
    if len(packages) > 1:
        listed = ", ".join(path.name for path in packages)
        raise error_of(f"{OPTION}: `{place}/torch-ext` has {len(packages)} packages: {listed}", "a kernel is one package")
    sys.path.insert(0, str(packages[0].parent.resolve()))  # first, because an installed package may have its name
    try:
        return imported(OPTION, packages[0].name)  # type: ignore[no-any-return]
    finally:
        sys.path.pop(0)


def _from_library(function: str, place: Any) -> ModuleType:
    try:
        import kernels  # type: ignore[import-untyped]
    except ImportError as reason:
        raise error_of(f"{OPTION}: a build needs the library kernels: {reason}", "pip install kernels") from None
    try:
        return getattr(kernels, function)(place)  # type: ignore[no-any-return]
    except Exception as reason:  # whatever the library or the kernel raises is the answer
        words = " ".join(str(reason).split())[:500]
        raise error_of(f"{OPTION}: `{place}` cannot be loaded: {type(reason).__name__}: {words}", "see the message") from None
