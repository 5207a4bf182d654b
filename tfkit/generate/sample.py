"""Sampling: every token is drawn from the model's distribution, after temperature, top-k and top-p.

    p(y) ~ exp(logit(y) / temperature), over the `top_k` most probable tokens, and of these the smallest set whose probabilities
    sum to at least `top_p` (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751)

Inverse transform sampling selects the token at which the cumulative probability exceeds a uniform number from [0, 1). These
numbers come from Philox (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405). They depend on seed, stream, sample and
step only, not on the other rows of a batch or the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..errors.arguments import check_number, check_whole, in_words
from ..nn.model import Model
from .decode_loop import Emit, decode_loop
from .hypotheses import Hypothesis
from .prefill import MOST_ROWS, prefill
from .score_filters import Filter, filters_of, forced_ids
from .step_graphs import StepGraphs, one_search
from .top_k import best, fastest_greedy

MOST_TEMPERATURE = 1e6


@torch.no_grad()
@one_search()
def sample(
    model: Model,
    *positional: Tensor,
    max_new_tokens: int | Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    samples: int = 1,
    streams: Sequence[int] | None = None,
    prompt: Tensor | None = None,
    target: str | None = None,
    output: str | None = None,
    masks: Mapping[str, Tensor] | None = None,
    lengths: Mapping[str, Tensor] | None = None,
    segments: Mapping[str, Tensor] | None = None,
    attention: Iterable[str] = (),
    emit: Emit | None = None,
    graphs: StepGraphs | None = None,
    filters: Sequence[Filter] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    shortlists: Sequence[Sequence[int] | Tensor] | None = None,
    **inputs: Tensor,
) -> list[list[Hypothesis]]:
    """Sample sequences for every row.

    Args:
        model: The model. Call `model.eval()` first, or dropout is active.
        *positional: As in `greedy`.
        max_new_tokens: As in `greedy`.
        temperature: Divides the logits; 0 is greedy decoding.
        top_k: Only the `top_k` most probable tokens can be drawn; all by default.
        top_p: Only the most probable tokens whose probabilities sum to `top_p` can be drawn; all by default.
        seed: The same seed gives the same samples; by default torch's default generator draws it.
        samples: Sequences per row.
        streams: The random stream of each row; 0 to B - 1 by default. A row with the same stream and logits has the same
            samples in every batch. More samples do not change the first ones.
        prompt: As in `greedy`.
        target: As in `greedy`.
        output: As in `greedy`.
        masks: As in `greedy`.
        lengths: As in `greedy`.
        segments: As in `greedy`.
        attention: Sites whose weights every hypothesis holds.
        emit: As in `greedy`; the samples of a row are rows of their own.
        graphs: As in `greedy`.
        filters: As in `greedy`; before temperature, top-k and top-p.
        prefixes: As in `greedy`, for each row, not for each sample.
        shortlists: As `prefixes`.
        **inputs: As in `greedy`.

    Returns:
        The samples of every row, in the order of drawing. Their probabilities are the model's own, before temperature, top-k
        and top-p.

    Raises:
        InputError: A setting is out of range, or the logits are NaN; and as `greedy`.

    Reference:
        https://arxiv.org/abs/1904.09751
    """
    check_sampling(temperature, top_k, top_p, seed, samples)
    filters_of(filters)
    start = prefill(
        model, positional, max_new_tokens, prompt, target, output, masks, lengths, segments, attention, inputs,
        shortlists, prefixes, None if graphs is None else graphs.first_pass,
    )  # fmt: skip
    forced = forced_ids(prefixes, start)
    filter_scores = filters_of(filters, None if forced is None else forced.repeat_interleave(samples, 0))
    batch, device = start.decoding.batch, start.logits.device
    if streams is not None:
        _check_streams(streams, batch)
    if samples > 1:
        copies = torch.arange(batch, device=device).repeat_interleave(samples)
        start.decoding.reorder(copies)
        weights = {site: tensor[copies] for site, tensor in start.weights.items()}
        start = replace(
            start, prompt=start.prompt[copies], logits=start.logits[copies], limits=start.limits[copies], weights=weights,
            columns=None if start.columns is None else start.columns.repeated(copies),
        )  # fmt: skip
    seed = int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else seed
    most_probable = fastest_greedy(model.beam_top_k)
    uniforms = _uniforms(seed, range(batch) if streams is None else streams, samples, start.max_tokens).to(device)

    def pick(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        if temperature == 0.0:
            return most_probable(logits)
        return _draw(logits, uniforms[rows, step], temperature, top_k, top_p)

    hypotheses = decode_loop(model, start, pick, True, attention, emit, graphs, filter_scores).hypotheses()
    return [[one for (one,) in hypotheses[row : row + samples]] for row in range(0, len(hypotheses), samples)]


def check_sampling(temperature: Any, top_k: Any, top_p: Any, seed: Any, samples: Any) -> None:
    """Raises InputError for invalid settings of sampling."""
    check_number("temperature", temperature, MOST_TEMPERATURE, "greedy")
    check_whole("samples", samples, largest=MOST_ROWS)
    if top_k is not None:
        check_whole("top_k", top_k)
    if top_p is not None and (not isinstance(top_p, (int, float)) or isinstance(top_p, bool) or not 0 < top_p <= 1):
        raise InputError(Diagnostic("TFK078", f"top_p is {in_words(top_p)}", "it is a number above 0, at most 1"))
    if seed is not None:
        check_whole("seed", seed, 0, 2**64 - 1)


def _check_streams(streams: Any, rows: int) -> None:
    """Raises InputError unless there is one number for each row."""
    if not isinstance(streams, Sequence) or isinstance(streams, (str, bytes)):
        raise InputError(Diagnostic("TFK078", f"streams is {in_words(streams)}", "give a list of one stream per row"))
    if len(streams) != rows:
        raise InputError(Diagnostic("TFK078", f"there are {len(streams)} streams and {rows} rows", "give one stream per row"))
    for stream in streams:
        check_whole("a stream", stream, 0, 2**64 - 1)


def _uniforms(seed: int, streams: Sequence[int], samples: int, steps: int) -> Tensor:
    """(rows * samples, steps) float64 in [0, 1). The key of Philox is (seed, stream); its counter starts at the sample."""
    uniforms = numpy.empty((len(streams) * samples, steps))
    for number, stream in enumerate(streams):
        for sample_number in range(samples):
            key = numpy.array([seed, stream], dtype=numpy.uint64)
            source = numpy.random.Philox(key=key, counter=[0, 0, 0, sample_number])
            uniforms[number * samples + sample_number] = numpy.random.Generator(source).random(steps)
    return torch.from_numpy(uniforms)


def _draw(logits: Tensor, uniform: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """The ids (R,) at which the cumulative distribution of logits (R, V) reaches uniform numbers (R,)."""
    top_p = None if top_p == 1 else top_p
    logits = logits.double()
    # Relative to the largest logit: a tiny temperature then gives 0 for the largest logit and -inf for all others.
    scaled = (logits - logits.amax(1, keepdim=True)) / temperature
    ids = None
    if top_k is not None and top_k < scaled.shape[1]:
        scaled, ids = best(scaled, top_k)
    elif top_p is not None:
        scaled, ids = scaled.sort(dim=1, descending=True, stable=True)
    probabilities = scaled.softmax(1)
    if top_p is not None:
        before = probabilities.cumsum(1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    sums = probabilities.cumsum(1)
    total = sums[:, -1:]
    at = torch.searchsorted(sums, uniform[:, None] * total, right=True)
    at = at.minimum((sums < total).sum(1, keepdim=True))  # rounding must not select a token of probability 0 at the end
    return (at if ids is None else ids.gather(1, at))[:, 0]
