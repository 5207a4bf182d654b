"""The kinds of data: their files, and the ids of a row.

parallel         source s1 .. sn </s>, target t1 .. tm </s>
language         target t1 .. tn+1, n tokens of the running text and the next one
texts            target t1 .. tn </s>
masked           target <s> t1 .. tn </s>
masked_pairs     target <s> a1 .. am </s> b1 .. bn </s>, and whether b follows a (sentence_pairs.py)
classification   target <s> t1 .. tn </s>, and a label
pairs            target <s> a1 .. am </s> b1 .. bn </s>, and a label
tagged           target <s> t1 .. tn </s>, and the labels of first pieces of words (tagged.py)
spans            target <s> q1 .. qm </s> c1 .. cn </s>, and the ends of an answer (spans.py)
images           the pixels of an image, and a label: see image_files.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from string import punctuation
from unicodedata import category

from ..errors import Diagnostic, InputError, Location
from ..recipe import Recipe
from .corpus_row import GROUP, Numbered, Row
from .labels import label_fault
from .questions import questions
from .sentence_pairs import sentence_pairs
from .spans import span_rows
from .tagged import tagged_rows, tagged_sentences
from .text_lines import groups, rows
from .tokeniser import TextTokeniser, training_bounds

MAX_WORD = 10_000
"""The longest word of training text, in characters. The time of training a tokeniser grows with it."""


@dataclass(frozen=True)
class DataKind:
    """How to read a kind of data.

    Attributes:
        files: The options of a recipe that name the files, by column of the corpus.
        encode: Makes rows of numbered texts; None for images.
        texts: The number of texts of a row.
        sentences: Whether each line is one text; otherwise the lines are running text.
        continued: Whether each line continues the previous one, so that the last lines are held out.
        masks: Whether tokens will be masked.
        labelled: Whether rows have labels.
        tagged: Whether each word has a label.
        spans: Whether rows have an answer to a question.
        numbers: The numbers of a row, by column of the corpus.
    """

    files: Mapping[str, str]
    encode: Callable[[Numbered, Mapping[str, TextTokeniser], Recipe], Iterator[Row]] | None
    texts: int = 1
    sentences: bool = True
    continued: bool = False
    masks: bool = False
    labelled: bool = False
    tagged: bool = False
    spans: bool = False

    @property
    def numbers(self) -> tuple[str, ...]:
        if self.spans:
            return ("start", "end")
        return ("label",) if self.labelled and not self.tagged else ("random",) if self.encode is sentence_pairs else ()

    @property
    def sources(self) -> int:
        """The number of inputs, without the one that is predicted."""
        return len(self.files) - 1

    def line(self, number: int, texts: tuple[str, ...]) -> int:
        """The line of a row, from 1; the lines of words and questions are their last text."""
        return int(texts[-1].split()[0]) if self.tagged or self.spans else number + 1


def text_rows(recipe: Recipe, files: Mapping[str, str]) -> Numbered:
    """The texts of every line, with the line number from 0; for a table, the texts and the label. Raises InputError."""
    paths, words = tuple(files.values()), recipe.tokeniser.kind != "characters"
    kind = KINDS[recipe.data.kind]
    if kind.tagged:
        numbered = tagged_sentences(recipe, paths[0])
    elif kind.spans:
        numbered = questions(paths[0])
    else:
        numbered = _cells(recipe, paths[0]) if kind.labelled else enumerate(rows(*paths))
    places = paths if len(paths) == kind.texts else paths * kind.texts
    blank = set(paths)
    bounds = training_bounds(recipe.tokeniser)
    number = -1  # a table may have its header alone
    for number, texts in numbered:
        for path, text in zip(places, texts, strict=False):
            if len(text) > MAX_WORD:
                location = Location(path, kind.line(number, texts))
                bounds.check(text, 2 if kind.spans else 1, location)
                if words:
                    _check_words(text, location)
        if blank:
            blank -= {path for path, text in zip(places, texts, strict=False) if text.strip()}
        yield number, texts
    for path in sorted(blank):
        fault = f"no line of {number + 1:,} has text" if number >= 0 else "there is no row"
        raise InputError(Diagnostic("TFK103", f"{path}: {fault}", "name a file that has text"))


def _check_words(text: str, location: Location) -> None:
    """Raises InputError for a word longer than `MAX_WORD`. White space and punctuation end a word, as in tokenisers."""
    for piece in text.split():
        if len(piece) <= MAX_WORD:
            continue
        ends = [at for at, letter in enumerate(piece) if letter in punctuation or category(letter)[0] == "P"]
        longest = max(end - start for start, end in pairwise([-1, *ends, len(piece)])) - 1
        if longest > MAX_WORD:
            message = f"a word has {longest:,} characters, {MAX_WORD:,} is the limit of training text"
            fix = "put spaces or line breaks into the line, or remove it; `tokeniser: {kind: characters}` reads no words"
            raise InputError(Diagnostic("TFK101", message, fix, location=location))


def _cells(recipe: Recipe, path: str) -> Numbered:
    """The texts and the label of every line of a table."""
    options = recipe.data.options
    columns = [getattr(options, name) for name in _columns_of(recipe)]
    needed = max(columns)
    width = 0
    for number, (line,) in enumerate(rows(path)):
        cells, location = line.split("\t"), Location(path, number + 1)
        if len(cells) < needed:
            message = f"the line has {len(cells)} {_columns(len(cells))}, but the recipe names column {needed}"
            raise InputError(
                Diagnostic("TFK115", message, "columns have tabs between them and count from 1", location=location)
            )
        if not width:
            width = len(cells)
            _check_chosen(recipe, width, location)
        if len(cells) != width:
            message = f"the line has {len(cells)} columns, line 1 has {width}"
            raise InputError(
                Diagnostic("TFK115", message, "is there a tab inside a text? write a space for it", location=location)
            )
        label = cells[options.label_column - 1].strip()
        if number < options.header:
            continue
        if not label:
            message = f"the label, column {options.label_column}, is empty"
            raise InputError(Diagnostic("TFK115", message, "write a label, or remove the line", location=location))
        if fault := label_fault(label):
            raise InputError(Diagnostic("TFK115", fault, "write another label", location=location))
        yield number, (*(cells[column - 1] for column in columns[:-1]), label)


def _columns_of(recipe: Recipe) -> list[str]:
    """The options that name the columns of a table, that of the label last."""
    return ["text_column", *["second_column"][: KINDS[recipe.data.kind].texts - 1], "label_column"]


def _check_chosen(recipe: Recipe, width: int, location: Location) -> None:
    """Raises InputError if a table has more columns than the data need, and the recipe does not name them."""
    names = _columns_of(recipe)
    if width > len(names) and not recipe.written_keys("data").keys() & set(names):
        texts = "the text" if len(names) == 2 else "the texts"
        message = f"the table has {width} columns, and nothing says which hold {texts} and the label"
        keys = [f"`data.{name}`" for name in names]
        columns = f"{', '.join(keys[:-1])} and {keys[-1]}"
        fix = f"write {columns}, counted from 1, or remove the tabs that are inside a text"
        raise InputError(Diagnostic("TFK115", message, fix, location=location))


def _columns(count: int) -> str:
    return "column" if count == 1 else "columns"


def _parallel(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    for group in groups(numbered, GROUP):
        sides = [tokeniser.encode([texts[side] for _, texts in group]) for side, tokeniser in enumerate(tokenisers.values())]
        for (number, texts), *encoded in zip(group, *sides, strict=True):
            yield Row(number + 1, texts, tuple(map(_framed, tokenisers.values(), encoded)), tuple(map(len, encoded)))


def _language(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    width, rest, at = recipe.batching.max_length, list[int](), 0
    for group in groups(numbered, GROUP):
        at = group[-1][0] + 1
        # Line by line, because the library needs superlinear time and memory for long texts. No word crosses a line end.
        rest += chain.from_iterable(tokenisers["target"].encode([f"{texts[0]}\n" for _, texts in group]))
        ends = range(width, len(rest), width)
        for end in ends:
            yield Row(at, ("",), (rest[end - width : end + 1],), (width,))
        rest = rest[len(ends) * width :]
    if len(rest) > 1:
        yield Row(at, ("",), (rest,), (len(rest),))


def _texts(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    for group in groups(numbered, GROUP):
        for (number, texts), ids in zip(group, tokenisers["target"].encode([texts[0] for _, texts in group]), strict=True):
            yield Row(number + 1, texts, (_framed(tokenisers["target"], ids),), (len(ids),))


def _whole(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    for group in groups(numbered, GROUP):
        for (number, texts), ids in zip(group, tokenisers["target"].encode([texts[0] for _, texts in group]), strict=True):
            label = texts[1] if len(texts) > 1 else None
            yield Row(number + 1, texts[:1], (tokenisers["target"].text_frame(ids),), (len(ids),), label)


def _pairs(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    encode, frame = tokenisers["target"].encode, tokenisers["target"].pair_frame
    for group in groups(numbered, GROUP):
        firsts, seconds = (encode([texts[side] for _, texts in group]) for side in (0, 1))
        for (number, (one, two, label)), first, second in zip(group, firsts, seconds, strict=True):
            if set(frame.between) & set(first):
                message = f"line {number + 1}: the first text has a token that separates the texts"
                raise InputError(Diagnostic("TFK115", message, "remove it from the text"))
            yield Row(number + 1, (f"{one}\t{two}",), (frame(first, second),), (len(first), len(second)), label)


def _framed(tokeniser: TextTokeniser, ids: list[int]) -> list[int]:
    return tokeniser.source_frame(ids)


KINDS = {
    "parallel": DataKind({"source": "source", "target": "target"}, _parallel, texts=2),
    "language": DataKind({"target": "text"}, _language, sentences=False, continued=True),
    "texts": DataKind({"target": "text"}, _texts),
    "masked": DataKind({"target": "text"}, _whole, masks=True),
    "masked_pairs": DataKind({"target": "text"}, sentence_pairs, continued=True, masks=True),
    "classification": DataKind({"target": "table"}, _whole, labelled=True),
    "pairs": DataKind({"target": "table"}, _pairs, texts=2, labelled=True),
    "tagged": DataKind({"target": "table"}, tagged_rows, labelled=True, tagged=True),
    "spans": DataKind({"target": "questions"}, span_rows, texts=2, spans=True),
    "images": DataKind({"target": "images"}, None, labelled=True),
}
