"""Two processes with a model that FSDP2 shards by various units, beside the unsharded model: losses, gradients, weights, ids.

Prints one JSON object: by case, the largest relative differences and whether the ids are equal.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import tfkit
from frameworks.small_models import build, ids, searches
from tfkit.nn.recurrent_layer import RecurrentLayer

UNITS: dict[str, Callable[[Any], list[Any]]] = {
    "root alone": lambda model: [],
    "layers": lambda model: [layer for stack in ("encoder", "decoder") for layer in model.nodes[stack].layers],
    "projections": lambda model: [module for module in model.modules() if isinstance(module, nn.Linear)],
    "embedding": lambda model: [model.nodes["source"].embedding],
    "norm and embedding": lambda model: [[model.nodes["decoder"].final_norm, model.nodes["source"].embedding]],
    "norm and head": lambda model: [[model.nodes["decoder"].final_norm, model.nodes["logits"].logits or model.nodes["logits"]]],
    "nodes of tokens": lambda model: [model.nodes["source"]],
    "nodes": lambda model: [node for node in model.nodes.values() if any(True for _ in node.parameters())],
    "parts": lambda model: [
        module
        for name, module in reversed(list(model.named_modules()))  # torch wants inner units first
        if name.endswith(("position", "score", "cell")) or isinstance(module, RecurrentLayer)
    ],
    "head": lambda model: [model.nodes["logits"].logits or model.nodes["logits"]],
}
ACCELERATE = "those of accelerate"
"""Every layer, and in a model that names them as Hugging Face's do, embedding and head."""
POLICIES = {
    "": (MixedPrecisionPolicy(), MixedPrecisionPolicy()),
    "float32": (
        MixedPrecisionPolicy(param_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float64),
    ),
}
"""By name, the policies of the units and of the root. `float32`: a float64 model computes in float32."""
TOKENS = 4
"""Each token gathers the weights of every unit once more."""


def shard(model: tfkit.Model, mesh: DeviceMesh, units: str, reshard: bool, policy: str) -> None:
    if units == ACCELERATE:
        shard_by_accelerate(model, mesh, reshard)
        return
    of_units, of_root = POLICIES[policy]
    for unit in UNITS[units](model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=of_units)
    fully_shard(model, mesh=mesh, mp_policy=of_root)


def shard_by_accelerate(model: Any, mesh: DeviceMesh, reshard: bool) -> None:
    """As `Accelerator.prepare` does on CUDA; on a CPU it would use DDP."""
    layer = type(model.nodes["encoder"].layers[0]).__name__
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=reshard, cpu_ram_efficient_loading=False,
        auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[layer],
    )  # fmt: skip
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), device=torch.device("cpu"), mixed_precision="no", is_main_process=True,
        torch_device_mesh=mesh, parallelism_config=SimpleNamespace(fsdp_dim_names=["shards"]),
    )  # fmt: skip
    if model.nodes["logits"].logits is not None:
        model.get_input_embeddings = lambda: model.nodes["source"].embedding
        model.get_output_embeddings = lambda: model.nodes["logits"].logits
    fsdp2_prepare_model(accelerator, model)


def loss_of(model: tfkit.Model, given: dict[str, Tensor]) -> Tensor:
    return model.train()(**given, labels=next(reversed(given.values()))).loss  # type: ignore[no-any-return]


def compared(mesh: DeviceMesh, kind: str, units: str, reshard: bool, policy: str) -> dict[str, Any]:
    """The sharded model, whose processes read half of the rows each, against the model that reads all of them."""
    whole, sharded = build(kind), build(kind)
    shard(sharded, mesh, units, reshard, policy)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (whole, sharded)]
    given = {name: ids(4, 7, seed=number) for number, name in enumerate(whole.plan.inputs)}

    def plain() -> tfkit.Model:
        """The unsharded model in the dtype of the computation."""
        return copy.deepcopy(whole).float().eval() if policy else whole.eval()

    same_ids = [searches(sharded.eval(), TOKENS) == searches(plain(), TOKENS)]  # before any forward pass
    losses, gradients = [], []
    for _ in range(2):  # the second step begins with weights that the first has changed
        computing = plain()
        loss = loss_of(computing, given)
        loss.backward()
        for parameter, computed in zip(whole.parameters(), computing.parameters(), strict=True):
            parameter.grad = None if computed.grad is None else computed.grad.to(parameter.dtype)
        total = torch.zeros((), dtype=torch.float64)
        for part in range(2):  # gradients are accumulated over two batches of one row
            at = 2 * dist.get_rank() + part
            half = loss_of(sharded, {name: rows[at : at + 1] for name, rows in given.items()}) / 2
            half.backward()
            total = total + half.detach()
        dist.all_reduce(total)
        losses.append(abs(float(total) / 2 - loss.item()) / loss.item())
        own, expected = ({name: each.grad for name, each in model.named_parameters()} for model in (sharded, whole))
        gradients.append(difference(own, expected))
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    same_ids.append(searches(sharded.eval(), TOKENS) == searches(plain(), TOKENS))
    attention = [model.eval()(**given, weights="*")["weights"] for model in (sharded, plain())]
    assert attention[0].keys() == attention[1].keys()
    return {
        "losses": max(losses),
        "gradients": max(gradients),
        "weights": difference(sharded.state_dict(), whole.state_dict()),
        "ids": all(same_ids),
        "attention": max([float((attention[0][site] - attention[1][site]).abs().max()) for site in attention[1]]),
    }


def difference(sharded: dict[str, Any], whole: dict[str, Any]) -> float:
    """The largest one, relative to the largest number of the model."""
    assert sharded.keys() == whole.keys()
    largest = max(float(tensor.abs().max()) for tensor in whole.values())
    return max(float((sharded[name].full_tensor() - whole[name]).abs().max()) for name in whole) / largest


def main(cases: list[list[Any]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shards",))
    results = {json.dumps(case): compared(mesh, *case) for case in cases}
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
