"""Descriptions of parameters without torch: role, shape, trainable or not. The graph counts them, the builder compares modules
with them, and initialisers read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod


@dataclass(frozen=True)
class Parameter:
    """One tensor of weights.

    Args:
        name: its path inside the part that declares it (`query.weight`).
        role: its purpose, for initialisers: `query`, `attention_output`, `ffn_in`, `embedding`, `norm_scale`, `bias`, ...
        shape: as torch stores it; a linear map from `fan_in` to `fan_out` features is `(fan_out, fan_in)`.
        trainable: whether it has a gradient.
        buffer: a buffer of the module, which keeps a statistic: saved with the model, and no parameter.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    trainable: bool = True
    buffer: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    def under(self, prefix: str) -> Parameter:
        """The same parameter below a module.

        Args:
            prefix: the path of the module; empty for none.

        Returns:
            The parameter with the name `prefix.name`.
        """
        return replace(self, name=f"{prefix}.{self.name}") if prefix else self


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that occur several times under different prefixes, counted without expansion.

    Args:
        parameters: the parameters of one occurrence.
        times: number of occurrences.
        prefixes: yields the prefix of each occurrence lazily, so that a billion layers are counted in a millisecond.
        head_dim: features of one attention head, for initialisers; 0 outside attention.
        gains: factors of the initial spread, by role.
    """

    parameters: tuple[Parameter, ...]
    times: int = 1
    prefixes: Callable[[], Iterator[str]] = lambda: iter([""])
    head_dim: int = 0
    gains: Mapping[str, float] = field(default_factory=dict)

    def size(self, trainable: bool = True) -> int:
        """The number of elements of all occurrences, without buffers.

        Args:
            trainable: count the trainable parameters; False counts the frozen ones.
        """
        counted = (one for one in self.parameters if one.trainable is trainable and not one.buffer)
        return self.times * sum(parameter.size for parameter in counted)

    def expanded(self) -> Iterator[Parameter]:
        """All occurrences, lazily.

        Returns:
            Each parameter under each prefix.
        """
        for prefix in self.prefixes():
            for parameter in self.parameters:
                yield parameter.under(prefix)


def linear(name: str, role: str, fan_in: int, fan_out: int, bias: bool = True) -> tuple[Parameter, ...]:
    """Describe the parameters of `torch.nn.Linear(fan_in, fan_out, bias)`.

    Args:
        name: the path of the module: `query` gives `query.weight` and `query.bias`.
        role: the role of the weight.
        fan_in: input features.
        fan_out: output features.
        bias: whether there is a bias, with the role `bias`.

    Returns:
        The weight (fan_out, fan_in), and the bias (fan_out,) if there is one.
    """
    weight = Parameter(f"{name}.weight", role, (fan_out, fan_in))
    return (weight, Parameter(f"{name}.bias", "bias", (fan_out,))) if bias else (weight,)
