"""Many sources of all lengths come back in their order, as if each had been searched alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tfkit
from tfkit import Model
from tfkit.generate import batched as many

RANDOM = random.Random(2)
SOURCES = [[RANDOM.randrange(3, 11) for _ in range(RANDOM.randrange(1, 9))] for _ in range(23)]
SEARCHES = {
    "greedy": tfkit.Search(kind="greedy", extra_length=3),
    "beam": tfkit.Search(beams=3, n_best=2, extra_length=3),
    "sample": tfkit.Search(kind="sample", n_best=2, seed=3, top_k=6, extra_length=3),
}


def progress(found: list[list[tfkit.Hypothesis]]) -> list[Any]:
    return [[(one.ids.tolist(), one.finished, pytest.approx(one.score, rel=1e-9)) for one in row] for row in found]


def alone(model: Model, search: tfkit.Search, number: int, name: str) -> list[tfkit.Hypothesis]:
    ids = torch.tensor([SOURCES[number]])
    search_arguments: dict[str, Any] = {name: ids, "max_new_tokens": search.limit(len(SOURCES[number]))}
    if search.kind == "greedy":
        return tfkit.greedy(model, scores=True, **search_arguments).hypotheses()[0]
    if search.kind == "beam":
        return tfkit.beam_search(model, beams=3, n_best=2, **search_arguments)[0]
    return tfkit.sample(model, samples=2, seed=3, top_k=6, streams=[number], **search_arguments)[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize(("model", "name"), [("translator", "source"), ("writer", "prompt")])
def test_everything_is_found_as_alone_and_in_order(
    model: str, name: str, kind: str, batch_tokens: int, decoder_of: Callable[..., Model]
) -> None:
    decoder, search = decoder_of(model), SEARCHES[kind]
    wanted = [alone(decoder, search, number, name) for number in range(len(SOURCES))]
    found = tfkit.generate_batched(decoder, SOURCES, search, batch_tokens=batch_tokens)
    assert progress(found) == progress(wanted)
    for chunk in (1, 7, 23, 100):
        assert progress(list(tfkit.generate_stream(decoder, iter(SOURCES), search, chunk=chunk))) == progress(wanted)


def test_batches_respect_the_token_limit_and_start_with_the_longest() -> None:
    for width, tokens in ((1, 1), (1, 20), (5, 60), (2, 10_000)):
        batches = list(many.batches_by_length(list(map(len, SOURCES)), width, tokens))
        assert sorted(row for batch in batches for row in batch) == list(range(len(SOURCES)))
        longest = [len(SOURCES[batch[0]]) for batch in batches]
        assert longest == sorted(longest, reverse=True)
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(len(SOURCES[row]) for row in batch) * width <= tokens
        if tokens == 10_000:
            assert len(batches) == 1
    for batch in many.batches_by_length(list(map(len, SOURCES)), 1, 10_000, same_length=True):
        assert len({len(SOURCES[row]) for row in batch}) == 1


def test_nothing_gives_nothing(decoder_of: Callable[..., Model]) -> None:
    assert tfkit.generate_batched(decoder_of("translator"), []) == []
    assert list(tfkit.generate_stream(decoder_of("translator"), iter([]))) == []


def test_a_stream_reads_no_further_than_its_chunk(decoder_of: Callable[..., Model]) -> None:
    read = []
    stream = tfkit.generate_stream(
        decoder_of("translator"), (read.append(number) or SOURCES[number] for number in range(20)), chunk=4
    )
    next(stream)
    assert len(read) == 4


def test_attention_reaches_every_kind(decoder_of: Callable[..., Model]) -> None:
    for search in SEARCHES.values():
        found = tfkit.generate_batched(decoder_of("translator"), SOURCES[:3], search, attention=["decoder.*.cross_attention"])
        assert all(len(one.attention) == 2 for row in found for one in row)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["translator", "writer"])
@pytest.mark.parametrize("kind", SEARCHES)
def test_attention_has_the_tokens_of_its_own_sentence_only(kind: str, name: str, decoder_of: Callable[..., Model]) -> None:
    model, search = decoder_of(name), SEARCHES[kind]
    sites = ["decoder.0.cross_attention", "decoder.1.self_attention"] if name == "translator" else ["body.1.self_attention"]
    together = tfkit.generate_batched(model, SOURCES, search, attention=sites)
    assert len({len(source) for source in SOURCES}) > 3
    for number, (source, found) in enumerate(zip(SOURCES, together, strict=True)):
        stream = tfkit.generate_stream(model, [source], search, attention=sites)
        alone = None if kind == "sample" and number else next(stream)  # samples depend on the place of a source
        for rank, one in enumerate(found):
            assert one.attention.keys() == set(sites)
            for site, weights in one.attention.items():
                before = len(source) if name == "writer" else 1
                keys = len(source) if "cross" in site else before + len(one.ids) - 1
                assert weights.shape == (2, len(one.ids), keys)
                torch.testing.assert_close(weights.sum(-1), weights.new_ones(weights.shape[:2]))
                if alone is not None:
                    torch.testing.assert_close(weights, alone[rank].attention[site])


def test_the_limit_is_a_rule_of_the_source() -> None:
    assert tfkit.Search().limit(7) == 57
    assert tfkit.Search(length_factor=1.5, extra_length=0).limit(3) == 4
    assert tfkit.Search(length_factor=0.1, extra_length=0).limit(3) == 1


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "beams"}, "the kind of search is 'beams'.*greedy, beam, sample"),
    "beams of a greedy search": ({"kind": "greedy", "beams": 4}, "beams is 4, which a greedy search does not read.*beam"),
    "top_k of a beam search": ({"top_k": 4}, "top_k is 4, which a beam search does not read.*sample"),
    "n_best of a greedy search": ({"kind": "greedy", "n_best": 2}, "n_best is 2.*beam or sample"),
    "a penalty when sampling": (
        {"kind": "sample", "length_penalty": tfkit.PowerLengthPenalty(1.0)},
        "length_penalty is PowerLengthPenalty",
    ),
    "beams": ({"beams": 0}, "beams is 0"),
    "temperature": ({"kind": "sample", "temperature": "hot"}, "temperature is 'hot'"),
    "factor": ({"length_factor": -1.0}, "length_factor is -1.0"),
    "extra": ({"extra_length": 2.5}, "extra_length is 2.5"),
    "no tokens at all": ({"extra_length": 0, "length_factor": 0}, "one of them is above 0"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_wrong_settings_are_refused_when_they_are_written(name: str) -> None:
    settings, pattern = SETTINGS[name]
    with pytest.raises(tfkit.InputError, match=f"TFK078.*{pattern}"):
        tfkit.Search(**settings)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"sources": "Ein Hund"}, "TFK071.*the sources are a str"),
    "a text": ({"sources": [[3], "Ein Hund"]}, "TFK071.*source 1 is 'Ein Hund'"),
    "floats": ({"sources": [[3.0]]}, "TFK071.*source 0"),
    "empty": ({"sources": [[3], []]}, "TFK070.*source 1 is empty"),
    "too large": ({"sources": [[3], [4], [11, 3]]}, "TFK072.*source 2 holds the id 11.*11 ids"),
    "negative": ({"sources": [[-1]]}, "TFK072.*the id -1"),
    "no search": ({"search": "beam"}, "TFK078.*the search is a str"),
    "batch": ({"batch_tokens": 0}, "TFK078.*batch_tokens is 0"),
    "target": ({"target": "tokens"}, "TFK073.*`tokens`"),
    "target that cannot": ({"target": "source"}, "TFK075.*`source`"),
    "no seed": ({"search": tfkit.Search(kind="sample")}, "TFK078.*no seed"),
    "site": ({"attention": ["decoder.7.ffn"]}, "TFK076"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_an_input_error(name: str, decoder_of: Callable[..., Model]) -> None:
    arguments, pattern = WRONG[name]
    with pytest.raises(tfkit.InputError, match=pattern):
        tfkit.generate_batched(decoder_of("translator"), **{"sources": SOURCES, **arguments})


def test_the_first_wrong_source_of_a_stream_is_counted_from_its_beginning(decoder_of: Callable[..., Model]) -> None:
    with pytest.raises(tfkit.InputError, match=r"TFK070.*source 9 is empty"):
        list(tfkit.generate_stream(decoder_of("translator"), [*SOURCES[:9], []], chunk=4))
    with pytest.raises(tfkit.InputError, match=r"TFK078.*chunk is 0"):
        list(tfkit.generate_stream(decoder_of("translator"), SOURCES, chunk=0))


@pytest.mark.parametrize("kind", SEARCHES)
def test_no_hypothesis_goes_beyond_a_table_of_positions(kind: str, decoder_of: Callable[..., Model]) -> None:
    position = "{kind: learned, max_len: 9}"
    for name, rooms in (("translator", [9] * len(SOURCES)), ("writer", [10 - len(source) for source in SOURCES])):
        decoder = decoder_of(name, position=position)
        search = replace(SEARCHES[kind], extra_length=60)
        found = tfkit.generate_batched(decoder, SOURCES, search)
        lengths = [max(len(one.ids) for one in row) for row in found]
        assert all(length <= room for length, room in zip(lengths, rooms, strict=True))
        assert any(length == room for length, room in zip(lengths, rooms, strict=True))
        ended = [one.finished for row, room in zip(found, rooms, strict=True) for one in row if len(one.ids) < room]
        assert all(ended)
