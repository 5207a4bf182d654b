"""The built-in int8 kernels."""
