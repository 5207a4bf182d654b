"""Tensor parallelism: plans from the graph, and two processes that train as one does. The transport is gloo."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import tfkit
from tfkit import InputError
from tfkit.graph.training import divide
from tfkit.train import tensor_parallel_plan

SPECS = Path(__file__).parents[2] / "specs"
RUN = """
import json
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
import tfkit
from tfkit.train import tensor_parallel_plan

STEPS = 3
dist.init_process_group("gloo")
mesh, found = init_device_mesh("cpu", (2,)), {}
for name, changes in json.loads(sys.argv[1]):
    stacks = [each for each in ("encoder", "decoder", "body") if each in tfkit.load_spec(name).nodes]
    short = [f"nodes.{each}.num_layers=2" for each in stacks]
    spec = tfkit.load_spec(name, overrides=["expect=null", "defaults.dropout=0.0", *short, *changes])
    models = [tfkit.build(spec, seed=3) for _ in range(2)]
    parallelize_module(models[1], mesh, tensor_parallel_plan(models[1], 2))
    optimisers = [torch.optim.SGD(each.parameters(), lr=0.1, foreach=False) for each in models]
    numbers = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(STEPS):
        ids = {node: torch.randint(3, 99, (4, 20), generator=numbers) for node in models[0].plan.inputs}
        losses = [each(**ids, labels=ids[list(ids)[-1]]).loss for each in models]
        for loss in losses:
            loss.backward()
        rows.append([each.item() for each in losses])
        if len(rows) == 1:  # later, a number near zero may be on the other side of a ReLU
            gradients = [[each.grad for each in model.parameters()] for model in models]
            whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in gradients[1]]
            largest = max(float(each.abs().max()) for each in gradients[0])
            error = max(float((a - b).abs().max()) for a, b in zip(gradients[0], whole, strict=True)) / largest
        for each in optimisers:
            each.step()
            each.zero_grad()
    own = sum(each.to_local().numel() if hasattr(each, "to_local") else each.numel() for each in models[1].parameters())
    found[f"{name} {changes}"] = [rows, error, own, sum(each.numel() for each in models[0].parameters())]
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""
CASES = [
    ("specs/transformer-tiny.yaml", []),
    ("specs/tiny-rotary.yaml", []),
    ("specs/tiny-geglu.yaml", ["defaults.attention.num_kv_heads=2", "defaults.attention.output_gate=headwise"]),
    ("specs/tiny-rotary.yaml", ["defaults.attention.query_key_norm=rms_norm", "defaults.attention.value_residual=learned"]),
    ("specs/tiny-rotary.yaml", ["defaults.attention.score=additive"]),
    ("specs/tiny-alibi.yaml", []),
]
"""All parts divided; rotary positions; grouped heads, a gate and a gated layer; weights that all heads share, twice; attention
that stays whole."""


@pytest.mark.exhaustive
@pytest.mark.xdist_group("several_processes")
def test_two_processes_with_a_part_of_each_weight_train_as_one(tmp_path, fork_jobs):
    """Losses, and the gradients of the first step, differ by the order of sums alone: n u for n tokens, as with shared batches.

    Plain gradient descent keeps such differences small. The first steps of Adam move a weight by the sign of its gradient,
    which is that of a rounding error where the gradient is zero."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    done = fork_jobs.script(script, json.dumps(CASES))
    assert done.returncode == 0, done.stderr
    bound = 4 * 20 * torch.finfo(torch.float32).eps / 2
    for name, (rows, error, own, whole) in json.loads(done.stdout.splitlines()[-1]).items():
        assert all(abs(one - two) <= bound * one for one, two in rows), name
        assert error <= bound, name
        assert own < (0.9 if "alibi" in name else 0.65) * whole, name


def test_the_columns_and_rows_are_those_of_transformers():
    """Its plan for Llama: https://huggingface.co/docs/transformers/perf_infer_gpu_multi"""
    from transformers import LlamaConfig

    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "gate_proj": "gate", "up_proj": "input"}
    names |= {"down_proj": "output", "self_attn": "self_attention", "mlp": "ffn"}
    division = divide(tfkit.graph_of(tfkit.load_spec(SPECS / "llama3-8b.yaml")), 8)
    assert not division.whole
    found = {
        style: {tuple(each.split(".")[-2:]) for each in modules}
        for style, modules in (("colwise", division.columns), ("rowwise", division.rows))
    }
    for style, modules in found.items():
        theirs = {
            tuple(names[each] for each in key.split(".")[-2:])
            for key, value in LlamaConfig.base_model_tp_plan.items()
            if value == style and ".*." in key
        }
        assert modules == theirs
    assert division.vocabulary == ["nodes.tokens.embedding", "nodes.logits.logits"]


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_plan_of_every_shipped_spec_names_modules_that_can_be_divided(path, catalogue):
    spec = tfkit.load_spec(path, catalogue)
    division = divide(tfkit.graph_of(spec), 2)
    model = tfkit.build(spec, catalogue, device="meta")
    modules = dict(model.named_modules())
    for names, axis in ((division.columns, 0), (division.rows, 1), (division.vocabulary, 0)):
        assert all(modules[name].weight.shape[axis] % 2 == 0 for name in names)
    divided = {*division.columns, *division.rows}
    for name, module in modules.items():
        if ".branches." in name and ".score." not in name and isinstance(module, nn.Linear):  # all heads share a score
            assert name in divided or any(name.startswith(f"{whole}.") for whole in division.whole), name
    assert not divided & set(division.whole)


def test_what_stays_whole_is_said_with_the_reason(catalogue):
    def whole(name, *changes, ranks=2):
        return set(divide(tfkit.graph_of(tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, changes)), ranks).whole.values())

    assert whole("llama3-8b", ranks=16) == {"num_kv_heads 8 is not divisible by 16"}
    assert whole("olmo2-7b") == {"the norm of queries and keys is over all heads"}
    assert whole("tiny-alibi") == {"alibi has a bias or a table for all heads"}
    assert whole("transformer-big", ranks=3) == {
        "num_heads 16 is not divisible by 3", "d_ff 4096 is not divisible by 3", "37000 rows are not divisible by 3",
    }  # fmt: skip
    graph = tfkit.graph_of(tfkit.load_spec(SPECS / "transformer-big.yaml", catalogue))
    with pytest.raises(InputError, match="TFK118 nothing of the model can be divided among 3 processes"):
        tensor_parallel_plan(graph, 3)
