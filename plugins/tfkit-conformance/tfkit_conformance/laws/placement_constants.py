"""The constants of DeepNorm, which also scale initial weights (https://arxiv.org/abs/2203.00555)."""

from __future__ import annotations

import torch

from .example import LawExample
from .law import Law, known_as
from .placement_parts import draw, facts_of


def _deepnorm(example: LawExample) -> float:
    """alpha and beta of the paper's table, for N encoder and M decoder layers."""
    at = example.at
    found = example.entry.constants(example.options, facts_of(at))
    own, partner = at["layers"], at["partner"]
    if at["role"] == "encoder":
        alpha, beta = 0.81 * own**0.25 * partner ** (1 / 16), 0.87 / (own**0.25 * partner ** (1 / 16))
    elif at["role"] == "decoder":
        alpha, beta = 3**0.25 * own**0.25, 12**-0.25 * own**-0.25
    else:
        alpha, beta = 2**0.25 * own**0.25, 8**-0.25 * own**-0.25
    roles = ("value", "attention_output", "ffn_in", "ffn_gate", "ffn_out")
    got = torch.tensor([found.skip, found.branch, *(found.gains.get(role, 1.0) for role in roles)], dtype=torch.float64)
    want = torch.tensor([alpha, 1.0, *[beta] * len(roles)], dtype=torch.float64)
    if extra := set(found.gains) - set(roles):
        raise example.broken(f"beta multiplies the initial spread of {sorted(extra)}, which the paper leaves as they are")
    said = f"alpha or beta of {at['role']} with {own} layers (and {partner}) is not that of the paper"
    return example.within(said, got, want, 64 * 2.0**-53 * want.abs())


LAWS = (
    Law(
        "deepnorm_constants", "alpha and beta of the paper", known_as("deepnorm"), draw, _deepnorm, {"layers": 1}, ("float64",)
    ),
)
