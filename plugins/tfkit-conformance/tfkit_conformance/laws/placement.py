"""Laws of every placement: it uses each sub-layer and norm as declared, with the declared constants."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch

from ..attention.bound import gamma
from .declared import check_claims, check_reached, check_reasons, check_unwritten
from .law import Law, LawExample, PartUnderTest, Structure, always, claims, known_as
from .placement_parts import SUBLAYERS, draw, facts_of, input_of, run_of, wired


def _deepnorm(example: LawExample) -> float:
    """alpha and beta of the paper's table, for N encoder and M decoder layers."""
    at = example.at
    constants = example.entry.constants(example.options, facts_of(at))
    layers, partner = at["layers"], at["partner"]
    if at["role"] == "encoder":
        alpha, beta = 0.81 * layers**0.25 * partner ** (1 / 16), 0.87 / (layers**0.25 * partner ** (1 / 16))
    elif at["role"] == "decoder":
        alpha, beta = 3**0.25 * layers**0.25, 12**-0.25 * layers**-0.25
    else:
        alpha, beta = 2**0.25 * layers**0.25, 8**-0.25 * layers**-0.25
    roles = ("value", "attention_output", "ffn_in", "ffn_gate", "ffn_out")
    got = torch.tensor(
        [constants.skip, constants.branch, *(constants.gains.get(role, 1.0) for role in roles)], dtype=torch.float64
    )
    want = torch.tensor([alpha, 1.0, *[beta] * len(roles)], dtype=torch.float64)
    if extra := set(constants.gains) - set(roles):
        raise example.broken(f"beta multiplies the initial spread of {sorted(extra)}, which the paper leaves as they are")
    message = f"alpha or beta of {at['role']} with {layers} layers (and {partner}) is not that of the paper"
    return example.within(message, got, want, 64 * 2.0**-53 * want.abs())


CONSTANTS = (
    Law(
        "deepnorm_constants", "alpha and beta of the paper", known_as("deepnorm"), draw, _deepnorm, {"layers": 1}, ("float64",)
    ),
)


def _draw_any(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return draw(subject, options, random) | {"asked": list(random.choice(SUBLAYERS))}


def _declaration(example: LawExample) -> None:
    entry, options, at = example.entry, example.options, example.at
    check_claims(example)
    if not isinstance(entry.final_norm(options), bool):
        raise example.broken(f"`final_norm` must be true or false; it is {entry.final_norm(options)!r}")
    check_reasons(example, entry.unsupported(options, tuple(at["asked"])))
    sites = entry.norm_sites(options, tuple(at["sublayers"]))
    if not isinstance(sites, tuple) or any(not isinstance(site, str) or not site.isidentifier() for site in sites):
        raise example.broken(f"`norm_sites` must be a tuple of names; it is {sites!r}")
    if len(set(sites)) != len(sites):
        raise example.broken(f"`norm_sites` names a norm twice: {sites}")
    wired_layer = wired(example)
    expected = {f"branches.{name}.weight" for name in at["sublayers"]} | {f"norms.{site}.weight" for site in sites}
    names = {name for name, _ in wired_layer.layer.named_parameters()}
    if names != expected:
        raise example.broken(f"the layer's parameters are {sorted(names)}; a model expects {sorted(expected)}")
    if any(True for _ in wired_layer.layer.buffers()):
        raise example.broken("the layer has buffers, whose numbers would be lost: modules are built without storage")


def _constants(example: LawExample) -> None:
    constants = example.entry.constants(example.options, facts_of(example.at))
    numbers = {"skip": constants.skip, "branch": constants.branch, **constants.gains}
    for name, number in numbers.items():
        if not isinstance(number, (int, float)) or not math.isfinite(number) or number < (name != "skip") * 2.0**-60:
            least = "of at least 0" if name == "skip" else "above 0"
            raise example.broken(f"the constant `{name}` must be a number {least}; it is {number!r}")


def _uses(example: LawExample) -> None:
    """Every sub-layer once, in order, with the run and the index of the layer; every declared norm."""
    at, wired_layer, x = example.at, wired(example), input_of(example)
    run, index, kept = run_of(at["tokens"]), 5, x.clone()
    output = example.alike("output", wired_layer(x, run, index), x.shape, x.dtype)
    example.finite("output", output)
    check_unwritten(example, [kept], [x])
    called = [call.name for call in wired_layer.log.branches]
    if called != at["sublayers"]:
        raise example.broken(f"the sub-layers are called in the order {called}; each must be called once: {at['sublayers']}")
    for call in wired_layer.log.branches:
        if call.run is not run or call.index != index:
            raise example.broken(f"`{call.name}` is not given the run and the index of its layer")
    unused = sorted(set(wired_layer.norms) - {call.name for call in wired_layer.log.norms})
    if unused:
        raise example.broken(f"the norms {unused} are declared in `norm_sites` and not used")
    again = wired_layer(x, run, index)
    example.equal("a second call gives a different result", again, output)


def _tokens(example: LawExample) -> None:
    wired_layer, x, other = wired(example), input_of(example), input_of(example)
    token = int(example.generator.initial_seed() % example.at["tokens"])
    other[0, token] = x[0, token]
    example.equal(
        f"token {token} depends on other tokens, which no sub-layer and no norm mixes",
        wired_layer(other)[0, token],
        wired_layer(x)[0, token],
    )


def _gradients(example: LawExample) -> None:
    wired_layer, x = wired(example), input_of(example).requires_grad_()
    check_reached(example, wired_layer(x), {"x": x} | dict(wired_layer.layer.named_parameters()))


def _scales(example: LawExample, random: Random) -> dict[str, float]:
    return {name: random.choice((0.25, 0.5, 2.0, 3.0)) for name in example.at["sublayers"]}


def _sum(example: LawExample) -> float:
    """With norms that change nothing, skip 1 and sub-layers that give fixed b: x + sum_n scale_n b_n. One sub-layer alone:
    skip x + scale b."""
    random, at = Random(example.generator.initial_seed()), example.at
    scales = _scales(example, random)
    x = input_of(example)
    wired_layer = wired(example, "fixed", "same", scales, skip=1.0)
    want, size = x.double(), x.double().abs()
    for name in at["sublayers"]:
        fixed = wired_layer.branches[name].fixed
        assert fixed is not None
        want, size = want + scales[name] * fixed.double(), size + abs(scales[name]) * fixed.double().abs()
    bound = gamma(2 * len(at["sublayers"]) + 2, example.unit) * size
    message = f"with norms that change nothing the layer is not x + the sum of scale times sub-layer, scales {scales}"
    return example.within(message, wired_layer(x), want, bound)


def _skip(example: LawExample) -> float:
    at = example.at
    factor = example.entry.constants(example.options, facts_of(at)).skip
    wired_layer, x = wired(example, "fixed", "same"), input_of(example)
    fixed = wired_layer.branches[at["sublayers"][0]].fixed
    assert fixed is not None
    want = factor * x.double() + fixed.double()
    bound = gamma(4, example.unit) * (abs(factor) * x.double().abs() + fixed.double().abs())
    return example.within(
        f"the residual is not multiplied by skip = {factor:.6g}, which its constants say", wired_layer(x), want, bound
    )


def _draw_one(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    at = draw(subject, options, random)
    alone = [names for names in SUBLAYERS if len(names) == 1 and not subject.entry.unsupported(options, names)]
    return at | ({"sublayers": list(random.choice(alone))} if alone else {"role": "encoder_only"})


def _wires_one(subject: PartUnderTest, options: Any) -> bool:
    return any(not subject.entry.unsupported(options, names) for names in SUBLAYERS if len(names) == 1)


def _scaled_out(example: LawExample) -> None:
    """The output of a sub-layer with scale 0 has no effect."""
    at = example.at
    mute = at["sublayers"][-1]
    wired_layer, x = wired(example, scales={mute: 0.0}), input_of(example)
    before = wired_layer(x)
    with torch.no_grad():
        wired_layer.branches[mute].weight.mul_(-3.0)
    example.equal(f"`{mute}` has scale 0, but its output still has an effect", wired_layer(x), before)
    loud = wired(example, scales={mute: 2.0}, skip=1.0)
    with torch.no_grad():
        for name, branch in loud.branches.items():
            branch.weight.copy_(wired_layer.branches[name].weight)
        for site, norm in loud.norms.items():
            norm.weight.copy_(wired_layer.norms[site].weight)
    if at["width"] > 1:
        example.differs(f"the scale of `{mute}` is ignored", loud(x), before)


def _dropout(example: LawExample) -> None:
    """Only in training, only on what sub-layers add, survivors times 1 / (1 - p)."""
    at, share = example.at, 0.5
    x = example.normal(2, 64, at["width"])
    wired_layer = wired(example, "curved", "same", skip=1.0, dropout=share)
    kept = wired_layer(x)
    example.equal("dropout acts in evaluation", wired_layer(x), kept)
    plain = x
    for name in at["sublayers"][:1] if len(at["sublayers"]) == 1 else ():
        plain = x + wired_layer.branches[name].give(x)
        example.equal("dropout changes the numbers in evaluation", kept, plain)
    silent = wired(example, "zero", "same", skip=1.0, dropout=share)
    silent.layer.train()
    example.equal("dropout acts on the residual: with sub-layers that give 0, x changes", silent(x), x)
    mute = dict.fromkeys(at["sublayers"][1:], 0.0)
    loud = wired(example, "fixed", "same", mute, skip=1.0, dropout=share)
    loud.layer.train()
    first = loud.branches[at["sublayers"][0]]
    first.fixed = torch.ones_like(x)
    for name in at["sublayers"][1:]:
        loud.branches[name].fixed = torch.ones_like(x)
    output = loud(torch.zeros_like(x))
    if not bool(((output == 0.0) | (output == 1.0 / (1.0 - share))).all()):
        raise example.broken(
            f"in training with dropout {share}, what a sub-layer adds must be 0 or {1 / (1 - share):g} times itself"
        )
    count = output.numel()
    away = abs(float((output == 0.0).sum()) - share * count)
    # Six standard deviations of a binomial count: wrong once in 5e8 calls.
    if away > 6 * math.sqrt(count * share * (1.0 - share)):
        raise example.broken(f"dropout {share} drops {int((output == 0.0).sum())} of {count} numbers")


def _stream(example: LawExample) -> None:
    """R36: sub-layers that give 0 add nothing, and what runs through the layer is x itself, bit for bit."""
    wired_layer, x = wired(example, "zero", skip=1.0), input_of(example)
    example.equal("with sub-layers that give 0 the layer is not the identity", wired_layer(x), x)


def _normed(example: LawExample) -> None:
    """R36: the layer gives what its last norm gave, bit for bit."""
    wired_layer, x = wired(example), input_of(example)
    output = wired_layer(x)
    if not wired_layer.log.norms:
        raise example.broken("it claims a normed output and uses no norm")
    example.equal("the output is not that of the last norm", output, wired_layer.log.norms[-1].output)


SMALLER = {"tokens": 1, "batch": 1, "width": 2, "layers": 1}
FLAT = ("float32",)
LAWS = (
    Law("declaration", "claims, norm_sites and parameters are as a model expects them; `unsupported` gives reasons in words",
        always, _draw_any, _declaration, dtypes=FLAT),
    Law("constants", "branch and gains above 0, skip at least 0, at any depth", always, draw, _constants, {"layers": 1}, FLAT),
    Law("uses", "every sub-layer is called once, in order; every declared norm is used", always, draw, _uses, SMALLER),
    Law("tokens", "R37: a token does not depend on others unless a sub-layer or norm mixes them, bit for bit",
        always, draw, _tokens,
        SMALLER),
    Law("gradients", "a gradient reaches the input, every sub-layer and every norm", always, draw, _gradients, SMALLER),
    Law("residual_sum", "x + the sum of scale times sub-layer, where norms change nothing and skip is 1", always, draw, _sum,
        SMALLER),
    Law("skip", "skip x + scale f, where norms change nothing", _wires_one, _draw_one, _skip, SMALLER),
    Law("scales", "what is added is multiplied by its scale", always, draw, _scaled_out, SMALLER, FLAT),
    Law("dropout", "R40: acts in training only, on sub-layer outputs only; kept elements are scaled by 1 / (1 - p)",
        always, draw, _dropout, SMALLER,
        FLAT),
    Law("residual_stream", "R36: with sub-layers that give 0 the layer is the identity", claims("residual_stream"), draw,
        _stream, SMALLER),
    Law("normed_output", "R36: the output is that of the last norm", claims("normed_output"), draw, _normed, SMALLER),
    *CONSTANTS,
)  # fmt: skip
