"""Qwen3, OLMo 2, ModernBERT, T5Gemma and the attention of gpt-oss are those of Hugging Face transformers, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tfkit

from . import name_maps, name_maps_newer
from .comparison import all_in_float64, compare, shake
from .family import VOCABULARY, Family

pytestmark = pytest.mark.slow

SPECS = Path(__file__).parents[2] / "specs"
SMALL = {"hidden_size": 20, "intermediate_size": 40, "num_attention_heads": 4, "vocab_size": VOCABULARY}
SPECIAL = {"bos_token_id": 59, "eos_token_id": 60, "pad_token_id": None}
EAGER = {"attn_implementation": "eager"}
COMMON = ("defaults.attention.num_heads=4", "defaults.d_model=20", "defaults.ffn.d_ff=40", "tokens.vocab_size=61")
GROUPED = ("defaults.attention.num_kv_heads=2", "defaults.attention.head_dim=6")


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    rotary = {"rope_type": "default", "rope_theta": 1e6}
    sizes = {**SMALL, "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 2}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **SPECIAL, **EAGER, tie_word_embeddings=True, rope_parameters=rotary))


QWEN3 = (*COMMON, *GROUPED, "body.num_layers=2", "tokens.start_id=59", "tokens.end_id=60")


def olmo2() -> Any:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    rotary = {"rope_type": "default", "rope_theta": 5e5}
    sizes = {**SMALL, "hidden_size": 24, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
    return Olmo2ForCausalLM(Olmo2Config(**sizes, **SPECIAL, **EAGER, rope_parameters=rotary))


OLMO2 = (
    *COMMON,
    "defaults.d_model=24",
    "body.num_layers=2",
    "tokens.pad_id=58",
    "tokens.end_id=60",
    "logits.vocab_size=61",
)


class _Dense(nn.Module):
    """A SwiGLU with biases in the place of the experts, which return their router's scores too."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaMLP

        config.mlp_bias = True
        dense = LlamaMLP(config)
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = (
            dense.gate_proj,
            dense.up_proj,
            dense.down_proj,
            dense.act_fn,
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)), None


def gpt_oss() -> Any:
    """But for its sizes and its experts, the configuration's own defaults. Windows of 7 keys in layers 0 and 2."""
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes = {**SMALL, "num_key_value_heads": 2, "head_dim": 6, "num_hidden_layers": 4, "sliding_window": 7}
    model = GptOssForCausalLM(GptOssConfig(**sizes, **SPECIAL, **EAGER, num_local_experts=2, num_experts_per_tok=1))
    for layer in model.model.layers:
        layer.mlp = _Dense(model.config)
        nn.init.normal_(layer.self_attn.sinks)
    return model


GPT_OSS = (
    *COMMON,
    *GROUPED,
    "tokens.pad_id=58",
    "tokens.start_id=59",
    "tokens.end_id=60",
    "body.layers.0.repeat=2",
    "body.layers.0.layers.0.self_attention.window=7",
    "logits.vocab_size=61",
)


def modernbert() -> Any:
    """But for its sizes, the configuration's own defaults: a global layer, then two that see 3 tokens on each side, twice."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    special = {"pad_token_id": 58, "bos_token_id": 59, "cls_token_id": 59, "eos_token_id": 60, "sep_token_id": 60}
    sizes = {**SMALL, "hidden_size": 24, "num_hidden_layers": 7, "local_attention": 6}
    return ModernBertForMaskedLM(ModernBertConfig(**sizes, **special, **EAGER, reference_compile=False))


MODERNBERT = (
    *COMMON,
    "defaults.d_model=24",
    "tokens.pad_id=58",
    "tokens.start_id=59",
    "tokens.end_id=60",
    "encoder.layers.2.repeat=2",
    "encoder.layers.2.layers.0.attention.window=[3, 3]",
)

FAMILIES = {
    family.spec: family
    for family in (
        Family("qwen3-0.6b", qwen3, QWEN3, name_maps.shipped("Qwen3ForCausalLM")),
        Family("olmo2-7b", olmo2, OLMO2, name_maps.shipped("Olmo2ForCausalLM")),
        Family("gpt-oss-20b-dense", gpt_oss, GPT_OSS, name_maps_newer.GPT_OSS_DENSE),
        Family("modernbert-base", modernbert, MODERNBERT, name_maps_newer.modernbert(7), "words"),
    )
}


@pytest.mark.parametrize("padding_by", ["masks", "lengths"])
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_gradients(shrunk, padded, name, padding_by):
    FAMILIES[name].check(shrunk, padded, padding_by)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qwen3-0.6b", "defaults.position.base=10000.0"),
        ("olmo2-7b", "defaults.norm.eps=1e-5"),
        ("gpt-oss-20b-dense", "body.layers.0.layers.0.self_attention.window=8"),
        ("gpt-oss-20b-dense", "defaults.position.scaling.truncate=true"),
        ("modernbert-base", "encoder.layers.2.layers.0.attention.window=[3, 4]"),
        ("modernbert-base", "encoder.layers.2.layers.0.position.base=160000.0"),
        ("modernbert-base", "defaults.ffn.activation=geglu_tanh"),
    ],
)
def test_a_wrong_spec_is_seen(shrunk, padded, name, wrong):
    with pytest.raises(AssertionError, match="where rounding explains"):
        FAMILIES[name].check(shrunk, padded, wrong=(wrong,))


@pytest.mark.parametrize("name", ["qwen3-0.6b", "olmo2-7b", "gpt-oss-20b-dense"])
def test_greedy_tokens(shrunk, padded, name):
    FAMILIES[name].check_greedy(shrunk, padded((5, 5, 5), VOCABULARY)[0])


def t5gemma() -> Any:
    from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

    module = {**SMALL, "num_key_value_heads": 4, "head_dim": 6, "num_hidden_layers": 2, "sliding_window": 7}
    config = T5GemmaConfig(encoder={**module, **EAGER}, decoder={**module, **EAGER}, vocab_size=VOCABULARY, **EAGER)
    return T5GemmaForConditionalGeneration(config)


T5GEMMA = (
    *COMMON[:3],
    "defaults.vocab_size=61",
    "defaults.attention.head_dim=6",
    "encoder.layers.0.repeat=1",
    "encoder.layers.0.layers.0.self_attention.window=[7, 7]",
    "decoder.layers.0.repeat=1",
    "decoder.layers.0.layers.0.self_attention.window=7",
)


@pytest.mark.parametrize("wrong", [None, "decoder.layers.0.layers.0.self_attention.window=8", "target.scale=4.4"])
def test_t5gemma(shrunk, padded, wrong):
    source, real = padded((23, 9, 1), VOCABULARY)
    target, shown = padded((19, 1, 12), VOCABULARY, start=2)
    with all_in_float64():
        theirs = t5gemma().eval()
        shake(theirs)
    ours = shrunk("t5gemma-base", *T5GEMMA, wrong=(wrong,) if wrong else ())

    def run() -> None:
        compare(
            ours,
            theirs,
            name_maps_newer.T5GEMMA,
            lambda: ours(source=source, target=target, masks={"source": real, "target": shown}),
            lambda: {
                "logits": theirs(source, attention_mask=real, decoder_input_ids=target, decoder_attention_mask=shown).logits
            },
            shown,
        )

    if wrong is None:
        run()
    else:
        with pytest.raises(AssertionError, match="where rounding explains"):
            run()


PUBLISHED = {
    "qwen3-0.6b": ("Qwen3", {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
                             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                             "tie_word_embeddings": True}),
    "olmo2-7b": ("Olmo2", {"vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                           "num_attention_heads": 32}),
    "gpt-oss-20b-dense": ("GptOss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "modernbert-base": ("ModernBert", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_configuration(name, catalogue):
    import transformers

    family, options = PUBLISHED[name]
    config = getattr(transformers, f"{family}Config")(**options)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}For{'MaskedLM' if family == 'ModernBert' else 'CausalLM'}")(config)
        if family == "GptOss":  # the experts are not ours
            for layer in model.model.layers:
                layer.mlp = _Dense(config)
    theirs = sum(parameter.numel() for parameter in model.parameters())
    assert tfkit.graph_of(tfkit.load_spec(SPECS / f"{name}.yaml", catalogue)).parameters() == theirs


def test_parameters_of_t5gemma_are_those_of_its_published_size(catalogue):
    from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

    heads = {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64}
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, **heads}
    with torch.device("meta"):
        model = T5GemmaForConditionalGeneration(T5GemmaConfig(encoder=sizes, decoder=sizes))
    theirs = sum(parameter.numel() for parameter in model.parameters())
    assert tfkit.graph_of(tfkit.load_spec(SPECS / "t5gemma-base.yaml", catalogue)).parameters() == theirs
