"""BERT, RoBERTa, ALBERT and CLIP's text tower are those of Hugging Face transformers, number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import name_maps
from .comparison import all_in_float64, compare, shake

LENGTHS = (17, 9, 1, 4)
SMALL = ("defaults.attention.num_heads=3", "defaults.ffn.d_ff=40", "defaults.position.max_len=19")
THEIRS = {"num_attention_heads": 3, "intermediate_size": 40, "attn_implementation": "eager"}


def built(model: type, config: type, **sizes: Any) -> Any:
    with all_in_float64():
        peer = model(config(**THEIRS, **sizes)).eval()
        shake(peer)
    return peer


def segments_of(ids: torch.Tensor) -> torch.Tensor:
    return (torch.arange(ids.shape[1]) >= torch.tensor([[5], [9], [0], [2]])).to(torch.int64)


BERT = (*SMALL, "defaults.d_model=24", "tokens.vocab_size=61", "encoder.num_layers=2")
THEIR_BERT = {"hidden_size": 24, "vocab_size": 61, "num_hidden_layers": 2}


@pytest.mark.parametrize("segmented", [True, False])
def test_bert(shrunk, padded, segmented):
    from transformers import BertConfig, BertModel

    ids, real = padded(LENGTHS, 61)
    theirs = built(BertModel, BertConfig, **THEIR_BERT, max_position_embeddings=19)
    segments = segments_of(ids) if segmented else None

    def run() -> dict[str, torch.Tensor]:
        said = theirs(ids, attention_mask=real, token_type_ids=segments)
        return {"encoder": said.last_hidden_state, "pooled": said.pooler_output}

    ours = shrunk("bert-base", *BERT)
    given = {"tokens": segments} if segmented else None
    compare(ours, theirs, name_maps.BERT, lambda: ours(tokens=ids, segments=given), run, real)


def test_bert_with_its_training_heads(shrunk, padded):
    from transformers import BertConfig, BertForPreTraining

    ids, real = padded(LENGTHS, 61)
    theirs = built(BertForPreTraining, BertConfig, **THEIR_BERT, max_position_embeddings=19)

    def run() -> dict[str, torch.Tensor]:
        said = theirs(ids, attention_mask=real, token_type_ids=segments_of(ids))
        return {"words": said.prediction_logits, "next": said.seq_relationship_logits}

    ours = shrunk("bert-pretraining", *BERT)
    segments = {"tokens": segments_of(ids)}
    compare(ours, theirs, name_maps.BERT_PRETRAINING, lambda: ours(tokens=ids, segments=segments), run, real)


def test_roberta(shrunk, padded):
    from transformers import RobertaConfig, RobertaForMaskedLM

    ids, real = padded(LENGTHS, 61, pad=1)
    sizes = {"max_position_embeddings": 21, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    theirs = built(RobertaForMaskedLM, RobertaConfig, **THEIR_BERT, **sizes)
    ours = shrunk("roberta", *BERT)
    compare(
        ours,
        theirs,
        name_maps.ROBERTA,
        lambda: ours(tokens=ids),
        lambda: {"words": theirs(ids, attention_mask=real).logits},
        real,
    )


def test_roberta_counts_only_visible_tokens(shrunk, padded):
    """Padding on the left: positions begin at the first real token, as in Hugging Face's own reading of the ids."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    ids, real = (tensor.flip(1) for tensor in padded(LENGTHS, 61, pad=1))
    sizes = {"max_position_embeddings": 21, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    theirs = built(RobertaForMaskedLM, RobertaConfig, **THEIR_BERT, **sizes)
    ours = shrunk("roberta", *BERT)
    compare(
        ours,
        theirs,
        name_maps.ROBERTA,
        lambda: ours(tokens=ids),
        lambda: {"words": theirs(ids, attention_mask=real).logits},
        real,
    )


def test_albert(shrunk, padded):
    from transformers import AlbertConfig, AlbertModel

    ids, real = padded(LENGTHS, 61)
    sizes = {"hidden_size": 24, "embedding_size": 10, "vocab_size": 61, "num_hidden_layers": 3}
    theirs = built(AlbertModel, AlbertConfig, **sizes, max_position_embeddings=19)
    ours = shrunk(
        "albert-base",
        *SMALL,
        "defaults.d_model=10",
        "widen.d_model=24",
        "tokens.vocab_size=61",
        "encoder.layers.0.repeat=3",
    )
    segments = segments_of(ids)

    def run() -> dict[str, torch.Tensor]:
        said = theirs(ids, attention_mask=real, token_type_ids=segments)
        return {"encoder": said.last_hidden_state, "pooled": said.pooler_output}

    compare(ours, theirs, name_maps.ALBERT, lambda: ours(tokens=ids, segments={"tokens": segments}), run, real)


@pytest.mark.parametrize("masked", [True, False])
def test_clip_text(shrunk, padded, masked):
    """CLIP pads with end tokens: the first of them is taken, and being causal it sees none of the others."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    ids, real = padded(LENGTHS, 61, pad=60, end=60)
    sizes = {"hidden_size": 24, "vocab_size": 61, "num_hidden_layers": 2, "projection_dim": 14}
    special = {"bos_token_id": 59, "eos_token_id": 60, "pad_token_id": 60}
    theirs = built(CLIPTextModelWithProjection, CLIPTextConfig, **sizes, **special, max_position_embeddings=19)
    ours = shrunk(
        "clip-text",
        *SMALL,
        "defaults.d_model=24",
        "text.vocab_size=61",
        "text.end_id=60",
        "text_body.num_layers=2",
        "text_vector.d_model=14",
    )
    masks = {"text": real} if masked else None
    compare(
        ours,
        theirs,
        name_maps.CLIP_TEXT,
        lambda: ours(text=ids, masks=masks),
        lambda: {"text_vector": theirs(ids, attention_mask=real if masked else None).text_embeds},
        real,
    )
