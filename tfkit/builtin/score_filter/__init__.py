"""The built-in score filters."""
