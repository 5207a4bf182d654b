"""What a model is worth on the validation data: the loss of the true text, and scores of what it writes itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ..data import NO_LABEL, Corpus, Task, TextTokeniser, epoch_of
from ..generate import Search
from ..metrics import Score, corpus_scores
from ..nn.model import Model
from ..recipe import Recipe
from ..text import Translator
from .distributed.process_group import ProcessGroup
from .loss import smoothed


@torch.no_grad()
def validation_nll(
    model: Model, corpus: Corpus, task: Task, tokens: int, device: torch.device, processes: ProcessGroup
) -> tuple[float, float]:
    """Negative log-likelihood per label in nats, without smoothing or dropout, and the share of labels that are the model's
    first choice, in per cent. What is hidden is the same every time."""
    total, right, count = 0.0, 0.0, 0.0
    longest = max(int(lengths.max()) for lengths in corpus.lengths.values())
    batches = list(enumerate(epoch_of(corpus.lengths, max(tokens, longest), 0, 0).batches))
    for number, rows in batches[processes.rank :: processes.count]:
        draw = np.random.Generator(np.random.PCG64([number]))
        batch = task.batch(corpus, sorted(rows.tolist()), draw).to(device)
        logits = model(lengths=batch.lengths, **batch.inputs)[task.roles.output]
        total += float(smoothed(logits, batch.labels, 0.0, "uniform", NO_LABEL)[1])
        right += int((logits.argmax(-1) == batch.labels).sum())
        count += batch.target_tokens
    total, right, count = processes.sums(total, right, count)
    return total / count, 100 * right / count


def validation_scores(
    model: Model, corpus: Corpus, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe, processes: ProcessGroup
) -> tuple[dict[str, Score], tuple[str, str, str]]:
    """Scores of the translations of the first rows, made as `tfkit translate` makes them, and one row to look at: source,
    reference, translation."""
    sources = corpus.text("source_text", recipe.validation.sentences)
    references = corpus.text("target_text", recipe.validation.sentences)
    search = Search(kind="beam", beams=recipe.validation.beams) if recipe.validation.beams > 1 else Search(kind="greedy")
    workers = torch.get_num_threads()
    translator = Translator(model, tokenisers, search, batch_tokens=recipe.batching.tokens, workers=workers)
    rank, count = processes.rank, processes.count
    shares = processes.gathered([each.text for each in translator.translate(sources[rank::count])])
    made = [shares[row % count][row // count] for row in range(len(sources))]
    return processes.first(lambda: corpus_scores(made, references)), (sources[0], references[0], made[0])
