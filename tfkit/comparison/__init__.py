"""Training recipes compared over seeds: every recipe is trained once per seed, and differences are paired by seed."""

from .candidates import Candidate
from .results import CandidateResult, Comparison, Difference, RunResult
from .runner import compare_recipes

__all__ = ["Candidate", "CandidateResult", "Comparison", "Difference", "RunResult", "compare_recipes"]
