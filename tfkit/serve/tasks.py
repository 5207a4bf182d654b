"""What a model can do for requests: translate, generate, classify or fill in masks."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

from ..data import TextTokeniser, fits, has_labels, read_labels, read_tokenisers, reads_pairs
from ..errors import Diagnostic, InputError
from ..generate import GnmtLengthPenalty, PowerLengthPenalty, Search, StepGraphs, recorded_steps
from ..io import load, model_in
from ..text import Classifier, MaskFiller, TextGenerator, Translation, Translator
from ..text.mask_filler import MAX_TOP
from ..text.saved_search import saved_search
from ..text.shortlist import SHORTLIST, Shortlist
from .limits import Limits
from .refusals import Refusal


class Request(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Texts(Request):
    """Texts to translate or to classify."""

    texts: Annotated[list[str], FailFast(), Field(min_length=1)]


Count = Annotated[int, Field(ge=1)]
Temperature = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Sources(Texts):
    """Texts to translate. A translation begins with its prefix. What is left out of the search is as the server has it."""

    prefixes: Annotated[list[str], FailFast()] = []
    target_language: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    beams: Count | None = None
    n_best: Count | None = None
    penalty: Literal["gnmt", "power"] | None = None
    alpha: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_k: Count | None = None
    top_p: TopP | None = None
    seed: Seed | None = None


Pair = Annotated[list[str], FailFast(), Field(min_length=2, max_length=2)]


class Pairs(Request):
    """Pairs of texts to classify."""

    pairs: Annotated[list[Pair], FailFast(), Field(min_length=1)]


class Masked(Texts):
    """Texts with masks, and the number of tokens for each mask."""

    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 5


class Prompt(Request):
    """A prompt to continue; with `temperature` a sample, else greedily."""

    prompt: str
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_k: Count | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stream: bool = False


SEED_BITS = 63
NEW_TOKENS = 200
"""New tokens of a generation whose request names no number, at most."""
Item = tuple[Any, Hashable, int]
"""What the batcher computes, its key, and its size in tokens."""


class Task(ABC):
    """One thing that a model does. `path` is its endpoint, `verb` says what the model does."""

    path: str
    verb: str
    body: type[Request]

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    @abstractmethod
    def items(self, request: Any) -> list[Item]:
        """The items of a request.

        Args:
            request: An instance of `body`.

        Returns:
            The items for the batcher.

        Raises:
            Refusal: The request exceeds a limit.
        """

    @abstractmethod
    def work(self, items: Sequence[Any]) -> list[Any]:
        """Compute a batch.

        Args:
            items: Items whose keys are equal.

        Returns:
            The result of each, as JSON data.
        """

    def answer(self, results: list[Any]) -> dict[str, Any]:
        """The body of the response.

        Args:
            results: The results of the items of a request.

        Returns:
            JSON data.
        """
        return {"results": results}

    def check_count(self, count: int) -> None:
        """Check the number of texts.

        Args:
            count: The number of texts of a request.

        Raises:
            Refusal: There are too many.
        """
        if count > self.limits.texts:
            message = f"the request has {count:,} texts, and at most {self.limits.texts:,} are allowed; send several requests"
            raise Refusal(413, "too_many_texts", message, limit=self.limits.texts)

    def count_tokens(self, number: int, tokeniser: TextTokeniser, text: str, masked: bool = False) -> int:
        """Count the tokens of a text, without special tokens.

        Time and memory are bounded: the characters are counted first, then those of the normalised text.

        Args:
            number: The index of the text.
            tokeniser: The tokeniser of the model.
            text: The text.
            masked: Whether it writes masks as the mask token.

        Returns:
            The number of tokens.

        Raises:
            Refusal: The text has too many characters.
        """
        self._check_characters(number, text, "characters")
        self._check_characters(number, tokeniser.normalised(text), "characters after Unicode normalisation")
        return len(tokeniser.encode_masked(text) if masked else tokeniser.encode([text])[0])

    def _check_characters(self, number: int, text: str, what: str) -> None:
        limit = self.limits.characters
        if len(text) > limit:
            message = f"text {number} has {len(text):,} {what}, and at most {limit:,} are read; shorten or split it"
            raise Refusal(413, "text_too_long", message, index=number, characters=len(text), limit=limit)

    def check_new_tokens(self, wanted: int | None) -> None:
        """Check the number of new tokens that a request asks for.

        Args:
            wanted: The number, if there is one.

        Raises:
            Refusal: It is too large.
        """
        if wanted is not None and wanted > self.limits.new_tokens:
            message = f"max_tokens is {wanted:,}, and at most {self.limits.new_tokens:,} are allowed"
            raise Refusal(413, "too_many_tokens", message, limit=self.limits.new_tokens)

    def sampling(self, request: Sources | Prompt) -> dict[str, Any]:
        """The settings of sampling that a request has.

        Args:
            request: The request.

        Returns:
            The settings by their name, none for a search of the most probable text.

        Raises:
            Refusal: There is no temperature among them.
        """
        settings = {name: getattr(request, name) for name in ("temperature", "top_k", "top_p", "seed")}
        sampled = {name: value for name, value in settings.items() if value is not None}
        if sampled and request.temperature is None:
            message = f"{next(iter(sampled))} belongs to sampling; give a temperature too"
            raise Refusal(422, "invalid_request", message)
        return sampled

    def check_length(self, number: int, tokens: int, limit: int) -> int:
        """Check the length of a text. No text is cut off silently.

        Args:
            number: The index of the text.
            tokens: Its tokens, special tokens included.
            limit: The tokens that the model reads at most.

        Returns:
            The tokens, at least 1.

        Raises:
            Refusal: The text is too long.
        """
        limit = min(limit, self.limits.length)
        if tokens > limit:
            message = f"text {number} has {tokens:,} tokens, and at most {limit:,} are read; shorten or split it"
            raise Refusal(413, "text_too_long", message, index=number, tokens=tokens, limit=limit)
        return max(1, tokens)


@dataclass(frozen=True)
class SourceText:
    """A text to translate, the text that its translation begins with, and the code of the target language.

    Attributes:
        search: The search that its request asks for; None for that of the server.
        several: Whether the request asks for a number of hypotheses.
    """

    text: str
    prefix: str = ""
    target_language: str | None = None
    search: Search | None = None
    several: bool = False


class Translate(Task):
    """Translates texts, as `tfkit translate` does."""

    path, verb, body = "/translate", "translates", Sources

    def __init__(self, translator: Translator, limits: Limits) -> None:
        super().__init__(limits)
        self.translator, self.model = translator, translator.model

    def items(self, request: Sources) -> list[Item]:
        self.check_count(len(request.texts))
        prefixes = request.prefixes if "prefixes" in request.model_fields_set else [""] * len(request.texts)
        language = request.target_language
        if len(prefixes) != len(request.texts):
            message = f"the request has {len(request.texts):,} texts and {len(prefixes):,} prefixes; give one for each text"
            raise Refusal(422, "invalid_request", message)
        try:
            before_source, before_target = ([], []) if language is None else self.translator.language_ids(language)
        except InputError as reason:
            (fault,) = reason.diagnostics
            raise Refusal(422, "unknown_language", f"{fault.message}; {fault.fix}") from None
        tokenisers, items = self.translator.tokenisers, list[Item]()
        framing = len(tokenisers["source"].source_frame) + len(before_source)
        for number, (text, prefix) in enumerate(zip(request.texts, prefixes, strict=True)):
            tokens = self.count_tokens(number, tokenisers["source"], text) + framing
            size = self.check_length(number, tokens, self.translator.max_source)
            search = self._search(request, tokens)
            room = self._translator(search).room(tokens)
            forced = len(before_target)
            if prefix:
                self._check_characters(number, prefix, "characters of a prefix")
                self._check_characters(number, tokenisers["target"].normalised(prefix), "characters of a normalised prefix")
                (ids,) = tokenisers["target"].encode([prefix])
                forced += len(ids)
                if self.model.plan.token_rule(self.translator.roles.target).end_id in ids:
                    raise Refusal(422, "invalid_request", f"prefix {number} holds the end token; leave it out")
            if forced >= room:
                message = f"prefix {number} has {forced:,} tokens, and the translation gets at most {room:,}; shorten it"
                raise Refusal(413, "text_too_long", message, index=number, tokens=forced, limit=room)
            key: Hashable = (language, search) if search is None or search.kind != "sample" else object()
            items.append((SourceText(text, prefix, language, search, request.n_best is not None), key, size))
        return items

    def _translator(self, search: Search | None) -> Translator:
        return self.translator if search is None else self.translator.with_search(search)

    def _search(self, request: Sources, tokens: int) -> Search | None:
        """The search that a request asks for, of a text with so many tokens; None if it names no setting.

        A text gets at most the new tokens that it gets without a setting, and samples are computed alone: they depend on their
        place in a batch. Raises Refusal, and InputError for settings that do not fit each other.
        """
        names = ("beams", "n_best", "penalty", "alpha", "max_tokens", "temperature", "top_k", "top_p", "seed")
        if all(getattr(request, name) is None for name in names):
            return None
        self.check_new_tokens(request.max_tokens)
        for name in ("beams", "n_best"):
            if (getattr(request, name) or 0) > self.limits.beams:
                message = f"{name} is {getattr(request, name):,}, and at most {self.limits.beams:,} are allowed"
                raise Refusal(413, "too_many_beams", message, limit=self.limits.beams)
        sampled, usual = self.sampling(request), self.translator.search
        of_beams = [name for name in ("beams", "penalty", "alpha") if getattr(request, name) is not None]
        shared: dict[str, Any] = {"filters": usual.filters, "special_tokens": usual.special_tokens}
        shared |= {"length_factor": usual.length_factor, "extra_length": usual.extra_length}
        if request.max_tokens is not None:
            shared |= {"length_factor": 0.0, "extra_length": min(request.max_tokens, self.translator.room(tokens))}
        if sampled:
            if of_beams:
                raise Refusal(422, "invalid_request", f"{of_beams[0]} belongs to a beam search; leave temperature out")
            seed = {"seed": secrets.randbits(SEED_BITS), **sampled}
            return Search(kind="sample", n_best=request.n_best or 1, **seed, **shared)
        own_beams = usual.beams if usual.kind == "beam" else 1
        beams = request.beams or max(own_beams, request.n_best or 1)
        if beams == 1:
            if set(of_beams) - {"beams"} or (request.n_best or 1) > 1:
                message = "a greedy search has one hypothesis and no length penalty; ask for more beams"
                raise Refusal(422, "invalid_request", message)
            return Search(kind="greedy", **shared)
        rules: dict[str, Any] = {}
        if usual.kind == "beam":
            rules = {name: getattr(usual, name) for name in ("length_penalty", "early_stopping", "unfinished")}
        if request.penalty is not None or request.alpha is not None:
            penalty = PowerLengthPenalty if request.penalty == "power" else GnmtLengthPenalty
            rules["length_penalty"] = penalty(0.6 if request.alpha is None else request.alpha)
        return Search(kind="beam", beams=beams, n_best=request.n_best or 1, **rules, **shared)

    def work(self, items: Sequence[SourceText]) -> list[Any]:
        search = items[0].search
        translations = self._translator(search).translate(
            [item.text for item in items], chunk=len(items), prefixes=[item.prefix for item in items],
            target_language=items[0].target_language,
        )  # fmt: skip
        seed = {"seed": search.seed} if search is not None and search.kind == "sample" else {}
        return [self._result(translation, item.several) | seed for translation, item in zip(translations, items, strict=True)]

    def _result(self, translation: Translation, several: bool) -> dict[str, Any]:
        """The best translation; with `several`, also all hypotheses."""
        hypotheses = [
            {
                "text": text,
                "score": hypothesis.score,
                "log_probability": hypothesis.log_probability,
                "finished": hypothesis.finished,
            }
            for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=False)
        ]
        best = hypotheses[0] if hypotheses else {"text": "", "score": None, "finished": None}
        result = {name: best[name] for name in ("text", "score", "finished")} | {"unknown": translation.unknown}
        return result | ({"hypotheses": hypotheses} if several else {})


class Classify(Task):
    """Classifies texts or pairs of texts, as `tfkit classify` does."""

    path, verb = "/classify", "classifies"

    def __init__(self, classifier: Classifier, limits: Limits) -> None:
        super().__init__(limits)
        self.classifier, self.model, self.body = classifier, classifier.model, Pairs if classifier.pairs else Texts

    def items(self, request: Texts | Pairs) -> list[Item]:
        rows = [tuple(pair) for pair in request.pairs] if isinstance(request, Pairs) else [(text,) for text in request.texts]
        self.check_count(len(rows))
        items: list[Item] = []
        for number, row in enumerate(rows):
            tokens = sum(self.count_tokens(number, self.classifier.tokeniser, text) for text in row)
            tokens += len(self.classifier.frame)
            size = self.check_length(number, tokens, self.classifier.max_length)
            items.append((row if len(row) > 1 else row[0], None, size))
        return items

    def work(self, items: Sequence[Any]) -> list[Any]:
        classifications = self.classifier.classify(items, chunk=len(items))
        return [
            {
                "label": classification.label,
                "probability": classification.probability,
                "probabilities": classification.probabilities,
                "unknown": classification.unknown,
            }
            for classification in classifications
        ]


class Fill(Task):
    """Fills in the masks of texts, as `tfkit fill` does."""

    path, verb, body = "/fill", "fills in masks", Masked

    def __init__(self, filler: MaskFiller, limits: Limits) -> None:
        super().__init__(limits)
        self.filler, self.model = filler, filler.model

    def items(self, request: Masked) -> list[Item]:
        self.check_count(len(request.texts))
        items: list[Item] = []
        tokeniser, candidates = self.filler.tokeniser, 0
        for number, text in enumerate(request.texts):
            tokens = self.count_tokens(number, tokeniser, text, masked=True) + len(tokeniser.text_frame)
            size = self.check_length(number, tokens, self.filler.max_length)
            try:
                masks = sum(one == tokeniser.mask_id for one in self.filler.ids(text, number))
            except InputError as reason:
                (fault,) = reason.diagnostics
                raise Refusal(422, "no_mask", f"{fault.message}; {fault.fix}", index=number) from None
            wanted = masks * min(request.top, tokeniser.size)
            candidates += wanted
            if candidates > (limit := self.limits.candidates):
                message = f"the masks of the request have {candidates:,} tokens or more, and at most {limit:,} are allowed"
                raise Refusal(413, "too_many_candidates", f"{message}; give a smaller top, or fewer masks", limit=limit)
            items.append(((text, request.top), request.top, size + wanted // 10))  # as much memory as so many tokens
        return items

    def work(self, items: Sequence[tuple[str, int]]) -> list[Any]:
        fillings = self.filler.fill([text for text, _ in items], top=items[0][1], chunk=len(items))
        return [
            {
                "filled": filling.filled, "masks": [list(map(asdict, candidates)) for candidates in filling.masks],
                "unknown": filling.unknown,
            }
            for filling in fillings
        ]  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """A prompt with its search. `emit` is given the text part by part."""

    prompt: str
    search: Search
    emit: Callable[[str], None] | None = None


class Generate(Task):
    """Continues prompts, as `tfkit generate` does, with the score filters of the model's own search. Samples are computed
    alone: they depend on their place in a batch."""

    path, verb, body = "/generate", "generates", Prompt

    def __init__(
        self, generator: TextGenerator, limits: Limits, workers: int = 1, batch_tokens: int = 4096, cuda_graphs: bool = False
    ) -> None:
        super().__init__(limits)
        self.generator, self.model = generator, generator.model
        self.graphs: StepGraphs | None = StepGraphs(self.model) if cuda_graphs else recorded_steps(self.model)
        self.workers, self.batch_tokens = workers, batch_tokens

    def items(self, request: Prompt) -> list[Item]:
        self.check_new_tokens(request.max_tokens)
        sampled = self.sampling(request)
        tokeniser, positions = self.generator.tokeniser, self.generator.positions
        count = self.count_tokens(0, tokeniser, request.prompt)
        if not count:
            raise Refusal(422, "empty_prompt", "the prompt has no token; give at least one")
        tokens = count + len(tokeniser.prompt_frame)
        most = request.max_tokens
        if most is None:
            most = min(NEW_TOKENS, self.limits.new_tokens)
            most = most if positions is None else max(1, min(most, positions + 1 - tokens))
        room = self.limits.length if positions is None else positions + 1 - most
        if room < 1:
            message = f"max_tokens is {most:,}, and the model has {positions:,} positions"
            raise Refusal(413, "too_many_tokens", message, limit=positions)
        size = self.check_length(0, tokens, room)
        filters = self.generator.search.filters
        limits: dict[str, Any] = {"length_factor": 0.0, "extra_length": most, "filters": filters}
        if not sampled:
            search = Search(kind="greedy", **limits)
            return [(Wanted(request.prompt, search), search, size + most)]
        search = Search(kind="sample", **{"seed": secrets.randbits(SEED_BITS), **sampled}, **limits)
        return [(Wanted(request.prompt, search), object(), size + most)]

    def streamed(self, item: Item, emit: Callable[[str], None]) -> Item:
        """An item that gives its text part by part.

        Args:
            item: The item of a request.
            emit: Is given new text. The worker thread calls it.

        Returns:
            The item.
        """
        return (replace(item[0], emit=emit), *item[1:])

    def work(self, items: Sequence[Wanted]) -> list[Any]:
        def emit(number: int, text: str) -> None:
            if (send := items[number].emit) is not None:
                send(text)

        continuations = self.generator.continue_all(
            [wanted.prompt for wanted in items], items[0].search, workers=self.workers, batch_tokens=self.batch_tokens,
            emit=emit if any(wanted.emit for wanted in items) else None, graphs=self.graphs,
        )  # fmt: skip
        return [
            {
                "text": continuation.text, "finished": continuation.hypothesis.finished,
                "tokens": len(continuation.hypothesis.ids),
                "log_probability": continuation.hypothesis.log_probability, "seed": items[0].search.seed,
                "unknown": continuation.unknown,
            }
            for (continuation,) in continuations
        ]  # fmt: skip

    def answer(self, results: list[Any]) -> dict[str, Any]:
        return results[0]  # type: ignore[no-any-return]


KINDS = ("parallel", "language", "masked", "classification", "pairs")


def load_task(
    directory: str | Path | Sequence[str | Path],
    limits: Limits,
    search: Search,
    *,
    batch_tokens: int,
    workers: int,
    cuda_graphs: bool = False,
    shortlist: bool = False,
    **place: Any,
) -> Task:
    """Load a model, and choose what it does.

    Args:
        directory: directory of a saved model or of a training run; several for models that translate together.
        limits: the limits of the server.
        search: the search of a translation.
        batch_tokens: as in `Translator`.
        workers: as in `Translator`.
        cuda_graphs: as in `Translator`.
        shortlist: as in `Translator.load`.
        **place: device, backend, precision, allow_nan and catalogue, as in `tfkit.load`.

    Returns:
        The task.

    Raises:
        StoreError: a file is missing or altered.
        InputError: the model neither translates, nor generates, nor classifies text, nor fills in masks; or a shortlist is
            wanted, and it does not translate; or CUDA graphs are wanted, and it does not decode.
    """
    translating: dict[str, Any] = {
        "max_source": limits.length, "batch_tokens": batch_tokens, "workers": workers, "cuda_graphs": cuda_graphs,
    }  # fmt: skip
    if not isinstance(directory, (str, Path)):
        if len(directory) > 1:
            return Translate(Translator.load(directory, search, shortlist=shortlist, **translating, **place), limits)
        (directory,) = directory
    path = model_in(Path(directory))
    model = load(path, **place).eval()
    kinds = [name for name in KINDS if fits(model.plan, name) and not (name == "masked" and has_labels(path))]
    kind = kinds[0] if kinds else None
    if kind == "parallel":
        tokenisers = read_tokenisers(path, ("source", "target"))
        chosen = Shortlist.load(path / SHORTLIST, tokenisers) if shortlist else None
        return Translate(Translator(model, tokenisers, search, shortlist=chosen, **translating), limits)
    if shortlist:
        message = f"a shortlist is wanted, and `{model.plan.name}` does not translate"
        raise InputError(Diagnostic("TFK107", message, "leave it out"))
    if kind == "language":
        generator = TextGenerator(model, read_tokenisers(path, ("target",))["target"], saved_search(path))
        return Generate(generator, limits, workers, batch_tokens, cuda_graphs)
    if kind is not None and cuda_graphs:
        message = f"`{model.plan.name}` has no decoding steps, of which CUDA graphs are recorded"
        raise InputError(Diagnostic("TFK063", message, "leave them out"))
    if kind == "masked":
        tokeniser = read_tokenisers(path, ("target",))["target"]
        return Fill(MaskFiller(model, tokeniser, max_length=limits.length, batch_tokens=batch_tokens), limits)
    if kind is not None:
        tokeniser, pairs = read_tokenisers(path, ("target",))["target"], reads_pairs(path)
        options: dict[str, Any] = {"max_length": limits.length, "batch_tokens": batch_tokens, "pairs": pairs}
        return Classify(Classifier(model, tokeniser, read_labels(path), **options), limits)
    message = f"`{model.plan.name}` neither translates, nor generates, nor classifies text, nor fills in masks"
    raise InputError(Diagnostic("TFK107", message, f"serve a model of data kind {', '.join(KINDS)}"))
