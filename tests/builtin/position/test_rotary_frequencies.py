from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tfkit.builtin.position.entries import RotaryOptions, Scaling
from tfkit.builtin.position.rotary import attention_factor, frequencies, rotary_half
from tfkit.plugin.model_parts import PositionSite

CPU = torch.device("cpu")
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PEERS = {
    "linear": ("linear", {"factor": 3.0}, {"kind": "linear", "factor": 3.0}),
    "yarn": ("yarn", YARN, {"kind": "yarn", "factor": 4.0, "trained_len": 4096}),
    "yarn, its turns": (
        "yarn",
        {**YARN, "beta_slow": 2.0, "beta_fast": 20.0},
        {"kind": "yarn", "factor": 4.0, "trained_len": 4096, "low": 2.0, "high": 20.0},
    ),
    "yarn, not truncated": (
        "yarn",
        {**YARN, "factor": 32.0, "truncate": False},
        {"kind": "yarn", "factor": 32.0, "trained_len": 4096, "truncate": False},
    ),
    "yarn, its factor": (
        "yarn",
        {**YARN, "attention_factor": 1.5},
        {"kind": "yarn", "factor": 4.0, "trained_len": 4096, "attention_factor": 1.5},
    ),
    "llama3": ("llama3", LLAMA3, {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "trained_len": 8192}),
    "llama3, its turns": (
        "llama3",
        {**LLAMA3, "low_freq_factor": 0.5, "high_freq_factor": 9.0},
        {"kind": "llama3", "factor": 8.0, "low": 0.5, "high": 9.0, "trained_len": 8192},
    ),
}


def peer(
    kind: str, base: float, dims: int, parameters: dict[str, object], seq_len: int | None = None
) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=2 * dims, num_attention_heads=2, head_dim=dims, max_position_embeddings=2**17,
        rope_parameters={"rope_type": kind, "rope_theta": base, **parameters},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[kind](config, CPU, seq_len)


def assert_within_float32(ours: torch.Tensor, theirs: torch.Tensor, base: float) -> None:
    """The peer makes at most eight float32 roundings of numbers no larger than the unscaled frequency."""
    original = frequencies(base, 2 * len(ours), None, CPU)
    assert ((ours - theirs.double()).abs() <= 8 * 2**-24 * original).all()


@pytest.mark.parametrize("dims", [64, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("name", PEERS)
def test_scaling_is_hugging_faces(name, base, dims):
    kind, parameters, options = PEERS[name]
    theirs, factor = peer(kind, base, dims, parameters)
    ours = frequencies(base, dims, Scaling(**options), CPU)
    assert_within_float32(ours, theirs, base)
    assert attention_factor(Scaling(**options)) == pytest.approx(factor, rel=1e-12)
    unscaled = frequencies(base, dims, None, CPU)
    assert ((ours - unscaled).abs() > 0.1 * unscaled).any()


def test_static_ntk_is_hugging_faces_dynamic_one_at_one_length():
    theirs, _ = peer("dynamic", 10000.0, 64, {"factor": 1.0}, seq_len=5 * 2**17)
    ours = frequencies(10000.0, 64, Scaling(kind="ntk", factor=5.0), CPU)
    assert_within_float32(ours, theirs, 10000.0)
    unscaled = frequencies(10000.0, 64, None, CPU)
    assert ours[0] == unscaled[0]
    assert ours[-1].item() == pytest.approx(unscaled[-1].item() / 5)


def test_yarn_of_a_short_training_length_has_a_ramp_of_no_width():
    theirs, _ = peer("yarn", 10000.0, 8, {"factor": 2.0, "original_max_position_embeddings": 4})
    assert_within_float32(frequencies(10000.0, 8, Scaling(kind="yarn", factor=2.0, trained_len=4), CPU), theirs, 10000.0)


def test_frequencies_without_scaling():
    ours = frequencies(100.0, 6, None, CPU)
    assert ours.tolist() == pytest.approx([1.0, 100 ** (-1 / 3), 100 ** (-2 / 3)], rel=1e-15)
    assert attention_factor(None) == 1.0


def test_attention_factor_scales_only_rotated_features(span_of):
    scaling = {"kind": "yarn", "factor": 4.0, "trained_len": 64}
    scheme = rotary_half(RotaryOptions(dims=4, scaling=scaling), PositionSite(0, 1, 6))
    query = torch.randn(1, 1, 3, 6, dtype=torch.float64)
    turned, _ = scheme.rotate(query, query, scheme.prepare(span_of(3, dtype=torch.float64)))
    longer = turned[..., :4].norm(dim=-1) / query[..., :4].norm(dim=-1)
    torch.testing.assert_close(longer, torch.full_like(longer, 0.1 * math.log(4) + 1))
    assert torch.equal(turned[..., 4:], query[..., 4:])


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ({"kind": "yarn", "factor": 2.0}, "`yarn` scaling needs `trained_len`"),
        ({"kind": "llama3", "factor": 2.0}, "`llama3` scaling needs `trained_len`"),
        ({"kind": "linear", "factor": 2.0, "trained_len": 8}, "`linear` scaling has no `trained_len`"),
        ({"kind": "ntk", "factor": 2.0, "low": 1.0}, "`ntk` scaling has no `low`"),
        ({"kind": "llama3", "factor": 2.0, "trained_len": 8, "truncate": True}, "`llama3` scaling has no `truncate`"),
        ({"kind": "llama3", "factor": 2.0, "trained_len": 8, "low": 5.0}, "`low` 5.0 must be less than `high` 4.0"),
        ({"kind": "dynamic", "factor": 2.0}, "`linear` or `ntk` or `yarn` or `llama3` is expected"),
        ({"kind": "linear", "factor": 0.5}, "greater than or equal to 1"),
        ({"kind": "linear", "factor": 2.0, "beta": 1.0}, "beta"),
    ],
)
def test_a_scaling_that_means_nothing_is_refused(written, reason):
    with pytest.raises(ValidationError, match=reason):
        RotaryOptions.model_validate({"scaling": written})


@pytest.mark.parametrize("name", PEERS)
def test_the_resolved_form_loads_back(name):
    options = RotaryOptions.model_validate({"scaling": PEERS[name][2]})
    assert RotaryOptions.model_validate(options.model_dump(exclude_none=True)) == options
