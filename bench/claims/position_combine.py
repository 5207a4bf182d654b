"""Positions added to the embedding, or concatenated with it and projected back (arXiv:1706.03762, section 3.5)."""

from reversal import Pair, main

TEXT = "Adding positions to the embedding is no worse than concatenating them"
VARIANTS = {"add": [], "concat": ["model.defaults.position={kind: sinusoidal, combine: concat}"]}
SETTINGS = {"pairs": [Pair("add", "concat", "position", "is no worse than")]}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
