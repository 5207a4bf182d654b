"""The parts of recipes, optimisers, schedules, teacher forcing and tokenisers, and which keys are allowed where."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, model_validator

from ..catalogue import Catalogue, Registration, load_catalogue
from ..distribution import NAME
from ..errors.control_characters import CONTROL_OR_LINE_END, UNSEEN, as_seen, shown
from ..slots.options import AsTuple, Entry, OneOf, Options, Positive, Probability, Size
from ..spec.grammar import Grammar
from ..spec.schema_writer import Schema, SchemaWriter, document, required
from ..spec.versions import CURRENT
from .data_kinds import DATA
from .recipe import Recipe, Stopping


class AdamOptions(Options):
    """Adam with the defaults of Vaswani et al. 2017."""

    beta1: Annotated[Probability, Field(description="decay of the mean of the gradients")] = 0.9
    beta2: Annotated[Probability, Field(description="decay of the mean of their squares")] = 0.98
    eps: Annotated[Positive, Field(description="added to the root of that mean")] = 1e-9


class AdamWOptions(AdamOptions):
    """`weight_decay` applies to matrices and tables, not to gains and biases (parameters of one dimension)."""

    weight_decay: Annotated[float, Field(ge=0.0, description="share of a weight removed per step, times the learning rate")] = (
        0.01
    )


class AdadeltaOptions(Options):
    """Adadelta with the settings of Bahdanau et al. 2015, whose rate is 1."""

    rho: Annotated[Probability, Field(description="decay of the means of the squares of gradients and of changes")] = 0.95
    eps: Annotated[Positive, Field(description="added to both means under their roots")] = 1e-6


class SgdOptions(Options):
    """v = momentum v + gradient; a step subtracts the rate times v. Sutskever et al. 2013, equation 1, times the rate."""

    momentum: Annotated[Probability, Field(description="decay of the sum of gradients; 0 is the gradient alone")] = 0.0


OPTIMISERS = (
    Entry(
        name="adadelta", summary="changes in the units of the weights, with a rate of about 1", options=AdadeltaOptions,
        reference="https://arxiv.org/abs/1212.5701",
    ),
    Entry(name="adam", summary="Adam", options=AdamOptions, reference="https://arxiv.org/abs/1412.6980"),
    Entry(
        name="adamw", summary="Adam with decoupled weight decay", options=AdamWOptions,
        reference="https://arxiv.org/abs/1711.05101",
    ),
    Entry(
        name="sgd", summary="the gradient times the rate, as in Luong et al. 2015 with `halving`; with momentum on request",
        options=SgdOptions, reference="https://proceedings.mlr.press/v28/sutskever13.html",
    ),
)  # fmt: skip


# Learning rates as functions of the step n, counted from 1.
#
# noam           factor * d_model^-1/2 * min(n^-1/2, n * warmup^-3/2)        https://arxiv.org/abs/1706.03762, equation 3
# inverse_sqrt   peak * min(n / warmup, (warmup / n)^1/2)                    the same shape, given by its peak
# cosine         peak * n / warmup, then from peak to floor along half a cosine until step `steps`, then floor
# linear         peak * n / warmup, then from peak to floor along a line until step `steps`, then floor
#                                                                            https://arxiv.org/abs/1810.04805, appendix A.2
# constant       peak * min(n / warmup, 1)
# halving        the same until step `start`, then half of it, and half again after every further `every` steps
#                                                                            https://arxiv.org/abs/1508.04025, section 4.1
# plateau        that of constant, times factor^k after k plateaus of the validation, at least floor

Warmup = Annotated[int, Field(ge=1, description="steps until the highest rate")]


class NoamOptions(Options):
    """The schedule of Vaswani et al. 2017. Its peak is factor * (d_model * warmup_steps)^-1/2."""

    factor: Annotated[Positive, Field(description="factor of the rate in the paper")] = 1.0
    warmup_steps: Warmup = 4000


class PeakOptions(Options):
    """`peak` is the highest learning rate, reached after `warmup_steps`."""

    peak: Annotated[Positive, Field(description="the highest learning rate")]
    warmup_steps: Warmup = 1


class DecayOptions(PeakOptions):
    """From `peak` to `floor`, which is reached at step `steps`."""

    steps: Annotated[Size, Field(description="the first step with the rate `floor`; more than `warmup_steps`")]
    floor: Annotated[float, Field(ge=0.0, description="the lowest learning rate, at most `peak`")] = 0.0

    @model_validator(mode="after")
    def _in_order(self) -> DecayOptions:
        if self.steps <= self.warmup_steps:
            raise ValueError(f"`steps` is {self.steps}, not more than `warmup_steps`, which is {self.warmup_steps}")
        if self.floor > self.peak:
            raise ValueError(f"`floor` is {self.floor}, more than `peak`, which is {self.peak}")
        return self


class HalvingOptions(PeakOptions):
    """`peak` until step `start`, then halved at once and after every further `every` steps."""

    start: Annotated[Size, Field(description="the last step with the rate `peak`")]
    every: Annotated[Size, Field(description="steps with each lower rate; those of an epoch in the paper")]


class PlateauOptions(PeakOptions):
    """After `patience` validations in a row without a better score, the next one without reduces the rate by `factor`. A score
    is better if it exceeds the best one by the share `threshold` of it: that of `validation.metric`, as torch's
    ReduceLROnPlateau compares."""

    factor: Annotated[float, Field(gt=0.0, lt=1.0, description="factor of the rate at a plateau")] = 0.1
    patience: Annotated[int, Field(ge=0, le=2**40, description="validations without a better score that change nothing")] = 10
    threshold: Annotated[float, Field(ge=0.0, lt=1.0, description="a smaller relative change of the score is none")] = 1e-4
    floor: Annotated[float, Field(ge=0.0, description="the lowest learning rate, at most `peak`")] = 0.0

    @model_validator(mode="after")
    def _falls(self) -> PlateauOptions:
        if self.floor > self.peak:
            raise ValueError(f"`floor` is {self.floor}, more than `peak`, which is {self.peak}")
        return self


@dataclass(frozen=True, kw_only=True)
class Schedule(Entry):
    """`rate(options, step, d_model)` is the learning rate of a step, counted from 1; of `plateau`, that before reductions."""

    rate: Callable[[Any, int, int], float]


def noam(options: NoamOptions, step: int, d_model: int) -> float:
    return (
        options.factor
        / math.sqrt(d_model)
        * min(1 / math.sqrt(step), step / options.warmup_steps / math.sqrt(options.warmup_steps))
    )


def inverse_sqrt(options: PeakOptions, step: int, d_model: int) -> float:
    return options.peak * min(step / options.warmup_steps, math.sqrt(options.warmup_steps / step))


def cosine(options: DecayOptions, step: int, d_model: int) -> float:
    if step <= options.warmup_steps:
        return options.peak * step / options.warmup_steps
    done = min((step - options.warmup_steps) / (options.steps - options.warmup_steps), 1.0)
    return options.floor + (options.peak - options.floor) * (1 + math.cos(math.pi * done)) / 2


def linear_rate(options: DecayOptions, step: int, d_model: int) -> float:
    if step <= options.warmup_steps:
        return options.peak * step / options.warmup_steps
    left = max(options.steps - step, 0) / (options.steps - options.warmup_steps)
    return options.floor + (options.peak - options.floor) * left


def constant(options: PeakOptions, step: int, d_model: int) -> float:
    return options.peak * min(step / options.warmup_steps, 1.0)


def halving(options: HalvingOptions, step: int, d_model: int) -> float:
    times = max(0, -((options.start - step) // options.every))  # rounded up
    return math.ldexp(constant(options, step, d_model), -times)


SCHEDULES = (
    Schedule(name="noam", summary="the paper's: linear warm-up, then step^-1/2", options=NoamOptions, rate=noam),
    Schedule(name="inverse_sqrt", summary="linear warm-up to a peak, then step^-1/2", options=PeakOptions, rate=inverse_sqrt),
    Schedule(name="cosine", summary="linear warm-up to a peak, then half a cosine", options=DecayOptions, rate=cosine),
    Schedule(
        name="linear", summary="linear warm-up to a peak, then a line to the floor", options=DecayOptions, rate=linear_rate
    ),
    Schedule(name="constant", summary="linear warm-up to a peak, then the peak", options=PeakOptions, rate=constant),
    Schedule(name="halving", summary="a peak that is halved again and again", options=HalvingOptions, rate=halving),
    Schedule(
        name="plateau",
        summary="linear warm-up to a peak, which is reduced when validations stop to improve",
        options=PlateauOptions,
        rate=constant,
    ),
)


# The share of input tokens that a decoder gets from the data in training, as a function of the step n, counted from 1.
# The other input tokens are the model's own predictions: scheduled sampling, https://arxiv.org/abs/1506.03099, section 2.4
#
# constant          ratio
# linear            from `start` at step 1 to `end` at step `steps`, then `end`
# inverse_sigmoid   k / (k + exp(n / k))

Share = Annotated[float, Field(ge=0.0, le=1.0, description="share of input tokens from the data")]


class ForcingOptions(Options):
    """Options of every share."""

    predicted: Annotated[
        str,
        OneOf("best", "drawn"),
        Field(
            description="the predicted token is the `best` one, or `drawn` from the model's distribution (Bengio et al. 2015)"
        ),
    ] = "best"


class ConstantOptions(ForcingOptions):
    """The same share at every step."""

    ratio: Share


class LinearOptions(ForcingOptions):
    """A share that changes by the same amount at every step."""

    start: Annotated[float, Field(ge=0.0, le=1.0, description="share of input tokens from the data at the first step")] = 1.0
    end: Annotated[float, Field(ge=0.0, le=1.0, description="share from step `steps` on")] = 0.0
    steps: Annotated[int, Field(ge=2, description="the first step with the share `end`")]


class InverseSigmoidOptions(ForcingOptions):
    """A share that falls slowly, then fast, then slowly; it is one half at step k ln k."""

    k: Annotated[float, Field(ge=1.0, description="the larger, the later the share falls")]


@dataclass(frozen=True, kw_only=True)
class TeacherForcing(Entry):
    """`ratio(options, step)` is the share of input tokens from the data at a step, counted from 1."""

    ratio: Callable[[Any, int], float]


def linear_share(options: LinearOptions, step: int) -> float:
    done = min((step - 1) / (options.steps - 1), 1.0)
    return options.start + (options.end - options.start) * done


def inverse_sigmoid(options: InverseSigmoidOptions, step: int) -> float:
    return options.k / (options.k + math.exp(min(step / options.k, 700.0)))  # exp(710) overflows


TEACHER_FORCING = (
    TeacherForcing(
        name="constant", summary="one share", options=ConstantOptions, ratio=lambda options, step: float(options.ratio)
    ),
    TeacherForcing(name="linear", summary="a share that changes evenly", options=LinearOptions, ratio=linear_share),
    TeacherForcing(
        name="inverse_sigmoid", summary="a share that falls as k / (k + exp(n / k))", options=InverseSigmoidOptions,
        ratio=inverse_sigmoid,
    ),
)  # fmt: skip


# The tokenisers of a recipe. The `tokenizers` library trains them; they are saved with the model. With byte fallback, no text
# is unknown. A run of spaces counts as one space; decoding restores normalised text except for such runs.


Symbol = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\S+$")]
RESERVED = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
RESERVED_BYTE = re.compile("<0x[0-9A-F]{2}>")


class TextOptions(Options):
    """Options of all tokenisers: normalisation, and whether source and target share one vocabulary. `nfc` composes letters with
    their marks. `nfkc` also replaces characters by plain ones, which changes numbers: 10² becomes 102."""

    joint: Annotated[bool, Field(description="one vocabulary for source and target")] = True
    normalise: Annotated[str, OneOf("none", "nfc", "nfkc"), Field(description="Unicode normalisation form")] = "nfc"
    lowercase: Annotated[bool, Field(description="convert to lower case")] = False
    symbols: Annotated[
        tuple[Symbol, ...] | None,
        AsTuple,
        Field(max_length=100, description="texts that are one token each, never divided or normalised: `<url>`, `<2de>`"),
    ] = None

    @model_validator(mode="after")
    def _symbols_differ(self) -> TextOptions:
        composed: dict[str, str] = {}
        for at, symbol in enumerate(self.symbols or ()):
            if symbol in (self.symbols or ())[:at]:
                raise ValueError(f"the symbol `{symbol}` is written twice")
            if symbol in RESERVED or "▁" in symbol or RESERVED_BYTE.fullmatch(symbol):
                raise ValueError(f"`{symbol}` is a token of every tokeniser, and no symbol")
            if match := CONTROL_OR_LINE_END.search(symbol):
                raise ValueError(f"the symbol `{shown(symbol)}` holds the control character U+{ord(match[0]):04X}")
            if re.fullmatch(f"[{UNSEEN}]+", symbol):
                raise ValueError(f"the symbol {symbol!a} cannot be seen")
            if (same := as_seen(symbol)) in composed:
                raise ValueError(f"the symbols {composed[same]!a} and {symbol!a} look the same")
            composed[same] = symbol
        return self


class SubwordOptions(TextOptions):
    """`vocab_size` counts special tokens, the 256 bytes of `byte_fallback`, and learned tokens."""

    vocab_size: Annotated[
        int | None, Field(ge=4, le=1_000_000, description="chosen by the size of the corpus unless written")
    ] = None
    byte_fallback: Annotated[bool, Field(description="write unknown characters as bytes, so that no text is lost")] = True
    extend: Annotated[
        Annotated[int, Field(ge=1, le=1_000_000)] | Annotated[str, Field(min_length=1)] | None,
        Field(description="with `pretrained`: the number of pieces that its tokeniser gets for this text, or a file of them"),
    ] = None


class BpeOptions(SubwordOptions):
    """`dropout` leaves merges out in training, so that words have other pieces in each epoch; it does not change validation or
    translation. https://aclanthology.org/2020.acl-main.170/"""

    dropout: Annotated[
        float | None, Field(ge=0.0, le=1.0, description="BPE dropout of training rows: share of merges left out; 0.1 is usual")
    ] = None


class Sampling(Options):
    """Segmentations of training rows are drawn with a probability proportional to P^alpha, of all that there are."""

    alpha: Annotated[float, Field(ge=0.0, le=100.0, description="0: all are as likely; larger: nearer to the best one")] = 0.2


class UnigramOptions(SubwordOptions):
    """`sampling` draws other pieces for words in training; it does not change validation or translation.
    https://aclanthology.org/P18-1007/"""

    sampling: Annotated[Sampling | None, Field(description="draw the pieces of training rows (subword regularisation)")] = None


TOKENISERS = (
    Entry(
        name="bpe", summary="byte pair encoding: frequent neighbours are merged", options=BpeOptions,
        reference="https://aclanthology.org/P16-1162/",
    ),
    Entry(
        name="unigram", summary="the pieces of a unigram language model", options=UnigramOptions,
        reference="https://aclanthology.org/P18-1007/",
    ),
    Entry(name="characters", summary="every character is a token", options=TextOptions),
)  # fmt: skip


PARTS: dict[str, tuple[Entry, ...]] = {
    "data": DATA,
    "tokeniser": TOKENISERS,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "teacher_forcing": TEACHER_FORCING,
}


@cache
def recipe_grammar() -> Grammar:
    """The grammar of recipes: the parts above, the score filters that are installed, and no nodes."""
    registered: dict[str, Mapping[str, Registration]] = {
        slot: MappingProxyType({entry.name: Registration(entry, "builtin", NAME) for entry in entries})
        for slot, entries in {**PARTS, "node": (), "sublayer": ()}.items()
    }
    registered["score_filter"] = load_catalogue().registered["score_filter"]
    return Grammar(Catalogue(MappingProxyType(registered)), Recipe, (*Recipe.model_fields, "extends"))


# The JSON Schema of a written recipe: kinds of data, tokenisers, optimisers and schedules with their options.
#
# It agrees with `tfkit train` with two exceptions: it cannot express rules between two numbers (`steps` of a cosine exceeds
# `warmup_steps`), and it accepts `5.0` as a whole number.


def recipe_schema() -> Schema:
    """Build the JSON Schema of written recipes.

    Returns:
        The schema as plain data, draft 2020-12. A recipe that extends another may remove keys with null and leave keys out.
    """
    grammar, definitions = recipe_grammar(), Schema()
    whole = _RecipeWriter(grammar, definitions, extending=False, alone=True).recipe()
    part = _RecipeWriter(grammar, definitions, extending=True).recipe()
    return document("tfkit recipe", whole, part, definitions)


class _RecipeWriter(SchemaWriter):
    def recipe(self) -> Schema:
        top = self.properties(Recipe, Recipe.model_fields)
        top["tfkit"] = {"const": CURRENT, "description": "version of the language"}
        top["extends"] = {"type": "string", "minLength": 1, "description": "another recipe, which this one changes"}
        if self.alone:
            ends = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in Stopping.model_fields]
            top["stopping"] = {**top["stopping"], "anyOf": ends}
        schema = self.mapping({key: top[key] for key in self.grammar.top})
        return {**schema, "required": required(Recipe) if self.alone else ["tfkit", "name"]}
