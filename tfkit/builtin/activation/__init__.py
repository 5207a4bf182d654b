"""The built-in activations."""
