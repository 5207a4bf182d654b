"""A stand-in for CUDA graphs on a CPU: it records the operations of a run with the tensors they read and write, and runs these
again on the same memory. As in a graph, the recording changes nothing, numbers and shapes are those of the recording, Python
does not run again, and nothing may ask the device for a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfkit.builtin.attention import sdpa
from tfkit.generate import step_graphs
from tfkit.train.optimiser import set_rate


class Recorded(TorchDispatchMode):
    """Keeps each operation with its arguments and results, and what it overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.overwritten: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number of the device is read while a graph is captured")
        for place, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                values = arguments[place] if place < len(arguments) else (named or {}).get(argument.name)
                self.overwritten += [(tensor, tensor.clone()) for tensor in tree_leaves(values) if isinstance(tensor, Tensor)]
        results = function(*arguments, **(named or {}))
        self.operations.append((function, arguments, named or {}, results))
        return results

    def undo(self) -> None:
        for tensor, value in reversed(self.overwritten):
            tensor.copy_(value)
        self.overwritten.clear()

    def replay(self) -> None:
        for function, arguments, named, results in self.operations:
            for place, result in zip(tree_leaves(results), tree_leaves(function(*arguments, **named)), strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != result.data_ptr():
                    place.copy_(result)


def capture(run: Callable[[], Tensor], warm_up: int = 1, pool: Any = None) -> tuple[Callable[[], object], Tensor]:
    """What `tfkit.generate.step_graphs.cuda_graph` does, without a device. `sdpa` renders masks as on a device: on a CPU alone
    it asks whether a mask hides anything."""
    with torch.no_grad(), patch.object(sdpa, "_simplified", lambda rendered, dtype: rendered):
        if warm_up:
            run()
        with Recorded() as recorded:
            result = run()
        recorded.undo()
    return torch.no_grad()(recorded.replay), result


def rounded_rate(optimiser: torch.optim.Optimizer, *position: Any) -> float:
    """`set_rate` of an ordinary step with rates in float32, as those of a recorded update are."""
    rate = set_rate(optimiser, *position)
    for group in optimiser.param_groups:
        group["lr"] = float(np.float32(group["lr"]))
    return rate


@pytest.fixture
def recordings_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, decoding steps are recorded by the stand-in, and no device is asked for."""

    def begin() -> None:
        for name, value in {"check_device": lambda device: None, "cuda_graph": capture}.items():
            monkeypatch.setattr(step_graphs, name, value)

    return begin
