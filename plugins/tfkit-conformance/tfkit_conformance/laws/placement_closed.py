"""The known placements against their equations, with stand-ins f for sub-layers and N for norms; b is skip, s_n a scale:

post, deepnorm   x = N(b x + s f(x))              https://arxiv.org/abs/1706.03762, https://arxiv.org/abs/2203.00555
pre              x = b x + s f(N(x))              https://arxiv.org/abs/2002.04745
sandwich         x = b x + s N_out(f(N_in(x)))    https://arxiv.org/abs/2105.13290
residual_post    x = b x + s N(f(x))              https://arxiv.org/abs/2111.09883
parallel         x = b x + sum_n s_n f_n(N(x))    https://arxiv.org/abs/2204.02311
none             x = b x + s f(x)
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from ..attention.bound import gamma
from .example import LawExample
from .law import Law, known_as
from .options import shared
from .placement_parts import Wired, draw, facts_of, input_of, wired
from .rounding import sensitivity


def _equation(example: LawExample, made: Wired, skip: float, scales: dict[str, float], x: Tensor) -> Tensor:
    kind, options, start = example.subject.mathematics, shared(example), x
    if kind == "parallel":
        added = skip * start
        for name, branch in made.branches.items():
            norm = made.norms["shared" if options.norms == "shared" else name]
            added = added + scales[name] * branch.give(norm.give(start))
        return added
    for name, branch in made.branches.items():
        scale = scales[name]
        if kind in ("post", "deepnorm"):
            x = made.norms[name].give(skip * x + scale * branch.give(x))
        elif kind == "pre":
            x = skip * x + scale * branch.give(made.norms[name].give(x))
        elif kind == "sandwich":
            x = skip * x + scale * made.norms[f"{name}_out"].give(branch.give(made.norms[f"{name}_in"].give(x)))
        elif kind == "residual_post":
            x = skip * x + scale * made.norms[name].give(branch.give(x))
        else:
            x = skip * x + scale * branch.give(x)
    return x


def _wiring(example: LawExample) -> float:
    at, random = example.at, Random(example.generator.initial_seed())
    skip = example.entry.constants(example.options, facts_of(at)).skip
    scales = {name: random.choice((0.5, 1.0, 1.0, 2.0)) for name in at["sublayers"]}
    made, x = wired(example, scales=scales), input_of(example)
    total = sensitivity(lambda x: _equation(example, made, skip, scales, x), [x])
    want = _equation(example, made, skip, scales, x)
    steps = 8 * (at["width"] + 8) * len(at["sublayers"])
    bound = gamma(steps, example.unit) * (total + 1.0) * (1.0 + abs(skip)) ** len(at["sublayers"])
    names, kind = ", ".join(at["sublayers"]), example.subject.mathematics
    said = f"the layer of {names} is not wired as `{kind}` says, skip {skip:.4g}, scales {scales}"
    return example.within(said, made(x), want, bound)


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


SMALLER = {"tokens": 1, "batch": 1, "width": 2, "layers": 1}
LAWS = (
    Law("wiring", "the placement's equation, in float64",
        known_as("post", "pre", "sandwich", "residual_post", "deepnorm", "parallel", "none"), draw, _wiring, SMALLER,
        ("float64",)),
    Law(
        "deepnorm_constants", "alpha and beta of the paper", known_as("deepnorm"), draw, _deepnorm, {"layers": 1}, ("float64",)
    ),
)  # fmt: skip
