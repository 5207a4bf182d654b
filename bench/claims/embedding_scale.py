"""Token embeddings multiplied by sqrt(d_model), and not (arXiv:1706.03762, section 3.4)."""

from reversal import Pair, main

TEXT = "Embeddings need the factor sqrt(d_model)"
VARIANTS = {"scaled": [], "not scaled": ["model.source.scale=1.0", "model.target.scale=1.0"]}
SETTINGS = {"pairs": [Pair("scaled", "not scaled", "scale")]}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
