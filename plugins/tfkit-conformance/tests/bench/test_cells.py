"""The list of cells, how it is chosen from, and the lengths of sentences."""

from __future__ import annotations

import statistics

import pytest

from tfkit import InputError
from tfkit_conformance.bench.cells import CACHES, CELLS, LENGTHS, MULTI30K, SCALES, chosen, drawn, usual


def test_names_are_unique_and_describe_the_cell() -> None:
    names = [cell.name for cell in CELLS]
    assert len(names) == len(set(names))
    wanted = {f"{kind}-d{dim}-{length}" for kind in ("dense", "causal") for dim in (64, 128) for length in LENGTHS}
    wanted |= {f"{text}-{side}" for text in ("multi30k", "wmt") for side in ("encoder", "decoder", "cross")}
    assert {f"{name}/{way}" for name in wanted for way in ("forward", "training")} <= set(names)
    assert {f"decode-{length}/forward" for length in CACHES} <= set(names)
    assert [cell.name for cell in CELLS if cell.dropout] == ["dropout-512/training", "dropout-2048/training"]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["decode-1024"], ["decode-1024/forward"]),
        (["dense-d64-512"], ["dense-d64-512/forward", "dense-d64-512/training"]),
        (["dense-d64-512/training", "dense-d64-512/*"], ["dense-d64-512/forward", "dense-d64-512/training"]),
        (["*-cross/forward"], ["multi30k-cross/forward", "wmt-cross/forward"]),
        (["all"], [cell.name for cell in CELLS]),
    ],
)
def test_patterns(patterns: list[str], found: list[str]) -> None:
    assert [cell.name for cell in chosen(patterns)] == found


def test_a_pattern_that_matches_nothing_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"TFK090.*`desne-d64-512`.*did you mean `dense-d64-512`"):
        chosen(["t5-512", "desne-d64-512"])
    with pytest.raises(InputError, match="--list"):
        chosen(["zzz"])


def test_the_default_cells() -> None:
    assert usual("cuda") == list(CELLS)
    assert {cell.family for cell in usual("cpu")} == {cell.family for cell in CELLS}
    assert max(cell.length for cell in usual("cpu") if not cell.decode) <= 2048


def test_sizes_follow_the_scale() -> None:
    [cell] = chosen(["dense-d128-2048/forward"])
    assert (cell.batch(SCALES["cuda"]), cell.heads(SCALES["cuda"])) == (8, (16, 16))
    assert (cell.batch(SCALES["cpu"]), cell.heads(SCALES["cpu"])) == (1, (4, 4))
    [cell] = chosen(["decode-4096"])
    assert (cell.batch(SCALES["cuda"]), cell.heads(SCALES["cuda"])) == (32, (16, 4))


def test_lengths_are_those_of_the_text_and_the_same_for_a_seed() -> None:
    assert sum(count for *_, count in MULTI30K) == 29000
    assert drawn("multi30k", 50, 3) == drawn("multi30k", 50, 3) != drawn("multi30k", 50, 4)
    for name, source, target in (("multi30k", 14.1, 13.6), ("wmt", 26.8, 25.5)):  # an end token more than the text
        pairs = drawn(name, 8000, 0)
        assert statistics.fmean(pair[0] for pair in pairs) == pytest.approx(source, rel=0.03)
        assert statistics.fmean(pair[1] for pair in pairs) == pytest.approx(target, rel=0.03)
        assert min(min(pair) for pair in pairs) >= 1
        assert statistics.correlation(*zip(*pairs, strict=True)) > 0.6
