from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import tfkit
from tfkit.builtin.init.entries import ENTRIES
from tfkit.plugin import Parameter
from tfkit.plugin.model_parts import Distribution, InitContext

BY_NAME = {entry.name: entry for entry in ENTRIES}
FACTS = InitContext(d_model=64, num_layers=6, head_dim=16)


def draw(name: str, role: str, shape: tuple[int, ...], context: InitContext = FACTS, **options: float) -> Distribution:
    entry = BY_NAME[name]
    return entry.draw(entry.options(**options), Parameter("w", role, shape), context)


def deviation(distribution: Distribution) -> float:
    """The standard deviation of what is drawn."""
    if distribution.kind == "uniform":
        return distribution.spread / sqrt(3)
    return distribution.spread * (0.8796 if distribution.kind == "truncated_normal" else 1.0)


def assert_drawn_like(tensor: torch.Tensor, distribution: Distribution) -> None:
    """The sample's deviation lies within five standard errors of the distribution's."""
    error = 5 / sqrt(2 * tensor.numel())
    assert abs(tensor.mean().item() - distribution.centre) <= 5 * deviation(distribution) / sqrt(tensor.numel())
    assert deviation(distribution) * (1 - error) <= tensor.std().item() <= deviation(distribution) * (1 + error)


@pytest.mark.parametrize("name", BY_NAME)
def test_vectors_are_constants_and_matrices_are_drawn(name):
    for role in ("norm_bias", "norm_offset", "bias", "mix_weight", "acme_gate"):
        assert draw(name, role, (7,)) == Distribution("constant")
    for role in ("norm_scale", "mix_scale"):
        assert draw(name, role, (7,)) == Distribution("constant", centre=1.0)
    assert draw(name, "mix_scale", ()) == Distribution("constant", centre=1.0)
    for role in ("query", "embedding", "relative_table", "logits", "projection", "acme_map"):
        assert draw(name, role, (9, 5)).spread > 0
        assert draw(name, role, (9, 5)).centre == 0


@pytest.mark.parametrize("name", BY_NAME)
def test_an_unknown_role_is_drawn_like_a_linear_map(name):
    assert draw(name, "acme_map", (9, 5)) == draw(name, "dense", (9, 5))


def test_xavier_equals_torch():
    torch.manual_seed(0)
    matrix, convolution = torch.empty(300, 200), torch.empty(60, 50, 7)
    for tensor, role in ((matrix, "ffn_in"), (convolution, "convolution")):
        nn.init.xavier_uniform_(tensor)
        drawn = draw("xavier", role, tuple(tensor.shape))
        assert drawn.kind == "uniform"
        assert tensor.abs().max() <= drawn.spread
        assert tensor.abs().max() > 0.99 * drawn.spread
        assert_drawn_like(tensor, drawn)


def test_xavier_embeddings_have_unit_size_after_the_scale():
    for role in ("embedding", "position_table", "segment_table", "logits"):
        assert draw("xavier", role, (37000, 64)) == Distribution("normal", spread=64**-0.5)


def test_gpt2_equals_hugging_face():
    torch.manual_seed(0)
    layers = 5
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=500, n_positions=300)).transformer
    context = InitContext(64, layers, 16)
    block = model.h[2]
    for weight, role in (
        (model.wte.weight, "embedding"),
        (model.wpe.weight, "position_table"),
        (block.attn.c_attn.weight, "query"),
        (block.attn.c_proj.weight, "attention_output"),
        (block.mlp.c_fc.weight, "ffn_in"),
        (block.mlp.c_proj.weight, "ffn_out"),
    ):
        assert_drawn_like(weight, draw("gpt2", role, tuple(weight.shape), context))
    assert draw("gpt2", "attention_output", (8, 8), InitContext(64)).spread == 0.02


def test_bert_is_cut_and_its_uncut_kin_equals_hugging_face():
    torch.manual_seed(0)
    cut = draw("bert", "query", (64, 64))
    assert cut == Distribution("truncated_normal", spread=0.02)
    sample = nn.init.trunc_normal_(torch.empty(200, 200), std=0.02, a=-0.04, b=0.04)
    assert_drawn_like(sample, cut)
    model = BertModel(BertConfig(num_hidden_layers=1, hidden_size=64, num_attention_heads=4, vocab_size=500))
    for weight in (model.embeddings.word_embeddings.weight[1:], model.encoder.layer[0].intermediate.dense.weight):
        assert_drawn_like(weight, draw("normal", "dense", tuple(weight.shape), std=0.02))


def test_t5_equals_hugging_face():
    torch.manual_seed(0)
    config = T5Config(
        d_model=64, d_kv=16, num_heads=6, d_ff=200, num_layers=1, vocab_size=500, relative_attention_num_buckets=320,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    block = T5ForConditionalGeneration(config).encoder
    attention, ffn = block.block[0].layer[0].SelfAttention, block.block[0].layer[1].DenseReluDense
    for weight, role in (
        (block.embed_tokens.weight, "embedding"),
        (attention.q.weight, "query"),
        (attention.k.weight, "key"),
        (attention.v.weight, "value"),
        (attention.o.weight, "attention_output"),
        (attention.relative_attention_bias.weight, "relative_table"),
        (ffn.wi_0.weight, "ffn_gate"),
        (ffn.wi_1.weight, "ffn_in"),
        (ffn.wo.weight, "ffn_out"),
    ):
        drawn = draw("t5", role, tuple(weight.shape), InitContext(64, 1, 16))
        assert drawn.kind == "normal"
        assert_drawn_like(weight, drawn)


def test_torch_draws_as_its_modules_do():
    """By the largest number: that of uniform numbers is just below their bound."""
    spec = """{tfkit: 1, name: x, defaults: {vocab_size: 90, d_model: 40, init: torch}, nodes: {
      tokens: {kind: tokens}, body: {kind: rnn, input: tokens, cell: {kind: gru, reset: after}, d_state: 64},
      dense: {kind: dense, input: body, d_model: 200}, logits: {kind: token_logits, input: dense}}, outputs: [logits]}"""
    nodes, torch_linear = tfkit.build(tfkit.parse_spec(spec), seed=1).nodes, nn.Linear(64, 200)
    cell = nodes["body"].layers[0].cell
    pairs = [
        *zip(cell.flat_weights(), nn.GRU(40, 64).parameters(), strict=True),
        (nodes["dense"].linear.weight, torch_linear.weight),
    ]
    pairs += [(nodes["dense"].linear.bias, torch_linear.bias), (next(nodes["logits"].parameters()), nn.Linear(200, 90).weight)]
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.1)
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.3)
    assert_drawn_like(nn.Embedding(90, 40).weight, draw("torch", "embedding", (90, 40)))


def test_normal_takes_its_deviation():
    assert draw("normal", "embedding", (9, 5), std=0.3) == Distribution("normal", spread=0.3)


def test_products_of_states_are_orthogonal_by_gate():
    from tfkit.builder.initialisation import fill

    for name in ("orthogonal", "rnnsearch"):
        tensor = torch.empty(3 * 6, 6)
        fill(tensor, draw(name, "cell_state", (18, 6)), 1.0, 7)
        for gate in torch.split(tensor, 6):
            torch.testing.assert_close(gate @ gate.T, torch.eye(6), rtol=0, atol=1e-5)


def test_rnnsearch_starts_as_its_appendix_says():
    assert draw("rnnsearch", "score_query", (9, 5)) == Distribution("normal", spread=0.001)
    assert draw("rnnsearch", "score_key", (9, 5)) == Distribution("normal", spread=0.001)
    assert draw("rnnsearch", "score_out", (1, 9)) == Distribution("constant")
    assert draw("rnnsearch", "embedding", (9, 5)) == Distribution("normal", spread=0.01)
