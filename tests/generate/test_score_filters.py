"""Score filters: what they forbid is never selected, rows stay apart, and what is no filter is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import graph_stand_in
import tfkit
from tfkit import Model
from tfkit.generate import StepGraphs
from tfkit.generate.score_filters import ScoreFilters
from tfkit.plugin import Prefix, ScoreFilter, hookimpl

N, END, V = 8, 2, 11
make = tfkit.score_filter


def prompts(rows: int = 4, length: int = 3) -> Tensor:
    return torch.randint(3, V, (rows, length), generator=torch.Generator().manual_seed(3))


def searches(model: Model, prompt: Tensor, filters: list[Any]) -> dict[str, list[list[list[int]]]]:
    """By kind of search, the ids of the hypotheses of every row."""
    graphs = StepGraphs(model, graph_stand_in.capture)
    rules: dict[str, Any] = {"prompt": prompt, "max_new_tokens": N, "filters": filters}
    found = {
        "greedy": tfkit.greedy(model, scores=True, **rules).hypotheses(),
        "graphs": tfkit.greedy(model, scores=True, graphs=graphs, **rules).hypotheses(),
        "sample": tfkit.sample(model, samples=3, seed=1, **rules),
        "graphs of samples": tfkit.sample(model, samples=3, seed=1, graphs=graphs, **rules),
        "beams": tfkit.beam_search(model, beams=3, n_best=3, **rules),
        "graphs of beams": tfkit.beam_search(model, beams=3, n_best=3, graphs=graphs, **rules),
    }
    return {kind: [[one.ids.tolist() for one in row] for row in rows] for kind, rows in found.items()}


def repeats(ids: list[int], n: int) -> bool:
    ngrams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return len(set(ngrams)) < len(ngrams)


LAWS: dict[str, tuple[list[Any], Callable[[list[int], list[int]], bool]]] = {
    "suppress": ([make("suppress", ids=[4, 7, 9])], lambda before, ids: not {4, 7, 9} & set(ids)),
    "suppress_first": ([make("suppress_first", ids=[3, 4, 5, 6])], lambda before, ids: ids[0] not in (3, 4, 5, 6)),
    "allow": ([make("allow", ids=[3, 4, 5])], lambda before, ids: set(ids) <= {3, 4, 5, END}),
    "bad_words": (
        [make("bad_words", sequences=[[8], [3, 5], [4, 4]])],
        lambda before, ids: 8 not in ids and all(pair not in ((3, 5), (4, 4)) for pair in zip(before[-1:] + ids, ids)),  # noqa: B905
    ),
    "forced_first": ([make("forced_first", id=6)], lambda before, ids: ids[0] == 6),
    "forced_last": ([make("forced_last", id=END)], lambda before, ids: ids[-1] == END),
    "min_tokens": ([make("min_tokens", tokens=7)], lambda before, ids: END not in ids[:7] and len(ids) >= 7),
    "no_repeat_ngram": ([make("no_repeat_ngram", size=2)], lambda before, ids: not repeats(before + ids, 2)),
}
"""By filter, what holds for every hypothesis after a prompt."""


def test_every_filter_has_a_law(catalogue: tfkit.Catalogue) -> None:
    assert LAWS.keys() == set(catalogue.names("score_filter")) - {"repetition_penalty"}


def test_the_penalty_of_repetition() -> None:
    scores, ids = torch.tensor([[1.0, -2.0, 0.0, 3.0], [1.0, -2.0, 0.0, 3.0]]), torch.tensor([[0, 1, 1], [-1, 3, 2]])
    penalise = ScoreFilters([make("repetition_penalty", factor=2.0)])
    found = penalise(scores, Prefix(ids, 0, torch.tensor([4, 4]), None), torch.arange(2))
    assert found.tolist() == [[0.5, -4.0, 0.0, 3.0], [1.0, -2.0, 0.0, 1.5]]


@pytest.mark.parametrize("name", LAWS)
def test_what_a_filter_forbids_is_never_selected(name: str, any_decoder: Callable[..., Model]) -> None:
    filters, holds = LAWS[name]
    model, prompt = any_decoder("writer", "rotary_half", 1), prompts()
    broken: dict[str, int] = {}
    found = searches(model, prompt, filters)
    assert [found[f"graphs{of}"] for of in ("", " of samples", " of beams")] == [
        found[of] for of in ("greedy", "sample", "beams")
    ]
    for kind, rows in found.items():
        for before, row in zip(prompt.tolist(), rows, strict=True):
            assert row
            assert all(holds(before, ids) for ids in row), (kind, row)
    for kind, rows in searches(model, prompt, []).items():
        broken[kind] = sum(not holds(before, ids) for before, row in zip(prompt.tolist(), rows, strict=True) for ids in row)
    assert sum(broken.values())  # without the filter they do not hold


@pytest.mark.parametrize("name", LAWS)
def test_a_row_is_filtered_by_its_own_tokens(name: str, any_decoder: Callable[..., Model]) -> None:
    """A row gives the same alone, in a batch, and behind padding on the left."""
    filters, _ = LAWS[name]
    model, prompt = any_decoder("writer", "rotary_half", 2), prompts(3)
    padded = torch.cat([torch.zeros(3, 2, dtype=torch.int64), prompt], 1)
    for search in (tfkit.beam_search, partial(tfkit.sample, seed=1, streams=[7])):
        of_row = partial(search, model, max_new_tokens=6, filters=filters)
        many = {"streams": [7, 7, 7]} if isinstance(search, partial) else {}
        together = [[one.ids.tolist() for one in row] for row in of_row(prompt=prompt, **many)]
        assert [[one.ids.tolist() for one in row] for row in of_row(prompt=padded, **many)] == together
        assert [one.ids.tolist() for one in of_row(prompt=prompt[1:2])[0]] == together[1]


def test_a_filter_that_changes_nothing_changes_nothing(any_decoder: Callable[..., Model]) -> None:
    model, prompt = any_decoder("writer", "alibi", 3), prompts()
    assert searches(model, prompt, [lambda scores, prefix: scores]) == searches(model, prompt, [])


def test_what_a_filter_sees(any_decoder: Callable[..., Model]) -> None:
    seen: list[tuple[list[list[int]], int, list[int]]] = []

    def look(scores: Tensor, prefix: Prefix) -> Tensor:
        seen.append((prefix.ids.tolist(), prefix.generated, prefix.remaining.tolist()))
        assert prefix.end_id == END
        return scores

    model, prompt = any_decoder("writer", "rotary_half", 1), torch.tensor([[0, 0, 5], [4, 6, 7]])
    made = tfkit.greedy(model, prompt=prompt, max_new_tokens=torch.tensor([2, 3]), filters=[look])
    first, second = made.ids[:, 0].tolist(), made.ids[:, 1].tolist()
    assert seen[0] == ([[-1, -1, 5], [4, 6, 7]], 0, [2, 3])
    assert seen[1] == ([[-1, -1, 5, first[0]], [4, 6, 7, first[1]]], 1, [1, 2])
    assert seen[2] == ([[4, 6, 7, first[1], second[1]]], 2, [1])


def test_log_probabilities_are_those_of_the_model(any_decoder: Callable[..., Model]) -> None:
    """Also if a filter changes its argument, which it must not."""
    model, prompt = any_decoder("writer", "rotary_half", 1), prompts(1)

    def changes(scores: Tensor, prefix: Prefix) -> Tensor:
        scores[:, :8] = -torch.inf
        return scores

    (row,) = tfkit.greedy(model, prompt=prompt, max_new_tokens=1, scores=True, filters=[changes]).hypotheses()
    expected = model(tokens=prompt)["logits"][0, -1].log_softmax(0)
    assert int(row[0].ids[0]) == 8 + int(expected[8:].argmax())
    torch.testing.assert_close(row[0].token_log_probabilities[0], expected[row[0].ids[0]].detach())


def test_searches_of_many_sources_filter(any_decoder: Callable[..., Model]) -> None:
    model = any_decoder("translator", "rotary_half", 1)
    sources = [[4, 5, 6, 2], [7, 2], [8, 9, 3, 5, 2]]
    for kind in ("greedy", "beam", "sample"):
        seed = {"seed": 0} if kind == "sample" else {}
        search = tfkit.Search(kind=kind, filters=[make("no_repeat_ngram", size=1), make("min_tokens", tokens=3)], **seed)
        for (one,) in tfkit.generate_batched(model, sources, search):
            assert len(one.ids) >= 3
            assert not repeats(one.ids.tolist(), 1)


def test_equal_searches_are_one_key() -> None:
    """A server batches requests by their search."""
    first, second = (tfkit.Search(kind="greedy", filters=[make("min_tokens", tokens=3)]) for _ in range(2))
    assert first == second
    assert len({first, second, tfkit.Search(kind="greedy")}) == 2


def test_filters_that_forbid_every_token_are_an_error(any_decoder: Callable[..., Model]) -> None:
    model, nothing = any_decoder("writer", "rotary_half", 1), [make("suppress", ids=list(range(V)))]
    for search in (tfkit.greedy, tfkit.beam_search, tfkit.sample):
        with pytest.raises(tfkit.InputError, match="forbid every token of row 0 at token 0"):
            search(model, prompt=prompts(), max_new_tokens=3, filters=nothing)


def test_hypotheses_that_finished_before_a_dead_end_are_kept(any_decoder: Callable[..., Model]) -> None:
    def ends_only_first(scores: Tensor, prefix: Prefix) -> Tensor:
        if not prefix.generated:
            return scores
        return torch.full_like(scores, -torch.inf)

    model = any_decoder("writer", "rotary_half", 1)
    with torch.no_grad():
        logits = model(tokens=prompts(1))["logits"][0, -1]
    beams = int((logits >= logits[END]).sum())  # so that the end token is among the first candidates
    (row,) = tfkit.beam_search(model, prompt=prompts(1), beams=beams, max_new_tokens=3, filters=[ends_only_first])
    assert [one.ids.tolist() for one in row] == [[END]]


def test_tokens_may_be_forbidden_after_others() -> None:
    filtered = ScoreFilters([make("suppress_first", ids=[1], after=2)])
    for generated, expected in ((0, 0.0), (1, 0.0), (2, -torch.inf), (3, 0.0)):
        prefix = Prefix(torch.zeros(1, 1 + generated, dtype=torch.int64), generated, torch.tensor([4]), None)
        assert filtered(torch.zeros(1, 3), prefix, torch.zeros(1, dtype=torch.int64))[0, 1] == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("min_tokens", "filters is 'min_tokens'"),
        (make("min_tokens", tokens=1), "filters is"),
        ([3], "a filter is 3"),
        ([tfkit.load_catalogue().find("score_filter", "suppress")], "a filter is"),
        ([lambda scores, prefix: scores[:, :-1]], r"returned \(4, 10\) torch.float64 for scores \(4, 11\) torch.float64"),
        ([lambda scores, prefix: scores.bool()], "returned .* torch.bool for scores"),
        ([lambda scores, prefix: None], "returned None"),
        ([make("suppress", ids=[11])], "names the id 11, and the vocabulary has 11 ids"),
        ([make("bad_words", sequences=[[3, 11]])], "names the id 11"),
        ([make("forced_first", id=400)], "names the id 400"),
    ],
)
def test_what_is_no_filter_is_refused(filters: Any, message: str, any_decoder: Callable[..., Model]) -> None:
    model = any_decoder("writer", "rotary_half", 1)
    for search in (tfkit.greedy, tfkit.beam_search, tfkit.sample):
        with pytest.raises(tfkit.InputError, match=message):
            search(model, prompt=prompts(), max_new_tokens=3, filters=filters)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("no_repeat_ngrams", {"size": 2}, "there is no score filter 'no_repeat_ngrams'; did you mean `no_repeat_ngram`"),
        ("no_repeat_ngram", {"size": 0}, "`no_repeat_ngram`: size: "),
        ("no_repeat_ngram", {}, "size: Field required; its options: size"),
        ("suppress", {"ids": []}, "ids: "),
        ("suppress", {"ids": [-1]}, "ids.0: "),
        ("repetition_penalty", {"factor": 0.0}, "factor: "),
        ("repetition_penalty", {"factor": float("nan")}, "factor: "),
        ("bad_words", {"sequences": [[]]}, "sequences.0: "),
    ],
)
def test_wrong_options_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tfkit.InputError, match=message):
        make(kind, **options)


def begun(model: Model, prompt: Tensor, prefixes: list[list[int]], filters: list[Any]) -> dict[str, list[list[list[int]]]]:
    rules: dict[str, Any] = {"prompt": prompt, "max_new_tokens": N, "prefixes": prefixes, "filters": filters}
    graphs = StepGraphs(model, graph_stand_in.capture)
    found = {
        "greedy": tfkit.greedy(model, scores=True, **rules).hypotheses(),
        "graphs": tfkit.greedy(model, scores=True, graphs=graphs, **rules).hypotheses(),
        "sample": tfkit.sample(model, samples=2, seed=1, **rules),
        "graphs of samples": tfkit.sample(model, samples=2, seed=1, graphs=graphs, **rules),
        "beams": tfkit.beam_search(model, beams=3, n_best=2, **rules),
        "graphs of beams": tfkit.beam_search(model, beams=3, n_best=2, graphs=graphs, **rules),
    }
    return {kind: [[one.ids.tolist() for one in row] for row in rows] for kind, rows in found.items()}


PREFIXES: list[list[int]] = [[7, 4, 9], [], [5], [3, 3]]


@pytest.mark.parametrize("filters", [[], [make("suppress", ids=[4, 5, 7])]], ids=["plain", "filtered"])
def test_rows_begin_with_their_prefixes(filters: list[Any], any_decoder: Callable[..., Model]) -> None:
    """Also with tokens that a filter forbids, in every search; what follows is what the same tokens of a prompt give."""
    model, prompt = any_decoder("writer", "rotary_half", 1), prompts()
    for kind, rows in begun(model, prompt, PREFIXES, filters).items():
        for prefix, row in zip(PREFIXES, rows, strict=True):
            for ids in row:
                assert ids[: len(prefix)] == prefix, kind
                assert not filters or not {4, 5, 7} & set(ids[len(prefix) :])
    for row, prefix in enumerate(PREFIXES):
        longer = torch.cat([prompt[row], torch.tensor(prefix, dtype=torch.int64)])[None]
        alone = tfkit.greedy(model, prompt=longer, max_new_tokens=N - len(prefix), filters=filters)
        together = tfkit.greedy(model, prompt=prompt, max_new_tokens=N, prefixes=PREFIXES, filters=filters)
        ids = together.ids[row, : int(together.lengths[row])].tolist()
        assert ids == prefix + alone.ids[0, : int(alone.lengths[0])].tolist()


def test_a_prefix_has_the_probability_of_the_model(any_decoder: Callable[..., Model]) -> None:
    model, prompt = any_decoder("writer", "rotary_half", 1), prompts(1)
    ids = torch.cat([prompt[0], torch.tensor([7, 4, 9])])[None]
    expected = model(tokens=ids)["logits"][0, 2:5].log_softmax(1)[range(3), [7, 4, 9]].detach()
    rules: dict[str, Any] = {"prompt": prompt, "max_new_tokens": 5, "prefixes": [[7, 4, 9]]}
    ((beam,),) = tfkit.beam_search(model, beams=2, **rules)
    ((greedy,),) = tfkit.greedy(model, scores=True, **rules).hypotheses()
    ((drawn,),) = tfkit.sample(model, seed=2, **rules)
    for found in (beam, greedy, drawn):
        torch.testing.assert_close(found.token_log_probabilities[:3], expected)


def test_prefixes_of_many_sources(any_decoder: Callable[..., Model]) -> None:
    """In batches, in another order than they came, and by several workers, each source has its own."""
    model = any_decoder("translator", "rotary_half", 1)
    sources = [[4, 5, 6, 2], [7, 2], [8, 9, 3, 5, 2], [4, 2]]
    for kind in ("greedy", "beam", "sample"):
        search = tfkit.Search(kind=kind, **({"seed": 0} if kind == "sample" else {}))
        for workers in (1, 2):
            found = tfkit.generate_batched(model, sources, search, batch_tokens=20, workers=workers, prefixes=PREFIXES)
            assert [one.ids.tolist()[: len(prefix)] for (one,), prefix in zip(found, PREFIXES, strict=True)] == PREFIXES


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ([[3]], "there are 4 rows"),
        ("abcd", "prefixes is 'abcd'"),
        ([[3], [], "4", []], "the prefix of row 2 is '4'"),
        ([[3], [], [4.0], []], r"the prefix of row 2 is \[4.0\]"),
        ([[3], [True], [4], []], r"the prefix of row 1 is \[True\]"),
        ([[3], [11], [], []], "the prefix of row 1 holds the id 11"),
        ([[], [], [], [-1]], "the prefix of row 3 holds the id -1"),
        ([[], [3, END], [], []], "the prefix of row 1 holds the end token 2"),
        ([[3] * N, [], [], []], "the prefix of row 0 has 8 tokens, and the row gets at most 8"),
    ],
)
def test_wrong_prefixes_are_refused(prefixes: Any, message: str, any_decoder: Callable[..., Model]) -> None:
    model = any_decoder("writer", "rotary_half", 1)
    for search in (tfkit.greedy, tfkit.beam_search, tfkit.sample):
        with pytest.raises(tfkit.InputError, match=message):
            search(model, prompt=prompts(), max_new_tokens=N, prefixes=prefixes)


def test_a_few_forbidden_tokens_are_left_out_as_the_filter_does(any_decoder: Callable[..., Model]) -> None:
    """Greedy decoding and beams take a short way for them. Scores are equal to those of the filter as a function."""
    for seed, vocabulary in product((1, 2, 3), ([4], [0, 1, 9], [3, 4, 5, 6, 7, 8, 9, 10])):
        model, few = any_decoder("writer", "rotary_half", seed), make("suppress", ids=vocabulary)

        def as_function(scores: Tensor, prefix: Prefix, ids: list[int] = vocabulary) -> Tensor:
            return scores.index_fill(1, torch.tensor(ids), -torch.inf)

        rules: dict[str, Any] = {"prompt": prompts(), "max_new_tokens": N}
        for search in (
            partial(tfkit.beam_search, beams=4, n_best=4),
            lambda model, **given: tfkit.greedy(model, scores=True, **given).hypotheses(),
        ):
            short, long = search(model, filters=[few], **rules), search(model, filters=[as_function], **rules)
            for one, other in zip(short, long, strict=True):
                assert [(found.ids.tolist(), found.finished) for found in one] == [
                    (found.ids.tolist(), found.finished) for found in other
                ]
                assert [found.score for found in one] == pytest.approx([found.score for found in other], rel=1e-12)


def test_nan_of_a_forbidden_token_is_seen(any_decoder: Callable[..., Model]) -> None:
    model = any_decoder("writer", "rotary_half", 1)
    forbids = {"prompt": prompts(), "max_new_tokens": 3, "filters": [make("suppress", ids=[4])]}
    with torch.no_grad():
        broken = copy.deepcopy(model)
        dict(broken.named_parameters())["nodes.tokens.embedding.weight"][4] = torch.nan
    for search in (tfkit.greedy, tfkit.beam_search):
        with pytest.raises(tfkit.InputError, match="are NaN or infinite"):
            search(broken, **forbids)


def test_infinity_of_a_filter_is_no_score(any_decoder: Callable[..., Model]) -> None:
    model = any_decoder("writer", "rotary_half", 1)
    with pytest.raises(tfkit.InputError, match=r"are NaN or infinite at token 1, .*; .* or a filter wrote them"):
        tfkit.beam_search(model, prompt=prompts(), max_new_tokens=3, filters=[lambda scores, prefix: scores.fill_(torch.inf)])


class Plugin:
    @staticmethod
    @hookimpl
    def tfkit_score_filters() -> list[ScoreFilter]:
        return [ScoreFilter(name="acme.even", summary="even ids", function=f"{__name__}:even")]


def even(scores: Tensor, prefix: Prefix, options: Any) -> Tensor:
    return scores.masked_fill(torch.arange(scores.shape[1]) % 2 == 1, -torch.inf)


def test_a_filter_of_a_third_party(catalogue: tfkit.Catalogue, any_decoder: Callable[..., Model]) -> None:
    filters = [catalogue.with_plugin(Plugin, "acme").score_filter("acme.even")]
    for rows in searches(any_decoder("writer", "rotary_half", 1), prompts(), filters).values():
        assert all(token % 2 == 0 for row in rows for ids in row for token in ids)
