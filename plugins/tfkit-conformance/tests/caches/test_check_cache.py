"""Caches of decoding kernels: those that are right pass, and each mistake is found, with the row and the operation."""

from __future__ import annotations

import time

import pytest
import torch
import wrong_caches
from wrong_caches import WRONG, Joined

from tfkit import InputError
from tfkit.nn.runtime.decoding_state import KeyValueCache
from tfkit_conformance import check_cache
from tfkit_conformance.caches.check import SUMMARIES
from tfkit_conformance.caches.paged import PagedCache, RingCache, causal
from tfkit_conformance.caches.program import OPTIONAL, Step, is_valid
from tiers import EVERY_CASE


class OfTfkit:
    """The cache of tfkit's own decoding."""

    equal_lengths = True
    page_size = None if EVERY_CASE else 64
    """It has none. Pages of 64 are lengths at which it grows, and a fifth of the programs."""

    def __init__(self, *, batch, heads, kv_heads, head_dim, max_length, dtype, device="cpu"):
        self.cache = KeyValueCache(capacity=40)

    def append(self, keys, values, lengths):
        self.views = self.cache.write(self.cache.length, keys[:, :, : lengths[0]], values[:, :, : lengths[0]])

    def attend(self, query, scale):
        n = self.cache.length
        rows = zip(query, self.cache.key[:, :, :n], self.cache.value[:, :, :n], strict=True)
        return torch.stack([causal(*row, scale) for row in rows])

    def reorder(self, rows):
        self.cache.reorder(torch.tensor(rows))

    def branch(self, rows):
        self.cache.reorder(torch.tensor(rows))

    def truncate(self, lengths):
        self.cache.clear(torch.arange(lengths[0]).expand(len(lengths), -1))


class Ring(RingCache):
    """A ring has no pages. Pages of 16 are lengths before, at and behind its size, and a fifth of the programs."""

    page_size = None if EVERY_CASE else 16


class ExactRing(Ring):
    """Holds the window and nothing more."""

    spare = 0


class LargePages(PagedCache):
    page_size = 260


INHERITED = {ExactRing: ["reorder", "branch"], LargePages: ["steps", "one row", "prefill and chunks"]}
"""Checks that a cache passes as the one that it inherits from does: they are made with TFKIT_CASES=all."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("cache", [PagedCache, LargePages, Ring, ExactRing, Joined, OfTfkit])
def test_right_caches_pass(cache):
    left_out = [] if EVERY_CASE else INHERITED.get(cache, [])
    checks = [name for name in SUMMARIES if name not in left_out and (name not in OPTIONAL or hasattr(cache, name))]
    dtypes = ["bfloat16"] if cache is PagedCache else ["float32"]
    report = check_cache(cache, dtypes=dtypes, checks=checks if left_out else None)
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"
    assert [check.name for check in report.checks] == checks


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "check"), WRONG.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_mistake_is_found_by_the_check_of_its_operation(cache, check):
    report = check_cache(cache, checks=[check])
    [found] = report.findings
    assert report.verdict == "NONCONFORMANT"
    assert f"step {len(found.call.splitlines())} (" in found.message  # the last step is the one that shows it


def test_a_finding_names_the_shortest_program_the_row_and_what_it_holds_instead():
    [found] = check_cache(wrong_caches.KeyedOnLength, checks=["free"]).findings
    lines = [line.split()[1] for line in found.call.splitlines()]
    assert lines == ["append", "attend", "free", "append", "attend"]
    assert "it is right for what this row held before step 3 (free" in found.message


def test_appends_of_a_finding_are_joined():
    [found] = check_cache(wrong_caches.SecondPageLate, checks=["steps"]).findings
    assert [line.split()[1] for line in found.call.splitlines()] == ["append", "attend"]


class Raises(Joined):
    def attend(self, query, scale):
        raise IndexError("page 3")


class NegativePages(Joined):
    page_size = -4


class WordyWindow(Joined):
    window = "x"


class Bare:
    def __init__(self, **sizes):
        pass

    def append(self, keys, values, lengths):
        pass


class AnotherShape(Joined):
    def attend(self, query, scale):
        return super().attend(query, scale).transpose(1, 2)


class Endless(Joined):
    def attend(self, query, scale):
        while True:
            time.sleep(0.01)


def test_what_a_cache_raises_returns_and_never_returns_is_reported():
    said = {
        each: check_cache(each, checks=["steps"], limit=0.2).findings[0].message for each in (Raises, AnotherShape, Endless)
    }
    assert "step 2 (attend 1) raised IndexError" in said[Raises]
    assert "returned (3, 1, 4, 8) torch.float32, expected (3, 4, 1, 8)" in said[AnotherShape]
    assert said[Endless] == "a program did not finish within 0.2 seconds"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("wrong_caches", "is not MODULE:NAME"),
        ("wrong_caches:Joint", "did you mean `Joined`?"),
        ("wrong_caches:WRONG", "is a dict"),
        (Bare, "has no method `attend`"),
        (lambda batch: None, "cannot be made by make(batch=3"),
        (NegativePages, "`page_size` of"),
        (WordyWindow, "is 'x'"),
    ],
)
def test_what_is_no_cache_is_an_error(make, said):
    with pytest.raises(InputError) as raised:
        check_cache(make)
    assert said in str(raised.value)


def test_a_program_without_its_branch_is_not_tried():
    """Shortening leaves steps out; what follows a branch then has the wrong number of rows."""
    start, branch, more = Step("append", (2, 3)), Step("branch", (1, 0, 0)), Step("append", (1, 1, 1))
    assert is_valid((start, branch, more, Step("attend", (1,))))
    assert is_valid((branch, more))
    assert not is_valid((start, more))
    assert not is_valid((start, Step("branch", (2,))))
    [found] = check_cache(wrong_caches.BranchesInOrder, checks=["branch"]).findings
    assert [line.split()[1] for line in found.call.splitlines()] == ["append", "branch", "attend"]


def test_a_check_that_does_not_exist_is_an_error():
    with pytest.raises(InputError, match="has no check `stpes`"):
        check_cache(Joined, checks=["stpes"])
