"""`labels=` gives the loss of Hugging Face's models of equal weights, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from . import name_maps, test_bert, test_decoders, test_encoder_decoders
from .comparison import compare
from .family import LENGTHS, VOCABULARY


@pytest.mark.slow
@pytest.mark.parametrize("name", test_decoders.FAMILIES)
def test_labels_of_a_decoder_are_its_inputs(shrunk, padded, name):
    family = test_decoders.FAMILIES[name]
    ids, real = padded(LENGTHS, VOCABULARY)
    theirs, ours = family.peer(), shrunk(name, *family.overrides)
    labels = ids.where(real, -100)
    compare(
        ours,
        theirs,
        family.names,
        lambda: {"loss": ours(tokens=ids, masks={"tokens": real}, labels=labels).loss},
        lambda: {"loss": theirs(ids, attention_mask=real, labels=labels).loss},
        real,
    )


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True], ids=["made from the labels", "given"])
@pytest.mark.parametrize("name", test_encoder_decoders.FAMILIES)
def test_labels_of_an_encoder_decoder_are_its_target(shrunk, padded, name, given):
    family = test_encoder_decoders.FAMILIES[name]
    vocabulary = test_encoder_decoders.VOCABULARY
    source, seen = padded(family.sources, vocabulary, family.pad, end=family.end)
    answers, real = padded(family.targets, vocabulary, family.pad, end=family.end)
    labels = answers.where(real, -100)
    theirs, ours = test_encoder_decoders.built(name), shrunk(name, *family.sizes)
    start = torch.full((len(answers), 1), family.start)
    target = {"target": torch.cat([start, answers[:, :-1]], 1)} if given else {}
    compare(
        ours,
        theirs,
        family.name_map,
        lambda: {"loss": ours(source=source, labels=labels, **target).loss},
        lambda: {"loss": theirs(source, attention_mask=seen, labels=labels).loss},
        real,
    )


@pytest.mark.parametrize("lengths", [(17,) * 4, test_bert.LENGTHS], ids=["full rows", "padded"])
def test_labels_of_spans_are_their_ends(shrunk, padded, lengths):
    """Hugging Face ignores the label L, and counts padding among the choices: losses of padded rows differ."""
    from transformers import BertConfig, BertForQuestionAnswering

    ids, real = padded(lengths, 61)
    theirs = test_bert.built(BertForQuestionAnswering, BertConfig, **test_bert.THEIR_BERT, max_position_embeddings=19)
    ours = shrunk("bert-qa", *test_bert.BERT)
    segments = test_bert.segments_of(ids)
    labels = torch.tensor([[5, 9], [0, 0], [3, 3], [-100, -100]])
    ends = labels.where(labels >= 0, ids.shape[1])
    full = bool(real.all())

    def run_ours() -> dict[str, Tensor]:
        made = ours(tokens=ids, segments={"tokens": segments}, **({"labels": labels} if full else {}))
        return {"answer": made["answer"], **({"loss": made.loss} if full else {})}

    def run_theirs() -> dict[str, Tensor]:
        positions = {"start_positions": ends[:, 0], "end_positions": ends[:, 1]} if full else {}
        made = theirs(ids, attention_mask=real, token_type_ids=segments, **positions)
        return {"answer": torch.stack([made.start_logits, made.end_logits], -1), **({"loss": made.loss} if full else {})}

    compare(ours, theirs, name_maps.shipped("BertForQuestionAnswering"), run_ours, run_theirs, real)


def test_labels_of_an_encoder_stand_where_their_tokens_do(shrunk, padded):
    from transformers import BertConfig, BertForPreTraining

    ids, real = padded(test_bert.LENGTHS, 61)
    theirs = test_bert.built(BertForPreTraining, BertConfig, **test_bert.THEIR_BERT, max_position_embeddings=19)
    ours = shrunk("bert-pretraining", *test_bert.BERT)
    segments = test_bert.segments_of(ids)
    words = ids.where(real & (ids % 3 == 0), -100)
    after = torch.arange(len(ids)) % 2

    def run() -> dict[str, Tensor]:
        expected = theirs(ids, attention_mask=real, token_type_ids=segments, labels=words, next_sentence_label=after)
        return {"loss": expected.loss}

    compare(
        ours,
        theirs,
        name_maps.shipped("BertForPreTraining"),
        lambda: {"loss": ours(tokens=ids, segments={"tokens": segments}, labels={"words": words, "next": after}).loss},
        run,
        real,
    )
