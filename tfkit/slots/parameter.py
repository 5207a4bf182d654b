"""Declarations of parameters, without torch. The graph counts them, the builder compares modules with them, and initialisers
draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class Parameter:
    """One tensor of weights.

    Args:
        name: path inside the module of the entry that declares it (`query.weight`).
        role: its use, which decides its initialisation: `query`, `attention_output`, `ffn_in`, `embedding`, `norm_scale`, ...
        shape: as torch stores it; a linear map from `fan_in` to `fan_out` features is `(fan_out, fan_in)`.
        trainable: False for a frozen parameter.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    trainable: bool = True

    @property
    def size(self) -> int:
        return prod(self.shape)

    def under(self, prefix: str) -> Parameter:
        return Parameter(f"{prefix}.{self.name}" if prefix else self.name, self.role, self.shape, self.trainable)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that occur several times under different prefixes. A stack of a billion layers is counted without expansion.

    Args:
        parameters: the parameters of one occurrence.
        times: number of occurrences.
        prefixes: yields the prefix of every occurrence, lazily.
        head_dim: features per attention head, for initialisers.
        gains: by role, factor of the initial spread.
    """

    parameters: tuple[Parameter, ...]
    times: int = 1
    prefixes: Callable[[], Iterator[str]] = lambda: iter([""])
    head_dim: int = 0
    gains: Mapping[str, float] = field(default_factory=dict)

    def size(self, trainable: bool = True) -> int:
        return self.times * sum(parameter.size for parameter in self.parameters if parameter.trainable is trainable)

    def expanded(self) -> Iterator[Parameter]:
        for prefix in self.prefixes():
            for parameter in self.parameters:
                yield parameter.under(prefix)


def linear(name: str, role: str, fan_in: int, fan_out: int, bias: bool = True) -> tuple[Parameter, ...]:
    """The parameters of `torch.nn.Linear(fan_in, fan_out, bias)` under a name."""
    weight = Parameter(f"{name}.weight", role, (fan_out, fan_in))
    return (weight, Parameter(f"{name}.bias", "bias", (fan_out,))) if bias else (weight,)
