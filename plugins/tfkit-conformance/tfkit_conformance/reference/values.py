"""What flows along the edges of a graph while it is evaluated, and the weights of a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Value:
    """The output of a node.

    Args:
        tensor: (B, L, M), or (B, M) where the node gives one vector per row.
        visible: which positions are real, (B, L) bool; None: all of them.
        layers: what the first layer of a stack reads, then what each layer gives, each (B, L, M); of a recurrent node what each
            layer gives, each (B, L, N).
        states: the last states of a recurrent node, layer by layer, direction by direction.
        ids: the token ids (B, L) of an input node.
    """

    tensor: Tensor
    visible: Tensor | None = None
    layers: tuple[Tensor, ...] = ()
    states: tuple[tuple[Tensor, ...], ...] = ()
    ids: Tensor | None = None

    def shown(self) -> Tensor:
        """Which positions are real, (B, L) bool."""
        if self.visible is not None:
            return self.visible
        return torch.ones(self.tensor.shape[:2], dtype=torch.bool, device=self.tensor.device)


@dataclass(frozen=True)
class Weights(Mapping[str, Tensor]):
    """The parameters and buffers below a prefix, in the dtype of the evaluation.

    Args:
        tensors: all parameters of the model, by name.
        prefix: the path of the part, with a dot at the end; empty for the model.
        dtype: the dtype of the arithmetic.
        elsewhere: paths below the prefix that are stored under another path of the model (a shared table).
    """

    tensors: Mapping[str, Tensor]
    prefix: str
    dtype: torch.dtype
    elsewhere: Mapping[str, str] = ()  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Tensor:
        for path, stored in dict(self.elsewhere).items():
            if name == path or name.startswith(f"{path}."):
                return self.tensors[stored + name[len(path) :]].to(self.dtype)
        return self.tensors[self.prefix + name].to(self.dtype)

    def __iter__(self) -> Iterator[str]:
        return (name[len(self.prefix) :] for name in self.tensors if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def under(self, path: str, elsewhere: Mapping[str, str] | None = None) -> Weights:
        """The weights below a path; `elsewhere` as for the class."""
        inner = {
            inside[len(path) + 1 :]: stored for inside, stored in dict(self.elsewhere).items() if inside.startswith(f"{path}.")
        }
        whole = dict(self.elsewhere).get(path)
        prefix = f"{whole}." if whole is not None else f"{self.prefix}{path}."
        return Weights(self.tensors, prefix, self.dtype, {**inner, **(elsewhere or {})})


def linear(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """W x + b, without b where there is none."""
    product = x @ weights[f"{name}.weight"].mT
    return product + weights[f"{name}.bias"] if _has(weights, f"{name}.bias") else product


def _has(weights: Mapping[str, Any], name: str) -> bool:
    try:
        weights[name]
    except KeyError:
        return False
    return True
