"""Tensor parallelism: a plan for torch's `parallelize_module`, made from the graph of a model.

mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (4,))
parallelize_module(model, mesh, tensor_parallel_plan(model, 4))

Every rank then computes some heads of each attention, some hidden features of each feed-forward layer and some rows of each
table, on the same batch. https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from ...errors import Diagnostic, InputError
from ...graph import Graph, graph_of
from ...graph.training import Division, divide
from ...nn.model import Model
from ...nn.multi_head import MultiHeadAttention


class DividedHeads(ParallelStyle):
    """Gives each rank its part of the heads of an attention. The gradients of weights that all heads share, such as those of a
    norm of queries and keys, are summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, MultiHeadAttention)
        ranks, config = device_mesh.size(), module.config
        module.config = replace(config, num_heads=config.num_heads // ranks, num_kv_heads=config.num_kv_heads // ranks)

        def summed(gradient: Tensor) -> Tensor:
            total = gradient.clone()
            torch.distributed.all_reduce(total, group=device_mesh.get_group())
            return total

        linear = (module.query, module.key, module.value, module.output, module.gate)
        projections = {parameter for part in linear if part is not None for parameter in part.parameters()}
        for parameter in module.parameters():
            if parameter.requires_grad and parameter not in projections:
                parameter.register_hook(summed)  # type: ignore[no-untyped-call]
        return module


class DividedVocabulary(ParallelStyle):
    """Divides the rows of an embedding table or of the map to the logits; see `tfkit/nn/layers.py`."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        weight = module.get_parameter("weight")
        divided = distribute_tensor(weight.detach(), device_mesh, [Shard(0)], src_data_rank=None)
        module.register_parameter("weight", nn.Parameter(divided, weight.requires_grad))
        module.divided = True  # type: ignore[assignment]
        return module


def tensor_parallel_plan(model: Model | Graph, ranks: int) -> dict[str, ParallelStyle]:
    """A plan that divides a model among ranks, by the roles of its parameters.

    What cannot be divided stays whole on every rank, which computes it like all others: an attention with a bias or a sink for
    each head, or a norm over all heads; an indivisible number of heads, features or rows.
    `tfkit.graph.training.divide` lists it with the reasons.

    Args:
        model: a model, or its graph.
        ranks: number of processes.

    Returns:
        A style of `torch.distributed.tensor.parallel` by the name of the module, for `parallelize_module`.

    Raises:
        InputError: nothing can be divided among so many ranks.
    """
    division = divide(graph_of(model.spec) if isinstance(model, Model) else model, ranks)
    plan = _styles(division)
    if ranks > 1 and not plan:
        where, reason = next(iter(division.whole.items()), ("it", "it has no attention, feed-forward layer or table"))
        message = f"nothing of the model can be divided among {ranks} processes: {where}: {reason}"
        raise InputError(Diagnostic("TFK118", message, "use another number of processes, or shard the weights with `--fsdp`"))
    return plan


def _styles(division: Division) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {}
    styles |= {name: ColwiseParallel() for name in division.columns}
    styles |= {name: RowwiseParallel() for name in division.rows}
    styles |= {name: DividedHeads() for name in division.heads}
    styles |= {name: DividedVocabulary() for name in division.vocabulary}
    return styles
