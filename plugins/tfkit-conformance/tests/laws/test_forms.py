"""The equations the laws evaluate by, against evaluates that nobody here wrote."""

from __future__ import annotations

import math

import pytest
import torch
from tfkit_conformance.laws.activation_closed import FUNCTIONS
from tfkit_conformance.laws.norm_closed import layer_norm
from tfkit_conformance.laws.position_forms import alibi_slopes, rotary_angles, rotate, sinusoid, t5_bucket
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.llama.modeling_llama import rotate_half
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from tfkit.builtin.position.entries_rotary import RotaryOptions


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
    "linear": ({"kind": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "yarn": ({"kind": "yarn", "factor": 4.0, "trained_len": 64}, YARN),
    "llama3": ({"kind": "llama3", "factor": 8.0, "trained_len": 64}, LLAMA | {"original_max_position_embeddings": 64}),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_angles_equal_those_of_hugging_face(name):
    ours, theirs = SCALINGS[name]
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=256, rope_parameters={"rope_theta": 10000.0, **theirs}
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, torch.device("cpu"))
    angles, stretch = rotary_angles(RotaryOptions.model_validate({"scaling": ours}), 32)
    assert angles == pytest.approx(frequencies.tolist(), rel=1e-5)
    assert stretch == pytest.approx(factor)


def test_half_and_interleaved_equal_llama_and_gptj():
    torch.manual_seed(0)
    vector, position = torch.randn(8, dtype=torch.float64), 13
    angles, _ = rotary_angles(RotaryOptions(), 8)
    wave = torch.tensor(angles, dtype=torch.float64) * position
    both = torch.cat((wave, wave))
    half = vector * both.cos() + rotate_half(vector) * both.sin()
    assert rotate(vector.tolist(), position, angles, 1.0, False) == pytest.approx(half.tolist(), rel=1e-12)
    interleaved = gptj_rotary(vector[None, None, None], wave.sin()[None, None], wave.cos()[None, None])
    assert rotate(vector.tolist(), position, angles, 1.0, True) == pytest.approx(interleaved.flatten().tolist(), rel=1e-12)


@pytest.mark.parametrize("width", [6, 16])
def test_sinusoidal_halves_equal_marian(width):
    table = MarianSinusoidalPositionalEmbedding(50, width).create_weight()
    for position in (0, 1, 17, 49):
        assert sinusoid(position, width, 10000.0, False, True) == pytest.approx(table[position].tolist(), abs=1e-6)


def test_inclusive_sinusoids_end_at_one_over_base():
    assert sinusoid(3, 8, 100.0, True, True)[3] == pytest.approx(math.sin(3 / 100))


PEERS = {
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
    theirs = ACT2FN[PEERS[name]](x)
    assert [FUNCTIONS[name](number) for number in x.tolist()] == pytest.approx(theirs.tolist(), rel=1e-9, abs=1e-15)


def test_layer_norm_equals_that_of_torch():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 7, dtype=torch.float64).unbind()
    options = type("Options", (), {"eps": 0.1})
    ours, _ = layer_norm(x.tolist(), {"weight": weight.tolist(), "bias": bias.tolist()}, options)
    assert ours == pytest.approx(torch.nn.functional.layer_norm(x, (7,), weight, bias, 0.1).tolist(), rel=1e-12)
