"""What all pictures of attention share: their panels, their titles, and how a figure of matplotlib becomes a file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, InputError
from ..files import write_whole
from .observation import Observation, SiteWeights

MOST_INCHES = 80.0
GLYPH = re.compile(r"Glyph (\d+) .* missing from")
"""How matplotlib warns of a character, by its code point."""
EAST_ASIAN = ("Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans", "Droid Sans Fallback", "WenQuanYi Zen Hei", "Unifont")


def panels(observations: Sequence[Observation], texts: int) -> list[list[tuple[str, SiteWeights]]]:
    """The sites of each run with their titles, which name text and model if there are several.

    Args:
        observations: the runs, ordered by text.
        texts: the number of texts.

    Returns:
        One list for each run that has attention.

    Raises:
        InputError: no run has attention weights.
    """
    found = [list(_titled(each, at, len(observations) // texts, texts)) for at, each in enumerate(observations) if each.sites]
    if not found:
        names = " and ".join(f"`{each}`" for each in dict.fromkeys(each.model for each in observations))
        raise InputError(
            Diagnostic("TFK076", f"{names} has no attention to draw", "write a page, with probabilities: -o page.html")
        )
    return found


def _titled(observation: Observation, at: int, models: int, texts: int) -> Iterator[tuple[str, SiteWeights]]:
    text = f"text {at // models + 1}, " if texts > 1 else ""
    model = f"{observation.model}: " if models > 1 else ""
    for site in observation.sites:
        yield f"{text}{model}{site.name}", site


def _fonts() -> list[str]:
    """Font families in the order in which glyphs are looked up; the last one has Chinese, Japanese and Korean, if installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in EAST_ASIAN if name in installed][:1]]


def check_number(number: int, most: int, of_what: str) -> None:
    """Raises InputError if a picture would have more than `most` rows or panels."""
    if number > most:
        fix = 'choose sites, for instance --site "decoder.*.cross_attention", give fewer texts, or write a page'
        raise InputError(Diagnostic("TFK161", f"{number:,} {of_what} are more than {most}", fix))


def write_figure(figure: Any, place: Path) -> list[str]:
    """Write a figure as `.png` or `.svg`, the same bytes for the same figure.

    Args:
        figure: of matplotlib.
        place: the file.

    Returns:
        A notice if characters of a PNG are missing from the installed fonts. An SVG keeps its text.

    Raises:
        StoreError: the file cannot be written.
    """
    import warnings

    import matplotlib as mpl

    stream = BytesIO()
    width, height = figure.get_size_inches()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "tfkit", "font.family": _fonts()}
    with mpl.rc_context(options), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metadata = {"Date": None} if place.suffix == ".svg" else {}
        dpi = min(150, math.floor(20000 / max(width, height)))
        figure.savefig(stream, format=place.suffix[1:], dpi=dpi, metadata=metadata)
    write_whole(place, stream.getvalue())
    said = [str(each.message) for each in caught]
    missing = dict.fromkeys(chr(int(found[1])) for found in map(GLYPH.match, said) if found)
    for each, text in zip(caught, said, strict=True):
        if not GLYPH.match(text):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if place.suffix == ".svg" or not missing:
        return []
    shown = f"{''.join(missing)[:20]}, {len(missing)} in all"
    return [f"{place}: boxes stand for characters that no installed font has ({shown}); a page or an SVG has them"]
