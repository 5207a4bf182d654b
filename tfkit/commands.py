"""What a distribution needs that adds commands by the entry-point group `tfkit.commands`: arguments, output, files, words for
numbers. Names are imported when first used, and importing this imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cli.arguments import (
        Parser,
        add_auto_table,
        add_common,
        add_device,
        add_dtype,
        add_set,
        device,
        dtype,
        lengths_by_input,
        names,
        place,
        reading,
        seed,
        usage_error,
        whole,
    )
    from .cli.backend_args import catalogue_of, check_auto, requested_backends_of
    from .cli.output import check_place, print_bug_report, print_json, print_rich, print_text
    from .cli.plugin_attribution import innermost_plugin
    from .cli.progress import Progress
    from .files import parse_json, read_text, write_whole
    from .view.auto_formatting import row_data, row_in_words
    from .view.formatting import ranges
    from .view.pages import page
    from .view.terminal import shown, write_drawn
    from .view.units import bytes_in_words, flops_in_words, seconds_in_words, speed_in_words

_HOMES = {
    "cli.arguments": (
        "Parser",
        "add_auto_table",
        "add_common",
        "add_device",
        "add_dtype",
        "add_set",
        "device",
        "dtype",
        "lengths_by_input",
        "names",
        "place",
        "reading",
        "seed",
        "usage_error",
        "whole",
    ),
    "cli.backend_args": (
        "catalogue_of",
        "check_auto",
        "requested_backends_of",
    ),
    "cli.output": (
        "check_place",
        "print_bug_report",
        "print_json",
        "print_rich",
        "print_text",
    ),
    "cli.plugin_attribution": ("innermost_plugin",),
    "cli.progress": ("Progress",),
    "files": (
        "parse_json",
        "read_text",
        "write_whole",
    ),
    "view.auto_formatting": (
        "row_data",
        "row_in_words",
    ),
    "view.formatting": ("ranges",),
    "view.pages": ("page",),
    "view.terminal": ("shown", "write_drawn"),
    "view.units": (
        "bytes_in_words",
        "flops_in_words",
        "seconds_in_words",
        "speed_in_words",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = [
    "Parser",
    "Progress",
    "add_auto_table",
    "add_common",
    "add_device",
    "add_dtype",
    "add_set",
    "bytes_in_words",
    "catalogue_of",
    "check_auto",
    "check_place",
    "device",
    "dtype",
    "flops_in_words",
    "innermost_plugin",
    "lengths_by_input",
    "names",
    "page",
    "parse_json",
    "place",
    "print_bug_report",
    "print_json",
    "print_rich",
    "print_text",
    "ranges",
    "read_text",
    "reading",
    "requested_backends_of",
    "row_data",
    "row_in_words",
    "seconds_in_words",
    "seed",
    "shown",
    "speed_in_words",
    "usage_error",
    "whole",
    "write_drawn",
    "write_whole",
]
