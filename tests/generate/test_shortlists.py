"""Shortlists: a search finds what it would find if the logits of all other ids were -inf, and computes none of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_stand_in
import tfkit
from tfkit import Model
from tfkit.generate import StepGraphs
from tfkit.plugin.model_parts import NodeOutput

from . import reference_search

KERNELS = tfkit.load_catalogue().entries("int8_kernel")
END, V, N = 2, 11, 9
SOURCES = [[3, 4, 5, 2], [6, 7, 2], [8, 9, 10, 3, 2]]
SHORTLISTS = [[4, 3, 9, 3], [5, 6, 7, 8, 10], [END, 3, 4, 5, 6]]

SPEC_OF_A_LARGE_HEAD = """
tfkit: 1
name: large-head
defaults: {d_model: 72, position: rotary_half, placement: pre, norm: layer_norm, attention: {num_heads: 2},
           ffn: {d_ff: 8, activation: relu}}
nodes:
  tokens: {kind: tokens, vocab_size: 30000, pad_id: 0, start_id: 1, end_id: 2}
  body:   {kind: stack, input: tokens, num_layers: 1, causal: true}
  logits: {kind: token_logits, input: body, vocab_size: 30000}
outputs: [logits]
"""


def batch() -> dict[str, Any]:
    longest = max(map(len, SOURCES))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in SOURCES])
    return {"source": ids, "lengths": {"source": torch.tensor(list(map(len, SOURCES)))}, "max_new_tokens": N}


@contextmanager
def masked(model: Model, allowed: list[int]) -> Iterator[None]:
    """The logits of all ids but these and the end token are -inf."""
    never = torch.ones(V, dtype=torch.bool)
    never[[*allowed, END]] = False

    def mask(module: Any, arguments: Any, output: NodeOutput) -> NodeOutput:
        return replace(output, tensor=output.tensor.masked_fill(never, -torch.inf))

    hook = model.nodes["logits"].register_forward_hook(mask)
    try:
        yield
    finally:
        hook.remove()


def searches(model: Model, streams: list[int], **rules: Any) -> dict[str, list[list[tuple[list[int], float]]]]:
    beams = {name: value for name, value in rules.items() if name != "graphs"}
    found = {
        "greedy": tfkit.greedy(model, scores=True, **rules).hypotheses(),
        "sample": tfkit.sample(model, samples=2, seed=1, top_p=0.9, streams=streams, **rules),
        "beams": tfkit.beam_search(model, beams=3, n_best=3, **beams),
    }
    return {kind: [[(one.ids.tolist(), one.score) for one in row] for row in rows] for kind, rows in found.items()}


FILTERS = {
    "none": {},
    "a few forbidden": {"filters": [tfkit.score_filter("suppress", ids=[3, 8])]},
    "any filter": {"filters": [tfkit.score_filter("no_repeat_ngram", size=2)]},
}


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("seed", [1, 2, 5])
def test_a_search_finds_what_it_finds_with_all_other_logits_at_minus_infinity(
    any_decoder: Callable[..., Model], kind: str, seed: int
):
    model, rules = any_decoder("translator", "rotary_half", seed), FILTERS[kind]
    together = searches(model, [0, 1, 2], shortlists=SHORTLISTS, **batch(), **rules)
    for row, (source, allowed) in enumerate(zip(SOURCES, SHORTLISTS, strict=True)):
        with masked(model, allowed):
            alone = searches(model, [row], source=torch.tensor([source]), max_new_tokens=N, **rules)
        for name, wanted in alone.items():
            for (ids, score), (wanted_ids, wanted_score) in zip(together[name][row], wanted[0], strict=True):
                assert ids == wanted_ids
                assert {*ids} <= {*allowed, END}
                assert score == pytest.approx(wanted_score, abs=1e-9)


def test_beams_agree_with_a_search_by_loops(any_decoder: Callable[..., Model]):
    model = any_decoder("translator", "rotary_half", 7)
    penalty = tfkit.GnmtLengthPenalty(0.6)
    found = tfkit.beam_search(model, beams=3, n_best=2, length_penalty=penalty, shortlists=SHORTLISTS, **batch())
    for source, allowed, hypotheses in zip(SOURCES, SHORTLISTS, found, strict=True):
        with masked(model, allowed):
            wanted = reference_search.beam(
                model, "target", [1], 3, N, lambda length: float(penalty.at(length)), 2, source=torch.tensor([source])
            )
        assert [one.ids.tolist() for one in hypotheses] == [ids for _, _, ids, _ in wanted]
        assert [one.score for one in hypotheses] == pytest.approx([score for score, *_ in wanted], abs=1e-9)


def test_ids_of_a_prefix_and_the_end_token_are_always_among_them(any_decoder: Callable[..., Model]):
    model = any_decoder("translator", "rotary_half", 3)
    empty: list[Any] = [[], torch.tensor([], dtype=torch.int64), [4]]
    found = tfkit.beam_search(model, beams=2, shortlists=empty, prefixes=[[9], [], [7, 8]], **batch())
    assert [row[0].ids.tolist()[:2] for row in found][1] == [END]
    assert found[0][0].ids[0] == 9
    assert {*found[0][0].ids.tolist()} <= {9, END}
    assert found[2][0].ids.tolist()[:2] == [7, 8]
    assert {*found[2][0].ids.tolist()} <= {4, 7, 8, END}


def test_only_the_logits_of_the_shortlists_are_computed(any_decoder: Callable[..., Model]):
    model, widths = any_decoder("translator", "rotary_half", 1), set[int]()

    def note(module: Any, arguments: Any, output: NodeOutput) -> None:
        widths.add(output.tensor.shape[-1])

    hook = model.nodes["logits"].register_forward_hook(note)
    tfkit.greedy(model, shortlists=[[3, 4], [4, 5], [5]], **batch())
    hook.remove()
    assert widths == {4}
    assert tfkit.greedy(model, **batch()).ids.shape[0] == 3  # the next search has all columns again


def test_an_ensemble_has_the_columns_of_each_model(any_decoder: Callable[..., Model]):
    from tfkit.text.ensemble import Ensemble

    model = any_decoder("translator", "rotary_half", 1)
    both: Any = Ensemble([model, model])
    one = tfkit.greedy(model, shortlists=SHORTLISTS, **batch()).ids
    assert torch.equal(tfkit.greedy(both, shortlists=SHORTLISTS, **batch()).ids, one)


class OtherLinear(torch.nn.Linear):
    """A head of another library: it computes all logits itself."""


REFUSED: dict[str, tuple[Any, str]] = {
    "one list for all": ([3, 4], "and there are 3 rows"),
    "not lists": ([3, 4, 5], "the shortlist of row 0 is"),
    "floats": ([torch.tensor([0.5])] * 3, "the shortlist of row 0 is"),
    "another vocabulary": ([[3], [4], [V]], f"the shortlist of row 2 holds the id {V}"),
    "below zero": ([[3], [-1], [4]], "the shortlist of row 1 holds the id -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_shortlists_are_refused(any_decoder: Callable[..., Model], case: str):
    shortlists, words = REFUSED[case]
    with pytest.raises(tfkit.InputError, match=words):
        tfkit.greedy(any_decoder("translator", "rotary_half", 1), shortlists=shortlists, **batch())


def test_captured_steps_are_refused(any_decoder: Callable[..., Model]):
    model = any_decoder("translator", "rotary_half", 1)
    with pytest.raises(tfkit.InputError, match="shortlists"):
        tfkit.greedy(model, shortlists=SHORTLISTS, graphs=StepGraphs(model, graph_stand_in.capture), **batch())


@pytest.mark.parametrize("precision", ["float32", "int8", "another library"])
def test_the_head_of_any_precision_computes_these_columns_in_float32(precision: str, catalogue: tfkit.Catalogue):
    """The vocabulary is so large that int8 rounds the head."""
    from tfkit.cpu.int8 import fastest
    from tfkit.nn.precision import large_weights, round_weights

    text = SPEC_OF_A_LARGE_HEAD
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue, seed=1).eval()
    if precision == "int8":
        if fastest(KERNELS) is None:
            pytest.skip("not run: this processor has no int8 products")
        assert list(large_weights(model)) == ["nodes.logits"]
        round_weights(model, "int8", KERNELS)
    if precision == "another library":
        head: Any = model.nodes["logits"]
        other = OtherLinear(72, 30_000, bias=False)
        other.weight = head.logits.weight
        head.logits = other
    ids = torch.arange(5, 30_000, 4_321)
    prompt = torch.tensor([[1, 7, 9], [1, 4, 4]])
    states = [model.start(batch=2) for _ in range(2)]
    model.restrict(states[1], "logits", ids)
    full, some = (model.step(state, prompt)["logits"] for state in states)
    weight, x = model.nodes["logits"].logits.weight.double()[ids], body_output(model, prompt)
    assert some.shape == (2, 3, len(ids))
    torch.testing.assert_close(some.double(), x.double() @ weight.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(some, full[..., ids], rtol=0, atol=0.1 if precision == "int8" else 1e-4)


def body_output(model: Model, prompt: Tensor) -> Tensor:
    """What the head reads, from a pass without a cache."""
    seen: list[Tensor] = []
    hook = model.nodes["body"].register_forward_hook(lambda module, arguments, output: seen.append(output.tensor))
    with torch.no_grad():
        model(tokens=prompt)
    hook.remove()
    return seen[0]
