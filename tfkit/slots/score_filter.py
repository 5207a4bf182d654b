"""Score filter: a pure function that changes the scores of the next token before a search selects one.

A forbidden token has the score -inf. Greedy decoding and sampling filter logits, a beam search log-probabilities, as in Hugging
Face transformers. Filters are applied in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from .options import Entry


@dataclass(frozen=True, kw_only=True)
class ScoreFilter(Entry):
    """A score filter.

    Args:
        function: `"module:function"`, called as `function(scores, prefix, options)` with the scores (R, V) of the next token of
            R rows and a `tfkit.plugin.Prefix`. It returns scores of that shape and dtype, and changes neither argument. The
            scores of a row depend on that row alone.
    """

    function: str
