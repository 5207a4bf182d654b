"""A model in several processes. With DDP each process holds all weights, and gradients are averaged. With FSDP2 each holds a
shard of every weight, gradient and moment, and the weights of a layer are gathered while it runs.

https://arxiv.org/abs/2006.15704   https://arxiv.org/abs/2304.11277
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BuildError, Diagnostic
from ...nn.model import Model
from ...nn.stack import Stack
from .process_group import ProcessGroup


def replicated(model: nn.Module, unused: bool) -> nn.Module:
    """The DDP module to call in training. Its gradients are means over the processes. `unused`: the loss does not depend on
    some parameters."""
    from torch.nn.parallel import DistributedDataParallel

    place = next(model.parameters()).device
    return DistributedDataParallel(
        model,
        device_ids=[place] if place.type == "cuda" else None,
        gradient_as_bucket_view=True,
        find_unused_parameters=unused,
    )


def shard(model: Model, processes: ProcessGroup, product: torch.dtype | None = None) -> None:
    """Shard every weight over the processes by FSDP2, in place, with one FSDP unit for each layer. Raises BuildError for a
    parameter that is a scalar, or buffers.

    Weights outside layers stay gathered from the forward to the backward pass, because other nodes may share them, such as
    embeddings. The weights of layers are gathered in `product`, the half dtype of autocast: autocast would copy each gathered
    weight and keep the copies of all layers. Shards, gradients after their reduction, and weights outside layers stay float32.
    """
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    scalars = [name for name, parameter in model.named_parameters() if not parameter.dim()]
    if scalars:
        message = f"`{scalars[0]}` is a scalar, which FSDP2 cannot shard"
        raise BuildError(Diagnostic("TFK118", message, "train without `--fsdp`, or make it a tensor of one dimension"))
    if statistics := [name for name, _ in model.named_buffers()]:
        message = f"`{statistics[0]}` is a statistic of the batches, and every process would keep another one"
        raise BuildError(Diagnostic("TFK118", message, "train without `--fsdp`, or with a norm of each token"))
    place = next(model.parameters()).device.type
    # On a CPU use the single-threaded group of the run (gloo.py); torch's default group may have been created elsewhere.
    mesh = DeviceMesh.from_group(processes.group, place) if place == "cpu" else init_device_mesh(place, (processes.count,))
    # The inputs of a layer keep their dtype: the residual stream is float32.
    policy = MixedPrecisionPolicy(product, torch.float32 if product else None, cast_forward_inputs=False)
    for stack in model.nodes.values():
        for layer in stack.layers if isinstance(stack, Stack) else ():
            fully_shard(layer, mesh=mesh, mp_policy=policy)
            for module in layer.modules() if product else ():
                if isinstance(module, nn.LayerNorm):
                    module.forward = MethodType(_layer_norm_in_dtype_of_input, module)  # type: ignore[method-assign]
    fully_shard(model, mesh=mesh)


def _layer_norm_in_dtype_of_input(module: nn.LayerNorm, x: Tensor) -> Tensor:
    """The norm with its half weights cast to the dtype of x. Autocast does so on CUDA; torch's kernel for CPUs refuses them."""
    weight, bias = (None if parameter is None else parameter.to(x.dtype) for parameter in (module.weight, module.bias))
    return functional.layer_norm(x, module.normalized_shape, weight, bias, module.eps)


def gradient_sync(runner: nn.Module, now: bool) -> AbstractContextManager[Any]:
    """A context whose backward pass reduces gradients over the processes (`now`), or only accumulates them."""
    if hasattr(runner, "set_requires_gradient_sync"):
        runner.set_requires_gradient_sync(now)  # type: ignore[operator]
    elif not now and hasattr(runner, "no_sync"):
        return runner.no_sync()  # type: ignore[operator, no-any-return]
    return nullcontext()


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor gathered from its shards, or the tensor itself if it is not sharded. All processes call it together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds only a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """Of a sharded tensor the shard of this process, of any other the whole."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_of(whole: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a whole tensor, sharded as `like`; the tensor itself if `like` is not sharded."""
    if not is_sharded(like) or is_sharded(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
