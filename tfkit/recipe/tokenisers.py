"""Tokenisers, as a recipe names them. All are trained by the `tokenizers` library and saved with the model.

Ids 0 to 3 are padding, start, end and the unknown, which byte fallback leaves nothing to. Runs of spaces count as one, which
is the only thing about a normalised text that decoding does not give back.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import Entry, OneOf, Options

PAD, START, END, UNKNOWN = 0, 1, 2, 3
MASK_ID = 4
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
MASK = "<mask>"
"""Comes behind them where tokens are hidden."""


class TextOptions(Options):
    """What all tokenisers have: how text is normalised, and whether source and target share one vocabulary."""

    joint: Annotated[bool, Field(description="one vocabulary for source and target")] = True
    normalise: Annotated[str, OneOf("none", "nfc", "nfkc"), Field(description="form of Unicode")] = "nfkc"
    lowercase: Annotated[bool, Field(description="make all letters small")] = False


class SubwordOptions(TextOptions):
    """`vocab_size` counts everything: special tokens, the 256 bytes of `byte_fallback`, and what is learnt."""

    vocab_size: Annotated[int | None, Field(ge=4, le=1_000_000, description="chosen by the corpus unless written")] = None
    byte_fallback: Annotated[bool, Field(description="spell unknown characters in bytes, so that none is ever lost")] = True


TOKENISERS = (
    Entry(
        name="bpe", summary="byte pair encoding: frequent neighbours are merged", options=SubwordOptions,
        reference="https://aclanthology.org/P16-1162/",
    ),
    Entry(
        name="unigram", summary="the pieces of a unigram language model", options=SubwordOptions,
        reference="https://aclanthology.org/P18-1007/",
    ),
    Entry(name="characters", summary="every character is a token", options=TextOptions),
)  # fmt: skip
