"""BERT, RoBERTa, ALBERT and CLIP's text tower are those of Hugging Face transformers, number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from . import name_maps
from .comparison import all_in_float64, compare, shake

LENGTHS = (17, 9, 1, 4)
SMALL = ("defaults.attention.num_heads=3", "defaults.ffn.d_ff=40", "defaults.position.max_len=19")
BERT = (*SMALL, "defaults.d_model=24", "tokens.vocab_size=61", "encoder.num_layers=2")
THEIRS = {"num_attention_heads": 3, "intermediate_size": 40, "vocab_size": 61, "attn_implementation": "eager"}
THEIR_BERT = {"hidden_size": 24, "num_hidden_layers": 2}


def built(model: type, config: type, **sizes: Any) -> Any:
    with all_in_float64():
        peer = model(config(**THEIRS, **sizes)).eval()
        shake(peer)
    return peer


def segments_of(ids: Tensor) -> Tensor:
    return (torch.arange(ids.shape[1]) >= torch.tensor([[5], [9], [0], [2]])).to(torch.int64)


def check_bert(shrunk: Any, padded: Any, segmented: bool = True, wrong: tuple[str, ...] = ()) -> None:
    from transformers import BertConfig, BertModel

    ids, real = padded(LENGTHS, 61)
    theirs = built(BertModel, BertConfig, **THEIR_BERT, max_position_embeddings=19)
    ours = shrunk("bert-base", *BERT, wrong=wrong)
    segments = segments_of(ids) if segmented else None
    given = {"tokens": segments} if segmented else None

    def run() -> dict[str, Tensor]:
        reference = theirs(ids, attention_mask=real, token_type_ids=segments)
        return {"encoder": reference.last_hidden_state, "pooled": reference.pooler_output}

    compare(ours, theirs, name_maps.shipped("BertModel"), lambda: ours(tokens=ids, segments=given), run, real)


@pytest.mark.parametrize("segmented", [True, False])
def test_bert(shrunk, padded, segmented):
    check_bert(shrunk, padded, segmented)


@pytest.mark.parametrize(
    "wrong",
    ["defaults.norm.eps=1e-9", "defaults.ffn.activation=gelu_tanh", "defaults.placement=pre", "pooled.activation=silu"],
)
def test_a_wrong_spec_is_seen(shrunk, padded, wrong):
    extra = ("encoder.final_norm=none",) if "placement" in wrong else ()
    with pytest.raises(AssertionError, match="where rounding explains"):
        check_bert(shrunk, padded, wrong=(wrong, *extra))


def test_bert_with_its_training_heads(shrunk, padded):
    from transformers import BertConfig, BertForPreTraining

    ids, real = padded(LENGTHS, 61)
    theirs = built(BertForPreTraining, BertConfig, **THEIR_BERT, max_position_embeddings=19)
    ours = shrunk("bert-pretraining", *BERT)
    segments = segments_of(ids)

    def run() -> dict[str, Tensor]:
        reference = theirs(ids, attention_mask=real, token_type_ids=segments)
        return {"words": reference.prediction_logits, "next": reference.seq_relationship_logits}

    compare(
        ours,
        theirs,
        name_maps.shipped("BertForPreTraining"),
        lambda: ours(tokens=ids, segments={"tokens": segments}),
        run,
        real,
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_roberta(shrunk, padded, side):
    """Positions begin at the first real token, on whichever side the padding is; both read it off the ids."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    ids, real = padded(LENGTHS, 61, pad=1)
    if side == "left":
        ids, real = ids.flip(1), real.flip(1)
    published = {"max_position_embeddings": 21, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    theirs = built(RobertaForMaskedLM, RobertaConfig, **THEIR_BERT, **published)
    ours = shrunk("roberta", *BERT)
    compare(
        ours,
        theirs,
        name_maps.shipped("RobertaForMaskedLM"),
        lambda: ours(tokens=ids),
        lambda: {"words": theirs(ids, attention_mask=real).logits},
        real,
    )


def test_albert(shrunk, padded):
    from transformers import AlbertConfig, AlbertModel

    ids, real = padded(LENGTHS, 61)
    sizes = {"hidden_size": 24, "embedding_size": 10, "num_hidden_layers": 3, "max_position_embeddings": 19}
    theirs = built(AlbertModel, AlbertConfig, **sizes)
    own = ("defaults.d_model=10", "widen.d_model=24", "tokens.vocab_size=61", "encoder.layers.0.repeat=3")
    ours = shrunk("albert-base", *SMALL, *own)
    segments = segments_of(ids)

    def run() -> dict[str, Tensor]:
        reference = theirs(ids, attention_mask=real, token_type_ids=segments)
        return {"encoder": reference.last_hidden_state, "pooled": reference.pooler_output}

    compare(ours, theirs, name_maps.shipped("AlbertModel"), lambda: ours(tokens=ids, segments={"tokens": segments}), run, real)


@pytest.mark.parametrize("masked", [True, False])
def test_clip_text(shrunk, padded, masked):
    """CLIP pads with end tokens: the first of them is used; causal attention hides the others from it."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    ids, real = padded(LENGTHS, 61, pad=60, end=60)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "projection_dim": 14, "max_position_embeddings": 19}
    special = {"bos_token_id": 59, "eos_token_id": 60, "pad_token_id": 60}
    theirs = built(CLIPTextModelWithProjection, CLIPTextConfig, **sizes, **special)
    own = ("text.vocab_size=61", "text.end_id=60", "text_body.num_layers=2", "text_vector.d_model=14")
    ours = shrunk("clip-text", *SMALL, "defaults.d_model=24", *own)
    masks = {"text": real} if masked else None
    compare(
        ours,
        theirs,
        name_maps.shipped("CLIPModel"),
        lambda: ours(text=ids, masks=masks),
        lambda: {"text_vector": theirs(ids, attention_mask=real if masked else None).text_embeds},
        real,
    )
