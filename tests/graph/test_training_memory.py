"""The memory of a training step, by formulas, beside what torch's own trackers find: every tensor of a step, with fake tensors
that have a shape and no numbers, and with a process group that has ranks and no processes.

Three kernels of CUDA differ from those of a CPU in what they keep, so the step calls operators that keep the same here:
dropout keeps a mask of bytes, rms_norm its input and no quotient, and the loss takes all logits at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

import tfkit
from tfkit.graph import Batch
from tfkit.graph.training import Regime, Step, memory_of, sent_per_step, weights_of
from tfkit.graph.training.memory import kept_by_node
from tfkit.nn import layers
from tfkit.train import loss
from tfkit.train.distributed.ddp_fsdp import shard
from tfkit.train.distributed.process_group import ProcessGroup

SPECS = Path(__file__).parents[2] / "specs"
SHORT = ["expect=null", "body.num_layers=4"]
HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def as_on_cuda(unread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators that the head of this file names, on numbers that are not there."""
    monkeypatch.setattr(loss, "_blocks", lambda logits: [slice(0, len(logits))])
    monkeypatch.setattr(layers.Dropout, "forward", lambda self, x: torch.ops.aten.native_dropout(x, self.p, self.training)[0])
    norm = nn.functional.layer_norm
    monkeypatch.setattr(nn.functional, "rms_norm", lambda x, shape, weight, eps: norm(x, shape, weight, None, eps))


def model_of(
    name: str, changes: list[str], checkpointing: bool, catalogue: tfkit.Catalogue, backend: str = "sdpa"
) -> tuple[Any, tfkit.Graph]:
    """A model without numbers, and its graph."""
    path, stacks = SPECS / f"{name}.yaml", ("encoder", "decoder", "body")
    if checkpointing:
        nodes = tfkit.load_spec(path, catalogue, changes).nodes
        changes = [*changes, *(f"nodes.{each}.checkpoint=true" for each in stacks if each in nodes)]
    spec = tfkit.load_spec(path, catalogue, changes)
    model = tfkit.build(spec, catalogue, device="meta", backend=backend).train()
    model.retarget(torch.device("cpu"), torch.float32)
    return model, tfkit.graph_of(spec)


def materialise(model: nn.Module) -> None:
    """Give every parameter a fake tensor of the CPU."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty(parameter.shape), parameter.requires_grad)


def backward_of_batch(model: nn.Module, ids: dict[str, Tensor], half: bool) -> None:
    with torch.autocast("cpu", HALF, enabled=half):
        (logits,) = model(**ids).values()
    labels = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    loss.smoothed_cross_entropy(logits, labels, 0.1, "uniform", -100).loss.backward()


def ids_of(model: Any, rows: int, length: int) -> dict[str, Tensor]:
    return {name: torch.randint(3, 100, (rows, length)) for name in model.plan.inputs}


FEW, TWO = ["encoder.num_layers=2", "decoder.num_layers=2"], ["body.num_layers=2"]
BIG, NONE, WEIGHTED = "transformer-big", ["defaults.attention.dropout=0.0"], ["self_attention", "cross_attention"]
KEPT = [
    (BIG, FEW, 8, 120, True, "sdpa"), (BIG, FEW, 8, 120, False, "sdpa"), (BIG, FEW, 8, 120, True, "eager"),
    ("olmo2-7b", TWO, 2, 300, True, "sdpa"), ("llama3-8b", TWO, 2, 300, True, "sdpa"),
    ("llama3-8b", TWO, 2, 300, False, "sdpa"), ("gpt2", NONE, 4, 200, True, "sdpa"), ("gpt2", NONE, 4, 200, False, "eager"),
    ("t5-v1.1-small", NONE, 4, 200, True, "eager"), ("bert-base", NONE, 4, 300, False, "sdpa"),
    ("gemma2-9b", ["body.num_layers=2"], 2, 200, True, "eager"), ("tiny-geglu", [], 8, 300, True, "sdpa"),
    ("tiny-parallel", [], 8, 300, True, "sdpa"), ("tiny-relu-squared", [], 8, 300, True, "sdpa"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "changes", "rows", "length", "half", "backend"), KEPT)
def test_what_a_step_keeps_is_what_autograd_saves(name, changes, rows, length, half, backend, checkpointing, catalogue) -> None:
    """Every tensor that autograd saves, once for each storage, without the weights themselves."""
    model, graph = model_of(name, ["expect=null", *changes], checkpointing, catalogue, backend)
    kept: dict[int, tuple[int, Tensor]] = {}
    with FakeTensorMode():
        materialise(model)
        weights = {each.untyped_storage()._cdata for each in model.parameters()}
        shapes = {shape for each in model.parameters() for shape in (tuple(each.shape), tuple(each.shape[::-1]))}
        ids = ids_of(model, rows, length)

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in weights and tuple(tensor.shape) not in shapes:  # a weight that autocast has cast
                kept[storage._cdata] = (storage.nbytes(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), torch.autocast("cpu", HALF, enabled=half):
            outputs = model(**ids)
        for output in outputs.values():
            note(output)
    weighted = {f"{node}.{each}" for node in graph.nodes for each in WEIGHTED} if backend == "eager" else ()
    step = Step(Batch(rows, dict.fromkeys(ids, length)), 2 if half else 4, frozenset(weighted))
    found = kept_by_node(graph, step).values()
    estimate = sum(each.checkpointed if checkpointing else each.activations for each in found)
    assert estimate == pytest.approx(sum(size for size, _ in kept.values()), rel=0.1)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """A function that makes a process group of so many ranks, of which only this one exists."""

    def group(count: int) -> Any:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
        return dist.group.WORLD

    yield group
    if dist.is_initialized():
        dist.destroy_process_group()


PEAKS = [
    (BIG, ["expect=null", *FEW], 8, 120, False), (BIG, ["expect=null", *FEW], 32, 120, True),
    ("olmo2-7b", SHORT, 2, 1024, False), ("olmo2-7b", SHORT, 2, 1024, True), ("llama3-8b", SHORT, 2, 512, True),
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(("name", "changes", "rows", "length", "checkpointing"), PEAKS)
def test_the_peak_of_a_rank_is_what_torch_tracks(
    name, changes, rows, length, checkpointing, count, catalogue, ranks, mesh_of
) -> None:
    """Forward and backward pass of the second step, when the moments exist; with FSDP2 for several ranks."""
    peak = tracked_peak(name, changes, (rows, length), checkpointing, count, catalogue, ranks, mesh_of)
    graph = tfkit.graph_of(tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, ["expect=null", *changes]))
    step = Step(Batch(rows, {node.name: length for node in graph.inputs()}), 2)
    assert memory_of(graph, step, Regime(count, "fsdp", checkpointing)).step_peak == pytest.approx(peak, rel=0.1)


@pytest.mark.exhaustive
def test_the_peak_of_a_decoder_of_7b_is_what_torch_tracks(catalogue, ranks, mesh_of) -> None:
    peak = tracked_peak("olmo2-7b", [], (8, 1024), True, 8, catalogue, ranks, mesh_of)
    graph = tfkit.graph_of(tfkit.load_spec(SPECS / "olmo2-7b.yaml", catalogue))
    step = Step(Batch(8, {"tokens": 1024}), 2)
    assert memory_of(graph, step, Regime(8, "fsdp", True)).step_peak == pytest.approx(peak, rel=0.1)


class NoStatisticsOfModules(WeakIdKeyDictionary):
    """Each operation would update those of every module, which takes most of the time and is not read here."""

    def values(self) -> Iterator[Any]:
        return iter(())


def tracked_peak(name, changes, batch, checkpointing, count, catalogue, ranks, mesh_of) -> int:
    """Bytes, as torch's tracker of the memory of a model counts them."""
    model, _ = model_of(name, ["expect=null", *changes], checkpointing, catalogue)
    group = ranks(count)
    mesh_of(group)
    with FakeTensorMode():
        materialise(model)
        if count > 1:
            shard(model, ProcessGroup(0, count, group), HALF)
        ids = ids_of(model, *batch)
        optimiser = torch.optim.Adam(model.parameters(), foreach=False)
        if count > 1:
            tracker: Any = FSDPMemTracker(model, optimiser)
            tracker.track_inputs(tuple(ids.values()))
        else:
            tracker = MemTracker()
            tracker.track_external(model, optimiser, *ids.values())
        tracker.memory_tracking = NoStatisticsOfModules()
        with tracker:
            backward_of_batch(model, ids, True)
            moments = [torch.zeros_like(each) for each in model.parameters() for _ in range(2)]
            optimiser.zero_grad()
            tracker.reset_mod_stats()
            backward_of_batch(model, ids, True)
        del moments
        (found,) = tracker.get_tracker_snapshot("peak").values()
    return int(found["Total"])


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("name", ["transformer-big", "olmo2-7b", "tiny-rotary"])
def test_weights_gradients_and_moments_are_those_of_torch(name, count, catalogue) -> None:
    """Exactly: those of the first rank, which FSDP2 gives the largest part of each tensor. torch makes Adam's state."""
    model, graph = model_of(name, [], False, catalogue)
    parts = [each[: -(-len(each) // count)] for each in model.parameters()]  # ceil(rows / ranks), torch.chunk's first
    for each, whole in zip(parts, model.parameters(), strict=True):
        assert each.shape == torch.chunk(whole, count)[0].shape
    optimiser = torch.optim.Adam([nn.Parameter(each.detach()) for each in parts], fused=False)
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimiser.step()
    state = [each for entry in optimiser.state.values() for each in entry.values() if each.dim()]
    found = memory_of(graph, Step(Batch(1, {node.name: 1 for node in graph.inputs()})), Regime(count, "fsdp"))
    size = sum(each.nbytes for each in parts)
    assert (found.weights, found.gradients, found.optimiser) == (size, size, sum(each.nbytes for each in state))
    assert weights_of(graph).elements() == graph.parameters()


class Sent(TorchDispatchMode):
    """Counts what a rank sends, as a ring does, by the collectives that torch dispatches."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.found = count, dict.fromkeys(("all_gather", "reduce_scatter"), 0)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.__name__
        if name.startswith("_allgather_base_"):
            self.found["all_gather"] += arguments[0].nbytes * (self.count - 1) // self.count
        elif name.startswith("_reduce_scatter_base_"):
            self.found["reduce_scatter"] += arguments[1].nbytes * (self.count - 1) // self.count
        return function(*arguments, **(options or {}))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("name", "changes"), [("transformer-big", []), ("llama3-8b", SHORT)])
def test_what_a_rank_sends_is_what_torch_dispatches(name, changes, checkpointing, catalogue, ranks, mesh_of) -> None:
    """All first dimensions are divisible by 4, so that no shard is padded. DDP needs processes that are there."""
    model, graph = model_of(name, ["expect=null", *changes], checkpointing, catalogue)
    group = ranks(4)
    mesh_of(group)
    with FakeTensorMode():
        materialise(model)
        shard(model, ProcessGroup(0, 4, group), HALF)
        ids = {node.name: torch.randint(3, 100, (2, 16)) for node in graph.inputs()}
        with Sent(4) as sent:
            backward_of_batch(model, ids, True)
    step = Step(Batch(2, dict.fromkeys(ids, 16)), 2)
    assert sent.found == sent_per_step(weights_of(graph), step, Regime(4, "fsdp", checkpointing))
