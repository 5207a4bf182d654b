"""Hugging Face's greedy and beam search, and random models that have something to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tfkit

from .comparison import all_in_float64

TOKENS = 20


def generated(model: Any, ids: Tensor, end: int | None, fill: int, **given: Any) -> Tensor:
    """What `generate` gives, prompt or start token included; rows that have ended are filled up with `fill`."""
    with all_in_float64():
        rules = {"max_new_tokens": TOKENS, "do_sample": False, "num_beams": 1, "eos_token_id": end, "pad_token_id": fill}
        made: Tensor = model.generate(ids, **rules, **given)
    return made


def searched(
    model: Any, ids: Tensor, end: int | None, fill: int, beams: int, n_best: int, penalty: float,
    early_stopping: bool | str = "never", **given: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The `n_best` sequences of every row and their scores. What it calls a length penalty is |Y|^penalty."""
    with all_in_float64():
        rules = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": end, "pad_token_id": fill}
        made = model.generate(
            ids, num_beams=beams, num_return_sequences=n_best, length_penalty=penalty, early_stopping=early_stopping,
            return_dict_in_generate=True, output_scores=True, **rules, **given,
        )  # fmt: skip
    return made.sequences, made.sequences_scores


def filtered(tokens: list[int], first: int) -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """By name, settings of Hugging Face's `generate` and the score filters that say the same. `tokens` is a sequence that the
    model says without them, `first` a token that it does not begin with."""
    often = max(set(tokens), key=tokens.count)
    seldom = min(set(tokens), key=tokens.count)
    words = [[tokens[0]], tokens[2:4], tokens[3:6]]
    some = sorted({*tokens[1::2], first})
    make = tfkit.score_filter
    return {
        "suppress": ({"suppress_tokens": [often, first]}, [make("suppress", ids=[often, first])]),
        "suppress first": ({"begin_suppress_tokens": [tokens[0]]}, [make("suppress_first", ids=[tokens[0]])]),
        "bad words": ({"bad_words_ids": words}, [make("bad_words", sequences=words)]),
        "forced first": ({"forced_bos_token_id": first}, [make("forced_first", id=first)]),
        "forced last": ({"forced_eos_token_id": seldom}, [make("forced_last", id=seldom)]),
        "min tokens": ({"min_new_tokens": 13}, [make("min_tokens", tokens=13)]),
        "no bigram twice": ({"no_repeat_ngram_size": 2}, [make("no_repeat_ngram", size=2)]),
        "no token twice": ({"no_repeat_ngram_size": 1}, [make("no_repeat_ngram", size=1)]),
        "repetition": ({"repetition_penalty": 1.7}, [make("repetition_penalty", factor=1.7)]),
        "wanted repetition": ({"repetition_penalty": 0.6}, [make("repetition_penalty", factor=0.6)]),
        "several": (
            {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 5, "suppress_tokens": some},
            [
                make("repetition_penalty", factor=1.3),
                make("no_repeat_ngram", size=3),
                make("min_tokens", tokens=5),
                make("suppress", ids=some),
            ],
        ),
    }


def talkative(built: Callable[[int], Any], ids: Tensor, skip: int, **given: Any) -> tuple[Any, int]:
    """The first model, by seed, that does not say one thing over and over, and the end token at which its rows stop at the
    most different lengths. `skip` tokens at the start of each row are not its own."""
    for seed in range(30):
        model = built(seed)
        rows = generated(model, ids, None, 0, **given)[:, skip:].tolist()
        used = {token for row in rows for token in row}
        if len(used) < 8:
            continue
        lengths = {token: len({row.index(token) if token in row else TOKENS for row in rows}) for token in sorted(used)}
        return model, max(lengths, key=lengths.__getitem__)
    raise AssertionError("no seed gives a model whose tokens vary")


@torch.no_grad()
def unprejudice(model: Any, source: Tensor, target: Tensor) -> None:
    """Set the bias of the logits against the tokens that a random model prefers whatever it reads."""
    with all_in_float64():
        model.final_logits_bias -= model(source, decoder_input_ids=target).logits.mean((0, 1))
