"""Validation: the loss of the reference text, scores of the text that the model generates, and the choice of the best
models."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..data import KINDS, NO_LABEL, Batch, BatchShapes, Corpus, Data, ImageTask, Task, TextTokeniser, asked_questions, epoch_of
from ..data.aligned_rows import words_of_row
from ..data.corpus import GOLD
from ..errors import BuildError, Diagnostic, InputError, TrainingError
from ..generate import Search
from ..io.alignment_site import AlignmentSite
from ..io.finite import all_finite
from ..metrics import Score, alignment_counts, alignment_scores, answer_scores, bleu, corpus_scores
from ..nn.model import Model
from ..recipe import Recipe
from ..text import Answerer, Translator
from ..text.alignment import align, check_keys, word_links
from ..text.translator import one_line
from .callbacks import Progress, ValidationResult
from .captured import CapturedPasses
from .checkpointer import BestModels
from .distributed.process_group import ProcessGroup
from .loss import labelled_rows, smoothed_cross_entropy
from .optimiser import rate_of
from .step import TrainStep

# Precision, recall and F1 of the entities that BIO tags mark, as conlleval and seqeval count them.
#
# An entity is a longest run of words of one type. It starts at `B-TYPE`, and at an `I-TYPE` that does not follow a word of that
# type. A predicted entity counts if its first word, its last word and its type are right. https://aclanthology.org/W03-0419/

Entity = tuple[str, int, int]


def marks_entities(tags: Iterable[str]) -> bool:
    """Whether all tags are `O`, `B-TYPE` or `I-TYPE`, and there are others than `O`."""
    others = set(tags) - {"O"}
    return bool(others) and all(tag.startswith(("B-", "I-")) for tag in others)


def entities_of(tags: Sequence[str]) -> set[Entity]:
    """The entities of a sentence: type, first word and the word after the last."""
    entities, start, kind = set[Entity](), 0, ""
    for at, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (prefix != "I" or tag_kind != kind):
            entities.add((kind, start, at))
            kind = ""
        if prefix != "O" and not kind:
            start, kind = at, tag_kind
    return entities


def entity_counts(predicted: Tensor, labels: Tensor, ignored: int, names: Sequence[str]) -> tuple[int, int, int]:
    """The entities that are right, predicted and labelled, for classes (B, L) and labels (B, L)."""
    right = guessed = true = 0
    for one, other in zip(predicted.tolist(), labels.tolist(), strict=True):
        words = [(names[guess], names[label]) for guess, label in zip(one, other, strict=True) if label != ignored]
        guesses, wanted = (entities_of([word[side] for word in words]) for side in (0, 1))
        right, guessed, true = right + len(guesses & wanted), guessed + len(guesses), true + len(wanted)
    return right, guessed, true


def entity_score(right: float, guessed: float, true: float) -> Score:
    """F1 in per cent; 0 if there is nothing to count."""
    precision, recall = (100 * right / count if count else 0.0 for count in (guessed, true))
    value = 200 * right / (guessed + true) if guessed + true else 0.0
    return Score("f1", value, "F1 of entities, in per cent", f"precision {precision:.2f} %, recall {recall:.2f} %")


@dataclass(frozen=True)
class Evaluation:
    """`nll` in nats per label; `scores` by name; `sample` is source, reference and translation of one row; `parts` are those of
    each corpus of several, whose mean this is."""

    nll: float
    scores: Mapping[str, Score]
    sample: tuple[str, str, str] | None
    parts: Mapping[str, Evaluation] = field(default_factory=dict)

    @classmethod
    def mean(cls, parts: Mapping[str, Evaluation]) -> Evaluation:
        """The mean over several corpora, each with the same weight; of a score, over those that have it."""
        first = next(iter(parts.values()))
        scores = {}
        for name in dict.fromkeys(name for part in parts.values() for name in part.scores):
            scored = {part: evaluation.scores[name] for part, evaluation in parts.items() if name in evaluation.scores}
            value = sum(score.value for score in scored.values()) / len(scored)
            signatures = dict.fromkeys(score.signature for score in scored.values())
            words = f"mean of {len(scored)}: " + ", ".join(f"{part} {score.value:.2f}" for part, score in scored.items())
            scores[name] = Score(next(iter(scored.values())).name, value, "; ".join(signatures), words)
        return cls(sum(part.nll for part in parts.values()) / len(parts), scores, first.sample, parts)

    def value(self, recipe: Recipe) -> float:
        """The score by which the recipe compares models; higher is better."""
        if recipe.validation.corpus is not None and recipe.validation.corpus in self.parts:
            return self.parts[recipe.validation.corpus].value(recipe)
        name = recipe.validation.metric
        if name == "bleu" and recipe.validation.lowercase:
            name = "bleu_lowercase"
        value = -self.nll if name == "loss" else self.scores[name].value
        return value if math.isfinite(value) else -sys.float_info.max  # worse than any other, and valid JSON


class Validator:
    """Evaluates the current model, of which `build` makes another, and saves it if it is among the best."""

    def __init__(self, step: TrainStep, build: Callable[[], Model], best_models: BestModels) -> None:
        self.step, self.build, self.best_models = step, build, best_models
        self.captured: CapturedPasses | None = None
        if step.captured is not None:

            def run(batch: Batch) -> Tensor:
                (sums,) = batch_sums(step.model, batch, step.task, few_rows=False).values()
                return sums

            training = step.captured
            self.captured = CapturedPasses(step.model, run, step.notices, training.asked, training.pool)

    @property
    def is_due(self) -> bool:
        """Whether the recipe requires a validation after the current step, and it was not done yet."""
        every, progress = self.step.recipe.validation.every_steps, self.step.progress
        due = progress.batch == 0 if every is None else progress.step % every == 0
        return due and progress.validated != progress.step

    def validate(self, patience: bool) -> ValidationResult | None:
        """Evaluate the model, with its averaged weights if there are any, and save it if it is among the best. `patience`: a
        score that is not the best counts towards `stopping.patience`. None without validation data: then the latest model
        counts as the best. Raises TrainingError for weights that are NaN or infinite, which no command would load.

        `progress` changes only at the end, so that an interrupted validation is repeated.
        """
        start, progress = time.perf_counter(), self.step.progress
        with self.step.state.evaluation_model(self.build) as model:
            self._check_finite(model)
            if self.step.data.validation is None:
                self.best_models.add(model, float(progress.step))
                progress.validated = progress.step
                return None
            evaluation = evaluate(model, self.step, self.captured)
            value = evaluation.value(self.step.recipe)
            best = progress.best is None or value > progress.best
            self.best_models.add(model, value)
        progress.validated, progress.stale = progress.step, 0 if best else progress.stale + patience
        if best:
            progress.best, progress.best_step = value, progress.step
        reduced = patience and reduces_at_plateau(self.step.recipe, progress, value)
        next_rate = None
        if reduced:
            before, after = (
                rate_of(self.step.recipe, progress.step + 1, self.step.width, reductions)
                for reductions in (progress.reductions - 1, progress.reductions)
            )
            next_rate = after if after < before else None  # the rate may be at its floor
        return ValidationResult(
            step=progress.step,
            epoch=progress.epoch if progress.batch else max(1, progress.epoch - 1),
            nll=evaluation.nll,
            scores={name: score.value for name, score in evaluation.scores.items()},
            signatures={name: score.signature for name, score in evaluation.scores.items()},
            best=best,
            seconds=time.perf_counter() - start,
            sample=evaluation.sample,
            corpora={
                name: {"nll": part.nll, **{score.name: score.value for score in part.scores.values()}}
                for name, part in evaluation.parts.items()
            },
            rate=next_rate,
        )

    def _check_finite(self, model: Model) -> None:
        """Raises TrainingError in all processes if one of them has weights that are NaN or infinite."""
        wrong = [name for name, tensor in model.state_dict().items() if tensor.is_floating_point() and not _finite(tensor)]
        (processes,) = self.step.processes.sum(bool(wrong))
        if processes:
            what = f"`{wrong[0]}` holds NaN or infinite numbers" if wrong else "a weight of another process is NaN or infinite"
            fix = "start a new run with a lower learning rate, a larger `eps`, with `clip_norm`, or in float32"
            raise TrainingError(Diagnostic("TFK110", f"{what} after step {self.step.progress.step}", fix))


def _finite(tensor: Tensor) -> bool:
    """Of the part of a tensor that this process has."""
    local = getattr(tensor, "to_local", None)
    return all_finite(tensor if local is None else local())


def reduces_at_plateau(recipe: Recipe, progress: Progress, value: float) -> bool:
    """Count a validation with this score, larger is better; returns whether the learning rate is now reduced once more.

    It is the rule of torch.optim.lr_scheduler.ReduceLROnPlateau, mode `min` for the loss and `max` for other scores.
    """
    if recipe.schedule.kind != "plateau":
        return False
    options, best = recipe.schedule.options, progress.plateau_best
    if best is None or value > best + options.threshold * abs(best):
        progress.plateau_best, progress.plateau_stale = value, 0
        return False
    progress.plateau_stale += 1
    if progress.plateau_stale <= options.patience:
        return False
    progress.reductions, progress.plateau_stale = progress.reductions + 1, 0
    return True


def evaluate(model: Model, step: TrainStep, captured: CapturedPasses | None = None) -> Evaluation:
    """Evaluate a model on the validation data of a run; all processes share the work. Of several corpora it is the mean.
    `captured`: the recorded passes of the model."""
    assert step.data.validation is not None, "the caller checks that there are validation data"
    parts = step.data.validation_parts()
    if not parts:
        return _evaluate(model, step, step.data.validation, captured)
    return Evaluation.mean({name: _evaluate(model, step, corpus, captured) for name, corpus in parts.items()})


def _evaluate(model: Model, step: TrainStep, corpus: Corpus, captured: CapturedPasses | None) -> Evaluation:
    recipe, data = step.recipe, step.data
    counts: list[tuple[int, int, int]] = []

    def count_entities(predicted: Tensor, labels: Tensor) -> None:
        counts.append(entity_counts(predicted, labels, NO_LABEL, data.labels))

    entities = KINDS[recipe.data.kind].tagged and marks_entities(data.labels)
    counter = count_entities if entities else None
    nll, accuracies = validation_nll(model, corpus, step.task, recipe, step.batches.device, step.processes, counter, captured)
    if KINDS[recipe.data.kind].spans:
        return Evaluation(nll, scores_of_answers(model, data, recipe, step.processes), None)
    if KINDS[recipe.data.kind].labelled or len(accuracies) > 1:
        names = {name: f"{name}_accuracy" if len(accuracies) > 1 else "accuracy" for name in accuracies}
        scores = {
            names[name]: Score(names[name], value, "share of the labels, in per cent", f"{value:.2f} %")
            for name, value in accuracies.items()
        }
        if entities:
            right, guessed, true = step.processes.sum(*(sum(of_batch[at] for of_batch in counts) for at in range(3)))
            scores["f1"] = entity_score(right, guessed, true)
        return Evaluation(nll, scores, None)
    aligned = {}
    if step.alignment is not None and corpus.has(GOLD):
        aligned = scores_of_alignment(model, corpus, step, step.alignment)
    if recipe.validation.metric == "loss":
        return Evaluation(nll, aligned, None)
    scores, sample = validation_scores(model, corpus, data.tokenisers, recipe, step.processes)
    return Evaluation(nll, {**scores, **aligned}, sample)


@torch.no_grad()
def batch_sums(
    model: Model,
    batch: Batch,
    task: Task | ImageTask,
    few_rows: bool,
    counter: Callable[[Tensor, Tensor], None] | None = None,
) -> dict[str, Tensor]:
    """The nll of a batch, its correct labels and its labels (3,), by output. `few_rows`: compute the logits of labelled tokens
    alone, if they are few."""
    all_labels, sums = {task.roles.output: batch.labels, **batch.other_labels}, {}
    with labelled_rows(model.nodes, all_labels) if few_rows else nullcontext(all_labels) as by_output:
        logits = model(**batch.arguments)
    for name, labels in by_output.items():
        label_logits = model.plan.label_rows(name, logits[name])
        nll = smoothed_cross_entropy(label_logits, labels, 0.0, "uniform", NO_LABEL).nll
        chosen = label_logits.argmax(-1)
        if counter is not None:
            counter(chosen, labels)
        sums[name] = torch.stack([nll, (chosen == labels).sum(), (labels != NO_LABEL).sum()])
    return sums


@torch.no_grad()
def validation_nll(
    model: Model,
    corpus: Corpus,
    task: Task | ImageTask,
    recipe: Recipe,
    device: torch.device,
    processes: ProcessGroup,
    counter: Callable[[Tensor, Tensor], None] | None = None,
    captured: CapturedPasses | None = None,
) -> tuple[float, dict[str, float]]:
    """The loss of a corpus, without label smoothing or dropout. Masked tokens are the same in every call. `counter` gets the
    most probable classes and the labels of every batch. `captured` are the recorded passes of the model, which need batches of
    few shapes. Masked tokens depend on the batches, and `counter` reads a batch: then passes are ordinary ones.

    Returns:
        The negative log-likelihood in nats per label, summed over outputs with the weights of the recipe, and the accuracy of
        the most probable label in per cent, by output.
    """
    outputs = task.roles.outputs
    sums = {name: [0.0, 0.0, 0.0] for name in outputs}  # nll, correct labels, labels
    longest = max(int(lengths.max()) for lengths in corpus.lengths.values())
    limit, shapes = max(recipe.batch_limit, longest), None
    if captured is not None and counter is None and getattr(task, "masking", None) is None:
        shapes = BatchShapes(corpus.lengths, limit)
    batches = list(enumerate((shapes.epoch(0, 0) if shapes else epoch_of(corpus.lengths, limit, 0, 0)).batches))
    of_batches: list[dict[str, Tensor]] = []
    for number, rows in batches[processes.rank :: processes.count]:
        draw, numbers = np.random.Generator(np.random.PCG64([number])), sorted(rows.tolist())
        batch = task.batch(corpus, numbers, draw)
        if captured is not None and shapes is not None:
            of_batches.append({task.roles.output: captured(shapes.padded(batch, numbers, task).to(device))})
        else:
            of_batches.append(batch_sums(model, batch.to(device), task, few_rows=True, counter=counter))
    for of_batch in of_batches:
        for name, tensor in of_batch.items():
            sums[name] = [one + other for one, other in zip(sums[name], tensor.tolist(), strict=True)]
    added = {name: processes.sum(*local) for name, local in sums.items()}
    total = sum(recipe.loss.weight(name) * nll / count for name, (nll, _, count) in added.items())
    return total, {name: 100 * correct / count for name, (_, correct, count) in added.items()}


@torch.no_grad()
def scores_of_alignment(model: Model, corpus: Corpus, step: TrainStep, site: AlignmentSite) -> dict[str, Score]:
    """The alignment error rate of the validation rows: the reference translations are aligned by the weights with which the
    model predicts them, as `tfkit translate --alignment` aligns. Nothing if no row has a link."""
    if not any(map(len, corpus.rows(GOLD, range(len(corpus))))):
        return {}
    recipe, processes, task, tokenisers = step.recipe, step.processes, step.task, step.data.tokenisers
    texts = [corpus.text(f"{column}_text", len(corpus)) for column in ("source", "target")]
    longest = max(int(lengths.max()) for lengths in corpus.lengths.values())
    batches = epoch_of(corpus.lengths, max(recipe.batch_limit, longest), 0, 0).batches
    counts: list[tuple[int, ...]] = [(0, 0, 0, 0)]
    for rows in batches[processes.rank :: processes.count]:
        numbers = sorted(rows.tolist())
        batch = task.batch(corpus, numbers, np.random.default_rng(0)).to(step.batches.device)
        weights = model(**batch.arguments, weights=(site.site,))["weights"][site.site].float().cpu()
        check_keys(site.site, weights.shape[3], int(batch.inputs[step.roles.of("source")].shape[1]))
        for at, (row, gold) in enumerate(zip(numbers, corpus.rows(GOLD, numbers), strict=True)):
            sources, targets = (
                words_of_row(tokenisers[column], text[row]) for column, text in zip(("source", "target"), texts, strict=True)
            )
            pieces = align(weights[at, :, : len(targets), : len(sources)], site.head, sources, targets)
            links = set(word_links(pieces, sources, targets))
            triples = gold.reshape(-1, 3).tolist()
            sure = {(source, target) for source, target, is_sure in triples if is_sure}
            counts.append(alignment_counts(links, sure, {(source, target) for source, target, _ in triples}))
    totals = [int(count) for count in processes.sum(*(sum(of_row[at] for of_row in counts) for at in range(4)))]
    return {"aer": alignment_scores(*totals)["aer"]} if totals[0] + totals[1] else {}


def scores_of_answers(model: Model, data: Data, recipe: Recipe, processes: ProcessGroup) -> dict[str, Score]:
    """Exact match and F1 of the answers to all validation questions, found as `tfkit answer` does."""
    assert data.validation is not None, "the caller checks that there are validation data"
    assert data.spans is not None, "the data are questions"
    asked = asked_questions(data.validation.text("target_text", len(data.validation)))
    tokeniser, rank, count = data.tokenisers["target"], processes.rank, processes.count
    answerer = Answerer(model, tokeniser, **data.spans.model_dump(), batch_tokens=recipe.batching.tokens)
    local_answers = answerer.answer([(question, context) for question, context, _ in asked[rank::count]])
    by_rank = processes.all_gather([answer.text for answer in local_answers])
    answers = [by_rank[row % count][row // count] for row in range(len(asked))]
    return processes.run_on_first(lambda: answer_scores(answers, [correct for _, _, correct in asked]))


def validation_scores(
    model: Model, corpus: Corpus, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe, processes: ProcessGroup
) -> tuple[dict[str, Score], tuple[str, str, str]]:
    """Scores of the translations of the first rows, generated as `tfkit translate` does, by name; and source, reference and
    translation of the first row."""
    sources = corpus.text("source_text", recipe.validation.sentences)
    references = corpus.text("target_text", recipe.validation.sentences)
    validation, translator = recipe.validation, _translator(model, tokenisers, recipe)
    rank, count = processes.rank, processes.count
    mine = sources[rank::count]
    translations = translator.translate(
        mine, prefixes=[validation.prefix or ""] * len(mine), target_language=validation.target_language
    )
    by_rank = processes.all_gather([one_line(translation.text) for translation in translations])
    hypotheses = [by_rank[row % count][row // count] for row in range(len(sources))]
    scores = processes.run_on_first(lambda: corpus_scores(hypotheses, references, validation.tokenise))
    return scores, (sources[0], references[0], hypotheses[0])


def check_bleu(recipe: Recipe) -> None:
    """Raises InputError if the tokeniser of BLEU is not installed."""
    if recipe.validation.tokenise is None:
        return
    try:
        bleu(recipe.validation.tokenise)
    except BuildError as error:
        first = error.diagnostics[0]
        raise InputError(recipe.diagnostic(first.code, "validation.tokenise", first.message, first.fix)) from None


def check_translations(model: Model, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> None:
    """Raises InputError if the translations of a validation cannot begin as the recipe says, before a step is made."""
    check_bleu(recipe)
    validation = recipe.validation
    if validation.metric not in ("bleu", "chrf"):
        return
    try:
        _translator(model, tokenisers, recipe).check_start(validation.prefix or "", validation.target_language)
    except InputError as error:
        first = error.diagnostics[0]
        raise InputError(recipe.diagnostic(first.code, "validation", first.message, first.fix)) from None


def _translator(model: Model, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Translator:
    """The translator of a validation."""
    beams = {"kind": "beam", "beams": recipe.validation.beams} if recipe.validation.beams > 1 else {"kind": "greedy"}
    search = Search(**beams, filters=recipe.validation.filters or ())
    return Translator(model, tokenisers, search, batch_tokens=recipe.batching.tokens, workers=torch.get_num_threads())
