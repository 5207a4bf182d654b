"""Characters that text of other people may not carry into output: they can clear a screen, hide text or forge a line.

"Control characters" are C0, DEL, C1, the bidirectional overrides and isolates, the line and paragraph separators, and bytes of
file names that are not UTF-8.
"""

from __future__ import annotations

import re

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
CONTROL = re.compile(f"[{_CONTROL}]")
CONTROL_OR_LINE_END = re.compile(f"[{_CONTROL}\t\n]")
