"""From text files to corpora of ids: train the tokenisers, choose the held-out rows, encode, write."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import Diagnostic, InputError, StoreError
from ..files import make_folders, open_regular, write_whole
from ..recipe import Recipe
from .aligned_rows import check_links
from .corpus import GOLD, LINKS, TAGS, Corpus
from .corpus_facts import FACTS, CorpusCounts, describe_counts, read_facts
from .encode import CorpusEncoder
from .kinds import KINDS, text_rows
from .sources import sources_of
from .spans import SpanFacts
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
    """

    tokenisers: Mapping[str, TextTokeniser]
    train: Corpus
    validation: Corpus | None
    facts: Mapping[str, CorpusCounts]
    labels: tuple[str, ...] = ()
    spans: SpanFacts | None = None

    @property
    def vocab_size(self) -> int:
        """The number of ids of the target; 0 for images."""
        return self.tokenisers["target"].size if self.tokenisers else 0


def files_of(recipe: Recipe) -> tuple[dict[str, str], dict[str, str]]:
    """The training and the validation files of a recipe by column. Raises InputError if one is missing."""
    options, names = recipe.data.options, KINDS[recipe.data.kind].files
    train = {column: getattr(options, name) for column, name in names.items()}
    validation = {column: getattr(options, f"validation_{name}") for column, name in names.items()}
    missing = [names[column] for column, path in train.items() if path is None]
    if missing:
        flags = " ".join(f"--{name} FILE" for name in missing)
        message = f"the recipe names no file for {' and '.join(f'`data.{name}`' for name in missing)}"
        raise InputError(recipe.diagnostic("TFK108", "data", message, f"write it there, or give {flags}"))
    named = [(f"data.{names[column]}", path) for column, path in train.items()]
    named += [(f"data.{name}", getattr(options, name, None)) for name in ("alignment", "validation_alignment")]
    named += [(f"data.validation_{names[column]}", path) for column, path in validation.items()]
    diagnostics = [
        recipe.diagnostic("TFK100", key, f"{path} cannot be read: {reason}", "name a file of text, plain or `.gz`")
        for key, path in named
        if path is not None and (reason := _refused(path))
    ]
    if diagnostics:
        raise InputError(diagnostics)
    named_validation = [path for path in validation.values() if path is not None]
    if named_validation and len(named_validation) < len(validation):
        message = f"validation data need all of {', '.join(f'`data.validation_{name}`' for name in names.values())}"
        raise InputError(recipe.diagnostic("TFK108", "data", message))
    return train, validation if named_validation else {}


def alignments_of(recipe: Recipe) -> tuple[str | None, str | None]:
    """The files of links of the training and the validation rows. Rows that are held out have the file of all rows."""
    options = recipe.data.options
    links = getattr(options, "alignment", None)
    if getattr(options, "validation_source", None) is None:
        return links, links
    return links, getattr(options, "validation_alignment", None)


def _refused(path: str) -> str | None:
    """The reason why a file cannot be read several times; None for a missing file, which its reader reports."""
    if path == "-":
        return "text is read several times, but standard input can be read only once"
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return None
    except OSError as reason:
        return reason.strerror or str(reason)
    return None


def count_rows(recipe: Recipe) -> int:
    """The number of rows of the training files. Raises InputError for files that cannot be read or have different lengths."""
    train, _ = files_of(recipe)
    return sum(1 for _ in text_rows(recipe, train))


def prepare(
    recipe: Recipe,
    directory: Path,
    vocab_size: int,
    tokenisers: Mapping[str, TextTokeniser] | None = None,
    positions: Mapping[str, int] | None = None,
) -> Data:
    """Write the corpora of a recipe into a directory.

    Args:
        recipe: Names the files, and the limits of rows.
        directory: Where to write.
        vocab_size: The size of the tokenisers to train.
        tokenisers: By column; by default they are trained on the training text.
        positions: The maximum length of the model's inputs, by column; none for inputs without a limit.

    Returns:
        The data.

    Raises:
        InputError: A file cannot be read, is not text, or has no row left.
        StoreError: The directory cannot be written.
    """
    train, validation = files_of(recipe)
    held_out = held_out_rows(recipe, count_rows(recipe), bool(validation))
    links, gold = alignments_of(recipe)
    if links is not None:
        check_links(links, count_rows(recipe), train["target"])
    if validation:
        rows = sum(1 for _ in text_rows(recipe, validation))
        if gold is not None:
            check_links(gold, rows, validation["target"])
    sources = sources_of(recipe)  # after the rows are read: a file that is no text is not read whole
    labels = _labels(recipe, train)
    try:
        make_folders(directory)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be created: {reason.strerror}")) from None
    tokenisers = tokenisers or _tokenisers(recipe, train, vocab_size, held_out)
    encode = CorpusEncoder(recipe, tokenisers, labels, positions or {})
    facts = {"train": encode(train, directory / TRAIN, lambda row: row not in held_out, True, alignment=links)}
    if validation:
        facts["validation"] = encode(validation, directory / VALIDATION, lambda row: True, False, alignment=gold)
    elif held_out:
        facts["validation"] = encode(
            train, directory / VALIDATION, held_out.__contains__, False, held_out=True, alignment=links
        )
    if not facts["train"].kept:
        raise InputError(
            recipe.diagnostic(
                "TFK103", "data", f"no row of {', '.join(train.values())} is left", describe_counts(facts["train"])
            )
        )
    if "validation" in facts and not facts["validation"].kept:
        source = ", ".join(validation.values()) or "the rows that are held out"
        raise InputError(
            recipe.diagnostic("TFK103", "data", f"no row of {source} is left", describe_counts(facts["validation"]))
        )
    data = {
        "labels": labels,
        "pairs": recipe.data.kind == "pairs",
        "spans": encode.span_facts and encode.span_facts.model_dump(),
        "corpora": {name: counts.model_dump() for name, counts in facts.items()},
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
    links, gold = alignments_of(recipe)
    for name, corpus in (("train", train), ("validation", validation)):
        if corpus is not None:
            aligned = links if name == "train" else gold
            corpus.check(sizes, kind.spans, None if aligned is None else LINKS if name == "train" else GOLD)
            _check_counts(directory, name, facts[name], corpus, tuple(kind.files))
    if (data_facts.spans is not None) != kind.spans:
        raise _other_counts(directory, f"`spans` is {'missing' if kind.spans else 'there'}")
    if data_facts.spans is not None:
        longest = int((train.numbers["end"] - train.numbers["start"]).max()) + 1
        if longest != (stated := data_facts.spans.max_answer):
            raise _other_counts(directory, f"the longest answer has {stated:,} tokens, and in {TRAIN} it has {longest:,}")
    if not all(lengths.all() for lengths in train.lengths.values()):
        raise train.damaged("a row has no token")
    longest = max(int(lengths.max()) for lengths in train.lengths.values())
    if longest > recipe.batch_limit:
        message = f"a batch has room for {recipe.batching.tokens} tokens, the longest row has {longest}"
        fix = f"write at least {longest}, or a smaller `batching.max_length`"
        raise InputError(recipe.diagnostic("TFK109", "batching.tokens", message, fix))
    return Data(tokenisers, train, validation, facts, tuple(data_facts.labels), data_facts.spans)


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


def _other_counts(directory: Path, message: str) -> StoreError:
    fix = "one of the two was altered: start a new run"
    return StoreError(Diagnostic("TFK082", f"{directory / FACTS}: {message}", fix))


def held_out_rows(recipe: Recipe, total: int, validated: bool) -> frozenset[int]:
    """The training rows that are held out for validation if no validation file is named: random rows, or the last rows of
    running text, whose rows continue each other. The default number is a twentieth, at most 1,000."""
    requested = recipe.data.options.held_out
    if validated:
        if requested is not None:
            message = "rows are held out only if no validation files are named"
            raise InputError(recipe.diagnostic("TFK108", "data.held_out", message, "remove one of the two"))
        return frozenset()
    count = min(1000, total // 20) if requested is None else requested
    if count >= total:
        raise InputError(
            recipe.diagnostic("TFK108", "data.held_out", f"{count} of {total} rows would be held out", "hold out fewer")
        )
    if KINDS[recipe.data.kind].continued:
        return frozenset(range(total - count, total))
    generator = np.random.Generator(np.random.PCG64([recipe.seed, 0]))
    first = int(getattr(recipe.data.options, "header", False))
    return frozenset((generator.choice(total, count, replace=False) + first).tolist())


def _labels(recipe: Recipe, files: Mapping[str, str]) -> list[str]:
    """The labels of a table, sorted. Raises InputError if they cannot be classes: there is only one, or most rows have
    different labels."""
    if not KINDS[recipe.data.kind].labelled:
        return []
    counts = Counter(label for _, texts in text_rows(recipe, files) for label in _labels_of(recipe, texts))
    labels, rows = sorted(counts), counts.total()
    if len(labels) < 2 or (len(labels) > FEW_LABELS and 2 * len(labels) > rows):
        several = f"there are {len(labels):,} different labels in {rows:,} rows, more than one per two rows"
        message = several if len(labels) > 1 else f"every row has the label `{labels[0]}`" if labels else "there is no row"
        fix = f"`label_column`, now {recipe.data.options.label_column}, says which column holds the labels"
        raise InputError(recipe.diagnostic("TFK115", "data", message, fix))
    return labels


def _labels_of(recipe: Recipe, texts: Sequence[str]) -> Sequence[str]:
    """The labels of a row: one, or one for each word."""
    return texts[1].split(" ") if KINDS[recipe.data.kind].tagged else texts[-1:]


def _tokenisers(
    recipe: Recipe, files: Mapping[str, str], vocab_size: int, held_out: frozenset[int]
) -> Mapping[str, TextTokeniser]:
    """Tokenisers by column, trained on the training text without the held-out rows."""
    part, kind = recipe.tokeniser, KINDS[recipe.data.kind]

    def text(*sides: int) -> Iterator[str]:
        for number, texts in text_rows(recipe, files):
            if number not in held_out:
                yield from (texts[side] if kind.sentences else f"{texts[side]}\n" for side in sides)

    if part.options.joint or len(files) == 1:
        shared = train_tokeniser(part, text(*range(kind.texts)), vocab_size, kind.sentences, kind.masks)
        return dict.fromkeys(files, shared)
    return {column: train_tokeniser(part, text(side), vocab_size) for side, column in enumerate(files)}
