"""log-softmax and top-k of a step of a beam search in one kernel, and the token of greedy decoding (../source/beams.h)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ._kernels import beam_top_k, most_probable


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
        actual = f"{tuple(logits.shape)} {logits.dtype} on {logits.device}"
        raise ValueError(f"the logits are {actual}, expected ({S * k}, V) torch.float32 on cpu, as the totals")
    if count < 1 or not V:
        raise ValueError(f"{count} of {V} tokens are asked for, expected at least one")
    logits, totals = logits.contiguous(), totals.contiguous()
    values, log_probs = (torch.empty(S, count, device="cpu") for _ in range(2))
    indices = torch.empty(S, count, dtype=torch.int64, device="cpu")
    beam_top_k(
        avx512, logits.data_ptr(), totals.data_ptr(), values.data_ptr(), log_probs.data_ptr(), indices.data_ptr(),
        S, k, V, count,
    )  # fmt: skip
    return values, indices, log_probs


def greedy(avx512: bool, logits: Tensor) -> Tensor:
    """The most probable token of each row; see `tfkit.plugin.BeamTopK`.

    Args:
        avx512: whether to use AVX-512; otherwise AVX2.
        logits: float32 (R, V)

    Returns:
        The indices (R,), int64.

    Raises:
        ValueError: the shape, the dtype or the device is another.
    """
    if logits.dim() != 2 or not logits.shape[1] or logits.dtype != torch.float32 or not logits.is_cpu:
        actual = f"{tuple(logits.shape)} {logits.dtype} on {logits.device}"
        raise ValueError(f"the logits are {actual}, expected (R, V) torch.float32 on cpu with V from 1 up")
    logits = logits.contiguous()
    indices = torch.empty(len(logits), dtype=torch.int64, device="cpu")
    most_probable(avx512, logits.data_ptr(), indices.data_ptr(), *logits.shape)
    return indices


greedy_avx2, greedy_avx512 = partial(greedy, False), partial(greedy, True)
select_avx2, select_avx512 = partial(select, False), partial(select, True)
