"""From text files to corpora of ids: train the tokenisers, choose the held-out rows, encode, write."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Diagnostic, InputError, StoreError
from ..files import make_folders, write_whole
from ..recipe import Recipe, rows_with_links
from .aligned_rows import check_links
from .corpus import GOLD, LINKS, TAGS, Corpus
from .corpus_facts import FACTS, CorpusCounts, Facts, describe_counts, read_facts
from .encode import CorpusEncoder, SelectedRows
from .extension import adds_symbols, extended
from .kinds import KINDS
from .labels import check_labels
from .sources import sources_of
from .spans import SpanFacts
from .text_corpora import TextCorpus, corpora_of
from .tokeniser import TextTokeniser, train_tokeniser

FEW_LABELS = 20
"""Up to this number, labels need not repeat: a small table may have nearly as many labels as rows."""
TRAIN: str = "train.arrow"
VALIDATION: str = "validation.arrow"


@dataclass(frozen=True)
class Data:
    """The data of a run.

    Attributes:
        tokenisers: By column; one object for `source` and `target` if the vocabulary is joint.
        train: The training rows.
        validation: The validation rows, if any.
        facts: The counts of both.
        labels: The classes of a classification, in the order of the model's output.
        spans: How a model that answers questions is trained.
        parts: The counts of each corpus of several, by its name, for `train` and `validation`; their rows follow each other.
    """

    tokenisers: Mapping[str, TextTokeniser]
    train: Corpus
    validation: Corpus | None
    facts: Mapping[str, CorpusCounts]
    labels: tuple[str, ...] = ()
    spans: SpanFacts | None = None
    parts: Mapping[str, Mapping[str, CorpusCounts]] = field(default_factory=dict)

    def validation_parts(self) -> dict[str, Corpus]:
        """The validation rows of each corpus of several, by its name."""
        assert self.validation is not None, "there are validation rows"
        first, corpora = 0, {}
        for name, counts in self.parts.get("validation", {}).items():
            corpora[name] = self.validation.part(range(first, first + counts.kept))
            first += counts.kept
        return corpora

    @property
    def vocab_size(self) -> int:
        """The number of ids of the target; 0 for images."""
        return self.tokenisers["target"].size if self.tokenisers else 0


def prepare(
    recipe: Recipe,
    directory: Path,
    vocab_size: int,
    tokenisers: Mapping[str, TextTokeniser] | None = None,
    positions: Mapping[str, int] | None = None,
) -> Data:
    """Write the corpora of a recipe into a directory. Without `tokenisers`, they are trained on the training text, with
    `vocab_size` pieces. `positions` are the maximum lengths of the model's inputs, by column; none for inputs without a limit.

    Raises InputError if a file cannot be read, is not text, or has no row left; StoreError if the directory cannot be written.
    """
    corpora = corpora_of(recipe)
    held_out = [corpus.held_out_rows(recipe) for corpus in corpora]
    for corpus in corpora:
        if corpus.links is not None:
            check_links(corpus.links, sum(1 for _ in corpus.rows(recipe)), corpus.train["target"])
        if corpus.validation:
            count = sum(1 for _ in corpus.rows(recipe, corpus.validation))
            if corpus.gold is not None:
                check_links(corpus.gold, count, corpus.validation["target"])
    sources = sources_of(recipe)  # after the rows are read: a file that is no text is not read whole
    labels = _labels(recipe, corpora)
    try:
        make_folders(directory)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be created: {reason.strerror}")) from None
    more = getattr(recipe.tokeniser.options, "extend", None) is not None
    if tokenisers and (more or any(adds_symbols(recipe, tokeniser) for tokeniser in tokenisers.values())):
        tokenisers = _extended(recipe, tokenisers, corpora, held_out)
    tokenisers = tokenisers or _tokenisers(recipe, corpora, vocab_size, held_out)
    encode = CorpusEncoder(recipe, tokenisers, labels, positions or {})
    parts = {"train": {}, "validation": {}}  # type: dict[str, dict[str, SelectedRows]]
    for corpus, held in zip(corpora, held_out, strict=True):
        gold, prefix = corpus.gold, corpus.source_prefix
        parts["train"][corpus.name] = SelectedRows(
            corpus.train, corpus.selected(recipe, held, False), links=corpus.links, prefix=prefix
        )
        if corpus.validation:
            rows = corpus.rows(recipe, corpus.validation)
            parts["validation"][corpus.name] = SelectedRows(corpus.validation, rows, links=gold, prefix=prefix)
        elif held:
            rows = corpus.selected(recipe, held, True)
            parts["validation"][corpus.name] = SelectedRows(corpus.train, rows, True, links=gold, prefix=prefix)
    facts, counts_of_parts = dict[str, CorpusCounts](), dict[str, dict[str, CorpusCounts]]()
    linked = rows_with_links(recipe)
    for name, file, has_links in (("train", TRAIN, linked.train), ("validation", VALIDATION, linked.validation)):
        if not parts[name]:
            continue
        counts = encode(list(parts[name].values()), directory / file, name == "train", has_links)
        for part, counted in zip(parts[name].values(), counts, strict=True):
            if not counted.kept:
                files = "the rows that are held out" if part.held_out else ", ".join(part.files.values())
                message = f"no row of {files} is left"
                raise InputError(recipe.diagnostic("TFK103", "data", message, describe_counts(counted)))
        total = counts[0] if len(counts) == 1 else CorpusCounts.total(counts)
        facts[name] = total.model_copy(update={"digest": counts[0].digest})
        if len(corpora) > 1:
            counts_of_parts[name] = dict(zip(parts[name], counts, strict=True))
    data = {
        "labels": labels,
        "pairs": recipe.data.kind == "pairs",
        "spans": encode.span_facts and encode.span_facts.model_dump(),
        "corpora": {name: counts.model_dump() for name, counts in facts.items()},
        **({"parts": _dumped(counts_of_parts)} if counts_of_parts else {}),
        "sources": sources,
    }
    write_whole(directory / FACTS, json.dumps(data, indent=1, allow_nan=False) + "\n")
    return read_data(recipe, directory, tokenisers)


def read_data(recipe: Recipe, directory: Path, tokenisers: Mapping[str, TextTokeniser]) -> Data:
    """The corpora that `prepare` wrote. Raises StoreError, and InputError if the longest row exceeds `batching.tokens`."""
    data_facts = read_facts(directory)
    facts = data_facts.corpora
    kind = KINDS[recipe.data.kind]
    sizes = {column: tokenisers[column].size if tokenisers else 256 for column in kind.files}
    if kind.tagged:
        sizes[TAGS] = len(data_facts.labels)
    elif not kind.spans:
        sizes |= {name: 2 if name == "random" else len(data_facts.labels) for name in kind.numbers}
    train = Corpus(directory / TRAIN)
    validation = Corpus(directory / VALIDATION) if "validation" in facts else None
    if validation is None and os.path.lexists(directory / VALIDATION):
        raise _other_counts(directory, f"it has no counts of {VALIDATION}, and the file is there")
    linked = rows_with_links(recipe)
    for name, corpus, links in (
        ("train", train, LINKS if linked.train else None),
        ("validation", validation, GOLD if linked.validation else None),
    ):
        if corpus is not None:
            texts = () if name == "train" or recipe.data.kind == "images" else [f"{column}_text" for column in kind.files]
            corpus.check(sizes, kind.spans, links, texts)
            _check_counts(directory, name, facts[name], corpus, tuple(kind.files))
    _check_parts(recipe, directory, data_facts)
    stated = {"labels": bool(data_facts.labels), "pairs": data_facts.pairs, "spans": data_facts.spans is not None}
    for name, wanted in {"labels": kind.labelled, "pairs": recipe.data.kind == "pairs", "spans": kind.spans}.items():
        if stated[name] != wanted:
            raise _other_counts(directory, f"`{name}` is {'missing' if wanted else 'there'}")
    if data_facts.spans is not None:
        longest = int((train.numbers["end"] - train.numbers["start"]).max()) + 1
        if longest != (most := data_facts.spans.max_answer):
            raise _other_counts(directory, f"the longest answer has {most:,} tokens, and in {TRAIN} it has {longest:,}")
    if not all(lengths.all() for lengths in train.lengths.values()):
        raise train.damaged("a row has no token")
    longest = max(int(lengths.max()) for lengths in train.lengths.values())
    if longest > recipe.batch_limit:
        message = f"a batch has room for {recipe.batching.tokens} tokens, the longest row has {longest}"
        fix = f"write at least {longest}, or a smaller `batching.max_length`"
        raise InputError(recipe.diagnostic("TFK109", "batching.tokens", message, fix))
    return Data(tokenisers, train, validation, facts, tuple(data_facts.labels), data_facts.spans, data_facts.parts)


def _check_counts(directory: Path, name: str, counts: CorpusCounts, corpus: Corpus, columns: Sequence[str]) -> None:
    """Raises StoreError unless a corpus has the rows and the tokens that its counts say."""
    pairs = [("rows", counts.kept, len(corpus))]
    for column in columns:
        counted = int(corpus.lengths[column].sum(dtype=np.int64))
        pairs.append((f"tokens of {column}", counts.tokens.get(column, 0), counted))
    for what, stated, counted in pairs:
        if stated != counted:
            message = f"`corpora.{name}` has {stated:,} {what}, and {corpus.path.name} has {counted:,}"
            raise _other_counts(directory, message)


def _check_parts(recipe: Recipe, directory: Path, facts: Facts) -> None:
    """Raises StoreError unless the corpora of the recipe make up the rows."""
    names = [corpus.name for corpus in getattr(recipe.data.options, "corpora", None) or ()]
    if len(names) > 1 and [*facts.parts.get("train", {})] != names:
        raise _other_counts(directory, f"`parts.train` has not the corpora {', '.join(names)}")
    for name, parts in facts.parts.items():
        kept = sum(counts.kept for counts in parts.values())
        if kept != facts.corpora[name].kept or not all(counts.kept for counts in parts.values()):
            raise _other_counts(directory, f"`parts.{name}` has {kept:,} rows, and there are {facts.corpora[name].kept:,}")


def _other_counts(directory: Path, message: str) -> StoreError:
    fix = "one of the two was altered: start a new run"
    return StoreError(Diagnostic("TFK082", f"{directory / FACTS}: {message}", fix))


def _dumped(parts: Mapping[str, Mapping[str, CorpusCounts]]) -> dict[str, Any]:
    return {name: {part: counted.model_dump() for part, counted in counts.items()} for name, counts in parts.items()}


def _labels(recipe: Recipe, corpora: Sequence[TextCorpus]) -> list[str]:
    """The labels of a table, sorted. Raises InputError if they cannot be classes: there is only one, or most rows have
    different labels."""
    if not KINDS[recipe.data.kind].labelled:
        return []
    counts = Counter(label for corpus in corpora for _, texts in corpus.rows(recipe) for label in _labels_of(recipe, texts))
    labels, rows = sorted(counts), counts.total()
    if len(labels) < 2 or (len(labels) > FEW_LABELS and 2 * len(labels) > rows):
        several = f"there are {len(labels):,} different labels in {rows:,} rows, more than one per two rows"
        message = several if len(labels) > 1 else f"every row has the label `{labels[0]}`" if labels else "there is no row"
        fix = f"`label_column`, now {recipe.data.options.label_column}, says which column holds the labels"
        raise InputError(recipe.diagnostic("TFK115", "data", message, fix))
    return classes_of(recipe, labels)


def classes_of(recipe: Recipe, labels: list[str]) -> list[str]:
    """The labels of training data, in the order of the classes. Raises InputError if two look the same."""
    try:
        check_labels(labels)
    except ValueError as reason:
        raise InputError(recipe.diagnostic("TFK115", "data", str(reason), "write it in one way everywhere")) from None
    return labels


def _labels_of(recipe: Recipe, texts: Sequence[str]) -> Sequence[str]:
    """The labels of a row: one, or one for each word."""
    return texts[1].split(" ") if KINDS[recipe.data.kind].tagged else texts[-1:]


def _extended(
    recipe: Recipe,
    tokenisers: Mapping[str, TextTokeniser],
    corpora: Sequence[TextCorpus],
    held_out: Sequence[frozenset[int]],
) -> Mapping[str, TextTokeniser]:
    """The tokenisers of a pretrained model with more pieces; a joint one for the text of both sides."""
    kind = KINDS[recipe.data.kind]
    joint = len({id(tokeniser) for tokeniser in tokenisers.values()}) == 1

    def texts(sides: Sequence[int]) -> Iterator[str]:
        for corpus, held in zip(corpora, held_out, strict=True):
            for _, row in corpus.selected(recipe, held, False):
                yield from (row[side] if kind.sentences else f"{row[side]}\n" for side in sides)

    if joint:
        [tokeniser] = {id(tokeniser): tokeniser for tokeniser in tokenisers.values()}.values()
        return dict.fromkeys(tokenisers, extended(recipe, tokeniser, lambda: texts(range(kind.texts))))
    return {
        column: extended(recipe, tokeniser, partial(texts, [side]))
        for side, (column, tokeniser) in enumerate(tokenisers.items())
    }


def _tokenisers(
    recipe: Recipe, corpora: Sequence[TextCorpus], vocab_size: int, held_out: Sequence[frozenset[int]]
) -> Mapping[str, TextTokeniser]:
    """Tokenisers by column, trained on the training text of all corpora without the held-out rows."""
    part, kind = recipe.tokeniser, KINDS[recipe.data.kind]

    def text(*sides: int) -> Iterator[str]:
        for corpus, held in zip(corpora, held_out, strict=True):
            for _, texts in corpus.selected(recipe, held, False):
                yield from (texts[side] if kind.sentences else f"{texts[side]}\n" for side in sides)

    if part.options.joint or len(kind.files) == 1:
        shared = train_tokeniser(part, text(*range(kind.texts)), vocab_size, kind.sentences, kind.masks)
        return dict.fromkeys(kind.files, shared)
    return {column: train_tokeniser(part, text(side), vocab_size) for side, column in enumerate(kind.files)}
