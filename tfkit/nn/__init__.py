"""Blocks of a model. Modules read like their equations and never see a spec."""
