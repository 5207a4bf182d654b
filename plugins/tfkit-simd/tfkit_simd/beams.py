"""log-softmax and top-k of a step of a beam search, in one kernel (../source/beams.h)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ._kernels import beam_top_k


def select(avx512: bool, logits: Tensor, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of each sentence; see `tfkit.plugin.BeamTopK`.

    Args:
        avx512: whether to use AVX-512; otherwise AVX2.
        logits: float32 (S * k, V)
        totals: float32 (S, k), the log-probabilities of the beams.
        count: how many to select.

    Returns:
        The largest of totals[s, j] + log softmax(logits)[s * k + j, v], their indices j * V + v, and their log-probabilities,
        each (S, count).

    Raises:
        ValueError: a shape, a dtype or a device is another.
    """
    (S, k), V = totals.shape, logits.shape[1]
    if len(logits) != S * k or {logits.dtype, totals.dtype} != {torch.float32} or not (logits.is_cpu and totals.is_cpu):
        found = f"{tuple(logits.shape)} {logits.dtype} on {logits.device}"
        raise ValueError(f"the logits are {found}, expected ({S * k}, V) torch.float32 on cpu, as the totals")
    if count < 1 or not V:
        raise ValueError(f"{count} of {V} tokens are asked for, expected at least one")
    logits, totals = logits.contiguous(), totals.contiguous()
    values, log_probs, indices = torch.empty(S, count), torch.empty(S, count), torch.empty(S, count, dtype=torch.int64)
    beam_top_k(
        avx512, logits.data_ptr(), totals.data_ptr(), values.data_ptr(), log_probs.data_ptr(), indices.data_ptr(),
        S, k, V, count,
    )  # fmt: skip
    return values, indices, log_probs


select_avx2, select_avx512 = partial(select, False), partial(select, True)
