"""Proofs about one model: every sub-layer where it stands, with every backend, and the model as a whole."""

from .row import Row, VerifyReport
from .verifier import verify

__all__ = ["Row", "VerifyReport", "verify"]
