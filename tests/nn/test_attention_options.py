"""Attention sinks, output gates, value residuals and norms over all heads: against loops in float64, decoded, and refused."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model

B, T, H, G, D, V = 2, 7, 4, 2, 6, 5
GROUPED = (
    f"defaults.attention.num_heads={H}",
    f"defaults.attention.num_kv_heads={G}",
    f"defaults.attention.head_dim={D}",
    f"defaults.attention.value_dim={V}",
)
OPTIONS = {
    "elementwise": ("defaults.attention.output_gate=elementwise",),
    "headwise": ("defaults.attention.output_gate=headwise", "defaults.attention.bias=false"),
    "mean": ("defaults.attention.value_residual=mean",),
    "learned": ("defaults.attention.value_residual=learned", "body.layers=[{repeat: 2, shared: true}, {}]"),
    "all heads": (
        "defaults.attention.query_key_norm=rms_norm",
        "defaults.attention.query_key_norm_over=all_heads",
    ),
    "sink": ("defaults.attention.sink=true",),
    "keys are values": (
        f"defaults.attention.value_dim={D}",
        "defaults.attention.shared_projection=key_value",
    ),
    "windows": ("defaults.attention.sink=true", "body.layers=[{repeat: 2, layers: [{self_attention: {window: 3}}, {}]}]"),
}
SCHEMES = ["rotary_half", "{kind: relative_t5, buckets: 6, max_distance: 7}", "relative_shaw"]


def calls_of(model: Model, ids: Tensor, **given: object) -> list[dict[str, Tensor]]:
    """Per layer, what the attention read, what its parts returned and what it returned."""
    found: list[dict[str, Tensor]] = []
    for layer in model.nodes["body"].layers:
        attention = layer.branches["self_attention"]
        parts: dict[str, Tensor] = {}
        found.append(parts)
        attention.register_forward_hook(lambda m, args, out, parts=parts: parts.update(x=args[0], out=out))
        for name in ("query", "key", "value", "output", "gate"):
            if getattr(attention, name, None) is not None:
                part = getattr(attention, name)
                part.register_forward_hook(lambda m, args, out, parts=parts, name=name: parts.update({name: out}))
        attention.output.register_forward_hook(lambda m, args, out, parts=parts: parts.update(merged=args[0]))
    with torch.no_grad():
        model(tokens=ids, masks={"tokens": torch.ones(ids.shape, dtype=torch.bool)}, **given)
    return found


def looped(query: Tensor, key: Tensor, value: Tensor, sink: Tensor | None, window: int = T) -> Tensor:
    """Causal attention of projections (B, T, features), one score at a time: (B, T, H * V)."""
    merged = torch.zeros(B, T, H * V, dtype=torch.float64)
    for b in range(B):
        for i in range(T):
            for h in range(H):
                g = h // (H // G)
                keys = range(max(0, i - window + 1), i + 1)
                q = query[b, i, h * D : (h + 1) * D]
                exps = [exp(float(q @ key[b, j, g * D : (g + 1) * D]) * D**-0.5) for j in keys]
                total = sum(exps) + (exp(float(sink[h])) if sink is not None else 0.0)
                merged[b, i, h * V : (h + 1) * V] = sum(
                    e / total * value[b, j, g * V : (g + 1) * V] for e, j in zip(exps, keys, strict=True)
                )
    return merged


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_a_sink_joins_the_denominator(backend: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    layers = "body.layers=[{self_attention: {window: 3}}, {}]"
    model = model_of("decoder", *GROUPED, *OPTIONS["sink"], layers, position="none", dtype=torch.float64, backend=backend)
    for parts, layer, window in zip(calls_of(model, ids_of(B, T)), model.nodes["body"].layers, (3, T), strict=True):
        sink = layer.branches["self_attention"].sink.detach()
        torch.testing.assert_close(parts["merged"], looped(parts["query"], parts["key"], parts["value"], sink, window))


def test_weights_beside_a_sink_sum_to_its_complement(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("decoder", *GROUPED, *OPTIONS["sink"], position="none", dtype=torch.float64)
    ids, seen = ids_of(B, T), {}
    attention = model.nodes["body"].layers[0].branches["self_attention"]
    for name in ("query", "key"):
        getattr(attention, name).register_forward_hook(lambda m, args, out, name=name: seen.update({name: out}))
    with torch.no_grad():
        weights = model(tokens=ids, weights="body.0.*")["weights"]["body.0.self_attention"]
    query, key = (seen[name].view(B, T, -1, D).transpose(1, 2) for name in ("query", "key"))
    scores = (query @ key.repeat_interleave(H // G, 1).mT * D**-0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    total = scores.logsumexp(3, keepdim=True).logaddexp(attention.sink.view(1, H, 1, 1))
    torch.testing.assert_close(weights, (scores - total).exp())


def test_a_query_that_sees_no_key_gives_zero_beside_a_sink(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    """A5: a sequence of padding. The sink has no value, so its gradient is zero as well."""
    model = model_of("encoder-decoder", "defaults.attention.sink=true", dtype=torch.float64)
    source = ids_of(2, 5, 1)
    source[1] = 0
    site = model.nodes["decoder"].layers[0].branches["cross_attention"]
    merged: list[Tensor] = []
    site.output.register_forward_hook(lambda m, args, out: merged.append(args[0]))
    outputs = model(source=source, target=ids_of(2, 4, 2), weights="decoder.0.cross*")
    assert bool((merged[0][1] == 0).all())
    assert bool((merged[0][0] != 0).all())
    assert bool((outputs["weights"]["decoder.0.cross_attention"][1] == 0).all())
    (gradient,) = torch.autograd.grad(merged[0][1].sum(), site.sink, retain_graph=True)
    assert bool((gradient == 0).all())
    outputs["logits"].sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_the_gradient_of_a_sink_is_that_of_its_differences(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    for backend in ("eager", "sdpa"):
        model = model_of("decoder", *GROUPED, *OPTIONS["windows"], dtype=torch.float64, backend=backend)
        ids, sink = ids_of(B, T), model.nodes["body"].layers[1].branches["self_attention"].sink
        model(tokens=ids)["logits"].square().mean().backward()
        for h in range(H):
            moved = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    sink[h] += step
                    moved.append(float(model(tokens=ids)["logits"].square().mean()))
                    sink[h] -= step
            assert float(sink.grad[h]) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-6, abs=1e-9)


def test_a_backend_without_what_a_sink_needs_is_refused(
    spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue, ids_of: Callable[..., Tensor]
) -> None:
    model = tfkit.build(spec_of("decoder", *OPTIONS["sink"]), catalogue, backend="flex")
    with pytest.raises(tfkit.TfkitError, match="flex"):  # flex has no gradient of a dense bias
        model(tokens=ids_of(2, 4))
    with pytest.raises(tfkit.SpecError, match="a sink joins the softmax of dot products"):
        tfkit.build(spec_of("decoder", *OPTIONS["sink"], "body.attention.score=additive"), catalogue)


@pytest.mark.parametrize("option", ["elementwise", "headwise"])
def test_a_gate_multiplies_the_heads(option: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("decoder", *GROUPED, *OPTIONS[option], position="none", dtype=torch.float64)
    for parts, layer in zip(calls_of(model, ids_of(B, T)), model.nodes["body"].layers, strict=True):
        gate = layer.branches["self_attention"].gate
        assert (gate.bias is None) == (option == "headwise")
        heads, want = looped(parts["query"], parts["key"], parts["value"], None), torch.empty(B, T, H * V).double()
        for b in range(B):
            for i in range(T):
                for n in range(H * V):
                    row = n if option == "elementwise" else n // V
                    logit = float(gate.weight.detach()[row] @ parts["x"][b, i])
                    logit += 0.0 if gate.bias is None else float(gate.bias.detach()[row])
                    want[b, i, n] = heads[b, i, n] / (1.0 + exp(-logit))
        torch.testing.assert_close(parts["merged"], want)


@pytest.mark.parametrize("option", ["mean", "learned"])
def test_values_are_mixed_with_those_of_the_first_layer(
    option: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    layers = "body.layers=[{self_attention: {value_residual: none}}, {repeat: 2}]"
    model = model_of("decoder", *GROUPED, *OPTIONS[option], layers, position="none", dtype=torch.float64)
    found = calls_of(model, ids_of(B, T))
    for number, (parts, layer) in enumerate(zip(found, model.nodes["body"].layers, strict=True)):
        residual = layer.branches["self_attention"].value_residual
        assert (residual is None) == (number == 0)
        a, b = (0.0, 1.0) if residual is None else (0.5, 0.5) if option == "mean" else residual.weight.tolist()
        value = a * found[0]["value"] + b * parts["value"]
        torch.testing.assert_close(parts["merged"], looped(parts["query"], parts["key"], value, None))


def test_a_value_residual_starts_at_the_mean_and_survives_recomputation(
    spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue, ids_of: Callable[..., Tensor]
) -> None:
    gradients = []
    for checkpoint in ("false", "true"):
        torch.manual_seed(0)
        spec = spec_of("decoder", *OPTIONS["learned"], f"body.checkpoint={checkpoint}")
        model = tfkit.build(spec, catalogue, dtype=torch.float64)
        assert model.nodes["body"].layers[0].branches["self_attention"].value_residual.weight.tolist() == [0.5, 0.5]
        model(tokens=ids_of(2, 5))["logits"].square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(bool(gradient.any()) for name, gradient in gradients[0].items() if "value_residual" in name)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0.0, atol=0.0)


def test_values_of_another_shape_are_refused(spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue) -> None:
    layers = "body.layers=[{}, {self_attention: {num_kv_heads: 3}}]"
    with pytest.raises(tfkit.SpecError, match="3 heads of 4 features, those of the first layer 6 of 4"):
        tfkit.build(spec_of("decoder", *OPTIONS["mean"], layers), catalogue)


def test_a_norm_over_all_heads(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("decoder", *GROUPED, *OPTIONS["all heads"], position="none", dtype=torch.float64)
    for parts, layer in zip(calls_of(model, ids_of(B, T)), model.nodes["body"].layers, strict=True):
        site = layer.branches["self_attention"]
        normed = {}
        for name, norm in (("query", site.query_norm), ("key", site.key_norm)):
            x = parts[name]
            assert norm.weight.shape == (x.shape[2],) == ((H if name == "query" else G) * D,)
            normed[name] = x / (x.square().mean(2, keepdim=True) + 1e-6).sqrt() * norm.weight.detach()
        torch.testing.assert_close(parts["merged"], looped(normed["query"], normed["key"], parts["value"], None))


@pytest.mark.parametrize("shared", ["key_value", "query_key_value"])
def test_one_matrix_projects_several_tensors_and_the_heads_are_the_output(
    shared: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    """Self-attention and cross-attention against loops with the matrices themselves."""
    options = (f"defaults.attention.shared_projection={shared}", "defaults.attention.output_projection=false")
    model = model_of("encoder-decoder", *options, "outputs=[logits, encoder]", position="none", dtype=torch.float64)
    source, target = ids_of(B, 5, 1), ids_of(B, T, 2)
    for site, causal in (
        ("encoder.1.self_attention", False),
        ("decoder.0.cross_attention", False),
        ("decoder.1.self_attention", True),
    ):
        attention, seen = model.backends.attention(site), []
        hook = attention.register_forward_hook(lambda m, args, out, seen=seen: seen.extend((args[0], out)))
        with torch.no_grad():
            memory = model(source=source, target=target)["encoder"]
        hook.remove()
        assert {name.partition(".")[0] for name, _ in attention.named_parameters()} == (
            {"query", "key"} if shared == "key_value" else {"query"}
        )
        x, got = seen
        y = memory if "cross" in site else x
        one = attention.key if shared == "key_value" else attention.query
        query, key = attention.query(x).detach(), one(y).detach()
        want, dim = torch.zeros_like(got), 4
        for b in range(B):
            for i in range(x.shape[1]):
                for h in range(6):
                    of_head = slice(h * dim, (h + 1) * dim)
                    keys = range(i + 1) if causal else range(y.shape[1])
                    exps = [exp(float(query[b, i, of_head] @ key[b, j, of_head]) / 2.0) for j in keys]
                    rows = zip(exps, keys, strict=True)
                    want[b, i, of_head] = sum(e / sum(exps) * key[b, j, of_head] for e, j in rows)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{num_heads: 6, shared_projection: key_value, value_dim: 5}", "value_dim is 5, head_dim 4"),
        ("{num_heads: 6, shared_projection: query_key_value, num_kv_heads: 2}", "num_kv_heads is 2, num_heads 6"),
        ("{num_heads: 6, shared_projection: key_value, bias: {key: false}}", "key and value have one matrix and one bias"),
        ("{num_heads: 6, output_projection: false, head_dim: 5}", "6 heads of 5 features .* d_model is 24"),
        ("{num_heads: 6, output_projection: false, bias: {output: false}}", "there is no output projection"),
        ("{num_heads: 6, shared_projection: value}", "shared_projection"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(
    options: str, message: str, spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    with pytest.raises(tfkit.SpecError, match=message):
        tfkit.build(spec_of("decoder", f"body.attention={options}"), catalogue)


def test_one_matrix_cannot_read_a_memory_of_another_width(
    spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue
) -> None:
    narrow = ("target.share=null", "target.d_model=12", "logits.share=target")
    tfkit.build(spec_of("encoder-decoder", *narrow, "decoder.attention.shared_projection=key_value"), catalogue)
    with pytest.raises(tfkit.SpecError, match="12 features of queries and 24 of the memory"):
        tfkit.build(spec_of("encoder-decoder", *narrow, "decoder.attention.shared_projection=query_key_value"), catalogue)


def test_a_norm_over_all_heads_needs_a_norm(spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue) -> None:
    with pytest.raises(tfkit.SpecError, match="there is no norm of queries and keys"):
        tfkit.build(spec_of("decoder", "body.attention.query_key_norm_over=all_heads"), catalogue)


def test_layers_without_positions_among_rotary_ones(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    layers = "body.layers=[{repeat: 2}, {position: none}]"
    model = model_of("decoder", *GROUPED, layers, position="rotary_half", dtype=torch.float64)
    for number, parts in enumerate(calls_of(model, ids_of(B, T))):
        plain = looped(parts["query"], parts["key"], parts["value"], None)
        assert torch.allclose(parts["merged"], plain, rtol=1e-10, atol=1e-12) == (number == 2)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("position", SCHEMES)
def test_steps_equal_the_full_forward(
    position: str,
    option: str,
    model_of: Callable[..., Model],
    ids_of: Callable[..., Tensor],
    rounding: Callable[..., float],
) -> None:
    model = model_of("decoder", *GROUPED, *OPTIONS[option], position=position, dtype=torch.float64)
    ids = ids_of(3, 9)
    with torch.no_grad():
        want = model(tokens=ids)["logits"]
    for backend in ("eager", "sdpa"):
        model.set_backend(backend)
        state = model.start(batch=3, capacity=4)
        got = torch.cat([model.step(state, piece)["logits"] for piece in ids.split([4, 1, 1, 3], 1)], 1)
        assert float((got - want).abs().max()) <= rounding(model, want, 9)


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("position", ["rotary_half", "alibi"])
def test_beams_that_share_prefixes_are_those_of_the_full_forward(
    position: str, option: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of("decoder", *GROUPED, *OPTIONS[option], position=position, dtype=torch.float64)
    prompt = ids_of(2, 4)
    state = model.start(batch=2, capacity=12)
    model.step(state, prompt)
    rows, texts = torch.tensor([0, 0, 0, 1, 1, 1]), prompt
    for number in range(3):
        model.branch(state, rows, 3)
        assert state.tree is not None
        token = ids_of(6, 1, 5 + number)
        texts = torch.cat([texts[rows], token], 1)
        outputs = model.step(state, token, weights="body.0.*")
        with torch.no_grad():
            want = model(tokens=texts, weights="body.0.*")
        assert float((outputs["logits"] - want["logits"][:, -1:]).abs().max()) <= rounding(model, want["logits"], 9)
        site = "body.0.self_attention"
        torch.testing.assert_close(outputs["weights"][site], want["weights"][site][:, :, -1:])
        rows = torch.tensor([1, 0, 1, 5, 3, 5])
