"""The names that torch, Hugging Face, fairseq and the papers give to parts lead to ours, and no look-alike is suggested."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from tfkit import Catalogue, load_catalogue
from tfkit.recipe.parts import recipe_grammar
from tfkit.slots.aliases import ALIASES, LACKING, meant, spelling


def everything() -> Catalogue:
    """The built-in parts of specs and recipes, and the backends of the FlashAttention plugin where it is installed."""
    wanted = ("builtin", "flash_attn")
    registered = load_catalogue(point for point in entry_points(group="tfkit") if point.name in wanted).registered
    return Catalogue({**recipe_grammar().catalogue.registered, **registered})


CATALOGUE = everything()
ROTARY = "rotary_half rotary_interleaved"
RELATIVE = "relative_shaw relative_t5"
# slot, their name, ours
ROWS = [
    (slot, theirs, ours.split())
    for slot, ours, names in [
        (
            "placement",
            "pre",
            "pre_norm prenorm pre-norm pre_ln pre-ln Pre-LN PreNorm pre_layernorm norm_first normalize_before",
        ),
        ("placement", "post", "post_norm postnorm post-ln PostLN post_layer_norm"),
        ("placement", "parallel", "parallel_residual use_parallel_residual"),
        ("placement", "deepnorm", "DeepNorm deep_norm DeepNet"),
        ("placement", "residual_post", "res-post-norm reordered_norm OLMo2"),
        ("placement", "sandwich", "sandwich_norm SandwichLN peri-ln"),
        ("norm", "layer_norm", "LayerNorm layernorm nn.LayerNorm torch.nn.LayerNorm LN FusedLayerNorm"),
        ("norm", "rms_norm", "RMSNorm rmsnorm rms nn.RMSNorm LlamaRMSNorm T5LayerNorm"),
        ("norm", "none", "Identity nn.Identity"),
        ("position", ROTARY, "rope RoPE rotary rotary_embedding RotaryEmbedding rotary_emb"),
        ("position", "rotary_half", "rotate_half LlamaRotaryEmbedding"),
        ("position", "sinusoidal", "sin_cos sincos PositionalEncoding fixed"),
        ("position", "learned", "absolute LearnedPositionalEmbedding learnable"),
        ("position", "relative_t5", "rel_pos_bias relative_attention_bias T5"),
        ("position", RELATIVE, "relative"),
        ("position", "alibi", "ALiBi AlibiPositionalBias"),
        ("position", "none", "NoPE"),
        ("activation", "swiglu", "SwiGLU gated-silu SiluAndMul"),
        ("activation", "relu", "ReLU nn.ReLU F.relu"),
        ("activation", "gelu", "GELU nn.GELU GELUActivation"),
        ("activation", "gelu_tanh", "gelu_new gelu_pytorch_tanh NewGELUActivation gelu_fast"),
        ("activation", "silu", "SiLU swish Swish"),
        ("activation", "geglu_tanh", "gated-gelu gated_gelu"),
        ("activation", "quick_gelu", "QuickGELU quickgelu"),
        ("activation", "relu_squared", "relu2 squared_relu ReluSquared"),
        ("activation", "identity", "linear none"),
        ("backend", "sdpa", "SDPA scaled_dot_product_attention MultiheadAttention F.scaled_dot_product_attention"),
        ("backend", "flex", "flex_attention"),
        ("backend", "eager", "math naive Eager"),
        ("backend", "auto", "Auto atuo"),
        ("score", "additive", "bahdanau Bahdanau"),
        ("score", "general", "bilinear"),
        ("score", "dot", "scaled_dot_product"),
        ("sublayer", "self_attention", "attention self_attn MultiheadAttention SelfAttention"),
        ("sublayer", "cross_attention", "cross_attn encoder_attn EncDecAttention"),
        ("sublayer", "ffn", "FFN mlp FeedForward feed_forward"),
        ("node", "tokens", "Embedding nn.Embedding token_embedding"),
        ("node", "stack", "encoder TransformerEncoder nn.TransformerDecoder"),
        ("node", "token_logits", "lm_head generator"),
        ("node", "dense", "Linear nn.Linear pooler"),
        ("node", "classify", "classifier"),
        ("node", "layer_mix", "scalar_mix ScalarMix LayerMix"),
        ("init", "xavier", "xavier_uniform glorot_uniform Xavier"),
        ("init", "bert", "trunc_normal"),
        ("optimiser", "adamw", "AdamW torch.optim.AdamW adamw_torch adamw_torch_fused"),
        ("optimiser", "adam", "Adam optim.Adam"),
        ("schedule", "inverse_sqrt", "inverse_square_root InverseSqrt"),
        ("schedule", "cosine", "CosineAnnealingLR get_cosine_schedule_with_warmup"),
        ("schedule", "noam", "NoamLR transformer"),
        ("schedule", "constant", "constant_with_warmup"),
        ("tokeniser", "bpe", "BPE byte_pair_encoding"),
        ("tokeniser", "unigram", "spm Unigram"),
        ("tokeniser", "characters", "char"),
        ("data", "parallel", "translation seq2seq"),
        ("data", "language", "causal_lm"),
        ("data", "masked", "mlm"),
    ]
    for theirs in names.split()
]


@pytest.mark.parametrize(("slot", "theirs", "ours"), ROWS, ids=[f"{slot}: {theirs}" for slot, theirs, _ in ROWS])
def test_a_name_of_the_field_leads_to_ours(slot, theirs, ours):
    assert list(meant(slot, theirs, [*CATALOGUE.registered[slot], "auto"])) == ours
    assert CATALOGUE.why_missing(slot, theirs) == f"did you mean {' or '.join(f'`{name}`' for name in ours)}?"


def test_every_alias_names_an_entry_and_is_none_itself():
    for slot, table in ALIASES.items():
        known = {spelling(name) for name in CATALOGUE.registered[slot]}
        assert not known & table.keys(), slot
        optional = {"flash_attn.v2", "flash_attn.v3", "flash_attn.v4"}
        for alias, ours in table.items():
            assert set(ours) <= set(CATALOGUE.registered[slot]) | optional, (slot, alias)


def test_no_part_that_is_lacking_exists_or_is_an_alias():
    for slot, names in LACKING.items():
        assert not names & {spelling(name) for name in CATALOGUE.registered[slot]}, slot
        assert not names & ALIASES[slot].keys(), slot


def test_another_concept_is_never_a_slip_of_the_pen():
    for slot, names in LACKING.items():
        for name in names:
            assert meant(slot, name, CATALOGUE.registered[slot]) == (), (slot, name)
    for slot, name in [("activation", "nn.ELU"), ("activation", "LeakyReLU"), ("norm", "GroupNorm"), ("optimiser", "NAdam")]:
        assert CATALOGUE.why_missing(slot, name).startswith("known: ")


def test_the_target_of_an_alias_is_suggested_only_where_it_is_installed():
    assert meant("backend", "flash_attention_2", ["eager", "sdpa"]) == ()
    assert meant("backend", "flash_attention_2", ["eager", "sdpa", "flash_attn.v2"]) == ("flash_attn.v2",)
    assert meant("position", "rope", ["rotary_half"]) == ("rotary_half",)


@pytest.mark.parametrize(
    ("slot", "slip", "ours"),
    [("norm", "layer_nrom", "layer_norm"), ("activation", "rellu", "relu"), ("placement", "pots", "post"),
     ("node", "stak", "stack"), ("sublayer", "self_atention", "self_attention"), ("position", "sinusoidl", "sinusoidal")],
)  # fmt: skip
def test_a_slip_of_the_pen_is_seen(slot, slip, ours):
    assert meant(slot, slip, CATALOGUE.registered[slot]) == (ours,)


def test_a_long_name_is_looked_at_no_further():
    assert meant("norm", "layer_norm" * 100_000, ["layer_norm"]) == ()
