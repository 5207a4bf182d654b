"""The built-in initialisers."""
