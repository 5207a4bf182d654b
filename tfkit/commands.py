"""Names for distributions that add commands by the entry-point group `tfkit.commands`: options, output, files, formatting.

Importing this imports no torch. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from .cli.backend_args import catalogue_with, check_auto, requested_backends_of
    from .cli.options import (
        DTYPE,
        DTYPES,
        READ,
        TRACEBACK,
        WRITE,
        OneOf,
        auto_table_option,
        common,
        device,
        device_option,
        dtypes,
        large_option,
        lengths_by_input,
        names,
        seed,
        set_option,
        traceback_option,
        whole,
    )
    from .cli.output import check_place, print_bug_report, print_json, print_rich, print_text, write_whole
    from .cli.plugin_attribution import innermost_plugin
    from .cli.progress import Progress
    from .cli.usage import usage_error
    from .files import parse_json, read_text
    from .graph import check_sublayers
    from .view.auto_formatting import row_data, row_in_words
    from .view.formatting import ranges
    from .view.pages import page
    from .view.terminal import shown, write_drawn
    from .view.units import bytes_in_words, scaled, seconds_in_words

_HOMES = {
    "tfkit.cli.backend_args": (
        "catalogue_with",
        "check_auto",
        "requested_backends_of",
    ),
    "tfkit.cli.options": (
        "DTYPE",
        "DTYPES",
        "OneOf",
        "READ",
        "TRACEBACK",
        "WRITE",
        "auto_table_option",
        "common",
        "device",
        "device_option",
        "dtypes",
        "large_option",
        "lengths_by_input",
        "names",
        "seed",
        "set_option",
        "traceback_option",
        "whole",
    ),
    "tfkit.cli.output": (
        "check_place",
        "print_bug_report",
        "print_json",
        "print_rich",
        "print_text",
        "write_whole",
    ),
    "tfkit.cli.plugin_attribution": ("innermost_plugin",),
    "tfkit.cli.progress": ("Progress",),
    "tfkit.cli.usage": ("usage_error",),
    "tfkit.files": (
        "parse_json",
        "read_text",
    ),
    "tfkit.graph": ("check_sublayers",),
    "tfkit.view.auto_formatting": (
        "row_data",
        "row_in_words",
    ),
    "tfkit.view.formatting": ("ranges",),
    "tfkit.view.pages": ("page",),
    "tfkit.view.terminal": (
        "shown",
        "write_drawn",
    ),
    "tfkit.view.units": (
        "bytes_in_words",
        "scaled",
        "seconds_in_words",
    ),
}

__all__ = [
    "DTYPE",
    "DTYPES",
    "OneOf",
    "Progress",
    "READ",
    "TRACEBACK",
    "WRITE",
    "auto_table_option",
    "bytes_in_words",
    "catalogue_with",
    "check_auto",
    "check_place",
    "check_sublayers",
    "common",
    "device",
    "device_option",
    "dtypes",
    "innermost_plugin",
    "large_option",
    "lengths_by_input",
    "names",
    "page",
    "parse_json",
    "print_bug_report",
    "print_json",
    "print_rich",
    "print_text",
    "ranges",
    "read_text",
    "requested_backends_of",
    "row_data",
    "row_in_words",
    "scaled",
    "seconds_in_words",
    "seed",
    "set_option",
    "shown",
    "traceback_option",
    "usage_error",
    "whole",
    "write_drawn",
    "write_whole",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
