"""Tokens that the search of a text must generate, and those that it must not."""

from __future__ import annotations

import re
from dataclasses import replace

from ..catalogue import load_catalogue
from ..data import TextTokeniser
from ..errors import Diagnostic, InputError
from ..generate import Search
from ..slots.node import InputRule

SOURCE_FORMS = (">>{}<<", "<2{}>")
"""A language token that a source begins with, as in OPUS-MT and MADLAD."""
TARGET_FORMS = ("{}", "__{}__")
"""A language token that a translation begins with, as in mBART, NLLB and M2M100."""
_LANGUAGE = re.compile(r">>(\w+)<<|<2(\w+)>|__([a-z]{2,3})__|([a-z]{2,3}_[A-Z]\w{1,3})")
SHOWN = 12
"""Language tokens in a message."""


def without_special_tokens(search: Search, rule: InputRule, tokeniser: TextTokeniser) -> Search:
    """The search without the tokens that no text has: padding, start and unknown, but for the end token; as it is if it allows
    them."""
    ids = {rule.pad_id, rule.start_id, tokeniser.unknown_token_id} - {None, rule.end_id}
    if search.special_tokens or not ids:
        return search
    suppress = load_catalogue().score_filter({"kind": "suppress", "ids": sorted(ids)})
    return replace(search, filters=(suppress, *search.filters))


def language_ids(source: TextTokeniser, target: TextTokeniser, language: str) -> tuple[list[int], list[int]]:
    """The ids that a source begins with, and those that a translation begins with, for a language, a code or its token. Raises
    InputError if the tokenisers have no token of that language."""
    if written := _LANGUAGE.fullmatch(language):
        language = next(filter(None, written.groups()))
    if language.isprintable():  # and so no lone surrogate, which is no text
        others = set(target.imported.roles.values()) if target.imported else target.special_ids
        for form in TARGET_FORMS:
            number = target.piece_id(form.format(language))
            if number is not None and number in target.special_ids - others:
                return [], [number]
        for form in SOURCE_FORMS:
            if (number := source.piece_id(form.format(language))) is not None:
                return [number], []
    known = [piece for piece in {**source.vocabulary, **target.vocabulary} if _LANGUAGE.fullmatch(piece)]
    names = ", ".join(sorted(known)[:SHOWN]) + (f" and {len(known) - SHOWN:,} more" if len(known) > SHOWN else "")
    fix = f"its language tokens: {names}" if known else "it has no language tokens; leave the language out"
    raise InputError(Diagnostic("TFK077", f"the model has no token of the language {language[:60]!a}", fix))
