"""transformers: functions that read more than the usual arguments. bench/field_report.py runs them, and others by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
from transformers.models.t5.modeling_t5 import eager_attention_forward as t5_eager


def gpt_oss(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
            dropout: float = 0.0) -> Any:  # fmt: skip
    """GPT-OSS's function with sinks of -inf, which take no weight."""
    module.sinks = torch.full((query.shape[1],), -torch.inf, dtype=query.dtype)
    return eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout)


def t5(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
       dropout: float = 0.0) -> Any:  # fmt: skip
    """T5's function with the mask as its position bias."""
    return t5_eager(module, query, key, value, None, scaling, dropout, position_bias=attention_mask)
