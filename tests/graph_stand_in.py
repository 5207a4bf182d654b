"""A stand-in for CUDA graphs on a CPU: it records the operations of a run with the tensors they read and write, and runs these
again on the same memory. As in a graph, numbers and shapes are those of the recording, Python does not run again, and nothing
may ask the device for a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfkit.builtin.attention import sdpa


class Recorded(TorchDispatchMode):
    """Keeps each operation with its arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number of the device is read while a graph is captured")
        results = function(*arguments, **(named or {}))
        self.operations.append((function, arguments, named or {}, results))
        return results

    def replay(self) -> None:
        for function, arguments, named, results in self.operations:
            for place, result in zip(tree_leaves(results), tree_leaves(function(*arguments, **named)), strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != result.data_ptr():
                    place.copy_(result)


def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """What `tfkit.generate.step_graphs.cuda_graph` does, without a device. `sdpa` renders masks as on a device: on a CPU alone
    it asks whether a mask hides anything."""
    with torch.no_grad(), patch.object(sdpa, "_simplified", lambda rendered, dtype: rendered):
        run()
        with Recorded() as recorded:
            result = run()
    return torch.no_grad()(recorded.replay), result
