"""Text generation: a decoder-only model with its tokeniser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import Catalogue
from ..data import TextTokeniser, read_tokenisers, roles_for
from ..errors.arguments import check_list, check_whole
from ..generate import Hypothesis, Search, StepGraphs, generate_batched
from ..io import load, model_in
from ..nn.evaluating import evaluating
from ..nn.model import Model
from ..slots.lazy import load as load_lazily
from .saved_search import saved_search
from .search_tokens import without_special_tokens


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt.

    Attributes:
        prompt: The prompt.
        text: The text that the model generated after it.
        hypothesis: The generated tokens as ids.
        pieces: The same tokens.
        read: The number of prompt tokens that the model read, the last ones.
        cut: The number of prompt tokens before them, which it did not read.
        unknown: The number of prompt tokens without a piece.
    """

    prompt: str
    text: str
    hypothesis: Hypothesis
    pieces: tuple[str, ...]
    read: int
    cut: int
    unknown: int = 0

    def _repr_html_(self) -> str:
        rows = [(self.text, self.pieces, self.hypothesis)]
        return load_lazily("tfkit.view.pages:search_html")(self.prompt, rows)  # type: ignore[no-any-return]


MAX_PROMPT = 8192


class TextGenerator:
    """Continues prompts. No continuation has a padding, start or unknown token, unless the search allows them.

    If a prompt is too long for the positions of the model, the model reads its last tokens: as many as leave room for the new
    tokens of the search, and at least half of the positions.

    Args:
        model: A decoder-only model.
        tokeniser: Its tokeniser.
        search: The search of `continue_all` unless it gets another; greedy by default.
        max_prompt: The most tokens of a prompt that are read, its last ones, by a model without a table of positions.

    Raises:
        InputError: The model is of another kind.
    """

    def __init__(
        self, model: Model, tokeniser: TextTokeniser, search: Search | None = None, max_prompt: int = MAX_PROMPT
    ) -> None:
        self.model, self.tokeniser, self.max_prompt = model, tokeniser, max_prompt
        check_whole("max_prompt", max_prompt)
        self.search = search or Search(kind="greedy")
        self.roles = roles_for(model.plan, "language")
        self.positions = model.plan.max_input_lengths.get(self.roles.target)

    @classmethod
    def load(
        cls, directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None,
        precision: str = "float32", max_prompt: int = MAX_PROMPT, allow_nan: bool = False,
        catalogue: Catalogue | None = None,
    ) -> TextGenerator:  # fmt: skip
        """Load a generator. Its search is what `generation.json` of the model says, if it has one.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            precision: as in `tfkit.load`.
            max_prompt: as in the constructor.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The generator.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            BuildError: the precision cannot be computed here.
            InputError: the model is of another kind.
        """
        place = model_in(Path(directory))
        model = load(
            place, device=device, backend=backend, precision=precision, allow_nan=allow_nan, catalogue=catalogue
        ).eval()
        return cls(model, read_tokenisers(place, ("target",))["target"], saved_search(place, catalogue), max_prompt)

    def continue_all(
        self,
        prompts: Sequence[str],
        search: Search | None = None,
        *,
        batch_tokens: int = 4096,
        workers: int = 1,
        emit: Callable[[int, str], None] | None = None,
        graphs: StepGraphs | None = None,
    ) -> list[list[Continuation]]:
        """Continue every prompt.

        Args:
            prompts: The prompts.
            search: The kind of search and its settings; that of the generator by default.
            batch_tokens: As in `generate_batched`.
            workers: As in `generate_batched`.
            emit: Is given the index of a prompt and new text of its continuation, as soon as whole characters are there. All
                parts together are the text of the continuation. For a greedy search, or one sample.
            graphs: As in `generate_batched`.

        Returns:
            The continuations of each prompt, best first; none for a prompt without a token.

        Raises:
            InputError: The prompts are no list of texts.
        """
        check_list(prompts)
        search = without_special_tokens(search or self.search, self.model.plan.token_rule(self.roles.target), self.tokeniser)
        encoded, frame = self.tokeniser.encode(list(prompts)), self.tokeniser.prompt_frame
        read = [self._read(ids, search) for ids in encoded]
        nonempty = [number for number, ids in enumerate(encoded) if ids]
        parts = _Parts(self, emit, nonempty, read) if emit else None
        with evaluating(self.model):
            by_prompt = generate_batched(
                self.model, [read[number] for number in nonempty], search, batch_tokens=batch_tokens, target=self.roles.target,
                output=self.roles.output, workers=workers, emit=parts.add if parts else None,
                graphs=graphs,
            )  # fmt: skip
        hypotheses = dict(zip(nonempty, by_prompt, strict=True))
        if parts:
            parts.finish()
        return [
            [
                Continuation(
                    prompt,
                    self._tail(ids, hypothesis.ids.tolist()),
                    hypothesis,
                    tuple(self.tokeniser.pieces(hypothesis.ids.tolist())),
                    len(ids),
                    len(whole) + len(frame) - len(ids),
                    self.tokeniser.count_unknown(whole),
                )
                for hypothesis in hypotheses.get(number, ())
            ]
            for number, (prompt, whole, ids) in enumerate(zip(prompts, encoded, read, strict=True))
        ]

    def _read(self, ids: list[int], search: Search) -> list[int]:
        """The tokens of a prompt that the model reads, special tokens included."""
        positions, frame = self.positions, self.tokeniser.prompt_frame
        count = len(ids) + len(frame)
        if positions is None:
            ids = ids[-max(1, self.max_prompt - len(frame)) :]
        elif count > positions:
            room = max(positions + 1 - search.limit(count), (positions + 1) // 2)  # the last new token needs none
            ids = ids[-max(1, room - len(frame)) :]
        return frame(ids)

    def _tail(self, ids: list[int], new: list[int]) -> str:
        """The text after the prompt. Both are decoded together, because the bytes of one character may be in both."""
        whole, before = self.tokeniser.decode([*ids, *new]), self.tokeniser.decode(ids)
        return whole.removeprefix(before)


class _Parts:
    """Gives the text of continuations part by part. Characters whose bytes are incomplete wait for the next token."""

    def __init__(
        self, generator: TextGenerator, emit: Callable[[int, str], None], numbers: list[int], read: list[list[int]]
    ) -> None:
        self.generator, self.emit, self.numbers, self.read = generator, emit, numbers, read
        self.new: list[list[int]] = [[] for _ in numbers]
        self.given = [""] * len(numbers)

    def add(self, row: int, chosen: int) -> None:
        self.new[row].append(chosen)
        self._give(row, self._text(row).rstrip("\ufffd"))

    def finish(self) -> None:
        for row in range(len(self.numbers)):
            self._give(row, self._text(row))

    def _text(self, row: int) -> str:
        return self.generator._tail(self.read[self.numbers[row]], self.new[row])

    def _give(self, row: int, text: str) -> None:
        if len(text) > len(self.given[row]) and text.startswith(self.given[row]):
            self.emit(self.numbers[row], text[len(self.given[row]) :])
            self.given[row] = text
