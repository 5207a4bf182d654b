"""What a model can be trained on: the kinds of data, as a recipe names them. Every file is UTF-8 text, plain or `.gz`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..slots.options import Entry, Options

Path = Annotated[str, Field(min_length=1)]
HeldOut = Annotated[int, Field(ge=1, description="rows kept for validation where no file is named; chosen by `seed`")]


class ParallelText(Options):
    """Two files with as many lines: line n of `target` translates line n of `source`."""

    source: Annotated[Path | None, Field(description="sentences to translate, one a line")] = None
    target: Annotated[Path | None, Field(description="their translations, line by line")] = None
    validation_source: Path | None = None
    validation_target: Path | None = None
    held_out: HeldOut | None = None


class LanguageText(Options):
    """One running text; the model learns every next token. It is cut into pieces of `batching.max_length` tokens."""

    text: Annotated[Path | None, Field(description="the text")] = None
    validation_text: Path | None = None
    held_out: HeldOut | None = None


DATA = (
    Entry(name="parallel", summary="sentences and their translations: an encoder-decoder", options=ParallelText),
    Entry(name="language", summary="running text: a decoder that predicts the next token", options=LanguageText),
)
