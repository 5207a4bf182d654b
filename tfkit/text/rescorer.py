"""Rescoring: the log-probability that a model gives to texts that exist, with teacher forcing as in training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..catalogue import Catalogue
from ..data import NO_LABEL, TextTokeniser, check_ids, fits, groups, language_batch, parallel_batch, read_tokenisers, roles_for
from ..data.pharaoh import Link
from ..data.piece_words import encode_with_words
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_whole, in_words
from ..generate.batched import batches_by_length
from ..io import load, model_in
from ..io.alignment_site import AlignmentSite, read_alignment_site
from ..nn.evaluating import evaluating
from ..nn.model import Model
from .alignment import align, check_keys, requested_site, word_links
from .search_tokens import language_ids


@dataclass(frozen=True)
class Rescored:
    """The log-probability of a translation, or of a text.

    Attributes:
        source: The source; "" for a language model.
        target: The translation, or the text.
        pieces: The tokens that have a log-probability: those of the target with its end token; of a text, all but the first.
        token_log_probabilities: The log-probability of each of them, in nats.
        reason: Why there is no log-probability; "" if there is one, and for a row without text.
        unknown: The number of tokens without a piece, on both sides.
        alignment: The links of source words and target words, counted from 0 between white space; None unless requested.
    """

    source: str
    target: str
    pieces: tuple[str, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()
    reason: str = ""
    unknown: int = 0
    alignment: tuple[Link, ...] | None = None

    @property
    def log_probability(self) -> float | None:
        """Their sum; None if there is none."""
        return math.fsum(self.token_log_probabilities) if self.token_log_probabilities else None


class Rescorer:
    """Computes log P(target | source) of pairs, or log P(text) with a language model.

    The log-probabilities are those of the unsmoothed loss of training: their sum over some rows, with the sign changed, is the
    loss of these rows. No length penalty, score filter or temperature changes them. Sources and targets get the special tokens
    that they have in training. A text has none before it, so its first token is not predicted, and none after it without `end`.

    Args:
        model: A model that translates, or a language model.
        tokenisers: By column: `source` and `target`, or `target`.
        max_length: The limit of tokens of a side, special tokens included; at most the positions of the model. A longer row has
            no log-probability, because a part of it is another text.
        batch_tokens: The limit of tokens of a batch on its longer side, padding included.
        alignment: The cross-attention whose weights align the words of pairs, as in `Translator`.
        end: Whether the end of a text is predicted too, as in training with data of kind `texts`; pairs have it in any case.

    Raises:
        InputError: The model is of another kind, or the tokenisers are not its own.
    """

    def __init__(
        self, model: Model, tokenisers: Mapping[str, TextTokeniser], *, max_length: int = 1024, batch_tokens: int = 4096,
        alignment: AlignmentSite | bool = False, end: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.tokenisers, self.batch_tokens, self.end = model, tokenisers, batch_tokens, end
        check_whole("max_length", max_length, 2)
        check_whole("batch_tokens", batch_tokens)
        self.pairs = "source" in tokenisers
        self.roles = roles_for(model.plan, "parallel" if self.pairs else "language")
        check_ids(model.plan, self.roles, tokenisers)
        positions = model.plan.max_input_lengths
        more = 0 if self.pairs else 1  # the last token of a text is a label only
        self.limits = {
            column: min(max_length, positions.get(self.roles.of(column), max_length) + more) for column in tokenisers
        }

        self.alignment = requested_site(model, self.roles.target, alignment)

    @classmethod
    def load(
        cls, directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None, precision: str = "float32",
        max_length: int = 1024, batch_tokens: int = 4096, alignment: AlignmentSite | bool = False, end: bool = False,
        allow_nan: bool = False, catalogue: Catalogue | None = None,
    ) -> Rescorer:  # fmt: skip
        """Load a rescorer.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            precision: as in `tfkit.load`.
            max_length: as in the constructor.
            batch_tokens: as in the constructor.
            alignment: as in the constructor.
            end: as in the constructor.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The rescorer.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            BuildError: the precision cannot be computed here.
            InputError: the model is of another kind.
        """
        place = model_in(Path(directory))
        model = load(
            place, device=device, backend=backend, precision=precision, allow_nan=allow_nan, catalogue=catalogue
        ).eval()
        columns = ("target",) if fits(model.plan, "language") else ("source", "target")
        roles_for(model.plan, "language" if len(columns) == 1 else "parallel")  # its error names the right command
        if alignment is True:
            alignment = read_alignment_site(place) or True
        tokenisers = read_tokenisers(place, columns)
        return cls(model, tokenisers, max_length=max_length, batch_tokens=batch_tokens, alignment=alignment, end=end)

    def rescore(
        self, rows: Iterable[tuple[str, str]] | Iterable[str], *, chunk: int = 1000, target_language: str | None = None
    ) -> Iterator[Rescored]:
        """Compute log-probabilities.

        Args:
            rows: Pairs of source and target, or texts for a language model. They are read `chunk` at a time. If the iterable
                raises an exception, the rows before it are computed first.
            chunk: Rows that are sorted by length and batched together.
            target_language: As in `Translator.translate`: the translations are in that language.

        Yields:
            The result of each row, in order. A row with an empty side has no log-probability.

        Raises:
            InputError: A row is no pair of texts, or no text; the logits are NaN or infinite; the tokenisers have no token of
                the language.
        """
        before: tuple[list[int], list[int]] | None = None
        if target_language is not None:
            if not self.pairs:
                raise InputError(Diagnostic("TFK078", "a language model has no target language", "leave it out"))
            before = language_ids(self.tokenisers["source"], self.tokenisers["target"], target_language)
        count = 0
        for group in groups(rows, chunk):
            yield from self._rescore_chunk([self._row(row, count + at) for at, row in enumerate(group, 1)], before)
            count += len(group)

    def _row(self, row: Any, number: int) -> tuple[str, str]:
        texts = row if self.pairs and isinstance(row, Sequence) and not isinstance(row, str) else [row]
        if len(texts) != 1 + self.pairs or not all(isinstance(text, str) for text in texts):
            wanted = "a pair of texts, source and target" if self.pairs else "a text"
            raise InputError(Diagnostic("TFK078", f"row {number:,} is {in_words(row)}", f"a row is {wanted}"))
        return (texts[0], texts[1]) if self.pairs else ("", texts[0])

    def _framed(self, ids: list[int], column: str, before: tuple[list[int], list[int]] | None) -> list[int]:
        """The ids of a side with the special tokens of training; in a language, with those of a translation into it."""
        tokeniser = self.tokenisers[column]
        if not self.pairs:
            return tokeniser.source_frame(ids) if self.end else tokeniser.prompt_frame(ids)
        if before is None:
            return tokeniser.source_frame(ids)
        if column == "source":
            return tokeniser.source_frame([*before[0], *ids])
        end = self.model.plan.token_rule(self.roles.target).end_id
        return [*before[1], *ids, *([] if end is None else [end])] if before[1] else tokeniser.source_frame(ids)

    def _rescore_chunk(self, rows: list[tuple[str, str]], before: tuple[list[int], list[int]] | None) -> Iterator[Rescored]:
        columns = ("source", "target") if self.pairs else ("target",)
        sides = {column: [row[-1 if column == "target" else 0] for row in rows] for column in columns}
        encoded = {column: self.tokenisers[column].encode(texts) for column, texts in sides.items()}
        framed = {column: [self._framed(ids, column, before) for ids in encoded[column]] for column in columns}
        reasons: dict[int, str] = {}
        for number in range(len(rows)):
            if (reason := self._reason(number, encoded, framed)) is not None:
                reasons[number] = reason
        scored = [number for number in range(len(rows)) if number not in reasons]
        values: dict[int, tuple[list[float], Tensor | None]] = {}
        with evaluating(self.model):
            lengths = [max(len(framed[column][number]) for column in columns) for number in scored]
            for batch in batches_by_length(lengths, 1, self.batch_tokens):
                numbers = [scored[at] for at in batch]
                ids = {column: [rows_of_ids[one] for one in numbers] for column, rows_of_ids in framed.items()}
                values |= zip(numbers, self._batch(ids), strict=True)
        target = self.tokenisers["target"]
        for number, (source, text) in enumerate(rows):
            unknown = sum(self.tokenisers[column].count_unknown(encoded[column][number]) for column in columns)
            if number in reasons:
                yield Rescored(source, text, reason=reasons[number], unknown=unknown)
                continue
            pieces = target.pieces(framed["target"][number][0 if self.pairs else 1 :])
            log_probs, weights = values[number]
            links = None if weights is None else self._links(rows[number], weights, before or ([], []))
            yield Rescored(source, text, tuple(pieces), tuple(log_probs), unknown=unknown, alignment=links)

    def _links(self, row: tuple[str, str], weights: Tensor, before: tuple[list[int], list[int]]) -> tuple[Link, ...]:
        """The links of the words of a pair, from weights (H, N, K) of all its tokens."""
        assert self.alignment is not None, "weights are requested for alignments alone"
        sides = []
        for column, text, first, size in zip(("source", "target"), row, before, weights.shape[:0:-1], strict=True):
            tokeniser = self.tokenisers[column]
            skipped = len(first) + (0 if column == "target" and first else len(tokeniser.source_frame.before))
            words = [*[range(0)] * skipped, *encode_with_words(tokeniser, text)[1]]
            sides.append([*words, *[range(0)] * (size - len(words))])
        return word_links(align(weights, self.alignment.head, *sides), *sides)

    def _reason(self, number: int, encoded: Mapping[str, list[list[int]]], framed: Mapping[str, list[list[int]]]) -> str | None:
        """Why a row has no log-probability; "" for a row without text, None if it has one."""
        empty = [column for column, ids in encoded.items() if not ids[number]]
        if empty:
            return f"the {empty[0]} is empty" if len(empty) < len(encoded) else ""
        for column, ids in framed.items():
            name = column if self.pairs else "text"
            if (count := len(ids[number])) > (limit := self.limits[column]):
                return f"the {name} has {count:,} tokens, and at most {limit:,} are read"
            if count < 2 and not self.pairs:
                return "the text has one token, and the first one is not predicted"
        return None

    def _batch(self, ids: Mapping[str, list[list[int]]]) -> list[tuple[list[float], Tensor | None]]:
        """The log-probabilities of the labels of each row of a batch, and the weights (H, N, K) that align its tokens."""
        roles = self.roles
        batch = parallel_batch(roles, ids["source"], ids["target"]) if self.pairs else language_batch(roles, ids["target"])
        batch = batch.to(self.model.device)
        site = None if self.alignment is None else self.alignment.site
        outputs = self.model(**batch.arguments, **({} if site is None else {"weights": (site,)}))
        log_probs = log_probabilities(outputs[roles.output], batch.labels)
        real = batch.labels != NO_LABEL
        if not bool(log_probs[real].isfinite().all()):
            message = "the logits are NaN or infinite"
            raise InputError(Diagnostic("TFK077", message, "the weights of the model hold NaN or infinities"))
        result = [row[mask].tolist() for row, mask in zip(log_probs, real, strict=True)]
        if site is None:
            return [(row, None) for row in result]
        weights = outputs["weights"][site].float().cpu()
        check_keys(site, weights.shape[3], max(map(len, ids["source"])))
        sizes = zip(ids["source"], ids["target"], strict=True)
        of_rows = [weights[at, :, : len(target), : len(source)] for at, (source, target) in enumerate(sizes)]
        return list(zip(result, of_rows, strict=True))


def log_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """log softmax(logits (..., V)) at the labels (...), in float32 or wider; of no meaning where a label is NO_LABEL."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.gather(-1, labels.clamp(min=0)[..., None])[..., 0] - wide.logsumexp(-1)
