"""Checks of the step of a beam search that selects continuations."""

from .check import check_beam_top_k

__all__ = ["check_beam_top_k"]
