"""Laws of the slots beyond attention: what every position scheme, norm, placement and activation owes a model, what it claims
of its own mathematics, and, for those known by name, their equations."""

from .fault import LawFault
from .run import LAWS, check_part, replay_part
from .selftest import Kills, faults, kill_matrix, selftest_laws

__all__ = ["LAWS", "Kills", "LawFault", "check_part", "faults", "kill_matrix", "replay_part", "selftest_laws"]
