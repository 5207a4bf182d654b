"""Word alignments in the Pharaoh format: on each line the links of a sentence pair, `0-0 2-1`, source word and target word.

Gold alignments also have possible links, `2?1` or `2p1`; `2-1` is a sure one. https://aclanthology.org/J03-1002/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import Diagnostic, InputError, Location
from .text_lines import lines

Link = tuple[int, int]
"""A source word and a target word, counted from 0."""
LINK = re.compile(r"([0-9]{1,6})([-?p])([0-9]{1,6})")
MAX_LINKS = 100_000
"""The most links of a line."""


def links_text(links: Iterable[Link]) -> str:
    """Links as a line of a file."""
    return " ".join(f"{source}-{target}" for source, target in links)


def read_links(path: str | Path, *, first: int = 0, descriptors: bool = False) -> Iterator[frozenset[Link]]:
    """The links of every line of a file, plain or `.gz`, whose first word has the number `first`, 0 or 1; `descriptors` as in
    `lines`. Raises InputError, also for a link that is marked as a possible one."""
    for number, line in enumerate(lines(path, descriptors=descriptors), 1):
        yield links_of(line, Location(str(path), number), first)


def links_of(line: str, location: Location, first: int = 0) -> frozenset[Link]:
    """The links of a line. Raises InputError."""
    sure, possible = gold_links_of(line, location, first)
    if possible - sure:
        source, target = min(possible - sure)
        message = f"the link of word {source + first} and word {target + first} is marked as possible"
        raise InputError(Diagnostic("TFK137", message, "only a gold alignment has such links", location=location))
    return sure


def read_gold_links(
    path: str | Path, *, first: int = 0, descriptors: bool = False
) -> Iterator[tuple[frozenset[Link], frozenset[Link]]]:
    """The sure links, and the sure and possible ones, of every line of a file. Raises InputError; arguments as in
    `read_links`."""
    for number, line in enumerate(lines(path, descriptors=descriptors), 1):
        yield gold_links_of(line, Location(str(path), number), first)


def gold_links_of(line: str, location: Location, first: int = 0) -> tuple[frozenset[Link], frozenset[Link]]:
    """The sure links of a line, and the sure and possible ones. Raises InputError."""
    sure: set[Link] = set()
    possible: set[Link] = set()
    for count, token in enumerate(re.finditer(r"[^ \t]+", line)):
        place = Location(location.file, location.line, token.start() + 1)
        match = LINK.fullmatch(token[0])
        if match is None or count >= MAX_LINKS:
            written = ascii(token[0][:40])[1:-1]
            message = f"`{written}` is no link" if match is None else f"the line has more than {MAX_LINKS:,} links"
            fix = (
                "a link is `0-2`: a source word and a target word; a possible one of a gold alignment is `0?2` or `0p2`; spaces"
                " or tabs stand between links"
            )
            raise InputError(Diagnostic("TFK137", message, fix, location=place))
        link = int(match[1]) - first, int(match[3]) - first
        if min(link) < 0:
            message = f"`{token[0]}` names the word 0, and the first word of this file is 1"
            raise InputError(Diagnostic("TFK137", message, "leave --one-based out if words count from 0", location=place))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return frozenset(sure), frozenset(possible)
