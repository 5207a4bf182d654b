"""Two processes with a model that FSDP2 shards by various units, beside the unsharded model: losses, gradients, ids.

Prints one JSON object: by case, the largest relative differences and whether the ids are equal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import tfkit

SPEC: dict[str, Any] = {
    "tfkit": 1,
    "name": "sharded",
    "defaults": {
        "d_model": 16,
        "vocab_size": 53,
        "pad_id": 0,
        "position": "sinusoidal",
        "placement": "pre",
        "norm": "layer_norm",
        "attention": {"num_heads": 2},
        "ffn": {"d_ff": 24, "activation": "relu"},
    },
    "nodes": {
        "source": {"kind": "tokens"},
        "target": {"kind": "tokens", "share": "source", "start_id": 2, "end_id": 3},
        "encoder": {"kind": "stack", "input": "source", "num_layers": 2},
        "decoder": {"kind": "stack", "input": "target", "memory": "encoder", "num_layers": 2, "causal": True},
        "logits": {"kind": "token_logits", "input": "decoder", "share": "source", "bias": True},
    },
    "outputs": ["logits"],
}
UNITS = {
    "root alone": lambda model: [],
    "layers": lambda model: [layer for stack in ("encoder", "decoder") for layer in model.nodes[stack].layers],
    "projections": lambda model: [module for module in model.modules() if isinstance(module, nn.Linear)],
    "embedding": lambda model: [model.nodes["source"].embedding],
    "norm and embedding": lambda model: [[model.nodes["decoder"].final_norm, model.nodes["source"].embedding]],
    "nodes of tokens": lambda model: [model.nodes["source"]],
    "nodes": lambda model: [model.nodes[name] for name in ("source", "encoder", "decoder", "logits")],
    "head": lambda model: [model.nodes["logits"].logits or model.nodes["logits"]],
}


def build(tied: bool) -> tfkit.Model:
    nodes = {name: dict(node) for name, node in SPEC["nodes"].items()}
    if not tied:
        del nodes["logits"]["share"]
    return tfkit.build({**SPEC, "nodes": nodes}, seed=3, dtype=torch.float64)


def searches(model: tfkit.Model, source: Tensor) -> list[Any]:
    model.eval()
    greedy = tfkit.greedy(model, source=source, max_new_tokens=6).ids.tolist()
    beams = tfkit.beam_search(model, source=source, max_new_tokens=6, beams=3)
    return [greedy, [[hypothesis.ids.tolist() for hypothesis in row] for row in beams]]


def compared(mesh: DeviceMesh, tied: bool, units: str, reshard: bool) -> dict[str, Any]:
    """The sharded model, whose processes read half of the rows each, against the model that reads all of them."""
    whole, sharded = build(tied), build(tied)
    for unit in UNITS[units](sharded):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(sharded, mesh=mesh)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (whole, sharded)]
    ids = torch.randint(4, 53, (4, 7), generator=torch.Generator().manual_seed(1))
    own = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    same_ids = [searches(sharded, ids[:, 2:]) == searches(whole, ids[:, 2:])]  # before any forward pass
    losses, gradients = [], []
    for _ in range(3):
        loss = whole.train()(source=ids[:, 2:], target=ids, labels=ids).loss
        loss.backward()
        total = torch.zeros(())
        for part in range(2):  # gradients are accumulated over two batches of one row
            rows = slice(own.start + part, own.start + part + 1)
            half = sharded.train()(source=ids[rows, 2:], target=ids[rows], labels=ids[rows]).loss / 2
            half.backward()
            total = total + half.detach()
        dist.all_reduce(total)
        losses.append(abs(float(total) / 2 - loss.item()) / loss.item())
        gradients += list(differences(whole, sharded))
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        same_ids.append(searches(sharded, ids[:, 2:]) == searches(whole, ids[:, 2:]))
    weights = [model.eval()(source=ids, target=ids, weights="*")["weights"] for model in (sharded, whole)]
    same_weights = weights[0].keys() == weights[1].keys() and all(
        torch.allclose(weights[0][site], weights[1][site], rtol=0, atol=1e-12) for site in weights[1]
    )
    return {"losses": max(losses), "gradients": max(gradients), "ids": all(same_ids), "weights": same_weights}


def differences(whole: nn.Module, sharded: nn.Module) -> Iterator[float]:
    expected = dict(whole.named_parameters())
    largest = max(float(parameter.grad.abs().max()) for parameter in expected.values() if parameter.grad is not None)
    for name, parameter in sharded.named_parameters():
        gradient: Any = parameter.grad
        yield float((gradient.full_tensor() - expected[name].grad).abs().max()) / largest


def main(cases: list[list[Any]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    results = {json.dumps(case): compared(mesh, *case) for case in cases}
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
