"""Tagging of words: a model with its tokeniser and its tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import Catalogue
from ..data import TextTokeniser, check_classes, groups, read_labels, read_tokenisers, roles_for, word_pieces
from ..errors.arguments import check_texts
from ..io import load, model_in
from ..nn.evaluating import check_results
from ..nn.model import Model
from .row_reader import RowReader


@dataclass(frozen=True)
class Tagging:
    """The tags of a sentence.

    Attributes:
        words: Its words.
        tags: The most probable tag of each.
        probabilities: The probabilities of these tags.
        unknown: The number of tokens without a piece.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    unknown: int = 0

    @property
    def read(self) -> int:
        """The number of words, all of which were read."""
        return len(self.words)

    @property
    def cut(self) -> int:
        return 0


class Tagger(RowReader):
    """Tags the words of sentences. A sentence that is longer than the limit is read in parts.

    Args:
        model: A model with logits over classes for every token.
        tokeniser: Its tokeniser.
        tags: Its classes, in the order of its output.
        max_length: The limit of tokens of a row, special tokens included; at most the positions of the model.
        batch_tokens: The limit of tokens of a batch, padding included.

    Raises:
        InputError: The model is of another kind, or the tokeniser or the tags are not its own.
    """

    def __init__(
        self,
        model: Model,
        tokeniser: TextTokeniser,
        tags: Sequence[str],
        *,
        max_length: int = 1024,
        batch_tokens: int = 4096,
    ) -> None:
        self.tags = tuple(tags)
        super().__init__(model, tokeniser, "tagged", len(tokeniser.text_frame), 1, max_length, batch_tokens)
        check_classes(model.plan, self.roles, self.tags, "tag")

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        device: str | torch.device = "cpu",
        backend: Any = None,
        max_length: int = 1024,
        batch_tokens: int = 4096,
        allow_nan: bool = False,
        catalogue: Catalogue | None = None,
    ) -> Tagger:
        """Load a tagger.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            max_length: as in the constructor.
            batch_tokens: as in the constructor.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The tagger.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            InputError: the model is no tagger.
        """
        place = model_in(Path(directory))
        model = load(place, device=device, backend=backend, allow_nan=allow_nan, catalogue=catalogue).eval()
        roles_for(model.plan, "tagged")  # a model of another kind is reported before its missing tags
        tokeniser = read_tokenisers(place, ("target",))["target"]
        return cls(model, tokeniser, read_labels(place, words=True), max_length=max_length, batch_tokens=batch_tokens)

    def tag(self, lines: Iterable[str], *, chunk: int = 1000) -> Iterator[Tagging]:
        """Tag the words of lines. White space separates words.

        Args:
            lines: Read `chunk` at a time. If the iterable raises an exception, the lines before it are tagged first.
            chunk: Lines that are sorted by length and batched together.

        Yields:
            The tags of each line, in order.

        Raises:
            InputError: A line is no text, or the probabilities of a word are NaN.
        """
        for group in groups(lines, chunk):
            check_texts(group)
            yield from self._tag_chunk([line.split() for line in group])

    def _tag_chunk(self, sentences: list[list[str]]) -> Iterator[Tagging]:
        pieces = word_pieces([word for words in sentences for word in words], self.tokeniser)
        rows, firsts = self._rows(pieces, [len(words) for words in sentences])
        tags, probabilities = self._most_probable(rows, firsts)
        check_results(torch.tensor(probabilities, device="cpu"), [word for words in sentences for word in words])
        at = 0
        for words in sentences:
            span = slice(at, at + len(words))
            at += len(words)
            unknown = sum(map(self.tokeniser.count_unknown, pieces[span]))
            yield Tagging(tuple(words), tuple(self.tags[tag] for tag in tags[span]), tuple(probabilities[span]), unknown)

    def _rows(self, pieces: list[list[int]], counts: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """The rows that the model reads, and the places of the first pieces of their words."""
        frame, at = self.tokeniser.text_frame, 0
        room = self.max_length - len(frame)
        rows: list[list[int]] = []
        firsts: list[list[int]] = []
        for count in counts:
            ids: list[int] = []
            for number, word_ids in enumerate(pieces[at : at + count]):
                if not number or len(ids) + len(word_ids) > room:
                    ids = []
                    rows.append(ids)
                    firsts.append([])
                firsts[-1].append(len(frame.before) + len(ids))
                ids += word_ids[:room]
            at += count
        return [frame(ids) for ids in rows], firsts

    def _most_probable(self, rows: list[list[int]], firsts: list[list[int]]) -> tuple[list[int], list[float]]:
        """The most probable tag of each word of the rows, in order, and its probability."""
        by_row: list[tuple[list[float], list[int]]] = [([], [])] * len(rows)
        for batch, logits in self.outputs(rows):
            best, tags = logits.float().softmax(-1).max(-1)
            for at, row in enumerate(batch):
                by_row[row] = best[at, firsts[row]].tolist(), tags[at, firsts[row]].tolist()
        return [tag for _, tags in by_row for tag in tags], [probability for best, _ in by_row for probability in best]
