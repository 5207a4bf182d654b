"""A declaration that cannot be meant is a finding, before any call is made."""

from __future__ import annotations

import pytest

from small_backend import SMALL, declaring
from tfkit.builtin.attention.entries import ENTRIES
from tfkit.plugin import Capabilities, Range
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.suite.conformance import check_backend
from tfkit_conformance.suite.declaration import nonsense


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"dtypes": frozenset()}, "`dtypes` is empty"),
        ({"dtypes": {"float32", "float8"}}, "`dtypes` names float8; attention is evaluated in float64, float32, bfloat16"),
        ({"devices": ()}, "`devices` is empty"),
        ({"head_dim": None}, "`head_dim` is not declared, so no call is accepted"),
        ({"key_length": None}, "`key_length` is not declared"),
        ({"head_dim": Range(minimum=64, maximum=32)}, "`head_dim` is 64 to 32: no number is in it"),
        ({"head_dim": Range(minimum=65, maximum=100, multiple=64)}, "no number is in it"),
        ({"query_length": Range(minimum=0)}, "`query_length` is 0 up: minimum and multiple are at least 1"),
        ({"key_length": Range(multiple=0)}, "minimum and multiple are at least 1"),
        ({"key_length": Range(maximum=0)}, "`key_length` is 1 up: no number is in it"),
        ({"mask_terms": {"causal", "diagonal"}}, "`mask_terms` names diagonal; the terms are causal, window"),
        ({"bias_kinds": {"cubic"}}, "`bias_kinds` names cubic; the kinds are dense, linear, distance"),
        ({"bias_gradient": {"dense"}}, "`bias_gradient` names dense, which is not among its `bias_kinds`"),
        ({"bias_kinds": {"dense"}, "bias_gradient": {"dense"}, "backward": False, "deterministic_backward": False},
         "`bias_gradient` is declared without `backward`"),
        ({"backward": False}, "`deterministic_backward` is declared without `backward`"),
        ({"double_backward": True, "backward": False, "deterministic_backward": False},
         "`double_backward` is declared without `backward`"),
        ({"tensor_offset": True, "mask_terms": {"key_lengths"}}, "`tensor_offset` is declared, but no mask term and no bias"),
        ({"scores": frozenset()}, "`scores` is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_an_inconsistent_declaration_is_a_finding(declared, words):
    can = declaring(**declared)
    assert len(list(nonsense(can))) == 1
    called = []
    subject = backend_under_test(entry_of("small", "nonsense", can), attend=lambda inputs, options: called.append(1))
    report = check_backend(subject, profile="quick")
    (found,) = report.findings
    assert found.check == "declaration"
    assert words in found.message
    assert (report.verdict, called) == ("NONCONFORMANT", [])


def test_all_errors_of_a_declaration_are_reported_at_once():
    assert list(nonsense(SMALL)) == []
    assert [wrong for entry in ENTRIES for wrong in nonsense(entry.capabilities)] == []
    assert len(list(nonsense(Capabilities()))) == 5
