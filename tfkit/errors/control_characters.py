"""Characters that text of other people may not carry into output: they can clear a screen, forge a line, or hide text.

Control characters here are C0, DEL and C1, the line and paragraph separators, bytes of file names that are not UTF-8, and all
that Unicode lets a terminal ignore (Default_Ignorable_Code_Point): marks of direction, spaces without width, fillers, tags.
Joiners and the variation selectors of emoji and Mongolian stay, because words are written with them: `UNSEEN`.

Reference: https://www.unicode.org/Public/UCD/latest/ucd/DerivedCoreProperties.txt
"""

from __future__ import annotations

import re
import unicodedata

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
UNSEEN = "\u180b-\u180d\u180f\u200c\u200d\u2800\ufe00-\ufe0f\U0001107f\U00013430-\U0001343f\U00016fe4\U0001d159"
"""Characters of texts that nobody sees, as a range of a regular expression: joiners, selectors, and empty signs."""
BLANK = "\u2800"
"""The sign of Braille without a dot, which looks like a space."""
_UNSEEN = re.compile(f"[{UNSEEN}]")
CONTROL = re.compile(f"[{_CONTROLS}{_INVISIBLE}]")
CONTROL_OR_LINE_END = re.compile(f"[{_CONTROLS}{_INVISIBLE}\t\n]")


def escaped(text: str) -> str:
    """The text with its control characters escaped. Line ends (`\\n`) and tabs stay."""
    return CONTROL.sub(_escape, text)


def shown(text: str) -> str:
    """Untrusted text on one line.

    Args:
        text: text from a file or a user.

    Returns:
        The text with control characters, line ends and tabs escaped.
    """
    return CONTROL_OR_LINE_END.sub(_escape, text)


def as_seen(text: str) -> str:
    """What a reader sees of a text: letters in one form of Unicode, with plain ones for ligatures and other spaces. What nobody
    sees is left out, and so is a space at an end or after another."""
    return " ".join(unicodedata.normalize("NFKC", _UNSEEN.sub("", text.replace(BLANK, " "))).split())


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
