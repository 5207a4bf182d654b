"""The outputs of a model: a dict of tensors by name, whose entries are also attributes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.utils import _pytree as pytree


class Outputs(OrderedDict[str, Any]):
    """`outputs["logits"]` and `outputs.logits` are the same tensor.

    Torch's parallel wrappers return another dict than the one of the model, but keep the class of an ordered one.

    It compiles, exports, pickles and compares as a dict. An output with the name of a dict method is only available by key.
    """

    __repr__ = dict.__repr__

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self)
            raise AttributeError(f"there is no output `{name}`; the outputs of this call: {known}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})


def _flatten(outputs: Outputs) -> tuple[list[Any], list[str]]:
    return list(outputs.values()), list(outputs)


def _flatten_with_keys(outputs: Outputs) -> tuple[list[tuple[Any, Any]], list[str]]:
    return [(pytree.MappingKey(name), value) for name, value in outputs.items()], list(outputs)


def _unflatten(values: Any, names: list[str]) -> Outputs:
    return Outputs(zip(names, values, strict=True))


pytree.register_pytree_node(
    Outputs, _flatten, _unflatten, serialized_type_name="tfkit.Outputs", flatten_with_keys_fn=_flatten_with_keys
)
