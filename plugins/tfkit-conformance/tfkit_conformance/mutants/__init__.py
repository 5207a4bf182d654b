"""Mutants: attention backends with one error each, by family. The suite must kill them. It names the mutant that
matches a failing backend."""

from __future__ import annotations

from . import backward, bias, dropout, fully_masked_rows as fully_masked_rows, heads, masks, softmax, strides, system
from .mutant import Mutant

ATTENTION_MUTANTS: tuple[Mutant, ...] = (
    *masks.MUTANTS, *fully_masked_rows.MUTANTS, *softmax.MUTANTS, *heads.MUTANTS, *backward.MUTANTS, *bias.MUTANTS,
    *dropout.MUTANTS, *strides.MUTANTS, *system.MUTANTS,
)  # fmt: skip
"""Every mutant of an attention backend."""

__all__ = ["ATTENTION_MUTANTS", "Mutant"]
