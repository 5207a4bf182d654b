"""Kernels that keep keys and values of their own while they decode, checked by programs of operations."""
