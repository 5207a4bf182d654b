"""The formulas against implementations that nobody here wrote."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.llama.modeling_llama import rotate_half
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from tfkit import graph_of, parse_spec
from tfkit.plugin.model_parts import PositionSite
from tfkit_conformance.reference import BUILT_IN
from tfkit_conformance.reference.positions import alibi_slopes, rotary_frequencies, t5_bucket

SITE = PositionSite(8, 2, 8)


def options(slot: str, written: str):
    """The options of a part, as a spec writes it."""
    nodes = {
        "position": f"body: {{kind: stack, input: tokens, num_layers: 1, position: {written}}}",
        "embeddings": "body: {kind: stack, input: tokens, num_layers: 1}",
    }
    tokens = f"position: {written}" if slot == "embeddings" else "position: none"
    graph = graph_of(
        parse_spec(f"""
tfkit: 1
name: m
defaults: {{d_model: 64, placement: post, norm: layer_norm, attention: {{num_heads: 2}}, ffn: {{d_ff: 8, activation: relu}}}}
nodes:
  tokens: {{kind: tokens, vocab_size: 9, {tokens}}}
  {nodes[slot]}
outputs: [body]
""")
    )
    if slot == "embeddings":
        return graph.nodes["tokens"].options.position.options
    return graph.nodes["body"].options.layers[0].position.options


@pytest.mark.parametrize("heads", range(1, 65))
def test_alibi_slopes_equal_those_of_bloom(heads):
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float32)[:, 0, 1]
    # Bloom takes its powers one after the other in float32.
    assert alibi_slopes(heads) == pytest.approx(theirs.tolist(), rel=heads * 2**-23)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (16, 64)])
def test_buckets_equal_those_of_t5(buckets, max_distance, causal):
    distances = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(distances, not causal, buckets, max_distance)
    ours = [t5_bucket(int(distance), buckets, max_distance, causal) for distance in distances]
    assert ours == theirs.tolist()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = {
    "linear": ("{kind: linear, factor: 4.0}", {"rope_type": "linear", "factor": 4.0}),
    "yarn": ("{kind: yarn, factor: 4.0, trained_len: 64}", YARN),
    "llama3": ("{kind: llama3, factor: 8.0, trained_len: 64}", LLAMA | {"original_max_position_embeddings": 64}),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_frequencies_equal_those_of_hugging_face(name):
    ours, theirs = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=256, rope_parameters={"rope_theta": 10000.0, **theirs}
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, torch.device("cpu"))
    found, stretch = rotary_frequencies(options("position", f"{{kind: rotary_half, scaling: {ours}}}"), PositionSite(64, 2, 32))
    assert found.tolist() == pytest.approx(frequencies.tolist(), rel=1e-5)
    assert stretch == pytest.approx(factor)


def test_half_and_interleaved_equal_llama_and_gptj():
    torch.manual_seed(0)
    x, positions = torch.randn(1, 2, 3, 8, dtype=torch.float64), torch.tensor([0, 13, 2500])
    plain = options("position", "rotary_half")
    wave = positions.double()[:, None] * rotary_frequencies(plain, SITE)[0]
    both = torch.cat((wave, wave), -1)
    half = x * both.cos() + rotate_half(x) * both.sin()
    turned = {name: BUILT_IN["position"][name]["queries_keys"] for name in ("rotary_half", "rotary_interleaved")}
    torch.testing.assert_close(turned["rotary_half"](plain, SITE, {}, x, positions), half, rtol=1e-12, atol=1e-12)
    theirs = gptj_rotary(x.transpose(1, 2), wave.sin()[None], wave.cos()[None]).transpose(1, 2)
    torch.testing.assert_close(turned["rotary_interleaved"](plain, SITE, {}, x, positions), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [6, 16])
def test_sinusoidal_halves_equal_marian(width):
    table = torch.tensor(MarianSinusoidalPositionalEmbedding(50, width).create_weight().tolist(), dtype=torch.float64)
    halves = BUILT_IN["position"]["sinusoidal_halves"]["embeddings"]
    x, positions = torch.zeros(1, 4, width, dtype=torch.float64), torch.tensor([[0, 1, 17, 49]])
    found = halves(options("embeddings", "sinusoidal_halves"), PositionSite(width), {}, x, positions)
    torch.testing.assert_close(found[0], table[positions[0]], rtol=0, atol=1e-6)


def test_inclusive_sinusoids_end_at_one_over_base():
    sines = BUILT_IN["position"]["sinusoidal_halves"]["embeddings"]
    written = options("embeddings", "{kind: sinusoidal_halves, base: 100.0, last_frequency: inclusive}")
    found = sines(written, PositionSite(8), {}, torch.zeros(1, 1, 8, dtype=torch.float64), torch.tensor([[3]]))
    assert float(found[0, 0, 3]) == pytest.approx(float(torch.tensor(3 / 100, dtype=torch.float64).sin()))


PEERS = {
    "relu": "relu",
    "tanh": "tanh",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu_squared": "relu2",
    "glu": "sigmoid",
}


@pytest.mark.parametrize("name", PEERS)
def test_activations_equal_those_of_hugging_face(name):
    x = torch.linspace(-9, 9, 181, dtype=torch.float64)
    torch.testing.assert_close(BUILT_IN["activation"][name](None, x), ACT2FN[PEERS[name]](x), rtol=1e-9, atol=1e-15)


def test_norms_equal_those_of_torch():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 7, dtype=torch.float64).unbind()
    with_all = SimpleNamespace(eps=0.1, affine=True, bias=True, unit_offset=False)
    ours = BUILT_IN["norm"]["layer_norm"](with_all, {"weight": weight, "bias": bias}, x)
    torch.testing.assert_close(ours, torch.nn.functional.layer_norm(x, (7,), weight, bias, 0.1), rtol=1e-12, atol=0)
    ours = BUILT_IN["norm"]["rms_norm"](with_all, {"weight": weight}, x)
    torch.testing.assert_close(ours, torch.nn.functional.rms_norm(x, (7,), weight, 0.1), rtol=1e-12, atol=0)


CELLS = {
    "rnn_tanh": torch.nn.RNNCell,
    "rnn_relu": partial(torch.nn.RNNCell, nonlinearity="relu"),
    "gru": torch.nn.GRUCell,
    "lstm": torch.nn.LSTMCell,
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_equal_those_of_torch(name):
    torch.manual_seed(0)
    theirs = CELLS[name](3, 4, dtype=torch.float64)
    names = {"weight_ih": "weights_ih.0"}
    weights = {names.get(key, key): tensor.detach() for key, tensor in theirs.state_dict().items()}
    x, h, c = torch.randn(2, 3, dtype=torch.float64), *torch.randn(2, 2, 4, dtype=torch.float64)
    want = theirs(x, (h, c)) if name == "lstm" else (theirs(x, h),)
    found = BUILT_IN["cell"][name](SimpleNamespace(bias=True, reset="after"), weights, (x,), (h, c) if name == "lstm" else (h,))
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_attention_equals_that_of_torch():
    from tfkit_conformance.reference.sublayers import attend

    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 4, dtype=torch.float64)
    visible = torch.rand(2, 1, 5, 5) < 0.6
    visible[..., 0] = True
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    torch.testing.assert_close(attend(query @ key.mT / 2, value, visible), want, rtol=1e-12, atol=1e-14)
    visible[0, :, 1] = False
    assert not attend(query @ key.mT / 2, value, visible)[0, :, 1].any()
