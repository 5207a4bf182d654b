"""Weights and programs in and out: exports for other runtimes."""
