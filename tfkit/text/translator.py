"""Translation: a model with its tokenisers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch

from ..catalogue import Catalogue
from ..data import TextTokeniser, check_ids, groups, read_tokenisers, roles_for
from ..data.pharaoh import Link
from ..data.piece_words import Words, encode_with_words, words_of_ids
from ..errors import Diagnostic, InputError
from ..errors.arguments import check_list, check_whole
from ..generate import Hypothesis, Search, StepGraphs, generate_batched, recorded_steps
from ..generate.score_filters import check_filters
from ..io import load, model_in
from ..io.alignment_site import AlignmentSite, read_alignment_site
from ..nn.evaluating import evaluating
from ..nn.model import Model
from ..slots.lazy import load as load_lazily
from .alignment import align, check_keys, requested_site, word_links
from .ensemble import Averaging, Ensemble, check_same_tokenisers
from .saved_search import saved_search
from .search_tokens import language_ids, without_special_tokens
from .sentences import SentenceSplitter
from .shortlist import SHORTLIST, Shortlist

MAX_PREFIX = 10_000
"""The most characters of the text that a translation begins with."""


@dataclass(frozen=True)
class Translation:
    """The translation of a line. A source without a token has an empty translation and no hypothesis.

    Attributes:
        source: The line.
        texts: The text of each hypothesis as the tokeniser decodes it, best first. It may have several lines.
        hypotheses: The hypotheses.
        pieces: The tokens of each hypothesis.
        source_ids: The ids that the model read, special tokens included.
        cut: The number of source tokens beyond the limit, which it did not read.
        unknown: The number of source tokens without a piece.
        alignments: By hypothesis, the links of source words and words of its text, counted from 0 between white space; empty
            unless requested.
        piece_alignments: By hypothesis, the index into `source_ids` that each of its tokens is aligned with, or None.
    """

    source: str
    texts: tuple[str, ...]
    hypotheses: tuple[Hypothesis, ...]
    pieces: tuple[tuple[str, ...], ...]
    source_ids: tuple[int, ...]
    cut: int
    unknown: int = 0
    alignments: tuple[tuple[Link, ...], ...] = ()
    piece_alignments: tuple[tuple[int | None, ...], ...] = ()

    @property
    def text(self) -> str:
        """The best translation."""
        return self.texts[0]

    @property
    def read(self) -> int:
        """The number of source tokens that the model read, special tokens included."""
        return len(self.source_ids)

    def _repr_html_(self) -> str:
        rows = zip(self.texts, self.pieces, self.hypotheses, strict=False)
        return load_lazily("tfkit.view.pages:search_html")(self.source, rows)  # type: ignore[no-any-return]


class Translator:
    """Translates lines of text.

    No translation has a padding, start or unknown token, unless the search allows them. The hypotheses of a beam search have
    different texts: of hypotheses with one text the best is kept.

    Args:
        model: A model with a source that is encoded, and a target that is decoded; or several with one vocabulary, an ensemble.
        tokenisers: By column: `source` and `target`.
        search: The kind of search and its settings; a beam search by default.
        max_source: The limit of source tokens, special tokens included; at most the positions of the model.
        batch_tokens: The limit of tokens of a batch, padding and beams included.
        attention: Sites whose weights every hypothesis holds.
        workers: Batches that are searched in parallel on a CPU.
        alignment: The cross-attention whose weights align words of sources and translations: True for the one that the model
            was trained with, or else the mean over the heads of the last layer but one. An ensemble has that of the first.
        ensemble: What several models average at each step: the probabilities of the next token, or their logarithms.
        cuda_graphs: Whether decoding steps are recorded and replayed (`tfkit.generate.StepGraphs`), on a CUDA device.
        shortlist: The target ids that each source may get, of which alone the logits are computed; None for all.

    Raises:
        InputError: The model is of another kind, or the tokenisers or the shortlist are not its own; CUDA graphs are wanted of
            several models, or without a CUDA device.
    """

    def __init__(
        self,
        model: Model | Sequence[Model],
        tokenisers: Mapping[str, TextTokeniser],
        search: Search | None = None,
        *,
        max_source: int = 1024,
        batch_tokens: int = 4096,
        attention: Iterable[str] = (),
        workers: int = 1,
        alignment: AlignmentSite | bool = False,
        ensemble: Averaging = "probabilities",
        cuda_graphs: bool = False,
        shortlist: Shortlist | None = None,
    ) -> None:
        if isinstance(model, Sequence):
            model = cast(Model, Ensemble(model, ensemble)) if len(model) != 1 else model[0]
        self.model, self.tokenisers, self.search = model, tokenisers, search or Search()
        self.batch_tokens, self.attention, self.workers = batch_tokens, tuple(attention), workers
        check_whole("max_source", max_source, 1 + len(tokenisers["source"].source_frame))  # the special tokens, and one more
        check_whole("batch_tokens", batch_tokens)
        check_whole("workers", workers)
        self.roles = roles_for(model.plan, "parallel")
        self.max_source = min(max_source, model.plan.max_input_lengths.get(self.roles.of("source"), max_source))
        check_ids(model.plan, self.roles, tokenisers)
        self.alignment = requested_site(model, self.roles.target, alignment)
        if cuda_graphs and isinstance(model, Ensemble):
            message = "CUDA graphs are recorded for one model, and several translate together"
            raise InputError(Diagnostic("TFK063", message, "leave them out, or name one model"))
        self.graphs: StepGraphs | None = StepGraphs(model) if cuda_graphs else recorded_steps(model)
        if shortlist is not None:
            shortlist.check(tokenisers)
        self.shortlist = shortlist

    @classmethod
    def load(
        cls,
        directory: str | Path | Sequence[str | Path],
        search: Search | None = None,
        *,
        device: str | torch.device = "cpu",
        backend: Any = None,
        precision: str = "float32",
        max_source: int = 1024,
        batch_tokens: int = 4096,
        attention: Iterable[str] = (),
        workers: int = 1,
        alignment: AlignmentSite | bool = False,
        ensemble: Averaging = "probabilities",
        cuda_graphs: bool = False,
        shortlist: bool | Shortlist = False,
        allow_nan: bool = False,
        catalogue: Catalogue | None = None,
    ) -> Translator:
        """Load a translator.

        Args:
            directory: directory of a saved model, or of a training run, whose best model is loaded; several for an ensemble.
            search: as in the constructor; by default what `generation.json` of the (first) model says, if it has one.
            device: as in `tfkit.load`.
            backend: as in `tfkit.load`.
            precision: as in `tfkit.load`.
            max_source: as in the constructor.
            batch_tokens: as in the constructor.
            attention: as in the constructor.
            workers: as in the constructor.
            alignment: as in the constructor.
            ensemble: as in the constructor.
            cuda_graphs: as in the constructor.
            shortlist: as in the constructor; True for the one that lies beside the (first) model.
            allow_nan: as in `tfkit.load`.
            catalogue: as in `tfkit.load`.

        Returns:
            The translator.

        Raises:
            StoreError: a file is missing or altered, or weights are NaN or infinite.
            BuildError: the precision cannot be computed here.
            InputError: the model is of another kind, or a shortlist or models of an ensemble have other tokenisers.
        """
        directories = [directory] if isinstance(directory, (str, Path)) else list(directory)
        if not directories:
            raise InputError(Diagnostic("TFK078", "there is no model to load", "name at least one directory"))
        places = [model_in(Path(one)) for one in directories]
        options: dict[str, Any] = {"device": device, "backend": backend, "precision": precision}
        models = [load(one, **options, allow_nan=allow_nan, catalogue=catalogue).eval() for one in places]
        for one in models:
            roles_for(one.plan, "parallel")  # its error names the right command
        of_models = [read_tokenisers(one, ("source", "target")) for one in places]
        check_same_tokenisers(directories, of_models)
        place, tokenisers = places[0], of_models[0]
        search = search or saved_search(place, catalogue)
        if alignment is True:
            alignment = read_alignment_site(place) or True
        return cls(
            models, tokenisers, search, max_source=max_source, batch_tokens=batch_tokens, attention=attention, workers=workers,
            alignment=alignment, ensemble=ensemble, cuda_graphs=cuda_graphs,
            shortlist=Shortlist.load(place / SHORTLIST, tokenisers) if shortlist is True else shortlist or None,
        )  # fmt: skip

    def with_search(self, search: Search) -> Translator:
        """The same translator with another search."""
        other = copy(self)
        other.search = search
        return other

    def translate(
        self,
        lines: Iterable[str],
        *,
        chunk: int = 1000,
        prefixes: Iterable[str] | None = None,
        target_language: str | None = None,
        split: str | None = None,
    ) -> Iterator[Translation]:
        """Translate lines.

        Args:
            lines: Read `chunk` at a time. If the iterable raises an exception, the lines before it are translated first.
            chunk: Lines that are sorted by length and batched together.
            prefixes: The text that the translation of each line begins with, which may be empty.
            target_language: The language of a model for several, as its tokeniser writes it: `de_DE` of mBART, `de` of M2M100,
                `deu` of OPUS-MT.
            split: The language of lines of several sentences, such as `en`. Each sentence is translated alone, and the texts
                are joined with spaces, or with nothing after a full-width character. The one hypothesis of a line has all their
                tokens, and the sum of their log-probabilities as its score. A prefix is that of the first sentence.

        Yields:
            The translation of each line, in order. Its text has the prefix.

        Raises:
            InputError: There are not as many prefixes as lines, or one is as long as a translation may be; the tokenisers have
                no token of the language; `split` is no code of a language, or is given with `n_best`, weights or alignments.
            BuildError: `split` is given, and sentencex is not installed.
        """
        if split is not None:
            if self.search.n_best > 1 or self.attention or self.alignment is not None:
                message = "lines that are divided into sentences have one hypothesis, no attention weights and no alignment"
                raise InputError(Diagnostic("TFK078", message, "leave `split` out, or give one sentence per line"))
            splitter = SentenceSplitter(split)
            check_list(lines)
            check_list(prefixes)
            lines, prefixes = splitter.sentences(lines), None if prefixes is None else splitter.prefixes(prefixes)
            options: dict[str, Any] = {"chunk": chunk, "prefixes": prefixes, "target_language": target_language}
            for line, parts in splitter.by_line(self.translate(lines, **options)):
                yield replace(parts[0], source=line) if len(parts) == 1 else _joined(line, parts)
            return
        tokens = ([], []) if target_language is None else self.language_ids(target_language)
        check_list(prefixes)
        remaining = None if prefixes is None else iter(prefixes)
        count = 0
        for group in groups(lines, chunk):
            starts = [""] * len(group)
            if remaining is not None:  # each is checked before the next is read
                starts = [_short(prefix, count + at) for at, prefix in enumerate(islice(remaining, len(group)), 1)]
            if len(starts) < len(group):
                message = f"there are {count + len(starts):,} prefixes, and more lines"
                raise InputError(Diagnostic("TFK078", message, "give one for each line, which may be empty"))
            yield from self._translate_chunk(group, starts, count + 1, *tokens)
            count += len(group)
        if remaining is not None and next(remaining, None) is not None:
            message = f"there are {count:,} lines, and more prefixes"
            raise InputError(Diagnostic("TFK078", message, "give one prefix for each line"))

    def language_ids(self, language: str) -> tuple[list[int], list[int]]:
        """The ids that a source and its translation begin with for a target language. Raises InputError if it has no token."""
        return language_ids(self.tokenisers["source"], self.tokenisers["target"], language)

    def room(self, length: int) -> int:
        """The largest number of tokens of the translation of a source of `length` tokens."""
        limit, positions = self.search.limit(length), self.model.plan.max_input_lengths.get(self.roles.target)
        return limit if positions is None else max(1, min(limit, positions))

    def check_start(self, prefix: str, target_language: str | None) -> None:
        """Check what translations are to begin with, before there are any.

        Raises:
            InputError: No translation of a short line can begin so, or the filters of the search do not fit the vocabulary.
        """
        _, before = ([], []) if target_language is None else self.language_ids(target_language)
        (ids,) = self._encoded_prefixes([_short(prefix, 1)], 1)
        if (count := len(before) + len(ids)) >= (room := self.room(1)):
            message = f"the prefix has {count:,} tokens, and the translation of a short line gets at most {room:,}"
            raise InputError(Diagnostic("TFK078", message, "shorten the prefix"))
        rule = self.model.plan.token_rule(self.roles.target)
        check_filters(self.search.filters, rule.vocab_size, rule.end_id)

    def _encoded_prefixes(self, prefixes: list[str], first: int) -> list[list[int]]:
        """The ids of the prefixes of lines from number `first` on. Raises InputError for one that begins no translation."""
        target = self.tokenisers["target"]
        encoded, end = target.encode(prefixes), self.model.plan.token_rule(self.roles.target).end_id
        if ended := next((number for number, ids in enumerate(encoded, first) if end in ids), None):
            message = f"the prefix of line {ended:,} holds the end token"
            raise InputError(Diagnostic("TFK078", message, "leave it out: nothing comes after it"))
        return encoded

    def _translate_chunk(
        self, lines: list[str], prefixes: list[str], first: int, before_source: list[int], before_target: list[int]
    ) -> Iterator[Translation]:
        encoded = self.tokenisers["source"].encode(lines)
        frame, target = self.tokenisers["source"].source_frame, self.tokenisers["target"]
        room = self.max_source - len(frame) - len(before_source)
        sources = [frame([*before_source, *ids[:room]]) for ids in encoded]
        nonempty = [number for number, ids in enumerate(encoded) if ids]
        starts = [[*before_target, *ids] for ids in self._encoded_prefixes(prefixes, first)]
        for at in nonempty:
            ids, number = starts[at], first + at
            if len(ids) >= (most := self.room(len(sources[at]))):
                message = f"the prefix of line {number:,} has {len(ids):,} tokens, and the translation gets at most {most:,}"
                raise InputError(Diagnostic("TFK078", message, "shorten the prefix, or allow longer translations"))
        rule = self.model.plan.token_rule(self.roles.target)
        search, n_best = without_special_tokens(self.search, rule, target), self.search.n_best
        if n_best > 1 and search.kind == "beam":
            search = replace(search, n_best=search.beams)  # some may have the same text
        sites = self.attention if self.alignment is None else (*self.attention, self.alignment.site)
        with evaluating(self.model):
            by_source = generate_batched(
                self.model, [sources[number] for number in nonempty], search, batch_tokens=self.batch_tokens,
                target=self.roles.target, output=self.roles.output, attention=sites, workers=self.workers,
                prefixes=[starts[number] for number in nonempty] if any(starts) else None, graphs=self.graphs,
                shortlists=None if self.shortlist is None else self.shortlist.of,
            )  # fmt: skip
        hypotheses = dict(zip(nonempty, by_source, strict=True))
        for number, (line, ids) in enumerate(zip(lines, encoded, strict=True)):
            pairs = [(target.decode(one.ids.tolist()), one) for one in hypotheses.get(number, ())]
            if search.kind == "beam":
                best: dict[str, Hypothesis] = {}
                for text, one in pairs:
                    best.setdefault(text, one)
                pairs = list(best.items())[:n_best]
            texts, line_hypotheses = tuple(text for text, _ in pairs), tuple(one for _, one in pairs)
            aligned = self._aligned(line, sources[number], len(frame.before) + len(before_source), room, line_hypotheses)
            if aligned:
                line_hypotheses = self._requested_weights(line_hypotheses)
            pieces = tuple(tuple(target.pieces(one.ids.tolist())) for one in line_hypotheses)
            cut = max(len(ids) - room, 0)
            unknown = self.tokenisers["source"].count_unknown(ids)
            links, by_piece = tuple(links for links, _ in aligned), tuple(by_piece for _, by_piece in aligned)
            read = tuple(sources[number])
            yield Translation(line, texts or ("",), line_hypotheses, pieces, read, cut, unknown, links, by_piece)

    def _aligned(
        self, line: str, source: list[int], before: int, room: int, hypotheses: tuple[Hypothesis, ...]
    ) -> list[tuple[tuple[Link, ...], tuple[int | None, ...]]]:
        """The links of words, and the aligned source tokens, of the hypotheses of a line; none unless requested. The model read
        the ids `source`, with `before` special tokens before those of the line, and at most `room` tokens of it."""
        if self.alignment is None or not hypotheses:
            return []
        _, of_line = encode_with_words(self.tokenisers["source"], line)
        words: list[Words] = [range(0)] * before + of_line[:room]
        words += [range(0)] * (len(source) - len(words))
        aligned = []
        for one in hypotheses:
            weights = one.attention[self.alignment.site]
            check_keys(self.alignment.site, weights.shape[2], len(source))
            targets = words_of_ids(self.tokenisers["target"], one.ids.tolist())
            by_piece = align(weights, self.alignment.head, words, targets)
            aligned.append((word_links(by_piece, words, targets), tuple(by_piece)))
        return aligned

    def _requested_weights(self, hypotheses: tuple[Hypothesis, ...]) -> tuple[Hypothesis, ...]:
        """The hypotheses with the weights of the requested sites alone."""
        wanted = self.model.backends.matching(self.attention)
        return tuple(
            replace(one, attention={site: weights for site, weights in one.attention.items() if site in wanted})
            for one in hypotheses
        )


def _short(prefix: Any, line: int) -> str:
    """A prefix of a line. Raises InputError for one that is too long to be read."""
    if isinstance(prefix, str) and len(prefix) <= MAX_PREFIX:
        return prefix
    what = f"{len(prefix):,} characters" if isinstance(prefix, str) else f"the type {type(prefix).__name__}"
    message = f"the prefix of line {line:,} has {what}"
    raise InputError(Diagnostic("TFK078", message, f"it is a text of at most {MAX_PREFIX:,} characters"))


def one_line(text: str) -> str:
    """A translation without what ends a line of a file, line feeds and carriage returns: a space is in the place of each."""
    return text.translate(LINE_ENDS)


LINE_ENDS = str.maketrans("\n\r", "  ")


def _joined(line: str, parts: list[Translation]) -> Translation:
    """One translation of several: texts with a space between them, sums of log-probabilities."""
    text = ""
    for part in parts:
        wide = bool(text) and unicodedata.east_asian_width(text[-1]) in "WF"  # of scripts without spaces
        text += part.text if wide or not text else f" {part.text}"
    hypotheses = [part.hypotheses[0] for part in parts if part.hypotheses]
    if not hypotheses:
        return replace(parts[0], source=line)
    total = sum(one.log_probability for one in hypotheses)
    joined = Hypothesis(
        torch.cat([one.ids for one in hypotheses]), total, total,
        torch.cat([one.token_log_probabilities for one in hypotheses]), all(one.finished for one in hypotheses),
    )  # fmt: skip
    return replace(
        parts[0],
        source=line,
        texts=(text,),
        hypotheses=(joined,),
        pieces=(tuple(piece for part in parts if part.pieces for piece in part.pieces[0]),),
        source_ids=tuple(number for part in parts for number in part.source_ids),
        cut=sum(part.cut for part in parts),
        unknown=sum(part.unknown for part in parts),
    )
