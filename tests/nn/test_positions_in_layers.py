"""Positions that are added to the input of every layer: `position: sinusoidal` at a stack."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tfkit
from tfkit import Model

SHARED = "body.layers=[{repeat: 3, shared: true}]"
LEARNED = "{kind: learned, max_len: 16, offset: 1, count: visible}"
SCHEMES = ("sinusoidal", "{kind: sinusoidal, count: visible}", LEARNED)


def layer(weights: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    """A causal post-norm layer of 6 heads over one row (L, 24), head by head and query by query."""

    def linear(name: str, y: Tensor) -> Tensor:
        return F.linear(y, weights[f"{prefix}branches.{name}.weight"], weights[f"{prefix}branches.{name}.bias"])

    def norm(name: str, y: Tensor) -> Tensor:
        return F.layer_norm(y, (24,), weights[f"{prefix}norms.{name}.weight"], weights[f"{prefix}norms.{name}.bias"])

    query, key, value = (linear(f"self_attention.{name}", x) for name in ("query", "key", "value"))
    heads = torch.zeros_like(x)
    for start in range(0, 24, 4):
        part = slice(start, start + 4)
        for i in range(len(x)):
            shares = torch.stack([query[i, part] @ key[j, part] / 2.0 for j in range(i + 1)]).softmax(0)
            heads[i, part] = sum(share * value[j, part] for j, share in enumerate(shares))
    x = norm("self_attention", x + linear("self_attention.output", heads))
    return norm("ffn", x + linear("ffn.output", linear("ffn.input", x).relu()))


def positions(scheme: str, weights: dict[str, Tensor], length: int) -> Tensor:
    """p (L, 24) of a row without padding."""
    if "learned" in scheme:
        return weights["nodes.body.positions.0.table"][1 : length + 1]
    return torch.tensor(
        [[(math.cos if f % 2 else math.sin)(t / 10000.0 ** ((f - f % 2) / 24)) for f in range(24)] for t in range(length)],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_layer_reads_the_sum_of_what_is_below_and_the_positions(
    scheme: str, shared: bool, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    """x_n = layer(x_(n-1) + p), Dehghani et al. 2018, equation 4, without its number of the step."""
    changes = [f"body.position={scheme}", "tokens.position=none", *([SHARED] if shared else [])]
    nodes = (
        "\nnodes:\n  tokens: {kind: tokens}\n  body: {kind: stack, input: tokens, num_layers: 3, causal: true}\noutputs: [body]"
    )
    model = model_of(nodes, *changes, placement="post", activation="relu", dtype=torch.float64)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    assert tfkit.graph_of(model.spec).parameters() == sum(p.numel() for p in model.parameters())
    assert model.plan.max_input_lengths == ({"tokens": 16} if "learned" in scheme else {})
    ids = ids_of(2, 7)
    found = model(tokens=ids).body
    for row, given in enumerate(ids):
        x = weights["nodes.tokens.embedding.weight"][given]
        for number in range(3):
            x = layer(weights, f"nodes.body.layers.{0 if shared else number}.", x + positions(scheme, weights, 7))
        torch.testing.assert_close(found[row], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_steps_go_on_at_the_next_position_and_documents_and_padding_follow_the_rules_of_embeddings(
    scheme: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model = model_of("decoder", f"body.position={scheme}", "tokens.position=none", dtype=torch.float64)
    ids = ids_of(3, 8)
    whole = model(tokens=ids).logits
    state = model.start(batch=3)
    pieces = [model.step(state, ids[:, start:stop], True).logits for start, stop in ((0, 3), (3, 4), (4, 8))]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-12)
    packed = model(tokens=ids[:2].reshape(1, 16), documents={"tokens": torch.tensor([[0] * 8 + [1] * 8])}).logits
    torch.testing.assert_close(packed.reshape(2, 8, -1), whole[:2], rtol=0, atol=1e-12)
    left = F.pad(ids, (2, 0))
    moved = not torch.allclose(model(tokens=left).logits[:, 2:], whole, rtol=0, atol=1e-12)
    assert moved is model.plan.inputs["tokens"].counts_padding is (scheme == "sinusoidal")
    trained = model.train()(tokens=ids).logits
    trained.sum().backward()
    tables = [p.grad for name, p in model.named_parameters() if "positions" in name]
    assert all(table is not None and table.abs().sum() > 0 for table in tables)
    assert len(tables) == ("learned" in scheme)


def test_layers_have_schemes_of_their_own_and_equal_ones_share_a_table(model_of: Callable[..., Model]) -> None:
    layers = f"[{{position: {LEARNED}}}, {{position: rotary_half}}, {{position: {LEARNED}}}, {{position: sinusoidal}}]"
    model = model_of("decoder", f"body.layers={layers}", "tokens.position=none")
    body = model.nodes["body"]
    assert body.added == (0, None, 0, 2)
    assert [name for name, _ in body.positions.named_parameters()] == ["0.table"]


def test_activations_that_are_computed_again_give_the_same_gradients(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    gradients = []
    for checkpoint in ("true", "false"):
        changes = [f"body.position={LEARNED}", "tokens.position=none", f"body.checkpoint={checkpoint}"]
        model = model_of("decoder", *changes, dtype=torch.float64).train()
        model(tokens=ids_of(2, 5)).logits.square().sum().backward()
        gradients.append(model.get_parameter("nodes.body.positions.0.table").grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)
