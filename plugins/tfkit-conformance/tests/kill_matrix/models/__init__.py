"""Mutants of whole models, and which properties of `verify` kill them."""
