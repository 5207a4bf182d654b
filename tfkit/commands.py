"""Names for distributions that add commands by the entry-point group `tfkit.commands`: options, output, files, formatting.

Importing this imports no torch. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_names import lazy_names

if TYPE_CHECKING:
    from .cli.backend_args import (
        catalogue_with as catalogue_with,
        check_auto as check_auto,
        requested_backends_of as requested_backends_of,
    )
    from .cli.options import (
        DTYPE as DTYPE,
        DTYPES as DTYPES,
        READ as READ,
        TRACEBACK as TRACEBACK,
        WRITE as WRITE,
        OneOf as OneOf,
        auto_table_option as auto_table_option,
        common as common,
        device as device,
        device_option as device_option,
        dtypes as dtypes,
        large_option as large_option,
        lengths_by_input as lengths_by_input,
        names as names,
        seed as seed,
        set_option as set_option,
        traceback_option as traceback_option,
        whole as whole,
    )
    from .cli.output import (
        check_places as check_places,
        print_bug_report as print_bug_report,
        print_json as print_json,
        print_rich as print_rich,
        print_text as print_text,
        write_whole as write_whole,
    )
    from .cli.plugin_attribution import innermost_plugin as innermost_plugin
    from .cli.progress import Progress as Progress
    from .cli.usage import usage_error as usage_error
    from .files import parse_json as parse_json, read_bytes as read_bytes, read_text as read_text
    from .graph import check_sublayers as check_sublayers
    from .view.formatting import (
        bytes_in_words as bytes_in_words,
        ranges as ranges,
        scaled as scaled,
        seconds_in_words as seconds_in_words,
    )
    from .view.pages import page as page
    from .view.plan_data import row_data as row_data, row_in_words as row_in_words
    from .view.terminal import shown as shown, silent_libraries as silent_libraries, write_drawn as write_drawn

__getattr__, __dir__, __all__ = lazy_names(__name__)
