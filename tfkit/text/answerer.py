"""Answers to questions about texts: a model with its tokeniser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..catalogue import Catalogue
from ..data import Ranges, TextTokeniser, groups, read_span_facts, read_tokenisers, roles_for, windows_of
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_list, check_whole, in_words
from ..io import load, model_in
from ..nn.evaluating import check_results
from ..nn.model import Model
from .row_reader import RowReader

Scores = dict[tuple[int, int], float]
"""The probabilities of spans, by their first character and the one behind their last."""


@dataclass(frozen=True)
class Span:
    """A part of a context.

    Attributes:
        text: Its characters.
        score: The probability of its start times that of its end, in the window with the largest product.
        start: Its first character, counted from 0.
        end: The character after its last.
    """

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        question: The question.
        context: The text that was read.
        span: The answer; None if there is none.
        no_answer: The probability that there is none, the least over all windows; 0 if a text has no token.
        spans: The best spans, best first.
        read: The number of tokens of the question that the model read.
        cut: The number of its tokens that left no room for the context, which it did not read.
        unknown: The number of tokens of both texts without a piece.
    """

    question: str
    context: str
    span: Span | None
    no_answer: float
    spans: tuple[Span, ...]
    read: int
    cut: int
    unknown: int = 0

    @property
    def text(self) -> str:
        """The answer as it stands in the context; "" if there is none."""
        return self.span.text if self.span is not None else ""


@dataclass(frozen=True)
class _Row:
    """A window of the context of question `number`, as ids with segments. `before` tokens are in front of it, and `ranges`
    are the characters of its tokens."""

    number: int
    ids: list[int]
    segments: list[int]
    before: int
    ranges: Ranges


class Answerer(RowReader):
    """Answers questions by parts of their contexts. A context that is longer than the limit is read in windows.

    In a window, p(start) and p(end) are the softmax of the logits over all positions, in float32. The answer is the span of at
    most `max_answer` tokens with the largest p(start) p(end) in any window. If questions may be unanswerable, and the product
    for the first token is larger in every window, there is no answer.

    Args:
        model: A model with one `span_logits` output.
        tokeniser: Its tokeniser.
        max_length: The limit of tokens of a row, start and end included; at most the positions of the model.
        stride: The most tokens from the start of a window to that of the next.
        max_answer: The limit of tokens of an answer.
        unanswerable: Whether a question may have no answer.
        batch_tokens: The limit of tokens of a batch, padding included.

    Raises:
        InputError: The model is of another kind, the tokeniser is not its own, or a limit is too small.
    """

    def __init__(
        self,
        model: Model,
        tokeniser: TextTokeniser,
        *,
        max_length: int = 384,
        stride: int = 128,
        max_answer: int = 30,
        unanswerable: bool = True,
        batch_tokens: int = 4096,
    ) -> None:
        self.stride, self.max_answer, self.unanswerable = stride, max_answer, unanswerable
        self.frame = tokeniser.pair_frame
        check_whole("stride", stride)
        check_whole("max_answer", max_answer)
        super().__init__(model, tokeniser, "spans", len(self.frame), 2, max_length, batch_tokens)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        device: str | torch.device = "cpu",
        backend: Any = None,
        max_length: int | None = None,
        stride: int | None = None,
        max_answer: int | None = None,
        unanswerable: bool | None = None,
        batch_tokens: int = 4096,
        allow_nan: bool = False,
        catalogue: Catalogue | None = None,
    ) -> Answerer:
        """Load a model that answers questions.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            max_length: as in the constructor; as in training unless given.
            stride: as in the constructor; as in training unless given.
            max_answer: as in the constructor; the longest answer of the training data unless given.
            unanswerable: as in the constructor; whether a question of the training data has no answer unless given.
            batch_tokens: as in the constructor.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The model with its tokeniser.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            InputError: the model does not answer questions.
        """
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, allow_nan=allow_nan, catalogue=catalogue).eval()
        roles_for(model.plan, "spans")  # a model of another kind is reported before its missing file
        overrides = {"max_length": max_length, "stride": stride, "max_answer": max_answer, "unanswerable": unanswerable}
        settings = read_span_facts(place).model_dump() | {name: value for name, value in overrides.items() if value is not None}
        return cls(model, read_tokenisers(place, ("target",))["target"], **settings, batch_tokens=batch_tokens)

    def answer(self, questions: Iterable[tuple[str, str]], *, best: int = 1, chunk: int = 100) -> Iterator[Answer]:
        """Answer questions.

        Args:
            questions: Pairs of a question and its context. They are read `chunk` at a time. If the iterable raises an
                exception, the questions before it are answered first.
            best: The number of spans of each answer, at most.
            chunk: Questions that are batched together.

        Yields:
            The answer to each question, in order. An empty question has none, and an empty context has none.

        Raises:
            InputError: `best` is less than 1, a question is no pair of texts, or the probabilities of a question are NaN.
        """
        check_whole("best", best)
        check_list(questions)
        for group in groups(map(_pair, questions), chunk):
            yield from self._answer_chunk(group, best)

    def _answer_chunk(self, asked: list[tuple[str, str]], best: int) -> Iterator[Answer]:
        whole = self.tokeniser.encode([question for question, _ in asked])
        frame, room = self.frame, self.max_length - len(self.frame)
        questions = [ids if len(ids) < room else ids[: room // 2] for ids in whole]
        contexts = self.tokeniser.encode_with_ranges([context for _, context in asked])
        rows: list[_Row] = []
        for number, (question, (ids, ranges)) in enumerate(zip(questions, contexts, strict=True)):
            for window in windows_of(len(question), len(ids), room, self.stride) if question and ids else ():
                part, before = slice(window.start, window.stop), len(frame.before) + len(question) + len(frame.between)
                segments = frame.segments_of(len(question), len(window))
                rows.append(_Row(number, frame(question, ids[part]), segments, before, ranges[part]))
        none: list[list[float]] = [[] for _ in asked]
        by_question: list[Scores] = [{} for _ in asked]
        for row, (empty, scores) in zip(rows, self._read(rows, [question for question, _ in asked], best), strict=True):
            none[row.number].append(empty)
            for place, score in scores.items():
                by_question[row.number][place] = max(score, by_question[row.number].get(place, 0.0))
        for number, (text, context) in enumerate(asked):
            ranked = sorted(by_question[number].items(), key=lambda scored: -scored[1])[:best]
            spans = tuple(Span(context[start:end], score, start, end) for (start, end), score in ranked)
            no_answer = min(none[number], default=0.0)
            span = spans[0] if spans and not (self.unanswerable and no_answer > spans[0].score) else None
            read = len(questions[number])
            unknown = sum(map(self.tokeniser.count_unknown, (whole[number], contexts[number][0])))
            yield Answer(text, context, span, no_answer, spans, read, len(whole[number]) - read, unknown)

    def _read(self, rows: list[_Row], questions: list[str], best: int) -> list[tuple[float, Scores]]:
        """For each row the probability that it has no answer, and its best spans."""
        by_row: list[tuple[float, Scores]] = [(0.0, {})] * len(rows)
        for batch, logits in self.outputs([row.ids for row in rows], [row.segments for row in rows]):
            probabilities = logits.float().softmax(1).cpu()
            check_results(probabilities, [questions[rows[at].number] for at in batch])
            for at, row_probabilities in zip(batch, probabilities, strict=True):
                by_row[at] = float(row_probabilities[0].prod()), self._best(rows[at], row_probabilities, best)
        return by_row

    def _best(self, row: _Row, probabilities: Tensor, count: int) -> Scores:
        """The best spans of a row by the probabilities (L, 2) of its positions."""
        visible = torch.tensor([start < end for start, end in row.ranges], device="cpu")
        starts, ends = (probabilities[row.before :][: len(row.ranges)] * visible[:, None]).unbind(1)  # (N,)
        width = min(self.max_answer, len(row.ranges))
        following = functional.pad(ends, (0, width - 1)).unfold(0, width, 1)  # (N, width)
        products = (starts[:, None] * following).flatten()
        scores, places = products.topk(min(4 * count, len(products)))  # several pieces may have the same characters
        spans: Scores = {}
        for score, place in zip(scores.tolist(), places.tolist(), strict=True):
            if score > 0.0:
                first, last = place // width, place // width + place % width
                spans.setdefault((row.ranges[first][0], row.ranges[last][1]), score)
        return dict(list(spans.items())[:count])


def _pair(asked: Any) -> tuple[str, str]:
    """A question and its context. Raises InputError for what is no pair, as a text of two letters."""
    if not isinstance(asked, (tuple, list)) or len(asked) != 2:
        message = f"a question is a pair of texts, and one is {in_words(asked)}"
        raise InputError(Diagnostic("TFK104", message, "write `(question, context)`"))
    return asked[0], asked[1]
