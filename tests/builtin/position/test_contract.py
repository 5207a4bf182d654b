"""What every position scheme of the catalogue promises, whatever its mathematics: shapes, one graph, offsets, cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tfkit.builtin.position.entries import ENTRIES
from tfkit.plugin import DenseBias, DistanceBias, LinearBias
from tfkit.plugin.model_parts import PositionRange, PositionSite, load
from tiers import EVERY_CASE

KINDS = {"dense": DenseBias, "linear": LinearBias, "distance": DistanceBias}
B, H, G, D, M, ROWS = 2, 6, 3, 8, 12, 40
CASES = [
    pytest.param(entry, PositionSite(M, H, D, rows=ROWS, causal=causal), id=f"{entry.name}-{'causal' if causal else 'both'}")
    for entry in ENTRIES
    for causal in (True, False)
]


class Use(nn.Module):
    """Everything a scheme does in one call, as one module."""

    def __init__(self, entry: Any, options: Any, site: PositionSite) -> None:
        super().__init__()
        self.acts = sorted(entry.acts)
        self.scheme = load(entry.build)(options, site)
        with torch.no_grad():
            for parameter in self.scheme.parameters():
                parameter.normal_()

    def forward(self, x: Tensor, query: Tensor, key: Tensor, offset: int = 0, keys: int | None = None) -> list[Tensor]:
        queries = query.shape[2]
        span = PositionRange(queries, keys or offset + queries, offset, offset, x.device, x.dtype)
        found = [self.scheme.embed(x, span)] if "embeddings" in self.acts else []
        if "queries_keys" in self.acts:
            found += self.scheme.rotate(query, key, self.scheme.prepare(span))
        if "scores" in self.acts:
            found.append(dense(self.scheme.bias(query, self.scheme.prepare(span), 0.5), query, offset, span.keys))
        return found


def dense(bias: Any, query: Tensor, offset: int, keys: int) -> Tensor:
    """A bias as (B,H,Q,K), by its definition."""
    distance = torch.arange(keys) - (offset + torch.arange(query.shape[2])).unsqueeze(1)
    if isinstance(bias, LinearBias):
        values = -bias.slopes[:, None, None] * distance.abs()
    elif isinstance(bias, DistanceBias):
        values = bias.values[:, (distance - bias.low).clamp(0, bias.values.shape[1] - 1)]
    else:
        values = bias.values
    return values.expand(query.shape[0], query.shape[1], query.shape[2], keys)


def tensors(queries: int = 9, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return (
        torch.randn(B, queries, M).to(dtype),
        torch.randn(B, H, queries, D).to(dtype),
        torch.randn(B, G, queries, D).to(dtype),
    )


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_shapes_dtypes_and_kinds(entry, site, variants, span_of):
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x, query, key = tensors(dtype=dtype)
        span = span_of(9, dtype=dtype)
        for options in variants(entry):
            scheme = Use(entry, options, site).scheme.to(dtype)
            if "embeddings" in entry.acts:
                y = scheme.embed(x, span)
                assert (y.shape, y.dtype) == ((*x.shape[:-1], M + entry.widens(options, site)), dtype)
                assert not torch.equal(y, x)
            if "queries_keys" in entry.acts:
                turned = scheme.rotate(query, key, scheme.prepare(span))
                assert [(t.shape, t.dtype) for t in turned] == [(query.shape, dtype), (key.shape, dtype)]
            if "scores" in entry.acts:
                bias = scheme.bias(query, scheme.prepare(span), 0.5)
                assert type(bias) in {KINDS[kind] for kind in entry.bias_kinds}
                values = bias.slopes if isinstance(bias, LinearBias) else bias.values
                assert values.dtype in (torch.float32, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "site"), CASES)
def test_traces_into_one_graph(entry, site, variants):
    """The first options at both sites, the others at one after the other."""
    torch._dynamo.reset()
    for number, options in enumerate(variants(entry)):
        if number and not EVERY_CASE and number % 2 == site.causal:
            continue
        use = Use(entry, options, site)
        for queries in (9, 11):
            compiled = torch.compile(use, fullgraph=True, backend="eager")
            for ours, expected in zip(compiled(*tensors(queries)), use(*tensors(queries)), strict=True):
                torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "site"), [case for case in CASES if case.values[0].acts])
def test_exports_with_any_length(entry, site):
    use = Use(entry, entry.options(), site)
    length = torch.export.Dim("length", min=2, max=ROWS)
    program = torch.export.export(use, tensors(), dynamic_shapes=({1: length}, {2: length}, {2: length}))
    for ours, expected in zip(program.module()(*tensors(13)), use(*tensors(13)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_a_later_step_of_decoding_sees_the_same_positions(entry, site, variants):
    x, query, key = tensors(9)
    for options in variants(entry):
        use = Use(entry, options, site)
        whole = use(x, query, key)
        for start in (1, 4, 8):
            step = use(x[:, start:], query[:, :, start:], key[:, :, start:], start, 9)
            for part, full in zip(step, whole, strict=True):
                torch.testing.assert_close(part, full[:, -part.shape[1] :] if full.dim() == 3 else full[:, :, start:])


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_flops_are_those_that_torch_counts(entry, site, variants):
    for options in variants(entry):
        use = Use(entry, options, site)
        with FlopCounterMode(display=False) as counter:
            use(*tensors(9), 0, 9)
        assert entry.flops(options, site, B, 9, 9) == counter.get_total_flops()


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_gradients_reach_every_table_and_the_inputs(entry, site, variants):
    for options in variants(entry):
        use = Use(entry, options, site)
        inputs = [tensor.requires_grad_() for tensor in tensors(ROWS)]
        outputs = use(*inputs)
        learned = [output for output in outputs if output.requires_grad]
        if learned:
            sum(output.square().sum() for output in learned).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in use.parameters())


@pytest.mark.parametrize(("entry", "site"), CASES)
def test_tables_made_without_gradients_serve_a_later_training_step(entry, site):
    use = Use(entry, entry.options(), site)
    with torch.inference_mode():
        use(*tensors())
    inputs = [tensor.requires_grad_() for tensor in tensors()]
    for output in use(*inputs):
        if output.requires_grad:
            output.sum().backward()
