"""The built-in norms."""
