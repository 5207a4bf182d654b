"""Greedy decoding is the arg-max of full forward passes, row by row, whatever the state remembers on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_stand_in
import tfkit
from tfkit import Model
from tfkit.generate import StepGraphs

SCHEMES = ["none", "sinusoidal", "rotary_half", "alibi", "relative_t5", "{kind: learned, max_len: 30, count: visible}"]
N = 12


def sentence_by_sentence(model: Model, target: str, prefill: list[int], new: int, **inputs: Tensor) -> tuple[list[int], bool]:
    """The equation: y_t = argmax p(y | y_<t, x), each time from scratch."""
    ids, made = list(prefill), []
    while len(made) < new:
        logits = model(**inputs, **{target: torch.tensor([ids])}, masks={target: torch.ones(1, len(ids), dtype=torch.bool)})[
            "logits"
        ]
        made.append(int(logits[0, -1].argmax()))
        ids.append(made[-1])
        if made[-1] == 2:
            return made, True
    return made, False


@pytest.mark.slow
@pytest.mark.parametrize("start", [1, 0], ids=["start", "start is pad"])
@pytest.mark.parametrize("position", SCHEMES)
def test_translations_are_those_of_full_forward_passes(position: str, start: int, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator", position=position, start=start)
    source = torch.randint(3, 11, (6, 5), generator=torch.Generator().manual_seed(3))
    source[1, 3:] = 0
    source[4, 1:] = 0
    found = tfkit.greedy(model, source=source, max_new_tokens=N)
    with torch.no_grad():
        wanted = [sentence_by_sentence(model, "target", [start], N, source=row[row != 0][None]) for row in source]
    assert found.lengths.tolist() == [len(ids) for ids, _ in wanted]
    assert found.finished.tolist() == [ended for _, ended in wanted]
    assert found.ids.shape == (6, max(len(ids) for ids, _ in wanted))
    assert found.fill_id == 0
    for row, (ids, _) in zip(found.ids.tolist(), wanted, strict=True):
        assert row == ids + [0] * (len(row) - len(ids))


def test_some_rows_end_and_others_do_not(decoder_of: Callable[..., Model]) -> None:
    """The test above is worth something only where rows leave the batch at different steps."""
    source = torch.randint(3, 11, (6, 5), generator=torch.Generator().manual_seed(3))
    seen: set[tuple[int, bool]] = set()
    for position in SCHEMES:
        found = tfkit.greedy(decoder_of("translator", position=position), source=source, max_new_tokens=N)
        seen |= set(zip(found.lengths.tolist(), found.finished.tolist(), strict=True))
    assert (N, False) in seen
    assert len([length for length, ended in seen if ended and length < N]) >= 2


def test_rows_that_have_ended_leave_the_batch(decoder_of: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder_of("translator")
    batches: list[int] = []
    step = Model.step
    monkeypatch.setattr(
        Model, "step", lambda self, state, ids, *rest: (batches.append(len(ids)), step(self, state, ids, *rest))[1]
    )
    source = torch.randint(3, 11, (8, 5), generator=torch.Generator().manual_seed(5))
    found = tfkit.greedy(model, source=source, max_new_tokens=N)
    counted = [int((found.lengths > at).sum()) for at in range(len(batches))]
    assert batches == [8, *counted[1:]] or batches == counted
    assert batches[-1] < batches[0]


@pytest.mark.parametrize(
    "position", ["none", "rotary_half", "alibi", "relative_t5", "{kind: learned, max_len: 30, count: visible}"]
)
def test_a_prompt_padded_on_the_left_is_continued_like_one_alone(position: str, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", position=position)
    prompts = [[1, 5, 6, 7], [1, 9], [4, 4, 8]]
    padded = torch.tensor([[0] * (4 - len(prompt)) + prompt for prompt in prompts])
    found = tfkit.greedy(model, prompt=padded, max_new_tokens=N)
    with torch.no_grad():
        wanted = [sentence_by_sentence(model, "tokens", prompt, N) for prompt in prompts]
    assert found.lengths.tolist() == [len(ids) for ids, _ in wanted]
    for row, (ids, _) in zip(found.ids.tolist(), wanted, strict=True):
        assert row[: len(ids)] == ids


def test_a_pad_id_that_the_model_chooses_is_a_token_like_others(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", "nodes.logits.bias=true")
    mixed = False
    for bias in (0.0, 3.0, 6.0, 9.0, 1e4):
        with torch.no_grad():
            model.nodes["logits"].bias.zero_()[0] = bias
            wanted, _ = sentence_by_sentence(model, "tokens", [1, 5], N)
        assert tfkit.greedy(model, prompt=torch.tensor([[1, 5]]), max_new_tokens=N).ids.tolist() == [wanted]
        mixed |= 0 < wanted.count(0) < len(wanted)
    assert wanted == [0] * N
    assert mixed


def test_without_an_end_token_it_goes_on_and_fills_with_nothing(decoder_of: Callable[..., Model]) -> None:
    endless = decoder_of("writer")
    endless.plan.inputs["tokens"].__dict__["end_id"] = None
    found = tfkit.greedy(endless, prompt=torch.tensor([[1]] * 2), max_new_tokens=9)
    assert found.ids.shape == (2, 9)
    assert found.lengths.tolist() == [9, 9]
    assert not bool(found.finished.any())


def test_masks_of_the_other_inputs_reach_the_encoder(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    source = torch.randint(3, 11, (2, 6), generator=torch.Generator().manual_seed(3))
    visible = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    progress = tfkit.greedy(model, source=source.where(visible, 0), max_new_tokens=N)
    masked = tfkit.greedy(model, source=source, masks={"source": visible}, max_new_tokens=N)
    counted = tfkit.greedy(model, source=source, lengths={"source": torch.tensor([6, 2])}, max_new_tokens=N)
    assert torch.equal(progress.ids, masked.ids)
    assert torch.equal(progress.ids, counted.ids)


def test_no_gradient_is_kept_and_the_mode_stays(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer").train()
    assert not tfkit.greedy(model, prompt=torch.tensor([[1]]), max_new_tokens=2).ids.requires_grad
    assert model.training


SOURCE = torch.full((2, 3), 4)
PROMPT = torch.full((2, 3), 4)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"source": SOURCE, "max_new_tokens": 0}, "TFK077.*max_new_tokens is 0"),
    "nothing": ({}, "TFK073.*source, target"),
    "all inputs": ({"source": SOURCE, "target": SOURCE}, "TFK073"),
    "unknown input": ({"sauce": SOURCE}, "TFK073"),
    "unknown target": ({"source": SOURCE, "target": "tokens"}, "TFK073.*`tokens`.*source, target"),
    "unknown output": ({"source": SOURCE, "output": "logit"}, "TFK077.*`logit`.*logits"),
    "prompt of another batch": ({"source": SOURCE, "prompt": PROMPT[:1]}, "TFK070.*1.*2 rows"),
    "prompt of one axis": ({"source": SOURCE, "prompt": PROMPT[0]}, r"TFK070.*`target` has shape \(3,\)"),
    "empty prompt": ({"source": SOURCE, "prompt": PROMPT[:, :0]}, r"TFK070.*\(2, 0\)"),
    "prompt of floats": ({"source": SOURCE, "prompt": PROMPT.float()}, "TFK071.*`target`"),
    "prompt of strings": ({"source": SOURCE, "prompt": "Ein Hund"}, "TFK071.*`target` is a str"),
    "prompt out of range": ({"source": SOURCE, "prompt": PROMPT + 9}, "TFK072.*13"),
    "source of a list": ({"source": [[3]]}, "TFK071.*`source` is a list"),
    "source of one axis": ({"source": SOURCE[0]}, r"TFK070.*`source` has shape \(3,\)"),
    "prompt that ends in padding": ({"source": SOURCE, "prompt": torch.tensor([[4, 5], [4, 0]])}, "TFK077.*row 1.*left"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_an_input_error(name: str, decoder_of: Callable[..., Model]) -> None:
    arguments, pattern = WRONG[name]
    with pytest.raises(tfkit.InputError, match=pattern):
        tfkit.greedy(decoder_of("translator"), **{"max_new_tokens": 3, **arguments})


def test_padding_that_a_position_counts_is_refused(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", position="sinusoidal")
    with pytest.raises(tfkit.InputError, match=r"TFK077.*row 0.*count: visible"):
        tfkit.greedy(model, prompt=torch.tensor([[0, 4], [4, 4]]), max_new_tokens=2)


def test_a_start_must_be_known(decoder_of: Callable[..., Model], catalogue: tfkit.Catalogue) -> None:
    model = decoder_of("writer")
    model.plan.inputs["tokens"].__dict__["start_id"] = None
    with pytest.raises(tfkit.InputError, match=r"TFK077.*`tokens` has no start_id"):
        tfkit.greedy(model, max_new_tokens=2)


def test_a_model_without_logits_over_its_ids_cannot_decode(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    model.plan.__dict__["outputs"] = ("body",)
    model.plan.widths["body"] = 16
    with pytest.raises(tfkit.InputError, match=r"TFK077.*outputs over the 11 ids of `tokens`: none"):
        tfkit.greedy(model, max_new_tokens=2)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_logits_that_are_not_finite_are_reported(
    captured: bool, scores: bool, wrong: float, decoder_of: Callable[..., Model]
) -> None:
    model = decoder_of("writer")
    graphs = StepGraphs(model, graph_stand_in.capture) if captured else None
    model.nodes["logits"].register_forward_hook(
        lambda node, given, found: replace(found, tensor=one_row_is(found.tensor, wrong))
    )
    with pytest.raises(tfkit.InputError, match=r"TFK077.*row 1 are NaN or infinite"):
        tfkit.greedy(model, torch.tensor([[4, 5], [4, 4]]), max_new_tokens=3, scores=scores, graphs=graphs)


def one_row_is(logits: Tensor, value: float) -> Tensor:
    return torch.where(torch.arange(len(logits))[:, None, None] == 1, value, logits)


@pytest.mark.parametrize("vocabulary", [11, 5000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_single_nan_is_reported_for_any_kernel(dtype: torch.dtype, vocabulary: int, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", f"tokens.vocab_size={vocabulary}").to(dtype)
    with torch.no_grad():
        next(each for each in model.parameters() if len(each) == vocabulary)[vocabulary - 2] = torch.nan
    with pytest.raises(tfkit.InputError, match=r"TFK077.*row 0 are NaN or infinite"):
        tfkit.greedy(model, torch.tensor([[4, 5], [4, 4]]), max_new_tokens=3)


def test_logits_of_minus_infinity_are_tokens_that_are_never_chosen(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    hidden = torch.where(torch.arange(11) < 5, -torch.inf, 0.0)
    model.nodes["logits"].register_forward_hook(lambda node, given, found: replace(found, tensor=found.tensor + hidden))
    assert int(tfkit.greedy(model, torch.tensor([[4, 5], [4, 4]]), max_new_tokens=3).ids.min()) >= 5
