"""More pieces for a tokeniser that tfkit trained, at fine-tuning. Old pieces keep their ids; new ones follow them.

bpe       Characters without a piece come first, the most frequent first. Then training goes on where it ended: the most
          frequent pair of pieces within a word is merged, again and again. https://aclanthology.org/P16-1162/
unigram   The most probable pieces of a new tokeniser of the text that the old one does not have, with their probabilities.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from ..errors import Diagnostic, InputError, Location
from ..recipe import Recipe
from ..recipe.parts import TOKENISERS
from ..slots.options import Component
from .symbols import SPLIT, characters, first_steps, is_step, last_steps
from .text_bounds import normaliser_steps
from .text_frame import UNKNOWN
from .text_lines import lines
from .tokeniser import BYTES, TextTokeniser, train_tokeniser

GROUP = 2_000
LEAST = 2
"""A new piece occurs at least so often."""
MAX_LISTED = 100_000
"""The most pieces of a file."""


def extended(recipe: Recipe, tokeniser: TextTokeniser, texts: Callable[[], Iterator[str]]) -> TextTokeniser:
    """A tokeniser with the new pieces and symbols that a recipe asks for: its `tokeniser.extend` is their number, or a file
    with one on each line; its `symbols` begin with those of the tokeniser. `texts` begins to read the training text anew.
    Raises InputError."""
    extend, symbols = getattr(recipe.tokeniser.options, "extend", None), recipe.tokeniser.options.symbols or tokeniser.symbols
    name = "symbols" if extend is None else "extend"
    if tokeniser.imported or tokeniser.kind == "characters":
        kind = "an imported tokeniser" if tokeniser.imported else "a tokeniser of characters"
        message = f"the model has {kind}; only `bpe` and `unigram` of tfkit get more pieces"
        raise InputError(recipe.diagnostic("TFK117", f"tokeniser.{name}", message, "remove it"))
    if symbols != tokeniser.symbols:
        tokeniser = _with_symbols(tokeniser, symbols)
    if extend is None:
        return tokeniser
    data = json.loads(tokeniser.to_json())
    if isinstance(extend, str):
        pieces = _listed(extend, tokeniser)
        model = _with_listed(data["model"], pieces)
    elif data["model"]["type"] == "BPE":
        model = _with_characters(data["model"], tokeniser, texts(), extend)
        wider = TextTokeniser.from_json(json.dumps({**data, "model": model}, allow_nan=False), "the extended tokeniser")
        model = _with_merges(model, wider, texts(), extend - (wider.size - tokeniser.size))
    else:
        model = _with_probable(data["model"], tokeniser, texts(), extend)
    return TextTokeniser.from_json(json.dumps({**data, "model": model}, allow_nan=False), "the extended tokeniser")


def adds_symbols(recipe: Recipe, tokeniser: TextTokeniser) -> bool:
    """Whether a recipe has further symbols behind those of a tokeniser."""
    symbols = recipe.tokeniser.options.symbols or ()
    return len(symbols) > len(tokeniser.symbols) and symbols[: len(tokeniser.symbols)] == tokeniser.symbols


def _with_symbols(tokeniser: TextTokeniser, symbols: Sequence[str]) -> TextTokeniser:
    """A tokeniser with further symbols, which get the ids behind its pieces."""
    data = json.loads(tokeniser.to_json())
    before = len(tokeniser.symbols)
    plain = [step for step in normaliser_steps(data["normalizer"]) if not is_step(step, "normalizer")]
    data["normalizer"] = {"type": "Sequence", "normalizers": [*first_steps(symbols), *plain]}
    splits = data["pre_tokenizer"]["pretokenizers"]
    if SPLIT not in splits:
        splits.insert(len(splits) - 1, SPLIT)  # before punctuation
    data["decoder"]["decoders"] += last_steps(symbols)[before:]
    model, new = data["model"], characters(symbols)[before:]
    if model["type"] == "BPE":
        model["vocab"] |= {character: number for number, character in enumerate(new, tokeniser.size)}
    else:
        best = max(score for _, score in model["vocab"] if score < 0)
        model["vocab"] += [[character, best] for character in new]
    return TextTokeniser.from_json(json.dumps(data, allow_nan=False), "the extended tokeniser")


def _listed(path: str, tokeniser: TextTokeniser) -> list[str]:
    """The new pieces of a file. Raises InputError with the line that cannot be one piece."""
    pieces: dict[str, None] = {}
    for number, line in enumerate(lines(path), 1):
        piece = line.strip()
        location = Location(path, number)
        if not piece:
            continue
        if len(pieces) == MAX_LISTED:
            raise InputError(Diagnostic("TFK105", f"there are more than {MAX_LISTED:,} pieces", location=location))
        parts = tokeniser.words(piece.removeprefix("▁"))
        if len(parts) != 1 or len(piece) > 100:
            at = f"is divided into {', '.join(f'`{part}`' for part in parts[:4])}" if len(parts) > 1 else "is too long"
            fix = "a piece is at most one word, without punctuation; `tokeniser.symbols` may be any text"
            raise InputError(Diagnostic("TFK105", f"`{piece[:80]}` {at}, and cannot be one piece", fix, location=location))
        word = parts[0] if piece.startswith("▁") else parts[0].removeprefix("▁")
        if tokeniser.piece_id(word) is None:
            pieces[word] = None
    return list(pieces)


def _with_listed(model: dict[str, Any], pieces: Sequence[str]) -> dict[str, Any]:
    """The model with these pieces. BPE makes a piece by merges of two pieces, which are pieces themselves."""
    if model["type"] == "Unigram":
        best = max(score for piece, score in model["vocab"] if score < 0)
        return {**model, "vocab": [*model["vocab"], *([piece, best] for piece in pieces)]}
    vocab, merges = dict(model["vocab"]), [list(pair) for pair in model["merges"]]
    ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
    for piece in pieces:
        for letter in piece:
            vocab.setdefault(letter, len(vocab))
        parts = _merged(piece, ranks)
        while len(parts) > 1:
            ranks[parts[0], parts[1]] = len(merges)
            merges.append(parts[:2])
            vocab.setdefault(parts[0] + parts[1], len(vocab))
            parts = [parts[0] + parts[1], *parts[2:]]
    return {**model, "vocab": vocab, "merges": merges}


def _merged(word: str, ranks: Mapping[tuple[str, ...], int]) -> list[str]:
    """The pieces of a word by BPE."""
    parts = list(word)
    while len(parts) > 1:
        best = min(range(len(parts) - 1), key=lambda at: ranks.get((parts[at], parts[at + 1]), math.inf))
        if (parts[best], parts[best + 1]) not in ranks:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _with_characters(model: dict[str, Any], tokeniser: TextTokeniser, texts: Iterable[str], most: int) -> dict[str, Any]:
    """The model with the most frequent characters that it has no piece for."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(letter for letter in tokeniser.normalised(text) if letter not in model["vocab"] and not letter.isspace())
    frequent = sorted((-count, letter) for letter, count in counts.items() if count >= LEAST)
    vocab = dict(model["vocab"])
    for _, letter in frequent[:most]:
        vocab[letter] = len(vocab)
    return {**model, "vocab": vocab}


def _with_merges(model: dict[str, Any], tokeniser: TextTokeniser, texts: Iterable[str], most: int) -> dict[str, Any]:
    """The model with merges of the most frequent pairs of its pieces in words; of equally frequent pairs, the first in order of
    their letters."""
    counts = Counter(word for text in texts for word in tokeniser.divided_words(text))
    kept = {*BYTES, "<unk>"}
    words = [(list(word), count) for word, count in counts.items() if not kept & set(word)]
    pairs: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def count_pairs(number: int, sign: int) -> None:
        parts, count = words[number]
        for pair in pairwise(parts):
            pairs[pair] += sign * count
            (places[pair].add if sign > 0 else places[pair].discard)(number)

    for number in range(len(words)):
        count_pairs(number, 1)
    vocab, merges = dict(model["vocab"]), [list(pair) for pair in model["merges"]]
    known = {tuple(pair) for pair in merges}
    added = 0
    while added < most and pairs:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] < LEAST:
            break
        whole = best[0] + best[1]
        if len(whole) > 64 or best in known:
            del pairs[best]
            continue
        merges.append(list(best))
        known.add(best)
        added += whole not in vocab
        vocab.setdefault(whole, len(vocab))
        for number in sorted(places[best]):
            count_pairs(number, -1)
            parts = words[number][0]
            merged: list[str] = []
            at = 0
            while at < len(parts):
                both = tuple(parts[at : at + 2]) == best
                merged.append(whole if both else parts[at])
                at += 1 + both
            words[number] = (merged, words[number][1])
            count_pairs(number, 1)
        pairs = Counter({pair: count for pair, count in pairs.items() if count > 0})
    return {**model, "vocab": vocab, "merges": merges}


def _with_probable(model: dict[str, Any], tokeniser: TextTokeniser, texts: Iterable[str], most: int) -> dict[str, Any]:
    """The model with the most probable pieces of a tokeniser of the text that it does not have."""
    settings = tokeniser.settings
    [entry] = [entry for entry in TOKENISERS if entry.name == settings["kind"]]
    names = ("normalise", "lowercase", "byte_fallback", "symbols")
    options = entry.options(**{name: settings[name] for name in names if name in settings})
    new = json.loads(train_tokeniser(Component(entry, options), texts, 2 * tokeniser.size + most).to_json())
    old = {piece for piece, _ in model["vocab"]}
    others = sorted((-score, piece) for piece, score in new["model"]["vocab"] if piece not in old)
    return {**model, "vocab": [*model["vocab"], *([piece, -score] for score, piece in others[:most])]}


@dataclass(frozen=True)
class Spelling:
    """How the pieces that a tokeniser got are written with the pieces it had."""

    old: TextTokeniser
    new: TextTokeniser

    def ids(self) -> list[list[int]]:
        """For each new id, in order, the old ids that spell its piece; at least one."""
        vocabulary, pieces = self.old.vocabulary, {number: piece for piece, number in self.new.vocabulary.items()}
        model = json.loads(self.old.to_json())["model"]
        if model["type"] == "BPE":
            ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
            divide = partial(_merged, ranks=ranks)
        else:
            scores = {piece: score for piece, score in model["vocab"] if piece not in BYTES}
            divide = partial(_best, scores=scores)
        spelled = []
        symbols = dict(zip(characters(self.new.symbols), self.new.symbols, strict=True))
        for number in range(self.old.size, self.new.size):
            if pieces[number] in symbols:
                spelled += self.old.encode([symbols[pieces[number]]])
                continue
            spelled.append([at for part in divide(pieces[number]) for at in _old_ids(part, vocabulary)])
        return spelled


def _old_ids(part: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The id of a piece, or of the bytes of a character that has none."""
    if part in vocabulary:
        return [vocabulary[part]]
    return [vocabulary.get(f"<0x{byte:02X}>", UNKNOWN) for byte in part.encode()]


def _best(word: str, scores: Mapping[str, float]) -> list[str]:
    """The most probable division of a word; a character without a piece is one part, which is less probable than any piece."""
    unknown = min(scores.values()) - 10
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(word) + 1):
        reached = [
            (best[start][0] + scores.get(word[start:end], unknown), start)
            for start in range(end)
            if word[start:end] in scores or end - start == 1
        ]
        best.append(max(reached))
    parts, end = list[str](), len(word)
    while end:
        start = best[end][1]
        parts.append(word[start:end])
        end = start
    return parts[::-1]
