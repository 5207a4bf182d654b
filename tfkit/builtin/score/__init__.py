"""The built-in score functions."""
