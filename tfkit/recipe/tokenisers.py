"""The tokenisers of a recipe. The `tokenizers` library trains them; they are saved with the model.

Ids 0 to 3 are padding, start, end and unknown. With byte fallback, no text is unknown. A run of spaces counts as one space;
decoding restores normalised text except for such runs.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import Entry, OneOf, Options

PAD, START, END, UNKNOWN = 0, 1, 2, 3
MASK_ID = 4
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
MASK = "<mask>"
"""The id of `<mask>`, after the special ids, for masked data."""


class TextOptions(Options):
    """Options of all tokenisers: normalisation, and whether source and target share one vocabulary."""

    joint: Annotated[bool, Field(description="one vocabulary for source and target")] = True
    normalise: Annotated[str, OneOf("none", "nfc", "nfkc"), Field(description="Unicode normalisation form")] = "nfkc"
    lowercase: Annotated[bool, Field(description="convert to lower case")] = False


class SubwordOptions(TextOptions):
    """`vocab_size` counts special tokens, the 256 bytes of `byte_fallback`, and learned tokens."""

    vocab_size: Annotated[
        int | None, Field(ge=4, le=1_000_000, description="chosen by the size of the corpus unless written")
    ] = None
    byte_fallback: Annotated[bool, Field(description="write unknown characters as bytes, so that no text is lost")] = True


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
