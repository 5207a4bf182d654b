"""softmax(scale q k^T) v, where query i of batch row b sees key j if j <= offset[b] + i."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, AttentionOutput, NoOptions, require_capabilities, select_rows, unmask_empty_rows

from . import CAPABILITIES

check = require_capabilities("acme.fixed", CAPABILITIES)


def draft(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    return _attend(inputs, _offsets(inputs)[0])  # wrong: the offset of the first row, for every row


def fixed(inputs: AttentionInputs, options: NoOptions) -> AttentionOutput:
    return _attend(inputs, _offsets(inputs))


def _offsets(inputs: AttentionInputs) -> Tensor:
    """(B,1,1,1), or (1,1,1,1) for a number."""
    return torch.as_tensor(0 if inputs.mask.offset is None else inputs.mask.offset).reshape(-1, 1, 1, 1)


def _attend(inputs: AttentionInputs, offset: Tensor) -> AttentionOutput:
    check(inputs)
    scores, rows = inputs.scale * inputs.query @ inputs.key.mT, None
    if inputs.mask.causal:
        queries, keys = torch.arange(scores.shape[2])[:, None], torch.arange(scores.shape[3])
        visible, rows = unmask_empty_rows((keys <= offset + queries).expand(scores.shape))
        scores = scores.masked_fill(~visible, -torch.inf)
    return AttentionOutput(select_rows(torch.softmax(scores, -1) @ inputs.value, rows))
