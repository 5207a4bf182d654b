"""A training recipe: everything that is decided about a training run, and nothing about the model, which its spec describes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PrivateAttr, model_validator

from ..errors import Diagnostic, InputError
from ..slots.options import AsTuple, Component, OneOf, Options, Positive, Probability, Size, SlotField, component_default
from ..spec.located import Located
from ..spec.model import nearest_node


class Batching(Options):
    """A batch holds sentences of nearly one length: at most `tokens` tokens with padding, on its longer side. A step takes
    `accumulate` batches, and its gradient is that of the mean over all their target tokens. `max_length` counts tokens, the
    end token included; unless it is written, it is no more than the model has positions."""

    tokens: Annotated[int, Field(ge=1, description="most tokens of a batch on its longer side, padding included")] = 4096
    accumulate: Annotated[int, Field(ge=1, description="batches that make one step")] = 1
    max_length: Annotated[int, Field(ge=2, description="longer rows are left out; tokens, the end token included")] = 256
    max_ratio: Annotated[float | None, Field(ge=1.0, description="pairs of which one side is longer by more are left out")] = (
        None
    )


class Loss(Options):
    """Cross-entropy with smoothed labels. `uniform` gives every id smoothing / V on top of what the label keeps (the paper,
    torch); `others` gives smoothing / (V - 1) to each id but the label (fairseq). Both are reported unsmoothed too."""

    label_smoothing: Annotated[Probability, Field(description="share of the probability that the label gives up")] = 0.1
    smoothing: Annotated[str, OneOf("uniform", "others"), Field(description="which ids get it: all, or all but the label")] = (
        "uniform"
    )


class Stopping(Options):
    """Training ends at the first of these; one at least must be written. `patience` counts validations without a better
    score. `max_minutes` bounds the time of `tfkit train` by the clock, from its start, with preparation, validation and saving,
    over all the times that a run was resumed: no step begins after it, or when only the time of the last validation is left;
    one step is made in any case. What then follows, a step, a validation and a checkpoint, is finished."""

    max_steps: Annotated[Size | None, Field(description="steps of the optimiser")] = None
    max_epochs: Annotated[Size | None, Field(description="times that the training data are read")] = None
    max_minutes: Annotated[
        Positive | None, Field(description="minutes of `tfkit train`, start-up and validation included; no step begins later")
    ] = None
    patience: Annotated[Size | None, Field(description="validations without a better score")] = None

    @model_validator(mode="after")
    def _ends(self) -> Stopping:
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None and self.patience is None:
            raise ValueError("write `max_steps`, `max_epochs`, `max_minutes` or `patience`, or it never ends")
        return self


class Validation(Options):
    """Every `every_steps` steps (once an epoch unless written) the validation data are scored, on the averaged weights where
    there are any. Translations for BLEU and chrF are made of the first `sentences` rows with `beams` beams."""

    every_steps: Annotated[Size | None, Field(description="steps between two; once an epoch unless written")] = None
    metric: Annotated[
        str, OneOf("loss", "bleu", "chrf", "accuracy"), Field(description="what the best checkpoint is best in")
    ] = "loss"
    beams: Annotated[Size, Field(description="of the translations that are scored; 1 is greedy")] = 1
    sentences: Annotated[Size, Field(description="rows that are translated, the first ones")] = 1000
    lowercase: Annotated[bool, Field(description="score without regard to case (sacrebleu -lc)")] = False


class Keeping(Options):
    """A checkpoint holds all that resuming needs; the model alone is kept for the best."""

    every_steps: Annotated[Size, Field(description="steps between two checkpoints")] = 500
    last: Annotated[int, Field(ge=1, description="checkpoints kept, the latest ones")] = 2
    best: Annotated[int, Field(ge=1, description="models kept, the best by validation")] = 1


class Recipe(Options):
    """A resolved recipe. What is None was left to be chosen by the size of the corpus (`tfkit.recipe.chosen_for`)."""

    tfkit: Annotated[int, Field(description="version of the language")]
    name: Annotated[str, Field(min_length=1, description="what the recipe is called")]
    reference: Annotated[str, Field(description="link to where the recipe is published")] = ""
    description: Annotated[str, Field(description="a few words about the recipe")] = ""
    model: Annotated[str, Field(min_length=1, description="the spec of the model: a file, relative to the recipe")]
    changes: Annotated[tuple[str, ...], AsTuple, Field(description="changes of the spec, as `--set` writes them")] = ()
    pretrained: Annotated[
        str | None, Field(min_length=1, description="a saved model or a run whose weights and tokenisers are started from")
    ] = None
    pretrained_share: Annotated[
        float | None,
        Field(ge=0.0, le=1.0, description="of the weights, tables of tokens aside, that it must give; half unless written"),
    ] = None
    data: Annotated[Component, SlotField("data"), Field(description="what is learnt from: its kind and its files")] = (
        component_default("parallel")
    )
    tokeniser: Annotated[Component, SlotField("tokeniser"), Field(description="how text becomes ids")] = component_default(
        "bpe"
    )
    batching: Batching = Batching()
    loss: Loss = Loss()
    optimiser: Annotated[Component, SlotField("optimiser"), Field(description="how a gradient moves the weights")] = (
        component_default("adam")
    )
    schedule: Annotated[Component, SlotField("schedule"), Field(description="the learning rate of each step")] = (
        component_default("noam")
    )
    clip_norm: Annotated[float | None, Field(gt=0.0, description="longest gradient; longer ones are shortened to it")] = None
    precision: Annotated[
        str, OneOf("float32", "bfloat16", "float16"), Field(description="of autocast; weights are float32")
    ] = "float32"
    average: Annotated[
        float | None, Field(gt=0.0, lt=1.0, description="decay of the exponential moving average of the weights")
    ] = None
    stopping: Stopping
    validation: Validation = Validation()
    keeping: Keeping = Keeping()
    activation_checkpointing: Annotated[bool, Field(description="keep less for the backward pass and compute it again")] = False
    compile: Annotated[bool, Field(description="train through torch.compile, on batches of few shapes")] = False
    seed: Annotated[
        int, Field(ge=0, le=2**32 - 1, description="of weights, dropout, the order of batches and held out rows")
    ] = 0
    _tree: Located | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recipe):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Recipe.model_fields)

    def diagnostic(self, code: str, path: str, message: str, fix: str = "") -> Diagnostic:
        """A fault of the value at a path of the recipe, located where it was written."""
        if self._tree is None:
            return Diagnostic(code, message, fix, path)
        node, _ = nearest_node(self._tree, path.split("."))
        return Diagnostic(code, message, fix, path, node.location)

    def wrote(self, slot: str) -> dict[str, Any]:
        """What was written of a part: its `kind`, which an override of one of its options does not write, and its options."""
        if slot not in self.model_fields_set:
            return {}
        part, node = getattr(self, slot), None if self._tree is None else self._tree.get(slot)
        kind = None if node is None else node.get("kind")
        options = {name: getattr(part.options, name) for name in sorted(part.options.model_fields_set)}
        named = {} if kind is not None and not kind.text else {"kind": part.kind}
        return named | {name: value for name, value in options.items() if value is not None}

    def written(self) -> dict[str, Any]:
        """The recipe as JSON or YAML hold it: everything filled in; it reads back to an equal one."""
        return self.model_dump(mode="json", exclude_none=True)


METRICS = {"parallel": ("loss", "bleu", "chrf"), "classification": ("loss", "accuracy")}
"""What a validation can be scored by, by kind of data; `loss` alone for the others."""


def check_metric(recipe: Recipe) -> None:
    """Raises InputError where the validation asks for a score that cannot be computed of its kind of data."""
    metric, kind = recipe.validation.metric, recipe.data.kind
    known = METRICS.get(kind, ("loss",))
    if metric not in known:
        message = f"`{metric}` cannot be computed of data of kind `{kind}`"
        raise InputError(recipe.diagnostic("TFK112", "validation.metric", message, f"write one of {', '.join(known)}"))
