"""The kinds of training data in a recipe. Files of text are UTF-8, plain or `.gz`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..slots.options import AsTuple, Entry, OneOf, Options, Positive

Path = Annotated[str, Field(min_length=1)]
HeldOut = Annotated[
    int,
    Field(
        ge=1,
        description="rows held out for validation if no file is named, chosen by `seed`; 1 of 20 unless written, at most 1,000",
    ),
]


CorpusName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,49}$", description="what the corpus is called")]
FILE_OPTIONS = ("source", "target", "alignment", "distilled", "text", "table")


Alignment = Annotated[
    Path, Field(description="links of their words, line by line (`0-0 1-2`), which a head learns: `loss.alignment`")
]
Distilled = Annotated[
    Path,
    Field(
        description="translations of `source` by a teacher (`tfkit translate --n-best N`), of which the nearest to its line of "
        "`target` is learnt in place of it"
    ),
]
GoldAlignment = Annotated[Path, Field(description="a gold alignment of the validation files; possible links have `?` or `p`")]


class OneCorpus(Options):
    """One of several corpora of a recipe."""

    name: CorpusName
    weight: Annotated[
        Positive | None, Field(description="rows of this corpus in an epoch, relative to the weights of the others")
    ] = None
    held_out: HeldOut | None = None


class ParallelCorpus(OneCorpus):
    """Two files with as many lines."""

    source: Annotated[Path, Field(description="sentences to translate, one per line")]
    target: Annotated[Path, Field(description="their translations, line by line")]
    validation_source: Annotated[Path | None, Field(description="as `source`, to choose the best model")] = None
    validation_target: Annotated[Path | None, Field(description="as `target`, to choose the best model")] = None
    alignment: Alignment | None = None
    validation_alignment: GoldAlignment | None = None
    distilled: Distilled | None = None
    source_prefix: Annotated[
        str | None, Field(min_length=1, max_length=200, description="what is put before every source, such as `<2de>`")
    ] = None


class TextCorpus(OneCorpus):
    """Running text."""

    text: Annotated[Path, Field(description="the text")]
    validation_text: Annotated[Path | None, Field(description="as `text`, to choose the best model")] = None


class TableCorpus(OneCorpus):
    """A table with the columns of `data`."""

    table: Annotated[Path, Field(description="the table")]
    validation_table: Annotated[Path | None, Field(description="as `table`, to choose the best model")] = None


MAX_CORPORA = 100
Temperature = Annotated[
    float,
    Field(
        ge=1.0,
        description="T: the share of a corpus is its rows to the power 1 / T; 1 concatenates, a large T makes shares equal",
    ),
]


class MayHaveCorpora(Options):
    """Data of one corpus, or of several in `corpora`, which then have the files."""

    @model_validator(mode="after")
    def _one_or_several(self) -> MayHaveCorpora:
        corpora, temperature = getattr(self, "corpora", None), getattr(self, "temperature", None)
        if corpora is None:
            if temperature is not None:
                raise ValueError("`temperature` divides an epoch among `corpora`, which are not written")
            return self
        names = [name for name in FILE_OPTIONS for name in (name, f"validation_{name}") if getattr(self, name, None)]
        names += ["held_out"] * (getattr(self, "held_out", None) is not None)
        if names:
            raise ValueError(f"`{names[0]}` is written beside `corpora`, each of which has its own")
        repeated = {corpus.name for corpus in corpora if [other.name for other in corpora].count(corpus.name) > 1}
        if repeated:
            raise ValueError(f"two of `corpora` have the name `{min(repeated)}`")
        if temperature is not None and any(corpus.weight is not None for corpus in corpora):
            raise ValueError("write `temperature` or a `weight`, not both")
        return self


class ParallelText(MayHaveCorpora):
    """Two files with as many lines: line n of `target` translates line n of `source`."""

    corpora: Annotated[
        tuple[ParallelCorpus, ...] | None,
        AsTuple,
        Field(min_length=1, max_length=MAX_CORPORA, description="several corpora, each with its files"),
    ] = None
    temperature: Temperature | None = None

    source: Annotated[Path | None, Field(description="sentences to translate, one per line")] = None
    target: Annotated[Path | None, Field(description="their translations, line by line")] = None
    validation_source: Annotated[Path | None, Field(description="as `source`, to choose the best model")] = None
    validation_target: Annotated[Path | None, Field(description="as `target`, to choose the best model")] = None
    alignment: Alignment | None = None
    validation_alignment: GoldAlignment | None = None
    distilled: Distilled | None = None
    held_out: HeldOut | None = None


class LanguageText(MayHaveCorpora):
    """Running text, cut into pieces of `batching.max_length` tokens; the model learns to predict each next token."""

    corpora: Annotated[
        tuple[TextCorpus, ...] | None,
        AsTuple,
        Field(min_length=1, max_length=MAX_CORPORA, description="several corpora, each with its files"),
    ] = None
    temperature: Temperature | None = None

    text: Annotated[Path | None, Field(description="the text")] = None
    validation_text: Annotated[Path | None, Field(description="as `text`, to choose the best model")] = None
    held_out: Annotated[
        int | None,
        Field(
            ge=1,
            description="lines held out if no validation file is named, the last ones; 1 of 20 unless written, at most 1,000",
        ),
    ] = None


class Texts(LanguageText):
    """Texts, one per line; the model learns to predict each token of a text after its first, and its end. A line that is longer
    than `batching.max_length` is left out."""

    held_out: HeldOut | None = None


class MaskedText(LanguageText):
    """Running text, one row per line; the model learns to predict hidden tokens. Of these 80 % become `<mask>`, 10 % a random
    token, and 10 % stay. They are drawn again in each epoch. https://aclanthology.org/N19-1423/"""

    hidden: Annotated[float, Field(gt=0.0, lt=1.0, description="share of the tokens that are hidden")] = 0.15
    masking: Annotated[
        str | None,
        OneOf("tokens", "words", "spans"),
        Field(description="what is hidden: tokens, whole words, or spans of words; tokens unless written"),
    ] = None
    held_out: HeldOut | None = None


class MaskedPairs(MaskedText):
    """Running text, one sentence per line, with an empty line between documents. A row is a pair of pieces of text; in half of
    the pairs the second piece follows the first, in the others it is from another document. The model learns to predict hidden
    tokens, and whether the second piece follows."""

    held_out: Annotated[
        int | None,
        Field(
            ge=1,
            description="lines held out if no validation file is named, the last ones; 1 of 20 unless written, at most 1,000",
        ),
    ] = None


class Columns(Options):
    """Data of a table, whose columns are counted from 1."""

    @model_validator(mode="after")
    def _differ(self) -> Columns:
        columns = {name: getattr(self, name) for name in type(self).model_fields if name.endswith("_column")}
        for name, column in columns.items():
            if same := [f"`{other}`" for other in columns if other < name and columns[other] == column]:
                raise ValueError(f"{same[0]} and `{name}` are both {column}; write two columns")
        return self


class LabelledTable(MayHaveCorpora, Columns):
    """Lines with tabs between their columns, counted from 1: a text and its label."""

    corpora: Annotated[
        tuple[TableCorpus, ...] | None,
        AsTuple,
        Field(min_length=1, max_length=MAX_CORPORA, description="several corpora, each with its files"),
    ] = None
    temperature: Temperature | None = None

    table: Annotated[Path | None, Field(description="the table")] = None
    validation_table: Annotated[Path | None, Field(description="as `table`, to choose the best model")] = None
    text_column: Annotated[int, Field(ge=1, description="the column of the text, counted from 1")] = 1
    label_column: Annotated[int, Field(ge=1, description="the column of the label, counted from 1")] = 2
    header: Annotated[bool, Field(description="the first line names the columns")] = False
    held_out: HeldOut | None = None


class LabelledPairs(LabelledTable):
    """Lines with tabs between their columns, counted from 1: two texts and the label of the pair. The model reads
    `<s> first </s> second </s>`; segment 0 ends with the first `</s>`, segment 1 follows."""

    second_column: Annotated[int, Field(ge=1, description="the column of the second text, counted from 1")] = 2
    label_column: Annotated[int, Field(ge=1, description="the column of the label, counted from 1")] = 3


class TaggedWords(Columns):
    """A word and its tag on each line, with white space between the columns, and an empty line between sentences. The label of
    a word is at its first piece; its other pieces have none."""

    table: Annotated[Path | None, Field(description="the file")] = None
    validation_table: Annotated[Path | None, Field(description="as `table`, to choose the best model")] = None
    text_column: Annotated[int, Field(ge=1, description="the column of the word, counted from 1")] = 1
    label_column: Annotated[int, Field(ge=1, description="the column of the tag, counted from 1")] = 2
    held_out: HeldOut | None = None


class Questions(Options):
    """Questions, their contexts and their answers, which are parts of the contexts: SQuAD's JSON (`.json`), JSON lines
    (`.jsonl`), or a table whose first line names the columns `question`, `context`, `answer` and `answer_start`, with tabs
    between them. `answer_start` counts the characters of the context before the answer. A question without an answer is
    unanswerable.

    The model reads `<s> question </s> context </s>`, as segments 0 and 1, and learns where the answer starts and where it ends.
    A context that is too long for `batching.max_length` is read in windows that overlap by half or more. The answer of a window
    without it is its first token."""

    questions: Annotated[Path | None, Field(description="the file")] = None
    validation_questions: Annotated[Path | None, Field(description="as `questions`, to choose the best model")] = None
    stride: Annotated[int, Field(ge=1, description="most tokens from the start of a window to that of the next")] = 128
    held_out: HeldOut | None = None


class LabelledImages(Options):
    """Images of the size and the number of channels of the model, and their labels: two idx files, plain or `.gz`
    (http://yann.lecun.com/exdb/mnist/), or a folder with one sub-folder of PNG and JPEG files for each label.

    A pixel v of 0 .. 255 becomes (v / 255 - mean) / std. In training, each image is rotated about its centre and shifted, by
    angles and distances that are uniform up to the limits; what comes into view is 0 before this normalisation."""

    images: Annotated[Path | None, Field(description="an idx file of images, or a folder of sub-folders")] = None
    labels: Annotated[Path | None, Field(description="an idx file of labels; a folder has none")] = None
    validation_images: Annotated[Path | None, Field(description="as `images`, to choose the best model")] = None
    validation_labels: Annotated[Path | None, Field(description="as `labels`, to choose the best model")] = None
    mean: Annotated[
        tuple[float, ...], AsTuple, Field(min_length=1, description="mean of a channel, from 0 to 1: one for all, or each")
    ] = (0.5,)
    std: Annotated[
        tuple[Annotated[float, Field(gt=0.0)], ...],
        AsTuple,
        Field(min_length=1, description="standard deviation of a channel: one for all, or each"),
    ] = (0.5,)
    shift: Annotated[float, Field(ge=0.0, description="largest random shift in training, in pixels, in each direction")] = 0.0
    rotation: Annotated[float, Field(ge=0.0, le=180.0, description="largest random rotation in training, in degrees")] = 0.0
    held_out: HeldOut | None = None


DATA = (
    Entry(name="parallel", summary="sentences and their translations: an encoder-decoder", options=ParallelText),
    Entry(name="language", summary="running text: a decoder that predicts the next token", options=LanguageText),
    Entry(name="texts", summary="texts, one per line: a decoder that predicts the next token, and the end", options=Texts),
    Entry(name="masked", summary="lines of text: an encoder that predicts hidden tokens", options=MaskedText),
    Entry(
        name="masked_pairs", summary="documents: an encoder that predicts hidden tokens and the next sentence",
        options=MaskedPairs,
    ),
    Entry(name="classification", summary="texts and their labels: an encoder with a `classify` node", options=LabelledTable),
    Entry(name="pairs", summary="pairs of texts and their labels: an encoder with a `classify` node", options=LabelledPairs),
    Entry(name="tagged", summary="words and their tags: an encoder with a `classify` node for each token", options=TaggedWords),
    Entry(
        name="spans", summary="questions, contexts and answers: an encoder with a `span_logits` node", options=Questions,
        reference="https://aclanthology.org/P18-2124/",
    ),
    Entry(name="images", summary="images and their labels: an encoder with a `classify` node", options=LabelledImages),
)  # fmt: skip
