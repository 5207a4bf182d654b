"""Results of searches in notebooks: the hypotheses, best first, with the probability of each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .pages import rendered


def search_html(title: str, rows: Iterable[tuple[str, Sequence[str], Any]]) -> str:
    """A table of hypotheses.

    Args:
        title: what the model read.
        rows: the text, the tokens and the `Hypothesis` of each row.
    """
    found = [
        (text, each, list(zip(tokens, each.token_log_probabilities.exp().tolist(), strict=True))) for text, tokens, each in rows
    ]
    return rendered(Path(__file__).with_name("search.html"), title=title, rows=found)


def hypothesis_html(hypothesis: Any) -> str:
    """A table of one hypothesis. Its tokens are numbers."""
    ids = [str(number) for number in hypothesis.ids.tolist()]
    return search_html("", [(" ".join(ids), ids, hypothesis)])
