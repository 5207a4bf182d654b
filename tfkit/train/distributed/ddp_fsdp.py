"""A model on several processes, by torch's own means: DDP gives each the whole of it and adds up the gradients, FSDP2 gives
each a share of every weight, gradient and moment, and collects the weights of a layer while it works.

https://arxiv.org/abs/2006.15704   https://arxiv.org/abs/2304.11277
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from ...errors import BuildError, Diagnostic
from ...nn.model import Model
from ...nn.stack import Stack
from .process_group import ProcessGroup


def replicated(model: nn.Module, unused: bool) -> nn.Module:
    """The model to call for training, whose gradients are the means over all processes. `unused` says that some parameters take
    no part in the loss."""
    from torch.nn.parallel import DistributedDataParallel

    place = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=[place] if place.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=unused,
    )


def shard(model: Model, processes: ProcessGroup) -> None:
    """Give this one of the processes its share of every weight, layer by layer, in place. The embeddings, which other nodes
    may share, stay collected from a forward pass to its backward pass; the layers do not. Raises BuildError for a parameter
    that is a scalar."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import fully_shard

    scalars = [name for name, parameter in model.named_parameters() if not parameter.dim()]
    if scalars:
        message = f"`{scalars[0]}` is a single number, and of such FSDP2 cannot give each process a share"
        raise BuildError(
            Diagnostic("TFK118", message, "train without `--fsdp`, or let the part hold a tensor of one dimension")
        )
    place = next(model.parameters()).device.type
    # On a CPU by the group of the run, which is safe (gloo.py), whoever has begun torch's first one.
    mesh = DeviceMesh.from_group(processes.group, place) if place == "cpu" else init_device_mesh(place, (processes.count,))
    for stack in model.nodes.values():
        for layer in stack.layers if isinstance(stack, Stack) else ():
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def gradient_sync(runner: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """Whether the backward pass inside adds up the gradients of all processes, or leaves that to a later one."""
    if hasattr(runner, "set_requires_gradient_sync"):
        runner.set_requires_gradient_sync(now)  # type: ignore[operator]
    elif not now and hasattr(runner, "no_sync"):
        return runner.no_sync()  # type: ignore[operator, no-any-return]
    return nullcontext()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process may have a share; all of them ask together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process has a shard of it."""
    return hasattr(tensor, "full_tensor")


def shard_of(whole: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a whole tensor that all of them have, cut as `like` is."""
    if not is_sharded(like) or is_sharded(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
