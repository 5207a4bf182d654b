"""Laws of the slots beyond attention: what every position scheme, norm, placement and activation owes a model, what it claims
of its own mathematics, and, for those known by name, their equations."""

from .check import LAWS, check_part, replay_part

__all__ = ["LAWS", "check_part", "replay_part"]
