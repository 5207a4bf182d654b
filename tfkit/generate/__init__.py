"""Generating sequences from a built model."""

from .greedy import Generated, greedy

__all__ = ["Generated", "greedy"]
