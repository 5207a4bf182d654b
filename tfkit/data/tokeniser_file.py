"""The check of a tokeniser file: it may have only the parts of tfkit's own tokenisers, within limits.

The library would run any regular expression, replacement and decoder from a file, without a limit of time. The lists below name
all that are allowed. A new kind of tokeniser needs an entry there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from ..errors import Diagnostic, InputError
from ..files import FileModel
from .symbols import MAX_SYMBOLS, is_step
from .text_frame import MASK, SPECIALS

MAX_IDS = 500_000
"""The most pieces of a tokeniser: twice as many as the large published ones have."""
MAX_ALL_MERGES = 1_000_000
MAX_PIECE = 256
"""The longest piece, in characters."""
MAX_STEPS = 8
"""The most normalisers, splits or decoders in a sequence."""
STEPS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "normalizer": (
        {"type": "NFC"},
        {"type": "NFKC"},
        {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"String": "▁"}, "content": "_"},
    ),
    "pre_tokenizer": (
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
        {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        {"type": "Punctuation", "behavior": "Isolated"},
    ),
    "decoder": (
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ),
}
"""The allowed steps of each part of a tokeniser, in the format of the library."""
SEQUENCES = {
    "normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors", "decoder": "decoders",
}  # fmt: skip
"""The key of a `Sequence` that holds its steps."""
FIX = "name a tokeniser that `tfkit train` wrote; `tfkit import` reads those of Hugging Face"
Piece = Annotated[str, Field(min_length=1, max_length=MAX_PIECE)]
Vocabulary = Annotated[dict[Piece, int], Field(min_length=1, max_length=MAX_IDS)]


class AddedToken(FileModel):
    """A special token, which is not recognised in a text."""

    id: int
    content: str
    single_word: Literal[False]
    lstrip: Literal[False]
    rstrip: Literal[False]
    normalized: Literal[False]
    special: Literal[True]


def check_merges(model: Any, most: int) -> None:
    """Raises ValueError if the JSON of a BPE model has more than `most` merges for each piece."""
    vocab, merges = (model.get(name) if isinstance(model, dict) else None for name in ("vocab", "merges"))
    if isinstance(vocab, dict) and isinstance(merges, list) and len(merges) > most * len(vocab):
        message = f"there are {len(merges):,} merges for {len(vocab):,} pieces"
        raise ValueError(f"{message}, and at most {most} for each piece" if most > 1 else f"{message}: a merge makes one piece")


def check_pieces_of_merges(vocab: Mapping[str, int], merges: Iterable[Sequence[str]], prefix: str = "") -> None:
    """Raises ValueError for a merge with a piece that the vocabulary lacks, for which the library panics. `prefix` is what its
    second piece has before it and the piece that it makes has not."""
    for left, right in merges:
        for piece in (left, right, left + right[len(prefix) :]):
            if piece not in vocab:
                raise ValueError(
                    f"the merge of {shown(left)} and {shown(right)} needs {shown(piece)}, which the vocabulary lacks"
                )


class Bpe(FileModel):
    type: Literal["BPE"]
    dropout: None
    unk_token: Literal["<unk>"]
    continuing_subword_prefix: None
    end_of_word_suffix: None
    fuse_unk: Literal[False]
    byte_fallback: bool
    ignore_merges: Literal[False]
    vocab: Vocabulary
    merges: Annotated[list[Annotated[list[Piece], Field(min_length=2, max_length=2)]], Field(max_length=MAX_ALL_MERGES)]

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, data: Any) -> Any:
        check_merges(data, 1)
        return data

    @model_validator(mode="after")
    def _has_pieces(self) -> Bpe:
        check_pieces_of_merges(self.vocab, self.merges)
        return self


class Unigram(FileModel):
    type: Literal["Unigram"]
    unk_id: Literal[3]
    vocab: Annotated[list[Annotated[list[Any], Field(min_length=2, max_length=2)]], Field(min_length=1, max_length=MAX_IDS)]
    byte_fallback: bool


class WordLevel(FileModel):
    type: Literal["WordLevel"]
    vocab: Vocabulary
    unk_token: Literal["<unk>"]


MODELS: Mapping[str, type[FileModel]] = {"BPE": Bpe, "Unigram": Unigram, "WordLevel": WordLevel}


class TokeniserFile(FileModel):
    """The whole file. Its steps and its model are checked separately."""

    version: Literal["1.0"]
    truncation: None
    padding: None
    added_tokens: Annotated[list[AddedToken], Field(max_length=100)]
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    post_processor: None
    decoder: dict[str, Any] | None
    model: dict[str, Any]


def check_tokeniser(data: Any, name: str) -> None:
    """Raises InputError for the JSON of a tokeniser with parts that tfkit's own do not have. Errors call the file `name`."""
    file = _validated(TokeniserFile, data, name, "")
    for part in STEPS:
        _check_steps(getattr(file, part), part, name)
    kind = file.model.get("type")
    if kind not in list(MODELS):
        raise refusal(name, "model", f"the type is {shown(kind)}, known are {', '.join(MODELS)}")
    _validated(MODELS[kind], file.model, name, "model.")
    vocab = file.model["vocab"]
    pieces = scored_pieces(vocab, name, refusal) if kind == "Unigram" else _numbered(vocab, name)
    _check_specials(file.added_tokens, pieces, name)


def _check_steps(step: Mapping[str, Any] | None, part: str, name: str) -> None:
    """Raises InputError for unknown steps, and for too many."""
    steps: Any = [] if step is None else [step]
    if step is not None and step.get("type") == "Sequence":
        steps = step.get(SEQUENCES[part])
        if step.keys() != {"type", SEQUENCES[part]} or not isinstance(steps, list):
            raise refusal(name, part, f"a Sequence has a list of `{SEQUENCES[part]}` and nothing else")
    others = [member for member in steps if not is_step(member, part)]
    if len(others) > MAX_STEPS or len(steps) - len(others) > MAX_SYMBOLS + 1:
        raise refusal(name, part, f"there are {len(steps):,} steps, at most {MAX_STEPS} are allowed")
    for number, member in enumerate(steps, 1):
        if member not in STEPS[part] and not is_step(member, part):
            raise refusal(name, f"{part}, step {number}", f"{shown(member)} is no step of tfkit's tokenisers")


def _numbered(vocab: Mapping[str, int], name: str) -> list[str]:
    """The pieces in the order of their ids. Raises InputError unless these are 0 to N - 1."""
    pieces: list[str] = [""] * len(vocab)
    for piece, number in vocab.items():
        if not 0 <= number < len(vocab) or pieces[number]:
            message = f"{len(vocab):,} pieces have the ids 0 to {len(vocab) - 1:,}, each once; {shown(piece)} has {number}"
            raise refusal(name, "model.vocab", message)
        pieces[number] = piece
    return pieces


def scored_pieces(vocab: list[list[Any]], name: str, refused: Callable[[str, str, str], InputError]) -> list[str]:
    """The pieces of a unigram model. Raises `refused` for duplicates and missing scores."""
    pieces: dict[str, None] = {}
    for number, (piece, score) in enumerate(vocab):
        place = f"model.vocab.{number}"
        if not isinstance(piece, str) or not 0 < len(piece) <= MAX_PIECE:
            raise refused(name, place, f"a piece is a text of 1 to {MAX_PIECE} characters, {shown(piece)} is written")
        if type(score) not in (int, float):
            raise refused(name, place, f"a score is a number, {shown(score)} is written")
        if piece in pieces:
            raise refused(name, place, f"the piece {shown(piece)} is repeated")
        pieces[piece] = None
    return list(pieces)


def _check_specials(added: list[AddedToken], pieces: list[str], name: str) -> None:
    """Raises InputError unless the special tokens are tfkit's, with their ids."""
    expected = [*SPECIALS, MASK][: max(len(added), len(SPECIALS))]
    if [(token.id, token.content) for token in added] != list(enumerate(expected)):
        contents = shown([token.content for token in added])
        raise refusal(name, "added_tokens", f"{contents}, tfkit's are {', '.join(expected)} with the ids from 0")
    if pieces[: len(expected)] != expected:
        raise refusal(name, "model.vocab", f"the first pieces are {shown(pieces[: len(expected)])}, not {', '.join(expected)}")


def _validated(model: type[FileModel], data: Any, name: str, where: str) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f"{where}{'.'.join(map(str, first['loc']))}"
        raise refusal(name, place if place.isprintable() and len(place) < 100 else where.rstrip("."), first["msg"]) from None


def shown(value: Any) -> str:
    """A value of the file, short and without control characters."""
    text = json.dumps(value, allow_nan=False)
    return text if len(text) <= 80 else f"{text[:80]}..."


def refusal(name: str, place: str, message: str) -> InputError:
    where = f"{place}: " if place else ""
    return InputError(Diagnostic("TFK104", f"{name} holds no tokeniser of tfkit: {where}{message}", FIX))
