"""What one call of a model carries: contexts, padding, decoding state, caches, and beams that share prefixes."""
