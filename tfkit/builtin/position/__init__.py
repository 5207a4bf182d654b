"""The built-in position schemes."""
