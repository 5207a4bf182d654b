"""The named calls of `tfkit_conformance.attention.table`, in any dtype and with or without gradients."""

from __future__ import annotations

from dataclasses import replace

import torch

from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.table import CASES

BY_NAME = {case.name: case for case in CASES}


def typed(case: Case, dtype: torch.dtype = torch.float32, seed: int = 0, gradients: bool = True) -> Case:
    """The case in a dtype; a bias has the query's dtype where it may."""
    kept = case.bias_dtype if dtype == torch.float64 else "query"
    name = str(dtype).removeprefix("torch.")
    return replace(case, dtype=name, seed=seed, gradients=gradients, bias_gradient=gradients, bias_dtype=kept)
