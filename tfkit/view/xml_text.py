"""Text of XML, which may not hold every character of Unicode: https://www.w3.org/TR/xml/#charsets"""

from __future__ import annotations

import re

_OUTSIDE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """The text with U+FFFD in place of characters that make a document of XML unreadable."""
    return _OUTSIDE.sub("\ufffd", text)
