"""Tokenisers of the `tokenizers` library, trained on the corpus and saved in its JSON format.

White space becomes `▁`, and every word starts with one, so that joining the pieces restores the text. Unknown characters become
bytes (`byte_fallback`), so that no text is lost. Special tokens are not recognised in a text: `</s>` is plain text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ..errors import Diagnostic, InputError
from ..errors.arguments import check_list
from ..files import TOKENISER_BYTES, TOKENISER_VALUES, parse_json, read_text
from ..slots.options import Component
from .huggingface_file import Imported, check_imported
from .huggingface_steps import faster
from .symbols import SPLIT, characters, first_steps, last_steps, symbols_in
from .text_bounds import TextBounds, normaliser_steps
from .text_frame import END, MASK, MASK_ID, PAD, SPECIALS, START, UNKNOWN, Frame, PairFrame
from .tokeniser_file import MAX_PIECE, check_tokeniser, refusal

MODELS = {"BPE": "bpe", "Unigram": "unigram", "WordLevel": "characters"}
Ranges = list[tuple[int, int]]
"""For each piece, its first character and the one after its last."""
PAIR = PairFrame((START,), (END,), (END,), (0, 0, 0, 1, 1))
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


class TextTokeniser:
    """Converts between text and ids. `encode` adds no special tokens, `decode` removes them.

    Special tokens are not recognised in a text, except by imported tokenisers, as in the library that they come from.
    """

    def __init__(
        self, tokeniser: Tokenizer, bounds: TextBounds, imported: Imported | None = None, text: str | None = None
    ) -> None:
        self._tokeniser, self._bounds, self.imported, self._text = tokeniser, bounds, imported, text
        self._tokeniser.encode_special_tokens = imported is None  # `</s>` in a text is plain text
        self._tokeniser.no_padding()
        self._tokeniser.no_truncation()

    @property
    def size(self) -> int:
        """The number of ids; of an imported tokeniser that of its model, which may have more."""
        return self.imported.rows if self.imported else int(self._tokeniser.get_vocab_size())

    @property
    def digest(self) -> str:
        """SHA-256 of the tokeniser."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def kind(self) -> str:
        """The `kind` of such a tokeniser in a recipe; `imported` for one that no recipe trains."""
        return "imported" if self.imported else str(self.settings["kind"])

    @property
    def settings(self) -> dict[str, Any]:
        """The `tokeniser` section of a recipe that trains such a tokeniser."""
        data = json.loads(self.to_json())
        steps = {step["type"] for step in normaliser_steps(data["normalizer"])}
        return {
            "kind": MODELS[data["model"]["type"]],
            "joint": True,
            "normalise": next((form for form in ("nfc", "nfkc") if form.upper() in steps), "none"),
            "lowercase": "Lowercase" in steps,
            **({"symbols": self.symbols} if self.symbols else {}),
            "vocab_size": self.size,
            "byte_fallback": bool(data["model"].get("byte_fallback")),
        }

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The texts that are one token each."""
        if self.imported:
            return ()
        return tuple(symbols_in(normaliser_steps(json.loads(self.to_json())["normalizer"])))

    @cached_property
    def _written(self) -> dict[str, str]:
        """The symbols by their characters."""
        return dict(zip(characters(self.symbols), self.symbols, strict=True))

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token, if there is one."""
        if self.imported:
            return self.imported.roles.get("mask")
        return MASK_ID if self.size > MASK_ID and self.pieces([MASK_ID]) == [MASK] else None

    @property
    def mask(self) -> str | None:
        """How a text writes the mask token, if there is one."""
        return None if self.mask_id is None else self.pieces([self.mask_id])[0]

    @property
    def word_mark(self) -> str:
        """What a piece that starts a word begins with."""
        return self.imported.word_mark if self.imported else "▁"

    def starts_word(self, piece: str) -> bool:
        """Whether a piece starts a word."""
        if self.imported and (prefix := self.imported.continuation):
            return not piece.startswith(prefix)
        return piece.startswith(self.word_mark)

    @property
    def unknown_id(self) -> int:
        """The id of a word without a piece."""
        if self.imported is None:
            return UNKNOWN
        return next((self.imported.roles[role] for role in ("unk", "pad", "eos") if role in self.imported.roles), 0)

    @property
    def unknown_token_id(self) -> int | None:
        """The id of the token of what has no piece, if there is one."""
        return UNKNOWN if self.imported is None else self.imported.roles.get("unk")

    def count_unknown(self, ids: Sequence[int]) -> int:
        """The number of unknown tokens among some ids."""
        number = self.unknown_token_id
        return 0 if number is None else ids.count(number)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every piece, special tokens included."""
        return self._tokeniser.get_vocab()

    def piece_id(self, piece: str) -> int | None:
        """The id of a piece, None if there is none."""
        plain = {symbol: character for character, symbol in self._written.items()}.get(piece, piece)
        number: int | None = self._tokeniser.token_to_id(plain)
        return number

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens."""
        if self.imported is None:
            return frozenset(range(len(SPECIALS) + (self.mask_id is not None)))
        added = self._tokeniser.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @property
    def node_ids(self) -> dict[str, int]:
        """The special ids of a `tokens` node whose spec does not write them. How a target starts is not known of an imported
        tokeniser."""
        if self.imported is None:
            return {"pad_id": PAD, "end_id": END, "start_id": START}
        roles = {"pad_id": ("pad",), "end_id": ("eos", "sep")}
        role_ids = {
            name: [self.imported.roles[role] for role in candidates if role in self.imported.roles]
            for name, candidates in roles.items()
        }
        return {name: numbers[0] for name, numbers in role_ids.items() if numbers}

    @property
    def text_frame(self) -> Frame:
        """The special tokens around a text that is classified, tagged or masked."""
        return self.imported.frame if self.imported else Frame((START,), (END,))

    @property
    def source_frame(self) -> Frame:
        """The special tokens around a source, and around a target in training."""
        return self.imported.frame if self.imported else Frame((), (END,))

    @property
    def prompt_frame(self) -> Frame:
        """The special tokens around a prompt."""
        return self.imported.frame if self.imported else Frame()

    @property
    def pair_frame(self) -> PairFrame:
        """The special tokens around a pair of texts."""
        return self.imported.pair if self.imported else PAIR

    def normalised(self, text: str) -> str:
        """The text as `encode` splits it. It may be longer: NFKC writes 18 characters for U+FDFA."""
        normaliser = self._tokeniser.normalizer
        if normaliser is None:
            return text
        with _library("the tokeniser failed on a text"):
            self._bounds.check(text)
            return str(normaliser.normalize_str(text))

    def words(self, text: str) -> list[str]:
        """The parts of a text that are divided into pieces, none of which crosses them."""
        with _library("the tokeniser failed on a text"):
            self._bounds.check(text)
            return [part for part, _ in self._tokeniser.pre_tokenizer.pre_tokenize_str(self.normalised(text))]

    def divided_words(self, text: str) -> list[tuple[str, ...]]:
        """The pieces of each of these parts."""
        with _library("the tokeniser failed on a text"):
            self._bounds.check(text)
            encoding = self._tokeniser.encode(text, add_special_tokens=False)
        words: dict[int | None, list[str]] = {}
        for piece, word in zip(encoding.tokens, encoding.word_ids, strict=True):
            words.setdefault(word, []).append(piece)
        return [tuple(pieces) for pieces in words.values()]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, in parallel. Raises InputError for a text that is too long: `TextBounds`."""
        with _library("the tokeniser failed on a text"):
            return [
                encoding.ids
                for call in self._bounds.calls(texts)
                for encoding in self._tokeniser.encode_batch_fast(call, add_special_tokens=False)
            ]

    def encode_masked(self, text: str) -> list[int]:
        """The ids of a text in which `mask` is the mask token. A piece after one starts a word, as after any special token."""
        if self.imported or self.mask_id is None:
            return self.encode([text])[0]
        first, *others = self.encode(text.split(MASK))
        return [*first, *(number for ids in others for number in (MASK_ID, *ids))]

    def encode_with_ranges(self, texts: Sequence[str]) -> list[tuple[list[int], Ranges]]:
        """The ids of every text, and the characters of each piece, without white space at its ends. A piece ends where the next
        one starts, so that a combining mark belongs to the character before it. Raises InputError for a text that is half as
        long as `encode` allows."""
        with _library("the tokeniser failed on a text"):
            return [
                (encoding.ids, _ranges(text, encoding.offsets))
                for call in self._bounds.calls(texts, 2)
                for text, encoding in zip(call, self._tokeniser.encode_batch(call, add_special_tokens=False), strict=True)
            ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD."""
        known = ids if self.imported else [number for number in ids if number not in (PAD, START, END)]
        with _library("the tokeniser failed on ids"):
            return str(self._tokeniser.decode(list(known), skip_special_tokens=self.imported is not None))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id."""
        pieces = [self._tokeniser.id_to_token(number) or f"<{number}>" for number in ids]
        return [self._written.get(piece, piece) for piece in pieces] if self._written else pieces

    def to_json(self) -> str:
        return self._text or str(self._tokeniser.to_str())

    @classmethod
    def from_json(cls, text: str, name: str) -> TextTokeniser:
        """A tokeniser from its JSON; errors call it `name`. Raises InputError for parts that tfkit does not run."""
        try:
            data = parse_json(text, values=TOKENISER_VALUES)
        except ValueError as reason:
            raise refusal(name, "", f"it is not valid JSON: {reason}") from None
        if not isinstance(data, dict) or "tokenizer" not in data:
            check_tokeniser(data, name)
            with _library(f"{name} holds no tokeniser"):
                return cls(Tokenizer.from_str(text), TextBounds(data["normalizer"], data["model"]))
        imported = check_imported(data, name)
        run = {**data["tokenizer"], **{part: faster(data["tokenizer"][part]) for part in ("normalizer", "decoder")}}
        with _library(f"{name} holds no tokeniser"):
            tokeniser = Tokenizer.from_str(json.dumps(run, ensure_ascii=False, allow_nan=False))
        for token in data["tokenizer"]["added_tokens"]:
            if tokeniser.token_to_id(token["content"]) != token["id"]:
                content = json.dumps(token["content"], allow_nan=False)[:80]
                message = f"{content} gets the id {tokeniser.token_to_id(token['content'])}"
                raise refusal(name, "added_tokens", f"{message}, not {token['id']}: ids continue those of the vocabulary")
        return cls(tokeniser, TextBounds(data["tokenizer"]["normalizer"], run["model"]), imported, text)

    @classmethod
    def load(cls, path: str | Path, *, links: bool = True) -> TextTokeniser:
        """The tokeniser in a file; `links`: whether this may be a symbolic link. Raises InputError."""
        try:
            text = read_text(path, TOKENISER_BYTES, links=links)
        except OSError as reason:
            raise InputError(Diagnostic("TFK104", f"{path} cannot be read: {reason.strerror}")) from None
        return cls.from_json(text, str(path))


def _ranges(text: str, offsets: Ranges) -> Ranges:
    ranges = []
    for (start, end), (following, _) in zip(offsets, [*offsets[1:], (len(text), 0)], strict=False):
        end = min(max(end, following), len(text))  # the library counts a prefix that a tokeniser adds
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        ranges.append((start, end))
    return ranges


@contextmanager
def _library(what: str) -> Iterator[None]:
    """Raises InputError if the library fails. It raises plain Exception, and BaseException for a panic of its Rust code."""
    try:
        yield
    except InputError:
        raise
    except BaseException as reason:
        panic = type(reason).__module__ == "pyo3_runtime"
        if not isinstance(reason, Exception) and not panic:
            raise
        words = "the library of tokenisers panicked" if panic else " ".join(str(reason).split())
        raise InputError(Diagnostic("TFK104", f"{what}: {words}")) from None


def training_bounds(part: Component) -> TextBounds:
    """The bounds of the texts that a tokeniser is trained on; `part` as in `train_tokeniser`."""
    steps: list[Any] = [{"type": part.options.normalise.upper()}] if part.options.normalise != "none" else []
    return TextBounds({"type": "Sequence", "normalizers": [*steps, *[{"type": "Lowercase"}] * part.options.lowercase]})


def train_tokeniser(
    part: Component, texts: Iterable[str], vocab_size: int, sentences: bool = True, masks: bool = False
) -> TextTokeniser:
    """Train a tokeniser with the kind and the options of a recipe. It has fewer than `vocab_size` ids if the text has fewer
    pieces. `sentences`: every text starts with a word, which then gets a `▁`; otherwise texts continue each other. `masks` adds
    a mask token.

    Raises InputError if `vocab_size` is too small for the special tokens and the bytes, or for the characters of the text, or
    if `texts` is one text.
    """
    check_list(texts)
    options = part.options
    specials = [*SPECIALS, MASK] if masks else list(SPECIALS)
    if part.kind == "characters":
        tokeniser = _characters(options, texts, specials)
        return TextTokeniser(tokeniser, TextBounds(json.loads(tokeniser.to_str())["normalizer"]))
    byte_pieces = len(BYTES) * options.byte_fallback
    fixed = len(specials) + byte_pieces + len(options.symbols or ())
    if vocab_size <= fixed:
        what = "special tokens and bytes" if byte_pieces else "special tokens"
        what += " and symbols" if options.symbols else ""
        message = f"a vocabulary of {vocab_size} has no room for text in addition to {fixed} {what}"
        raise InputError(Diagnostic("TFK105", message, "make `tokeniser.vocab_size` larger"))
    symbols = options.symbols or ()
    tokeniser, trainer = _untrained(part.kind, vocab_size - byte_pieces, specials, characters(symbols), options.byte_fallback)
    tokeniser.normalizer = _normaliser(options, sentences)
    tokeniser.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always" if sentences else "never"),
            pre_tokenizers.Split("\n", "isolated"),
            *([pre_tokenizers.Split(Regex(SPLIT["pattern"]["Regex"]), "isolated")] if symbols else []),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    _train(tokeniser, trainer, texts)
    if (size := tokeniser.get_vocab_size() + byte_pieces) > vocab_size:  # the library keeps every character
        room = f"a vocabulary of {vocab_size:,} has room for {vocab_size - fixed:,}"
        message = f"the text has {size - fixed:,} different characters, and {room}"
        fix = f"make `tokeniser.vocab_size` larger than {size:,}, or choose `byte_fallback`: rare characters become bytes"
        raise InputError(Diagnostic("TFK105", message, fix))
    data = json.loads(tokeniser.to_str())
    data["model"] = _in_order(data["model"], len(specials))
    data["model"] = _with_byte_pieces(data["model"], len(specials)) if byte_pieces else data["model"]
    tokeniser = Tokenizer.from_str(json.dumps(data, allow_nan=False))
    strip = [decoders.Strip(" ", 1, 0)] if sentences else []
    plain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokeniser.decoder = decoders.Sequence([*plain, *_restored(symbols)])
    return TextTokeniser(tokeniser, TextBounds(data["normalizer"], data["model"]))


def _characters(options: Any, texts: Iterable[str], specials: list[str]) -> Tokenizer:
    tokeniser = Tokenizer(models.WordLevel(unk_token=SPECIALS[UNKNOWN]))
    tokeniser.normalizer = _form(options)
    tokeniser.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    symbols = options.symbols or ()
    trainer = trainers.WordLevelTrainer(special_tokens=specials, show_progress=False)
    _train(tokeniser, trainer, chain(texts, symbols))
    tokeniser.decoder = decoders.Sequence([decoders.Fuse(), *_restored(symbols)]) if symbols else decoders.Fuse()
    return tokeniser


def _restored(symbols: Sequence[str]) -> list[Any]:
    return [decoders.Replace(step["pattern"]["String"], step["content"]) for step in last_steps(symbols)]


PART = 1 << 16
"""The library takes 370 bytes of memory for a character of each text that it learns from: a longer one is divided at spaces."""


def _train(tokeniser: Tokenizer, trainer: Any, texts: Iterable[str]) -> None:
    """Raises InputError if the library fails, as it does for more characters than a unigram vocabulary has pieces."""
    try:
        tokeniser.train_from_iterator((part for text in texts for part in divided(text)), trainer)
    except InputError:
        raise
    except Exception as reason:
        if type(reason) is not Exception:  # of the texts: the library raises plain Exception
            raise
        words = " ".join(str(reason).split())
        fix = "make `tokeniser.vocab_size` larger, or choose `bpe` with `byte_fallback`"
        raise InputError(Diagnostic("TFK105", f"no tokeniser is learnt from this text: {words}", fix)) from None


def divided(text: str) -> Iterator[str]:
    """The text in parts of about `PART` characters, each but the first with the space before it: the words stay the same."""
    start = 0
    while len(text) - start > PART:
        at = text.rfind(" ", start + 1, start + PART)
        at = at if at > 0 else text.find(" ", start + PART)
        if at < 0:
            break
        yield text[start:at]
        start = at
    yield text[start:]


def _untrained(kind: str, size: int, specials: list[str], alphabet: list[str], bytes_too: bool) -> tuple[Tokenizer, Any]:
    unknown = SPECIALS[UNKNOWN]
    common: dict[str, Any] = {"special_tokens": specials, "show_progress": False, "initial_alphabet": alphabet}
    if kind == "bpe":
        if bytes_too:  # of more characters the rare ones are written as bytes
            common["limit_alphabet"] = size - len(specials)
        trainer = trainers.BpeTrainer(vocab_size=size, max_token_length=MAX_PIECE, **common)
        return Tokenizer(models.BPE(unk_token=unknown)), trainer
    return Tokenizer(models.Unigram()), trainers.UnigramTrainer(vocab_size=size, unk_token=unknown, **common)


def _form(options: Any) -> Any:
    """Symbols, Unicode normalisation, and lower case if requested."""
    steps: list[Any] = []
    for step in first_steps(options.symbols or ()):
        pattern = step["pattern"]
        steps.append(normalizers.Replace(Regex(pattern["Regex"]) if "Regex" in pattern else pattern["String"], step["content"]))
    if options.normalise != "none":
        steps.append(normalizers.NFC() if options.normalise == "nfc" else normalizers.NFKC())
    if options.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def _normaliser(options: Any, sentences: bool) -> Any:
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()] if sentences else []
    # A `▁` in the text would be decoded to a space, so it is replaced by an underscore.
    return normalizers.Sequence([_form(options), *spaces, normalizers.Replace("▁", "_")])


def _in_order(model: dict[str, Any], first: int) -> dict[str, Any]:
    """The model with unigram pieces sorted by spelling. The library sorts them by score. It sums scores in the order of a hash
    table, so that their last digits, and the ids, would differ from run to run."""
    if model["type"] != "Unigram":
        return model
    return {**model, "vocab": [*model["vocab"][:first], *sorted(model["vocab"][first:])]}


def _with_byte_pieces(model: dict[str, Any], first: int) -> dict[str, Any]:
    """The model with a piece for every byte, after the special tokens. No text matches these pieces, because the tokeniser
    splits at their angle brackets."""
    if model["type"] == "BPE":
        learned = {piece: number + len(BYTES) * (number >= first) for piece, number in model["vocab"].items()}
        vocab: Any = {**learned, **{piece: first + byte for byte, piece in enumerate(BYTES)}}
    else:
        lowest = min(score for _, score in model["vocab"])
        vocab = [*model["vocab"][:first], *([piece, lowest] for piece in BYTES), *model["vocab"][first:]]
    return {**model, "vocab": vocab, "byte_fallback": True}
