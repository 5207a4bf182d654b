"""Stand-ins for sub-layers and norms that record how a placement uses them, and layers built from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tfkit.inspection import Padding
from tfkit.plugin.model_parts import ForwardContext, LayerParts, PlacementContext, StackContext

from ..finding import Inconclusive
from .law import LawExample, PartUnderTest, Structure

SUBLAYERS = (
    ("self_attention", "ffn"),
    ("ffn",),
    ("self_attention", "cross_attention", "ffn"),
    ("self_attention",),
    ("ffn", "self_attention", "ffn_2"),
    ("self_attention", "cross_attention", "cross_attention_2", "ffn"),
)
ROLES: tuple[Literal["encoder", "decoder", "encoder_only", "decoder_only"], ...] = (
    "encoder",
    "decoder",
    "encoder_only",
    "decoder_only",
)
Mode = Literal["curved", "fixed", "zero", "same"]


def run_of(length: int) -> StackContext:
    """One call of a stack that has neither padding nor memory."""
    return StackContext(ForwardContext({}, {}, {}), "laws", False, Padding(), length, 0, None, {}, ())


@dataclass
class Call:
    """One use of a stand-in."""

    name: str
    input: Tensor
    output: Tensor
    run: object = None
    index: object = None


@dataclass
class Log:
    """All uses in order."""

    branches: list[Call] = field(default_factory=list)
    norms: list[Call] = field(default_factory=list)


class Branch(nn.Module):
    """A sub-layer that treats each token on its own: W tanh(x), or a fixed output."""

    def __init__(self, name: str, weight: Tensor, mode: Mode, fixed: Tensor | None, log: Log) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.name, self.mode, self.fixed, self.log = name, mode, fixed, log

    def forward(self, x: Tensor, run: StackContext, index: int) -> Tensor:
        output = self.give(x)
        self.log.branches.append(Call(self.name, x, output, run, index))
        return output

    def give(self, x: Tensor) -> Tensor:
        if self.mode == "zero":
            return torch.zeros_like(x)
        if self.mode == "fixed" and self.fixed is not None:
            return self.fixed.clone()
        return x.tanh() @ self.weight.T


class NormStandIn(nn.Module):
    """weight x / sqrt(1 + mean square), or x itself: zero stays zero."""

    def __init__(self, name: str, weight: Tensor, mode: Mode, log: Log) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.name, self.mode, self.log = name, mode, log

    def forward(self, x: Tensor) -> Tensor:
        output = self.give(x)
        self.log.norms.append(Call(self.name, x, output))
        return output

    def give(self, x: Tensor) -> Tensor:
        if self.mode == "same":
            return x
        return self.weight * x / (1.0 + x.square().mean(-1, keepdim=True)).sqrt()


@dataclass
class Wired:
    """A layer, its stand-ins by name, and their records."""

    layer: nn.Module
    branches: dict[str, Branch]
    norms: dict[str, NormStandIn]
    log: Log

    def __call__(self, x: Tensor, run: StackContext | None = None, index: int = 0) -> Tensor:
        self.log.branches.clear()
        self.log.norms.clear()
        output: Tensor = self.layer(x, run_of(x.shape[1]) if run is None else run, index)
        return output


def draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    """Sub-layers that the placement can wire, in a stack of some depth. Raises Inconclusive where it can wire none."""
    choices = [names for names in SUBLAYERS if not subject.entry.unsupported(options, names)]
    if not choices:
        raise Inconclusive("its `unsupported` refuses every set of sub-layers that was tried")
    role = random.choice(ROLES)
    return {
        "sublayers": list(random.choice(choices)), "role": role, "layers": random.choice((1, 2, 6, 12, 48)),
        "partner": random.choice((1, 3, 6, 18)) if role in ("encoder", "decoder") else 0,
        "width": random.choice((2, 3, 5, 8)), "tokens": random.choice((1, 2, 3, 5)), "batch": random.choice((1, 2)),
    }  # fmt: skip


def facts_of(at: Structure) -> PlacementContext:
    return PlacementContext(at["role"], at["layers"], at["partner"])


def input_of(example: LawExample) -> Tensor:
    """x (B,L,M)."""
    return example.normal(example.at["batch"], example.at["tokens"], example.at["width"])


def wired(
    example: LawExample,
    branches: Mode = "curved",
    norms: Mode = "curved",
    scales: dict[str, float] | None = None,
    skip: float | None = None,
    dropout: float = 0.0,
) -> Wired:
    """The layer of the case. `skip` is what the entry's constants say, the scales 1, unless given."""
    at, entry, log = example.at, example.entry, Log()
    names, width = tuple(at["sublayers"]), at["width"]
    if skip is None:
        skip = entry.constants(example.options, facts_of(at)).skip
    stand_ins = {
        name: Branch(name, example.normal(width, width) / 2, branches, input_of(example), log) for name in names
    }  # fmt: skip
    sites = entry.norm_sites(example.options, names)
    around = {site: NormStandIn(site, example.normal(width), norms, log) for site in sites}
    parts = LayerParts(stand_ins, around, skip, dict.fromkeys(names, 1.0) | (scales or {}), dropout)
    layer = example.subject.make(example.options, parts)
    if not isinstance(layer, nn.Module):
        raise example.broken(f"its build gives a {type(layer).__name__}, no nn.Module")
    return Wired(layer.eval(), stand_ins, around, log)
