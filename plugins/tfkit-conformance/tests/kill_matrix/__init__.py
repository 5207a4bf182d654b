"""Tests the suite: it must kill all mutants and pass all correct kernels."""
