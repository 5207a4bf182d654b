"""Attention backends that are wrong on purpose, family by family: what the conformance suite is judged by, and what it names
when a backend does the same."""

from __future__ import annotations

from . import backward, bias, dropout, heads, masks, softmax, strides, system
from . import fully_masked_rows as blind_rows
from .mutant import SeededFault

ATTENTION_FAULTS: tuple[SeededFault, ...] = (
    *masks.FAULTS, *blind_rows.FAULTS, *softmax.FAULTS, *heads.FAULTS, *backward.FAULTS, *bias.FAULTS, *dropout.FAULTS,
    *strides.FAULTS, *system.FAULTS,
)  # fmt: skip
"""Every seeded fault of an attention backend."""

__all__ = ["ATTENTION_FAULTS", "SeededFault"]
