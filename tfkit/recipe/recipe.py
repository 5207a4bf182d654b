"""A training recipe: all settings of a training run. The spec describes the model."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PrivateAttr, model_validator

from ..errors import Diagnostic, InputError
from ..errors.elsewhere import is_beside
from ..metrics import TOKENISERS
from ..slots.options import AsTuple, Component, OneOf, Options, Positive, Probability, Size, SlotField, component_default
from ..spec.located import Located, item_number
from ..spec.model import nearest_node

MAX_PATTERNS = 1_000
Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class Parameters(Options):
    """Patterns match the names of parameters without `nodes.`, whole or up to a dot: `tokens`, `encoder.layers.0`,
    `encoder.layers.*.norms`. `*` stands for any text without a dot.

    The learning rate of a parameter is that of the schedule times its factor in `rates`, times `layer_decay` to the power k: k
    is the number of layers between the parameter and the outputs, its own included; an input node counts as a layer."""

    freeze: Annotated[
        tuple[Pattern, ...],
        AsTuple,
        Field(max_length=MAX_PATTERNS, description="patterns of the parameters that are not trained"),
    ] = ()
    rates: Annotated[
        dict[Pattern, Positive] | None,
        Field(max_length=MAX_PATTERNS, description="factors of the learning rate by pattern; the first that matches counts"),
    ] = None
    layer_decay: Annotated[
        float | None, Field(gt=0.0, le=1.0, description="factor of the learning rate from each layer to the layer below")
    ] = None


class Lora(Options):
    """Low-rank adapters of linear maps. A weight W of `pretrained` stays as it is, and alpha / rank * B A is added to it: A has
    `rank` rows and B `rank` columns. B is zero at first. Only adapters are trained, and tensors that the pretrained model does
    not give. The run saves them in the format of peft. https://arxiv.org/abs/2106.09685

    A target is the name of a linear map, or its last parts: `query`, `ffn.input`, `decoder.layers.0.branches.ffn.output`."""

    rank: Annotated[int, Field(ge=1, le=65_536, description="rank of the product B A")] = 8
    alpha: Annotated[
        Positive | None, Field(description="factor of the product, which is divided by the rank; the rank unless written")
    ] = None
    targets: Annotated[
        tuple[Pattern, ...],
        AsTuple,
        Field(min_length=1, max_length=MAX_PATTERNS, description="the linear maps, by the last parts of their names"),
    ] = ("query", "value")
    dropout: Annotated[Probability, Field(description="dropout of the input of A")] = 0.0


class Batching(Options):
    """A batch holds sentences of similar length: at most `tokens` tokens with padding, on its longer side. A step takes
    `accumulate` batches; its gradient is that of the mean loss over all their target tokens. `max_length` counts tokens with
    the end token. Its default is at most the number of positions of the model."""

    tokens: Annotated[int, Field(ge=1, description="most tokens of a batch on its longer side, padding included")] = 4096
    images: Annotated[Size | None, Field(description="images of a batch, of data of kind `images`; 64 unless written")] = None
    accumulate: Annotated[int, Field(ge=1, description="batches per step")] = 1
    max_length: Annotated[int, Field(ge=2, description="rows with more tokens are left out; the end token counts")] = 256
    max_ratio: Annotated[float | None, Field(ge=1.0, description="pairs with a larger ratio of lengths are left out")] = None
    pack: Annotated[
        bool | None, Field(description="put several rows into one, as documents that do not see each other; no unless written")
    ] = None


class GuidedAlignment(Options):
    """The loss of word alignments, for data with `alignment`: `weight` times the cross-entropy of a head's weights of
    cross-attention and the links, summed over target tokens with links; the links of a token share its probability equally. It
    is added to the loss of the tokens. Links of words hold for all their pieces. https://aclanthology.org/D19-1453/"""

    weight: Annotated[Positive, Field(description="factor of the loss of the alignment")] = 0.05
    site: Annotated[
        str | None, Field(min_length=1, max_length=200, description="the cross-attention site; the last but one unless written")
    ] = None
    head: Annotated[int, Field(ge=0, description="the head that learns to align, from 0")] = 0


class Loss(Options):
    """Cross-entropy with smoothed labels. `uniform` adds smoothing / V to every id, the label included (the paper, torch);
    `others` gives smoothing / (V - 1) to each id except the label (fairseq). The unsmoothed loss is reported too. With several
    outputs, the loss is the sum of their mean losses times their `weights`."""

    label_smoothing: Annotated[
        Probability, Field(description="share of the probability that moves from the label to other ids")
    ] = 0.1
    smoothing: Annotated[
        str, OneOf("uniform", "others"), Field(description="which ids get it: all, or all except the label")
    ] = "uniform"
    weights: Annotated[
        dict[str, Positive] | None, Field(description="weights of the losses, by output of the spec; 1 unless written")
    ] = None
    alignment: Annotated[
        GuidedAlignment | None, Field(description="how links of words are learnt, for data with `alignment`")
    ] = None

    def weight(self, output: str) -> float:
        """The weight of the loss of an output."""
        return (self.weights or {}).get(output, 1.0)


class Stopping(Options):
    """Training ends at the first of these limits; at least one must be written. `patience` counts validations without a better
    score. `max_minutes` limits the wall-clock time of `tfkit train`, including preparation, validation and saving, summed over
    all resumptions of the run. No step starts after it, or when the remaining time is only enough for the last validation. A
    step, validation or checkpoint that has started is finished. One step is made in any case."""

    max_steps: Annotated[Size | None, Field(description="steps of the optimiser")] = None
    max_epochs: Annotated[Size | None, Field(description="passes over the training data")] = None
    max_minutes: Annotated[
        Positive | None, Field(description="minutes of `tfkit train`, start-up and validation included; no step starts later")
    ] = None
    patience: Annotated[Size | None, Field(description="validations without a better score")] = None

    @model_validator(mode="after")
    def _ends(self) -> Stopping:
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None and self.patience is None:
            raise ValueError("write `max_steps`, `max_epochs`, `max_minutes` or `patience`, or it never ends")
        return self


class Validation(Options):
    """Every `every_steps` steps (by default once per epoch) the validation data are scored, with averaged weights if there are
    any. For BLEU and chrF, the first `sentences` rows are translated with `beams` beams."""

    every_steps: Annotated[Size | None, Field(description="steps between two validations; once per epoch unless written")] = (
        None
    )
    metric: Annotated[
        str,
        OneOf("loss", "bleu", "chrf", "accuracy", "f1", "exact_match"),
        Field(description="the score that selects the best checkpoint"),
    ] = "loss"
    beams: Annotated[Size, Field(le=100, description="beams of the scored translations; 1 is greedy")] = 1
    sentences: Annotated[Size, Field(description="the first rows, which are translated")] = 1000
    corpus: Annotated[
        str | None, Field(description="of several corpora, the one whose score selects; the mean of all unless written")
    ] = None
    filters: Annotated[
        tuple[Annotated[Component, SlotField("score_filter")], ...] | None,
        AsTuple,
        Field(max_length=32, description="score filters of the translations"),
    ] = None
    prefix: Annotated[str | None, Field(max_length=1_000, description="text that every translation begins with")] = None
    target_language: Annotated[
        str | None,
        Field(min_length=1, max_length=100, description="target language of a model for several, as its tokeniser writes it"),
    ] = None
    lowercase: Annotated[bool, Field(description="score without regard to case (sacrebleu -lc)")] = False
    tokenise: Annotated[
        str | None,
        OneOf(*TOKENISERS),
        Field(description="sacrebleu's tokeniser of BLEU; chosen by the script of the references unless written"),
    ] = None


class Keeping(Options):
    """A checkpoint holds all that resuming needs. Of the best validations only the model is kept."""

    every_steps: Annotated[Size, Field(description="steps between two checkpoints")] = 500
    last: Annotated[int, Field(ge=1, le=5000, description="latest checkpoints to keep")] = 2
    best: Annotated[int, Field(ge=1, le=5000, description="best models to keep, by validation")] = 1


IMAGES_OF_A_BATCH = 64
"""The images of a batch, unless the recipe sets their number."""


class Recipe(Options):
    """A resolved recipe. A setting of None is chosen by the size of the corpus (`tfkit.recipe.chosen_for`)."""

    tfkit: Annotated[int, Field(description="version of the language")]
    name: Annotated[str, Field(min_length=1, max_length=1000, description="what the recipe is called")]
    reference: Annotated[str, Field(description="link to where the recipe is published")] = ""
    description: Annotated[str, Field(description="a few words about the recipe")] = ""
    model: Annotated[str, Field(min_length=1, description="the spec of the model: a file, relative to the recipe")]
    changes: Annotated[tuple[str, ...], AsTuple, Field(description="changes of the spec, as `--set` writes them")] = ()
    pretrained: Annotated[
        str | None, Field(min_length=1, description="a saved model or a run that gives the initial weights and the tokenisers")
    ] = None
    pretrained_share: Annotated[
        float | None,
        Field(ge=0.0, le=1.0, description="share of the weights, without token tables, that it must give; half unless written"),
    ] = None
    vectors: Annotated[
        dict[str, Annotated[str, Field(min_length=1)]] | None,
        Field(description="word vectors that tables of tokens start from: a file, text or `.bin`, by node of the spec"),
    ] = None
    data: Annotated[Component, SlotField("data"), Field(description="the training data: their kind and their files")] = (
        component_default("parallel")
    )
    tokeniser: Annotated[Component, SlotField("tokeniser"), Field(description="how text becomes ids")] = component_default(
        "bpe"
    )
    batching: Batching = Batching()
    loss: Loss = Loss()
    optimiser: Annotated[Component, SlotField("optimiser"), Field(description="how gradients change the weights")] = (
        component_default("adam")
    )
    parameters: Annotated[
        Parameters | None, Field(description="which parameters are trained, and at which rate; all at one rate unless written")
    ] = None
    lora: Annotated[
        Lora | None, Field(description="low-rank adapters, which are trained instead of the weights of `pretrained`")
    ] = None
    schedule: Annotated[Component, SlotField("schedule"), Field(description="the learning rate of each step")] = (
        component_default("noam")
    )
    teacher_forcing: Annotated[
        Component | None,
        SlotField("teacher_forcing"),
        Field(description="share of a decoder's input tokens that are from the data, not predicted; all unless written"),
    ] = None
    clip_norm: Annotated[
        float | None, Field(gt=0.0, description="largest norm of the gradient; larger gradients are scaled down to it")
    ] = None
    precision: Annotated[
        str, OneOf("float32", "bfloat16", "float16"), Field(description="dtype of autocast; weights are float32")
    ] = "float32"
    average: Annotated[
        float | None, Field(gt=0.0, lt=1.0, description="decay of the exponential moving average of the weights")
    ] = None
    stopping: Stopping
    validation: Validation = Validation()
    keeping: Keeping = Keeping()
    activation_checkpointing: Annotated[
        bool, Field(description="store fewer activations and recompute them in the backward pass")
    ] = False
    compile: Annotated[bool, Field(description="use torch.compile, on batches of few shapes")] = False
    cuda_graphs: Annotated[
        bool | None,
        Field(description="record steps on batches of few shapes and replay them, on a CUDA device; by default with `compile`"),
    ] = None
    seed: Annotated[
        int, Field(ge=0, le=2**32 - 1, description="seed of weights, dropout, the order of batches and held-out rows")
    ] = 0
    _tree: Located | None = PrivateAttr(None)

    @property
    def few_shapes(self) -> bool:
        """Whether batches have few shapes, because something is made for each of them."""
        return self.compile or bool(self.cuda_graphs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recipe):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Recipe.model_fields)

    def diagnostic(self, code: str, path: str, message: str, fix: str = "") -> Diagnostic:
        """An error about a value of the recipe, located where it was written.

        Args:
            code: the stable code.
            path: the path of the value in the recipe.
            fix: how to repair it.
        """
        if self._tree is None:
            return Diagnostic(code, message, fix, path)
        node, _ = nearest_node(self._tree, path.split("."))
        return Diagnostic(code, message, fix, path, node.location)

    def reaches_elsewhere(self, key: str) -> bool:
        """Whether the recipe names a file that lies elsewhere than itself, so that no error may quote it.

        Args:
            key: the key of the name: `pretrained`, `data.source`.

        Returns:
            Whether it does; False for a file that the user named.
        """
        file, node = self.names(key), self._node(key)
        if file is None or node is None or not isinstance(node.value, str):
            return False
        return not is_beside(node.value, os.path.dirname(file))

    def names(self, key: str) -> str | None:
        """The recipe file that names a file.

        Args:
            key: the key of the value: `model`, `pretrained`, `data.source`.

        Returns:
            The recipe file; None if the user named the file, in an override or in Python.
        """
        node = self._node(key)
        return node.location.file if node is not None and os.path.isfile(node.location.file) else None

    def _node(self, key: str) -> Located | None:
        node = self._tree
        for part in key.split("."):
            number = item_number(part)
            if node is not None and number is not None:
                node = node.items[number] if number < len(node.items) else None
            else:
                node = None if node is None else node.get(part)
        return node

    def written_keys(self, slot: str) -> dict[str, Any]:
        """The keys of a part that the recipe or an override wrote. An override of one option does not write `kind`.

        Args:
            slot: `data`, `tokeniser`, `optimiser` or `schedule`.

        Returns:
            The written keys with their values; empty if the part was not written.
        """
        if slot not in self.model_fields_set:
            return {}
        part, node = getattr(self, slot), None if self._tree is None else self._tree.get(slot)
        kind = None if node is None else node.get("kind")
        options = {name: getattr(part.options, name) for name in sorted(part.options.model_fields_set)}
        named = {} if kind is not None and not kind.text else {"kind": part.kind}
        return named | {name: value for name, value in options.items() if value is not None}

    @property
    def batch_limit(self) -> int:
        """The most tokens of a batch, or the most images."""
        if self.data.kind == "images":
            return self.batching.images or IMAGES_OF_A_BATCH
        return self.batching.tokens

    def written(self) -> dict[str, Any]:
        """The resolved recipe as plain data.

        Returns:
            Data that loads back to an equal recipe.
        """
        return self.model_dump(mode="json", exclude_none=True)


METRICS = {
    "parallel": ("loss", "bleu", "chrf"),
    "classification": ("loss", "accuracy"),
    "pairs": ("loss", "accuracy"),
    "tagged": ("loss", "accuracy", "f1"),
    "spans": ("loss", "exact_match", "f1"),
    "images": ("loss", "accuracy"),
}
"""The scores of a validation by kind of data; other kinds have only `loss`."""


def check_metric(recipe: Recipe) -> None:
    """Raises InputError if the metric of the validation cannot be computed for this kind of data."""
    metric, kind = recipe.validation.metric, recipe.data.kind
    known = METRICS.get(kind, ("loss",))
    if metric not in known:
        message = f"`{metric}` cannot be computed for data of kind `{kind}`"
        raise InputError(recipe.diagnostic("TFK112", "validation.metric", message, f"write one of {', '.join(known)}"))
    for name in ("filters", "prefix", "target_language", "tokenise"):
        if getattr(recipe.validation, name) is not None and metric not in ("bleu", "chrf"):
            message = f"nothing is translated for the metric `{metric}`"
            raise InputError(recipe.diagnostic("TFK108", f"validation.{name}", message, "write `metric: bleu`, or remove it"))


def check_corpora(recipe: Recipe) -> None:
    """Raises InputError if `validation.corpus` is none of the corpora."""
    name, corpora = recipe.validation.corpus, getattr(recipe.data.options, "corpora", None) or ()
    names = [corpus.name for corpus in corpora]
    if name is not None and name not in names:
        near = difflib.get_close_matches(name, names, 1)
        fix = f"did you mean `{near[0]}`?" if near else f"the corpora are {', '.join(names)}" if names else "remove it"
        message = f"there is no corpus `{name}`" if names else "`data` has no `corpora`"
        raise InputError(recipe.diagnostic("TFK112", "validation.corpus", message, fix))


SAMPLED = ("parallel", "masked", "masked_pairs", "classification", "pairs")
"""The kinds of data whose rows may have other pieces: those without labels at single tokens."""


def check_sampling(recipe: Recipe) -> None:
    """Raises InputError if the pieces of a recipe's rows cannot be drawn again."""
    if recipe.pretrained is None and getattr(recipe.tokeniser.options, "extend", None) is not None:
        message = "it adds pieces to the tokeniser of `pretrained`, which is not written"
        fix = "write `pretrained`, or a larger `vocab_size`"
        raise InputError(recipe.diagnostic("TFK117", "tokeniser.extend", message, fix))
    for name in ("dropout", "sampling"):
        if getattr(recipe.tokeniser.options, name, None) is None:
            continue
        key = f"tokeniser.{name}"
        if recipe.data.kind not in SAMPLED:
            message = f"rows of kind `{recipe.data.kind}` have labels or a length that belong to their pieces"
            raise InputError(recipe.diagnostic("TFK108", key, message, f"remove it; it is for {', '.join(SAMPLED)}"))
        if recipe.few_shapes:
            kept = "compile" if recipe.compile else "cuda_graphs"
            message = f"batches have few lengths with `{kept}`, and other pieces change the lengths"
            raise InputError(recipe.diagnostic("TFK108", key, message, f"remove it, or `{kept}`"))


PACKED = ("parallel", "texts", "masked")
"""The kinds of data whose labels belong to tokens, so that several rows can share one."""


def check_packing(recipe: Recipe, refused: Mapping[tuple[str, str], str]) -> None:
    """Raises InputError if a recipe cannot pack rows. `refused`: why inputs of its model cannot have documents."""
    if not recipe.batching.pack:
        return
    reasons = [reason for (argument, _), reason in refused.items() if argument == "documents"]
    if recipe.data.kind == "language":
        reason, fix = "rows of running text are full", "remove it, or write `kind: texts` for one text per line"
    elif recipe.data.kind not in PACKED:
        reason, fix = f"rows of data of kind `{recipe.data.kind}` have labels of their own", "remove it"
    elif recipe.teacher_forcing is not None:
        reason, fix = "`teacher_forcing` predicts the tokens of whole rows", "remove one of them"
    elif reasons:
        reason, fix = reasons[0], "remove it, or use another model"
    else:
        return
    raise InputError(recipe.diagnostic("TFK108", "batching.pack", f"rows cannot be packed: {reason}", fix))


def without_smoothing(recipe: Recipe) -> Recipe:
    """The recipe with unsmoothed labels, for answers: some positions cannot be chosen, and smoothing would choose them too.
    Raises InputError if the recipe sets it."""
    if recipe.data.kind != "spans" or not recipe.loss.label_smoothing:
        return recipe
    if "label_smoothing" in recipe.loss.model_fields_set:
        message = "labels are positions of answers, and some positions cannot be chosen"
        raise InputError(recipe.diagnostic("TFK108", "loss.label_smoothing", message, "remove it, or write 0"))
    return recipe.model_copy(update={"loss": recipe.loss.model_copy(update={"label_smoothing": 0.0})})


class LinkedRows(NamedTuple):
    """Whether training rows have links of words, and whether validation rows have; the key of the first file of links."""

    train: bool
    validation: bool
    key: str = ""


def corpora_in(recipe: Recipe) -> dict[str, Any]:
    """The options of each corpus of a recipe, or of the only one, by their key."""
    several = getattr(recipe.data.options, "corpora", None)
    if several is None:
        return {"data": recipe.data.options}
    return {f"data.corpora.{at}": corpus for at, corpus in enumerate(several)}


def alignments_of(options: Any) -> tuple[str | None, str | None]:
    """The files of links of the training and the validation rows of a corpus. Rows that are held out have the file of all."""
    links = getattr(options, "alignment", None)
    if getattr(options, "validation_source", None) is None:
        return links, links
    return links, getattr(options, "validation_alignment", None)


def rows_with_links(recipe: Recipe) -> LinkedRows:
    """Which rows of a recipe have links of words, of one corpus at least."""
    files = {key: alignments_of(options) for key, options in corpora_in(recipe).items()}
    keys = [
        f"{key}.{'alignment' if links else 'validation_alignment'}" for key, (links, gold) in files.items() if links or gold
    ]
    return LinkedRows(any(links for links, _ in files.values()), any(gold for _, gold in files.values()), *keys[:1])


def check_guided_alignment(recipe: Recipe) -> None:
    """Raises InputError for settings of word alignments that do not fit each other, or other settings."""
    linked = rows_with_links(recipe)
    for key, options in corpora_in(recipe).items():
        if getattr(options, "validation_alignment", None) is not None and options.validation_source is None:
            message = "a gold alignment belongs to validation files, and none are named"
            fix = f"name them; rows that are held out are compared with their lines of `{key}.alignment`"
            raise InputError(recipe.diagnostic("TFK108", f"{key}.validation_alignment", message, fix))
    if recipe.loss.alignment is not None and not linked.train:
        fix = "write `data.alignment`, a file of links, or remove it"
        raise InputError(recipe.diagnostic("TFK108", "loss.alignment", "the data have no links of words to learn", fix))
    if not linked.train:
        return
    if recipe.compile:
        message = "a compiled model returns no attention weights, which learn the links of words"
        raise InputError(recipe.diagnostic("TFK108", "compile", message, f"remove `compile`, or `{linked.key}`"))


def check_teacher_forcing(recipe: Recipe) -> None:
    """Raises InputError for data whose tokens are not predicted one after another."""
    if recipe.teacher_forcing is not None and recipe.data.kind not in ("parallel", "language", "texts"):
        message = f"data of kind `{recipe.data.kind}` have no input tokens that a model predicts one after another"
        raise InputError(recipe.diagnostic("TFK108", "teacher_forcing", message, "remove it"))


def schedule_warning(recipe: Recipe, last: int | None, done: int = 0) -> Diagnostic | None:
    """A warning if the learning rate does not fit the steps of a run.

    Args:
        last: the last step; None if it is not known.
        done: the steps that are made.

    Returns:
        The warning if steps will have the rate 0, or if the run ends within the warm-up.
    """
    options = recipe.schedule.options
    zero = getattr(options, "steps", None) if getattr(options, "floor", None) == 0 else None
    if zero is not None and (done >= zero if last is None else last > zero):
        name, wrong = "steps", f"the learning rate is 0 from step {zero:,} on"
        fix = f"write `schedule.steps: {last}`, a `schedule.floor` above 0, or `stopping.max_steps: {zero}`"
    elif last is not None and last < options.warmup_steps:
        name, wrong = "warmup_steps", f"the learning rate rises until step {options.warmup_steps:,}"
        fix = f"write `schedule.warmup_steps: {max(1, last // 10)}`, or train for more steps"
    else:
        return None
    if done:
        fix = "a resumed run keeps its schedule; start a new run, with `--from` to keep the weights"
    end = f"{done:,} steps are made" if last is None else f"the last step is {last:,}"
    return recipe.diagnostic("TFK131", f"schedule.{name}", f"{wrong}, and {end}", fix)


def check_image_settings(recipe: Recipe) -> None:
    """Raises InputError for settings of text in a recipe of images, and the other way round."""
    if recipe.data.kind != "images":
        if recipe.batching.images is not None:
            message = f"`images` counts images, and the data are of kind `{recipe.data.kind}`"
            raise InputError(recipe.diagnostic("TFK108", "batching.images", message, "write `tokens`"))
        return
    diagnostics = []
    for name in ("tokens", "max_length", "max_ratio"):
        if getattr(recipe.batching, name) != Batching.model_fields[name].default:
            message = f"`{name}` is a setting of text, and the data are images"
            diagnostics.append(
                recipe.diagnostic("TFK108", f"batching.{name}", message, "write `images`, the images of a batch")
            )
    if recipe.written_keys("tokeniser"):
        diagnostics.append(recipe.diagnostic("TFK108", "tokeniser", "the data are images, which have no tokens", "remove it"))
    if recipe.pretrained is not None:
        message = "images cannot be trained from another model yet"
        diagnostics.append(recipe.diagnostic("TFK117", "pretrained", message, "remove it"))
    if diagnostics:
        raise InputError(diagnostics)
