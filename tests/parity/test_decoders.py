"""GPT-2, GPT-J, Llama 3.1 and Gemma 2 are those of Hugging Face transformers, number by number and token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import name_maps
from .family import VOCABULARY, Family

pytestmark = pytest.mark.slow

COMMON = ("defaults.attention.num_heads=4", "tokens.vocab_size=61")
SPECIAL = {"bos_token_id": 59, "eos_token_id": 60}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 24, "n_inner": 40, "n_layer": 2, "n_head": 4, "n_positions": 33}
    return GPT2LMHeadModel(GPT2Config(**sizes, **SPECIAL, vocab_size=VOCABULARY, attn_implementation="eager"))


GPT2 = (
    *COMMON,
    "defaults.d_model=24",
    "defaults.ffn.d_ff=40",
    "defaults.position.max_len=33",
    "tokens.end_id=60",
    "body.num_layers=2",
)


def gptj() -> Any:
    from transformers import GPTJConfig, GPTJForCausalLM

    sizes = {"n_embd": 24, "n_inner": 40, "n_layer": 2, "n_head": 4, "n_positions": 33, "rotary_dim": 4}
    return GPTJForCausalLM(GPTJConfig(**sizes, **SPECIAL, vocab_size=VOCABULARY, attn_implementation="eager"))


GPTJ = (
    *COMMON,
    "defaults.d_model=24",
    "defaults.ffn.d_ff=40",
    "defaults.position.dims=4",
    "body.num_layers=2",
    "logits.vocab_size=61",
)


def llama() -> Any:
    """With `trained_len` 500 the four frequencies of a head are kept, mixed, divided and divided."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    rotary = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        **sizes,
        **SPECIAL,
        vocab_size=VOCABULARY,
        num_hidden_layers=2,
        rms_norm_eps=1e-5,
        max_position_embeddings=4000,
        rope_parameters={**rotary, "original_max_position_embeddings": 500},
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


LLAMA = (
    *COMMON,
    "defaults.d_model=32",
    "defaults.attention.num_kv_heads=2",
    "defaults.ffn.d_ff=40",
    "defaults.position.scaling.trained_len=500",
    "tokens.start_id=59",
    "tokens.end_id=60",
    "body.num_layers=2",
    "logits.vocab_size=61",
)


def gemma2() -> Any:
    """The 9B model: but for its sizes, the configuration's own defaults. Windows of 7 keys in layers 0 and 2."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 20, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    layers = {"num_hidden_layers": 4, "sliding_window": 7}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, **layers, vocab_size=VOCABULARY, attn_implementation="eager"))


GEMMA2 = (
    *COMMON,
    "defaults.d_model=20",
    "defaults.attention.num_kv_heads=2",
    "defaults.attention.head_dim=6",
    "defaults.ffn.d_ff=40",
    "body.layers.0.repeat=2",
    "body.layers.0.layers.0.self_attention.window=7",
)

FAMILIES = {
    family.spec: family
    for family in (
        Family("gpt2", gpt2, GPT2, name_maps.shipped("GPT2LMHeadModel")),
        Family("gptj-6b", gptj, GPTJ, name_maps.shipped("GPTJForCausalLM")),
        Family("llama3-8b", llama, LLAMA, name_maps.shipped("LlamaForCausalLM")),
        Family("gemma2-9b", gemma2, GEMMA2, name_maps.shipped("Gemma2ForCausalLM")),
    )
}


@pytest.mark.parametrize("padding_by", ["masks", "lengths"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_gradients(shrunk, padded, name, padding_by):
    FAMILIES[name].check(shrunk, padded, padding_by)


@pytest.mark.parametrize("name", FAMILIES)
def test_positions_of_ones_own_and_packed_rows(shrunk, name):
    """Hugging Face finds the documents of a row where `position_ids` start again."""
    ids = torch.randint(1, VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(3))
    documents = torch.tensor([[0] * 3 + [1] * 9 + [2] * 8, [5] * 11 + [6] * 9])
    restarted = torch.tensor([[*range(3), *range(9), *range(8)], [*range(11), *range(9)]])
    spread = torch.arange(20).expand(2, -1) + torch.tensor([[2], [9]])
    for positions, more in ((restarted, {"documents": documents}), (spread, {"positions": spread})):
        mask = None if positions is restarted else torch.ones_like(ids)
        FAMILIES[name].check_call(
            shrunk,
            ids,
            {"position_ids": positions, "attention_mask": mask, "use_cache": False},
            {label: {"tokens": t} for label, t in more.items()},
        )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gpt2", "defaults.norm.eps=1e-6"),
        ("gpt2", "defaults.ffn.activation=gelu"),
        ("gptj-6b", "defaults.position={kind: rotary_half, dims: 4}"),
        ("gptj-6b", "defaults.position.dims=6"),
        ("llama3-8b", "defaults.norm.eps=1e-6"),
        ("llama3-8b", "defaults.position.scaling.high=4.1"),
        ("llama3-8b", "defaults.position.base=500001.0"),
        ("gemma2-9b", "defaults.attention.softcap=null"),
        ("gemma2-9b", "defaults.attention.scale=0.0626"),
        ("gemma2-9b", "defaults.ffn.activation=geglu"),
        ("gemma2-9b", "body.layers.0.layers.0.self_attention.window=8"),
        ("gemma2-9b", "logits.softcap=null"),
        ("gemma2-9b", "tokens.scale=4.4"),
    ],
)
def test_a_wrong_spec_is_seen(shrunk, padded, name, wrong):
    with pytest.raises(AssertionError, match="where rounding explains"):
        FAMILIES[name].check(shrunk, padded, wrong=(wrong,))


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens(shrunk, padded, name):
    FAMILIES[name].check_greedy(shrunk, padded((5, 5, 5), VOCABULARY)[0])


@pytest.mark.slow
def test_filters_count_the_tokens_of_the_prompt(shrunk, padded):
    FAMILIES["gpt2"].check_filters(shrunk, padded((5, 5, 5), VOCABULARY)[0])


def test_greedy_tokens_after_prompts_padded_on_the_left(shrunk, padded):
    prompt, real = (tensor.flip(1) for tensor in padded((9, 4, 6), VOCABULARY))
    given = {"attention_mask": real.long()}
    made = FAMILIES["gemma2-9b"].check_greedy(shrunk, prompt, **given)
    assert len(set(made.lengths.tolist())) > 1
