"""Sampling: every token is drawn from the model's distribution, sharpened, flattened or cut off.

    p(y) ~ exp(logit(y) / temperature), among the `top_k` most probable tokens, and of these the fewest whose probabilities
    sum to `top_p` or more (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751)

A token is where the running sum of the probabilities, most probable first where they were sorted, passes a number drawn
uniformly from [0, 1). These numbers come from Philox (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405), a function
of the seed, the row, the sample and the step alone: neither the other rows of a batch nor the device change them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch import Tensor

from ..errors import Diagnostic, InputError
from ..nn.model import Model
from .decode_loop import decode_loop
from .hypothesis import Hypothesis
from .prefill import prefill
from .top_k import best, most_probable


@torch.no_grad()
def sample(
    model: Model,
    *given: Tensor,
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
    **inputs: Tensor,
) -> list[list[Hypothesis]]:
    """For every row `samples` sequences, in the order in which they were drawn.

    `temperature` 0 is greedy decoding. The same `seed` gives the same draws; without one, it is itself drawn from torch's
    default generator. Row b draws from the stream `streams[b]`, b itself unless given, so a row has the same samples in any
    batch in which its stream and its logits are the same; its later samples do not change its earlier ones. The probabilities
    of the hypotheses are the model's own, before temperature and cuts. Everything else is as in `greedy`.

    Raises InputError for settings out of range, for logits that are not numbers, and for what `greedy` raises it.
    """
    check_sampling(temperature, top_k, top_p, seed, samples)
    state = prefill(model, given, max_new_tokens, prompt, target, output, masks, lengths, segments, attention, inputs)
    batch, device = state.decoding.batch, state.logits.device
    if streams is not None and len(streams) != batch:
        raise InputError(Diagnostic("TFK078", f"there are {len(streams)} streams and {batch} rows", "give one stream per row"))
    if samples > 1:
        copies = torch.arange(batch, device=device).repeat_interleave(samples)
        state.decoding.reorder(copies)
        weights = {site: tensor[copies] for site, tensor in state.weights.items()}
        state = replace(state, logits=state.logits[copies], limits=state.limits[copies], weights=weights)
    seed = int(torch.randint(2**63 - 1, ())) if seed is None else seed
    drawn = _uniforms(seed, range(batch) if streams is None else streams, samples, state.most).to(device)

    def pick(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        if temperature == 0.0:
            return most_probable(logits)
        return _draw(logits, drawn[rows, step], temperature, top_k, top_p)

    limits = state.limits if isinstance(max_new_tokens, Tensor) else None
    rolled = decode_loop(model, state, pick, limits, True, attention).hypotheses()
    return [[one for (one,) in rolled[row : row + samples]] for row in range(0, len(rolled), samples)]


def check_sampling(temperature: Any, top_k: Any, top_p: Any, seed: Any, samples: Any) -> None:
    """Raises InputError for settings of sampling that are none."""
    if not _number(temperature) or not math.isfinite(temperature) or temperature < 0:
        raise InputError(Diagnostic("TFK078", f"temperature is {temperature!r}", "it is a number from 0 (greedy) up"))
    for name, value in (("top_k", top_k), ("samples", samples)):
        if not (value is None and name == "top_k") and (not _number(value) or not isinstance(value, int) or value < 1):
            raise InputError(Diagnostic("TFK078", f"{name} is {value!r}", "it is a whole number from 1 up"))
    if top_p is not None and not (_number(top_p) and 0 < top_p <= 1):
        raise InputError(Diagnostic("TFK078", f"top_p is {top_p!r}", "it is a number above 0, at most 1"))
    if seed is not None and not (_number(seed) and isinstance(seed, int) and 0 <= seed < 2**64):
        raise InputError(Diagnostic("TFK078", f"seed is {seed!r}", "it is a whole number from 0 to 2^64 - 1"))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _uniforms(seed: int, streams: Sequence[int], samples: int, steps: int) -> Tensor:
    """(rows * samples, steps) float64 numbers from [0, 1): the key of Philox is (seed, stream), its counter begins with the
    sample."""
    drawn = numpy.empty((len(streams) * samples, steps))
    for number, stream in enumerate(streams):
        for which in range(samples):
            key = numpy.array([seed, stream], dtype=numpy.uint64)
            source = numpy.random.Philox(key=key, counter=[0, 0, 0, which])
            drawn[number * samples + which] = numpy.random.Generator(source).random(steps)
    return torch.from_numpy(drawn)


def _draw(logits: Tensor, uniform: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """One id (R,) for each row of logits (R, V), where its uniform number (R,) falls."""
    top_p = None if top_p == 1 else top_p
    logits = logits.double()
    # Relative to the largest, so that no temperature is too small: a quotient may become -inf, the largest stays 0.
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
    at = at.minimum((sums < total).sum(1, keepdim=True))  # rounding must not lead beyond the last token that has a chance
    return (at if ids is None else ids.gather(1, at))[:, 0]
