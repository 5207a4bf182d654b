"""Proofs about one model: every sub-layer with every backend, and the whole model."""

from .row import Row, VerifyReport
from .verifier import verify

__all__ = ["Row", "VerifyReport", "verify"]
