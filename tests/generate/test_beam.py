"""Beam search finds what an exhaustive search and a search without any cache find, alone and in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import tfkit
from tfkit import Model
from tiers import EVERY_CASE

from .reference_search import Found, beam, everything

SCHEMES = ["none", "sinusoidal", "rotary_half", "alibi", "relative_t5", "relative_shaw", "{kind: learned, max_len: 30}"]
PENALTIES = {
    "none": tfkit.PowerLengthPenalty(0.0),
    "power 1": tfkit.PowerLengthPenalty(1.0),
    "power 2.5": tfkit.PowerLengthPenalty(2.5),
    "gnmt 0.6": tfkit.GnmtLengthPenalty(0.6),
    "gnmt 3": tfkit.GnmtLengthPenalty(3.0),
}
SEEDS = [1, 2, 3]


def combined(values: list[Any]) -> list[tuple[Any, str]]:
    """Values with penalties: each of both at least once, or every pair."""
    names = list(PENALTIES)
    count = max(len(values), len(names))
    chosen = {(values[at % len(values)], names[at % len(names)]) for at in range(count)}
    return [(value, name) for value in values for name in names if EVERY_CASE or (value, name) in chosen]


SOURCE = torch.randint(3, 11, (6, 5), generator=torch.Generator().manual_seed(3))
SOURCE[1, 3:] = 0
SOURCE[4, 1:] = 0
N = 9


def agree(found: list[tfkit.Hypothesis], wanted: list[Found]) -> None:
    assert [one.ids.tolist() for one in found] == [ids for _, _, ids, _ in wanted]
    for one, (score, total, ids, ended) in zip(found, wanted, strict=True):
        assert one.finished == ended
        assert one.score == pytest.approx(score, rel=1e-9)
        assert one.log_probability == pytest.approx(total, rel=1e-9)
        assert one.token_log_probabilities.shape == (len(ids),)
        assert float(one.token_log_probabilities.sum()) == pytest.approx(total, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "name"), combined(SEEDS))
def test_with_beams_for_every_prefix_it_finds_the_best_of_all_sequences(
    seed: int, name: str, decoder_of: Callable[..., Model]
) -> None:
    penalty = PENALTIES[name]
    model = decoder_of("translator", "defaults.vocab_size=5", seed=seed)
    source = torch.tensor([[3, 4, 4], [4, 3, 3]])
    found = tfkit.beam_search(model, source=source, beams=5**4, n_best=20, max_new_tokens=4, length_penalty=penalty)
    for row, hypotheses in zip(source, found, strict=True):
        agree(hypotheses, everything(model, "target", [1], 4, penalty.at, source=row[None])[:20])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("position", "name"), combined(SCHEMES))
def test_hypotheses_are_those_of_a_search_without_a_cache(position: str, name: str, decoder_of: Callable[..., Model]) -> None:
    penalty = PENALTIES[name]
    model = decoder_of("translator", position=position)
    found = tfkit.beam_search(model, source=SOURCE, beams=3, n_best=3, max_new_tokens=N, length_penalty=penalty)
    for row, hypotheses in zip(SOURCE, found, strict=True):
        agree(hypotheses, beam(model, "target", [1], 3, N, penalty.at, 3, source=row[row != 0][None]))


@pytest.mark.slow
def test_stopping_at_the_first_finished_hypotheses_would_lose_the_best(decoder_of: Callable[..., Model]) -> None:
    """The tests above need a search that continues after its beams were filled once."""
    model, penalty = decoder_of("translator"), PENALTIES["power 2.5"]
    lost = 0
    for row in SOURCE:
        source = row[row != 0][None]
        lost += beam(model, "target", [1], 3, N, penalty.at, hasty=True, source=source) != beam(
            model, "target", [1], 3, N, penalty.at, source=source
        )
    assert lost


def test_it_stops_where_nothing_can_be_gained(decoder_of: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder_of("translator")
    steps: list[int] = []
    step = Model.step
    monkeypatch.setattr(
        Model, "step", lambda self, state, ids, *rest: (steps.append(len(ids)), step(self, state, ids, *rest))[1]
    )
    tfkit.beam_search(model, source=SOURCE, beams=2, max_new_tokens=50, length_penalty=PENALTIES["gnmt 0.6"])
    assert steps[0] == len(SOURCE)
    assert len(steps) < 50
    assert steps[1] > steps[-1]  # sentences that are done leave


@pytest.mark.slow
@pytest.mark.parametrize(("position", "name"), combined(SCHEMES))
def test_one_beam_is_greedy_decoding(position: str, name: str, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator", position=position)
    limits = torch.tensor([9, 3, 1, 9, 7, 2])
    for most in (N, limits):
        greedy = tfkit.greedy(model, source=SOURCE, max_new_tokens=most, scores=True).hypotheses()
        found = tfkit.beam_search(model, source=SOURCE, beams=1, max_new_tokens=most, length_penalty=PENALTIES[name])
        for (mine,), (theirs,) in zip(found, greedy, strict=True):
            assert mine.ids.tolist() == theirs.ids.tolist()
            assert mine.finished == theirs.finished
            assert mine.log_probability == pytest.approx(theirs.log_probability, rel=1e-9)
            torch.testing.assert_close(mine.token_log_probabilities, theirs.token_log_probabilities)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_sentence_in_a_batch_is_a_sentence_alone(dtype: torch.dtype, decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator").to(dtype)
    limits = torch.tensor([9, 4, 1, 9, 7, 2])
    together = tfkit.beam_search(model, source=SOURCE, beams=4, n_best=2, max_new_tokens=limits)
    for row, limit, hypotheses in zip(SOURCE, limits.tolist(), together, strict=True):
        (alone,) = tfkit.beam_search(model, source=row[row != 0][None], beams=4, n_best=2, max_new_tokens=limit)
        assert len(hypotheses) == len(alone) == 2
        for one, other in zip(hypotheses, alone, strict=True):
            assert one.ids.tolist() == other.ids.tolist()
            assert one.finished == other.finished
            assert one.score == pytest.approx(other.score, rel=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25)
def test_any_search_is_the_plain_one(data: st.DataObject, any_decoder: Callable[..., Model]) -> None:
    draw = data.draw
    kind = draw(st.sampled_from(["translator", "writer"]), "kind")
    target = {"translator": "target", "writer": "tokens"}[kind]
    model = any_decoder(kind, draw(st.sampled_from(SCHEMES), "position"), draw(st.integers(1, 4), "weights"))
    rows, beams = draw(st.integers(1, 3), "rows"), draw(st.integers(1, 5), "beams")
    n_best = draw(st.integers(1, beams), "n_best")
    family = draw(st.sampled_from([tfkit.GnmtLengthPenalty, tfkit.PowerLengthPenalty]), "penalty")
    penalty = family(draw(st.floats(0, 3), "alpha"))
    limits = draw(st.lists(st.integers(1, 6), min_size=rows, max_size=rows), "limits")
    length = draw(st.integers(1, 4), "prompt")
    words = st.lists(st.integers(3, 10), min_size=length, max_size=length)
    prompts = torch.tensor(draw(st.lists(words, min_size=rows, max_size=rows), "prompts"))
    sources = torch.tensor(draw(st.lists(words, min_size=rows, max_size=rows), "sources"))
    inputs = {"source": sources} if kind == "translator" else {}
    found = tfkit.beam_search(
        model, prompt=prompts, beams=beams, n_best=n_best, max_new_tokens=torch.tensor(limits), length_penalty=penalty, **inputs
    )
    for row, hypotheses in enumerate(found):
        alone = {name: ids[row : row + 1] for name, ids in inputs.items()}
        prefill = prompts[row].tolist()
        if beams == 1:  # ends with its first end token, whatever the penalty
            wanted = beam(model, target, prefill, 1, limits[row], penalty.at, hasty=True, **alone)
        else:
            wanted = beam(model, target, prefill, beams, limits[row], penalty.at, n_best, **alone)
        agree(hypotheses, wanted)


@pytest.mark.slow
def test_prompts_padded_on_the_left(decoder_of: Callable[..., Model]) -> None:
    for position in ("none", "rotary_half", "alibi", "relative_t5", "{kind: learned, max_len: 30, count: visible}"):
        model = decoder_of("writer", position=position)
        prompts = [[1, 5, 6, 7], [1, 9], [4, 4, 8]]
        padded = torch.tensor([[0] * (4 - len(prompt)) + prompt for prompt in prompts])
        found = tfkit.beam_search(model, prompt=padded, beams=3, n_best=3, max_new_tokens=7)
        for prompt, hypotheses in zip(prompts, found, strict=True):
            agree(hypotheses, beam(model, "tokens", prompt, 3, 7, tfkit.GnmtLengthPenalty().at, 3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_large_vocabulary_and_few_rows(dtype: torch.dtype, decoder_of: Callable[..., Model]) -> None:
    """Few rows are multiplied in another way, many words are looked through in another way."""
    model = decoder_of("translator", "defaults.vocab_size=2500").to(dtype)
    with torch.no_grad():
        model.nodes["source"].embedding.weight[2] *= 3
    source = torch.tensor([[5, 6, 7], [2000, 9, 9]])
    for rows in ([0], [0, 1]):
        found = tfkit.beam_search(model, source=source[rows], beams=3, n_best=3, max_new_tokens=5)
        for row, hypotheses in zip(rows, found, strict=True):
            wanted = beam(model, "target", [1], 3, 5, tfkit.GnmtLengthPenalty().at, 3, source=source[row : row + 1])
            if dtype == torch.float64:
                agree(hypotheses, wanted)
            assert [one.ids.tolist() for one in hypotheses] == [ids for _, _, ids, _ in wanted]


def test_windows_are_those_of_the_positions(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer", "body.attention.window=3")
    found = tfkit.beam_search(model, prompt=torch.tensor([[1, 5, 6], [4, 7, 8]]), beams=3, n_best=3, max_new_tokens=7)
    for prompt, hypotheses in zip([[1, 5, 6], [4, 7, 8]], found, strict=True):
        agree(hypotheses, beam(model, "tokens", prompt, 3, 7, tfkit.GnmtLengthPenalty().at, 3))


@pytest.mark.slow
def test_attention_is_that_of_a_full_forward_pass(decoder_of: Callable[..., Model]) -> None:
    sites = ["decoder.*.cross_attention", "decoder.1.self_attention"]
    for position in SCHEMES:
        model = decoder_of("translator", position=position)
        found = tfkit.beam_search(model, source=SOURCE, beams=3, n_best=2, max_new_tokens=5, attention=sites)
        seen = set()
        for row, hypotheses in zip(SOURCE, found, strict=True):
            real = row != 0
            for one in hypotheses:
                ids = torch.tensor([[1, *one.ids.tolist()[:-1]]])
                chosen = {"target": torch.ones_like(ids, dtype=torch.bool)}  # a pad that was chosen is a token
                full = model(source=row[real][None], target=ids, masks=chosen, weights=sites)["weights"]
                assert one.attention.keys() == full.keys()
                for site, weights in one.attention.items():
                    wanted = full[site][0]
                    assert weights.shape[:2] == wanted.shape[:2]
                    keys = wanted.shape[2]
                    torch.testing.assert_close(weights[..., :keys], wanted)
                    assert not bool(weights[..., keys:].any())
                seen.add(len(one.ids))
        assert position != "none" or len(seen) > 1


def test_equal_candidates_are_ordered_by_beam_and_id(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    (found,) = tfkit.beam_search(model, source=SOURCE[:1], beams=3, n_best=3, max_new_tokens=2)
    # All 11 tokens are equally probable: 0, 1 and the end token are the first three, and the one that ended stays best.
    assert [one.ids.tolist() for one in found] == [[2], [0, 2], [0, 0]]  # those that ended come first
    (found,) = tfkit.beam_search(model, source=SOURCE[:1], beams=3, n_best=3, max_new_tokens=2, unfinished="ranked")
    assert [one.ids.tolist() for one in found] == [[2], [0, 0], [0, 1]]


def test_an_end_token_is_not_needed(decoder_of: Callable[..., Model]) -> None:
    endless = decoder_of("writer")
    endless.plan.inputs["tokens"].__dict__["end_id"] = None
    (found,) = tfkit.beam_search(endless, beams=3, n_best=2, max_new_tokens=4)
    assert [len(one.ids) for one in found] == [4, 4]
    assert not any(one.finished for one in found)


def test_fewer_sequences_than_were_asked_for(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator", "defaults.vocab_size=5")
    (found,) = tfkit.beam_search(model, source=torch.tensor([[3, 4]]), beams=9, n_best=9, max_new_tokens=1)
    assert sorted(one.ids.tolist() for one in found) == [[0], [1], [2], [3], [4]]


def test_no_gradient_is_kept_and_the_mode_stays(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer").train()
    ((found,),) = tfkit.beam_search(model, beams=2, max_new_tokens=2)
    assert not found.token_log_probabilities.requires_grad
    assert model.training


def test_half_precision_is_searched_in_float32(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator").to(torch.bfloat16)
    for (found,) in tfkit.beam_search(model, source=SOURCE, beams=3, max_new_tokens=5):
        assert found.token_log_probabilities.dtype == torch.float32


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no beam": ({"beams": 0}, "TFK078.*beams is 0"),
    "half a beam": ({"beams": 2.5}, "TFK078.*beams is 2.5"),
    "true beams": ({"beams": True}, "TFK078.*beams is True"),
    "more than beams": ({"beams": 2, "n_best": 3}, "TFK078.*n_best is 3.*2 beams"),
    "no hypotheses": ({"n_best": 0}, "TFK078.*n_best is 0"),
    "penalty is a number": ({"length_penalty": 0.6}, r"TFK078.*length_penalty is 0.6.*GnmtLengthPenalty\(alpha\)"),
    "stopping is a number": ({"early_stopping": 0}, "TFK078.*early_stopping is 0"),
    "another stopping": ({"early_stopping": "always"}, "TFK078.*early_stopping is 'always'.*\"never\", False or True"),
    "another order": ({"unfinished": "first"}, "TFK078.*unfinished is 'first'"),
    "no tokens": ({"max_new_tokens": 0}, "TFK077.*max_new_tokens is 0"),
    "half a token": ({"max_new_tokens": 1.5}, "TFK077.*max_new_tokens is 1.5"),
    "limits of another batch": ({"max_new_tokens": torch.tensor([1, 2])}, "TFK070.*2 limits.*6 rows"),
    "limits of floats": ({"max_new_tokens": torch.ones(6)}, "TFK077.*float32"),
    "a limit of nothing": ({"max_new_tokens": torch.tensor([1, 0, 1, 1, 1, 1])}, "TFK077.*is 0"),
    "unknown site": ({"attention": ["decoder.9.self_attention"]}, "TFK076.*decoder.9"),
    "site of the encoder": ({"attention": ["encoder.0.self_attention"]}, "TFK076.*`encoder.0.self_attention` does not run"),
    "unknown output": ({"output": "logit"}, "TFK077.*`logit`.*logits"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_an_input_error(name: str, decoder_of: Callable[..., Model]) -> None:
    arguments, pattern = WRONG[name]
    with pytest.raises(tfkit.InputError, match=pattern):
        tfkit.beam_search(decoder_of("translator"), **{"source": SOURCE, "max_new_tokens": 3, **arguments})


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf"), "1", None, True])
@pytest.mark.parametrize("family", [tfkit.GnmtLengthPenalty, tfkit.PowerLengthPenalty])
def test_a_penalty_that_rewards_or_is_no_number_is_refused(family: Any, alpha: Any) -> None:
    with pytest.raises(tfkit.InputError, match=rf"TFK078.*{family.__name__}"):
        family(alpha)


def test_the_penalties_are_their_equations() -> None:
    assert tfkit.GnmtLengthPenalty(0.6).at(7) == pytest.approx(2.0**0.6)
    assert tfkit.PowerLengthPenalty(0.6).at(7) == pytest.approx(7.0**0.6)
    assert tfkit.GnmtLengthPenalty(0.0).at(7) == tfkit.PowerLengthPenalty(0.0).at(7) == 1.0
    lengths: Tensor = torch.tensor([1.0, 7.0])
    assert tfkit.GnmtLengthPenalty(1.0).at(lengths).tolist() == [1.0, 2.0]


def test_nan_logits_are_reported(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    with torch.no_grad():
        next(iter(model.nodes["decoder"].parameters())).fill_(torch.nan)
    with pytest.raises(tfkit.InputError, match=r"TFK077.*row 0 are NaN or infinite at token 1, or too far apart"):
        tfkit.beam_search(model, source=SOURCE, max_new_tokens=3)
