"""The check of a `tokenizer.json` of Hugging Face: known steps with checked options, and limits of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from ..errors import Diagnostic, InputError
from ..files import FileModel
from .huggingface_steps import STEPS
from .text_frame import Frame, PairFrame, frames_of
from .tokeniser_file import (
    MAX_ALL_MERGES,
    MAX_IDS,
    SEQUENCES,
    Piece,
    Vocabulary,
    check_merges,
    check_pieces_of_merges,
    scored_pieces,
    shown,
)

MAX_STEPS = 16
"""The most steps of a part, those in sequences included."""
MAX_MERGES = 8
"""The most merges for each piece; Gemma's tokeniser, with all splits of its pieces, has 2."""
MAX_ADDED = 100_000
"""The most tokens that are recognised before a text is split; those of speech and of images are 65,536."""
MAX_ADDED_LENGTH = 2_000_000
"""The most characters of all of these: the library takes 80 bytes of memory for each."""
MAX_GROWTH = {"normalizer": 1024, "decoder": 64}
"""How many times as many characters the steps of a part may make of a text; those of ALBERT 648."""
MAX_REPLACED = 64
"""The same of its replacements: one may write as many characters for one, and several together no more."""
FIX = "the guide to tokenisers lists the parts that tfkit runs from a file"
Role = Literal["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
ROLES: tuple[Role, ...] = get_args(Role)
"""The roles of special tokens, in the names of transformers."""


class AddedToken(FileModel):
    """A token that is recognised in a text before it is split."""

    id: Annotated[int, Field(ge=0, lt=MAX_IDS)]
    content: Piece
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool

    @model_validator(mode="after")
    def _takes_no_white_space_twice(self) -> AddedToken:
        if (self.lstrip or self.rstrip) and not self.content.strip():
            raise ValueError("a token of white space cannot take the white space beside it as well")
        return self


class Bpe(FileModel):
    type: Literal["BPE"]
    dropout: None = None
    unk_token: Piece | None = None
    continuing_subword_prefix: Annotated[str, Field(max_length=16)] | None = None
    end_of_word_suffix: Annotated[str, Field(max_length=16)] | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    vocab: Vocabulary
    merges: Annotated[list[Annotated[list[Piece], Field(min_length=2, max_length=2)]], Field(max_length=MAX_ALL_MERGES)]

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, data: Any) -> Any:
        check_merges(data, MAX_MERGES)
        return data

    @model_validator(mode="after")
    def _continued(self) -> Bpe:
        prefix = self.continuing_subword_prefix
        if prefix and not all(piece.startswith(prefix) for _, piece in self.merges):  # the library panics
            raise ValueError(f"the second piece of every merge starts with `continuing_subword_prefix`, {shown(prefix)}")
        check_pieces_of_merges(self.vocab, self.merges, prefix or "")
        return self


class WordPiece(FileModel):
    type: Literal["WordPiece"]
    unk_token: Piece
    continuing_subword_prefix: Annotated[str, Field(max_length=16)]
    max_input_chars_per_word: Annotated[int, Field(ge=1, le=1000)]
    vocab: Vocabulary


class Unigram(FileModel):
    type: Literal["Unigram"]
    unk_id: Annotated[int, Field(ge=0)] | None
    byte_fallback: bool = False
    vocab: Annotated[list[Annotated[list[Any], Field(min_length=2, max_length=2)]], Field(min_length=1, max_length=MAX_IDS)]


class WordLevel(FileModel):
    type: Literal["WordLevel"]
    unk_token: Piece
    vocab: Vocabulary


MODELS: Mapping[str, type[FileModel]] = {"BPE": Bpe, "WordPiece": WordPiece, "Unigram": Unigram, "WordLevel": WordLevel}


class TokeniserJson(FileModel):
    """The whole `tokenizer.json`. Steps and model are checked separately."""

    version: Literal["1.0"]
    truncation: None
    padding: None
    added_tokens: Annotated[list[AddedToken], Field(max_length=MAX_ADDED)]
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    post_processor: dict[str, Any] | None
    decoder: dict[str, Any] | None
    model: dict[str, Any]


class ImportedFile(FileModel):
    """What tfkit saves of an imported tokeniser.

    Attributes:
        roles: The special tokens by role.
        rows: The ids of the model, which may have more than the tokeniser.
        tokenizer: A `tokenizer.json`.
    """

    roles: dict[Role, Piece]
    rows: Annotated[int, Field(ge=1, le=2 * MAX_IDS)]
    tokenizer: dict[str, Any]


@dataclass(frozen=True)
class Imported:
    """An imported tokeniser that was checked.

    Attributes:
        roles: The ids of special tokens by role.
        rows: As in `ImportedFile`.
        frame: The special tokens around a text.
        pair: The special tokens around a pair of texts.
        continuation: Before pieces that continue a word, of a model that has it.
        word_mark: Before pieces that start a word, of other models.
    """

    roles: Mapping[str, int]
    rows: int
    frame: Frame
    pair: PairFrame
    continuation: str
    word_mark: str


def check_imported(data: Any, name: str) -> Imported:
    """Check a saved `ImportedFile`. Raises InputError for parts that tfkit does not run; errors call the file `name`."""
    saved = _validated(ImportedFile, data, name, "")
    file = _validated(TokeniserJson, saved.tokenizer, name, "")
    for part in STEPS:
        _check_part(getattr(file, part), part, name)
    kind = file.model.get("type")
    if not isinstance(kind, str) or kind not in MODELS:
        raise refusal(name, "model", f"the type is {shown(kind)}, known are {', '.join(MODELS)}")
    model = _validated(MODELS[kind], file.model, name, "model.")
    ids = _ids(model, name)
    if (length := sum(len(token.content) for token in file.added_tokens)) > MAX_ADDED_LENGTH:
        message = f"they have {length:,} characters, and at most {MAX_ADDED_LENGTH:,} are read"
        raise refusal(name, "added_tokens", message)
    for token in file.added_tokens:
        if ids.setdefault(token.content, token.id) != token.id:
            raise refusal(name, "added_tokens", f"{shown(token.content)} has the ids {ids[token.content]} and {token.id}")
    _check_distinct(ids, name)
    unknown = [role for role, token in saved.roles.items() if token not in ids]
    if unknown:
        raise refusal(name, f"roles.{unknown[0]}", f"{shown(saved.roles[unknown[0]])} is no token of the vocabulary")
    if (largest := max(ids.values())) >= saved.rows:
        message = f"the model has {saved.rows:,} ids, and the tokeniser has the id {largest:,}"
        raise InputError(Diagnostic("TFK106", f"{name}: {message}", "name the tokeniser of this model"))
    try:
        frame, pair = frames_of(file.post_processor)
    except ValueError as reason:
        raise refusal(name, "post_processor", str(reason)) from None
    for number in (*frame.before, *frame.after, *pair.before, *pair.between, *pair.after):
        if not 0 <= number <= largest:
            raise refusal(name, "post_processor", f"no token has the id {number}")
    byte_level = any(step["type"] == "ByteLevel" for step in _steps(file.pre_tokenizer, "pre_tokenizer", name))
    continuation = model.continuing_subword_prefix if isinstance(model, WordPiece) else ""
    roles = {role: ids[token] for role, token in saved.roles.items()}
    return Imported(roles, saved.rows, frame, pair, continuation, "Ġ" if byte_level else "▁")


def _check_part(written: Mapping[str, Any] | None, part: str, name: str) -> None:
    """Raises InputError for a part with unknown steps, or with steps that make a text too long."""
    growth = replaced = 1
    for number, step in enumerate(_steps(written, part, name), 1):
        place = f"{part}, step {number}"
        if number > MAX_STEPS:
            raise refusal(name, part, f"there are more than {MAX_STEPS} steps")
        kind = step.get("type") if isinstance(step, dict) else None
        if not isinstance(kind, str) or kind not in STEPS[part]:
            raise refusal(name, place, f"{shown(step)} is none of {', '.join(STEPS[part])}")
        checked = _validated(STEPS[part][kind], step, name, f"{place}, {kind}: ")
        growth *= checked.growth
        replaced *= checked.growth if kind == "Replace" else 1
    if part in MAX_GROWTH and growth > MAX_GROWTH[part]:
        message = f"the steps make a text up to {growth:,} times as long, and {MAX_GROWTH[part]:,} is the limit"
        raise refusal(name, part, message)
    if replaced > MAX_REPLACED:
        message = f"the replacements make a text up to {replaced:,} times as long, and {MAX_REPLACED} is the limit"
        raise refusal(name, part, message)


def _steps(written: Any, part: str, name: str) -> Iterator[Any]:
    """The steps of a part, those of sequences in place of these."""
    key = SEQUENCES[part]
    if isinstance(written, dict) and written.get("type") == "Sequence":
        if written.keys() != {"type", key} or not isinstance(written[key], list):
            raise refusal(name, part, f"a Sequence has a list of `{key}` and nothing else")
        if len(written[key]) > MAX_STEPS:
            raise refusal(name, part, f"there are more than {MAX_STEPS} steps")
        for step in written[key]:
            if isinstance(step, dict) and step.get("type") == "Sequence":
                raise refusal(name, part, "a Sequence has no Sequence inside")
            yield step
    elif written is not None:
        yield written


def _ids(model: Any, name: str) -> dict[str, int]:
    """The ids of the pieces of a model."""
    if isinstance(model, Unigram):
        pieces = scored_pieces(model.vocab, name, refusal)
        if model.unk_id is not None and model.unk_id >= len(pieces):
            raise refusal(name, "model.unk_id", f"no piece has the id {model.unk_id}")
        return {piece: number for number, piece in enumerate(pieces)}
    return dict(model.vocab)


def _check_distinct(ids: Mapping[str, int], name: str) -> None:
    """Raises InputError for ids that two pieces have, that are negative or too large."""
    pieces: dict[int, str] = {}
    for piece, number in ids.items():
        if not 0 <= number < MAX_IDS:
            raise refusal(name, "model.vocab", f"{shown(piece)} has the id {number}; ids are 0 to {MAX_IDS - 1:,}")
        if pieces.setdefault(number, piece) != piece:
            raise refusal(name, "model.vocab", f"{shown(pieces[number])} and {shown(piece)} have the id {number}")


def _validated(model: type[FileModel], data: Any, name: str, where: str) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f"{where}{'.'.join(map(str, first['loc']))}"
        place = place if place.isprintable() and len(place) < 120 else where
        raise refusal(name, place.rstrip(".: "), first["msg"].removeprefix("Value error, ")) from None


def refusal(name: str, place: str, message: str) -> InputError:
    where = f"{place}: " if place else ""
    return InputError(Diagnostic("TFK104", f"{name} holds no tokeniser that tfkit runs: {where}{message}", FIX))
