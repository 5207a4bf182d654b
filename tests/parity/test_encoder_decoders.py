"""T5, T5 1.1, BART and Marian are those of Hugging Face transformers, number by number and token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import tfkit
from tiers import EVERY_CASE

from . import name_maps
from .comparison import all_in_float64, compare, copy_weights, shake, values_of
from .generation import TOKENS, filtered, generated, searched, talkative, unprejudice

VOCABULARY = 61


@dataclass(frozen=True)
class Family:
    """A published model: ours by overrides, theirs by a function, and the padding, start and end tokens of its ids. T5's texts
    are longer than its `max_distance`, so that every bucket is used."""

    sizes: tuple[str, ...]
    peer: Callable[[], Any]
    name_map: name_maps.NameMap
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    pad: int
    start: int
    end: int


def _t5(**options: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 20, "d_kv": 6, "d_ff": 28, "num_heads": 3, "num_layers": 2}
    config = T5Config(**sizes, **options, vocab_size=VOCABULARY, decoder_start_token_id=0, attn_implementation="eager")
    return T5ForConditionalGeneration(config)


def t5_v1_1() -> Any:
    """The configuration always ties the logits to the embedding; a checkpoint that holds both, as 1.1 does, unties them."""
    model = _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def _bart_config(config: type, **options: Any) -> Any:
    sizes = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
    # A token that is forced at the last step belongs to generation, not to the model.
    return config(**sizes, **heads, **options, vocab_size=VOCABULARY, forced_eos_token_id=None, attn_implementation="eager")


def bart() -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(_bart_config(BartConfig, max_position_embeddings=37))


def marian() -> Any:
    """With the settings that every OPUS-MT checkpoint has, and a pad token that learns (see the last test)."""
    from transformers import MarianConfig, MarianMTModel

    opus = {"activation_function": "swish", "scale_embedding": True, "pad_token_id": 60, "decoder_start_token_id": 60}
    model = MarianMTModel(_bart_config(MarianConfig, **opus, max_position_embeddings=37))
    _set_padding(model, None)
    return model


def _set_padding(model: Any, row: int | None) -> None:
    for table in (model.model.shared, model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
        table.padding_idx = row


COMMON = ("defaults.vocab_size=61", "defaults.attention.num_heads=3", "encoder.num_layers=2")
T5 = (*COMMON, "decoder.num_layers=2", "defaults.d_model=20", "defaults.attention.head_dim=6", "defaults.ffn.d_ff=28")
BART = (*COMMON, "decoder.num_layers=3", "defaults.d_model=24", "defaults.ffn.d_ff=40", "defaults.position.max_len=37")
MARIAN = (
    *COMMON,
    "decoder.num_layers=3",
    "defaults.d_model=24",
    "defaults.ffn.d_ff=40",
    "defaults.pad_id=60",
    "target.start_id=60",
)

FAMILIES = {
    "t5-small": Family(
        T5,
        _t5,
        name_maps.shipped("T5ForConditionalGeneration", feed_forward_proj="relu"),
        (151, 90, 3),
        (139, 2, 77),
        pad=0,
        start=0,
        end=1,
    ),
    "t5-v1.1-small": Family(
        T5,
        t5_v1_1,
        name_maps.shipped("T5ForConditionalGeneration", feed_forward_proj="gated-gelu"),
        (151, 90, 3),
        (139, 2, 77),
        pad=0,
        start=0,
        end=1,
    ),
    "bart-base": Family(
        BART, bart, name_maps.shipped("BartForConditionalGeneration"), (31, 17, 2), (19, 1, 8), pad=1, start=2, end=2
    ),
    "marian": Family(MARIAN, marian, name_maps.shipped("MarianMTModel"), (31, 17, 2), (19, 1, 8), pad=60, start=60, end=0),
}


BEAM_FILTERS = {"forced first", "forced last", "no bigram twice", "repetition", "several"}


def built(name: str, seed: int = 0) -> Any:
    with all_in_float64():
        peer = FAMILIES[name].peer().eval()
        shake(peer, seed)
    return peer


def check(shrunk: Any, padded: Any, name: str, wrong: tuple[str, ...] = ()) -> None:
    """Our model derives the padding from the ids, also with a pad token as start token; theirs gets a mask."""
    family = FAMILIES[name]
    source, seen = padded(family.sources, VOCABULARY, family.pad, end=family.end)
    target, real = padded(family.targets, VOCABULARY, family.pad, start=family.start)
    theirs, ours = built(name), shrunk(name, *family.sizes, wrong=wrong)

    def run() -> dict[str, torch.Tensor]:
        reference = theirs(source, attention_mask=seen, decoder_input_ids=target, decoder_attention_mask=real)
        return {"logits": reference.logits}

    compare(ours, theirs, family.name_map, lambda: ours(source=source, target=target), run, real)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_gradients(shrunk, padded, name):
    check(shrunk, padded, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("t5-small", "defaults.attention.scale=0.99"),
        ("t5-small", "defaults.norm.eps=1e-5"),
        ("t5-small", "defaults.position.max_distance=126"),
        ("t5-small", "logits.scale=1.0"),
        ("t5-v1.1-small", "defaults.ffn.activation=geglu"),
        ("bart-base", "defaults.ffn.activation=gelu_tanh"),
        ("bart-base", "target.embedding_norm={kind: layer_norm, eps: 1.0e-6}"),
        ("marian", "defaults.position=sinusoidal"),
        ("marian", "defaults.ffn.activation=relu"),
        ("marian", "target.scale=1.0"),
        ("marian", "target.start_id=3"),
    ],
)
def test_a_wrong_spec_is_seen(shrunk, padded, name, wrong):
    with pytest.raises(AssertionError, match="where rounding explains"):
        check(shrunk, padded, name, wrong=(wrong,))


def speaking(shrunk: Any, padded: Any, name: str) -> tuple[Callable[[int], Any], Any, torch.Tensor, int, dict[str, Any]]:
    """Our model by end token, with the weights of theirs; theirs; sources; a possible end token; arguments of `generate`."""
    family = FAMILIES[name]
    source, seen = padded((29, 17, 2, 8), VOCABULARY, family.pad, end=family.end)
    target, _ = padded((19, 19, 19, 19), VOCABULARY, family.pad, start=family.start)
    given = {"attention_mask": seen.long(), "decoder_start_token_id": family.start}

    def speaker(seed: int) -> Any:
        model = built(name, seed)
        if "nodes.logits.bias" in family.name_map:
            unprejudice(model, source, target)
        return model

    def ours(end: int) -> Any:
        model = shrunk(name, *family.sizes, f"target.end_id={end}")
        copy_weights(model, theirs, family.name_map)
        return model

    theirs, end = talkative(speaker, source, 1, **given)
    return ours, theirs, source, end, given


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens(shrunk, padded, name):
    ours, theirs, source, end, given = speaking(shrunk, padded, name)
    made = tfkit.greedy(ours(end), source=source, max_new_tokens=TOKENS)
    assert made.ids.tolist() == generated(theirs, source, end, FAMILIES[name].pad, **given)[:, 1:].tolist()
    assert len(set(made.lengths.tolist())) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_beams(shrunk, padded, name):
    ours, theirs, source, _, given = speaking(shrunk, padded, name)
    pad, rules = FAMILIES[name].pad, {"beams": 4, "n_best": 3}
    endless, _ = searched(theirs, source, None, pad, penalty=1.0, **rules, **given)
    end = int(endless[:, 1:].flatten().mode().values)  # one that beams come across
    model, lengths, stopped, number = ours(end), set(), {}, [*FAMILIES].index(name)
    rules_of_the_end = product(enumerate((0.0, 0.6, 1.0, 2.0)), enumerate(("never", False, True)))
    for (row, penalty), (column, stopping) in rules_of_the_end:
        if not EVERY_CASE and (row + column + number) % 2:
            continue  # the next family has it
        sequences, scores = searched(theirs, source, end, pad, penalty=penalty, early_stopping=stopping, **rules, **given)
        found = tfkit.beam_search(
            model, source=source, max_new_tokens=TOKENS, length_penalty=tfkit.PowerLengthPenalty(penalty),
            early_stopping=stopping, unfinished="ranked", **rules,
        )  # fmt: skip
        stopped[penalty, stopping] = [[one.ids.tolist() for one in row] for row in found]
        hypotheses = [one for row in found for one in row]
        torch.testing.assert_close(torch.tensor([one.score for one in hypotheses], dtype=scores.dtype), scores)
        for one, sequence in zip(hypotheses, sequences.tolist(), strict=True):
            assert one.ids.tolist() == sequence[1 : 1 + len(one.ids)]
            assert set(sequence[1 + len(one.ids) :]) <= {pad, end}
            lengths.add((len(one.ids), one.finished))
    assert len(lengths) > 2
    both = [penalty for penalty in (0.6, 1.0, 2.0) if (penalty, True) in stopped]
    assert any(stopped[penalty, True] != stopped[penalty, "never"] for penalty in both)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "t5-small"])
def test_prefixes(shrunk, padded, name):
    """Rows that begin with tokens of the caller, of several lengths: greedily, and beams with the same scores."""
    ours, theirs, source, end, given = speaking(shrunk, padded, name)
    pad, model = FAMILIES[name].pad, ours(end)
    prefixes = [[17, 4, 9], [], [5], [30, 31]][: len(source)] + [[8]] * (len(source) - 4)

    def allowed(row, ids):
        at = len(ids) - 1
        return [prefixes[row][at]] if at < len(prefixes[row]) else list(range(VOCABULARY))

    rows = generated(theirs, source, end, pad, prefix_allowed_tokens_fn=allowed, **given)[:, 1:].tolist()
    assert tfkit.greedy(model, source=source, max_new_tokens=TOKENS, prefixes=prefixes).ids.tolist() == rows
    rules = {"beams": 3, "n_best": 2}
    sequences, scores = searched(theirs, source, end, pad, penalty=1.0, prefix_allowed_tokens_fn=allowed, **rules, **given)
    found = tfkit.beam_search(
        model, source=source, max_new_tokens=TOKENS, length_penalty=tfkit.PowerLengthPenalty(1.0), unfinished="ranked",
        prefixes=prefixes, **rules,
    )  # fmt: skip
    hypotheses = [one for row in found for one in row]
    torch.testing.assert_close(torch.tensor([one.score for one in hypotheses], dtype=scores.dtype), scores)
    for one, sequence in zip(hypotheses, sequences.tolist(), strict=True):
        assert one.ids.tolist() == sequence[1 : 1 + len(one.ids)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "beams"), [("marian", BEAM_FILTERS), ("bart-base", {"several"}), ("t5-small", {"forced first"})]
)
def test_filtered_searches(shrunk, padded, name, beams):
    """With the same filters both say the same: greedily, and the beams with the same scores."""
    ours, theirs, source, end, given = speaking(shrunk, padded, name)
    pad, model, rules = FAMILIES[name].pad, ours(end), {"beams": 4, "n_best": 3}
    plain = generated(theirs, source, end, pad, **given)[:, 1:].tolist()
    changed = 0
    for label, (settings, filters) in filtered(plain[0], 17).items():
        if name == "marian":
            rows = generated(theirs, source, end, pad, **settings, **given)[:, 1:].tolist()
            assert tfkit.greedy(model, source=source, max_new_tokens=TOKENS, filters=filters).ids.tolist() == rows, label
            changed += rows != plain
        if label in beams:
            sequences, scores = searched(theirs, source, end, pad, penalty=1.0, **rules, **settings, **given)
            penalty = tfkit.PowerLengthPenalty(1.0)
            found = tfkit.beam_search(
                model, source=source, max_new_tokens=TOKENS, length_penalty=penalty, filters=filters, unfinished="ranked",
                **rules,
            )  # fmt: skip
            hypotheses = [one for row in found for one in row]
            torch.testing.assert_close(torch.tensor([one.score for one in hypotheses], dtype=scores.dtype), scores)
            for one, sequence in zip(hypotheses, sequences.tolist(), strict=True):
                assert one.ids.tolist() == sequence[1 : 1 + len(one.ids)], label
    assert name != "marian" or changed >= 9


def test_only_hugging_face_keeps_marians_start_token_out_of_training(shrunk, padded):
    """The pad token begins every translation. Hugging Face's embedding drops the gradient of its row as that of padding; ours
    gives none to padding because nothing sees it, and lets the start token learn like every other."""
    family = FAMILIES["marian"]
    source, seen = padded(family.sources, VOCABULARY, 60, end=0)
    target, real = padded(family.targets, VOCABULARY, 60, start=60)
    theirs, ours = built("marian"), shrunk("marian", *family.sizes)
    copy_weights(ours, theirs, family.name_map)
    _set_padding(theirs, 60)

    def run() -> dict[str, torch.Tensor]:
        reference = theirs(source, attention_mask=seen, decoder_input_ids=target, decoder_attention_mask=real)
        return {"logits": reference.logits}

    with all_in_float64():
        dropped = values_of(theirs, run, real)[1]["model.shared.weight"]
    learnt = values_of(ours, lambda: ours(source=source, target=target), real)[1]["nodes.source.embedding.weight"]
    torch.testing.assert_close(learnt[:60], dropped[:60])
    assert (learnt[60] - dropped[60]).abs().max() > 1
