"""ReLU, GELU and SwiGLU with equal parameters: the three matrices of SwiGLU have two thirds of the width (arXiv:2002.05202)."""

from reversal import Pair, main

TEXT = "SwiGLU is better than GELU, and GELU than ReLU, at equal parameters"
VARIANTS = {
    "relu": ["model.defaults.ffn={d_ff: 126, activation: relu, bias: false}"],
    "gelu": ["model.defaults.ffn={d_ff: 126, activation: gelu, bias: false}"],
    "swiglu": ["model.defaults.ffn={d_ff: 84, activation: swiglu, bias: false}"],
}
PAIRS = [Pair("swiglu", "gelu", "activation", for_equal_parameters="d_ff"), Pair("gelu", "relu", "activation")]
SETTINGS = {"pairs": PAIRS}
if __name__ == "__main__":
    main(TEXT, VARIANTS, **SETTINGS)
