"""What does not fit in memory is not run, with the reason and the fix; it is no failure, and never a proof."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tfkit
from kill_matrix.models.evaluation import LENGTHS, SPECS
from tfkit import BuildError, Diagnostic
from tfkit.plugin import AttentionBackend, hookimpl
from tfkit_conformance.raised import no_room
from tfkit_conformance.verification import sites, verify

PETABYTES = 2**50
FIX = "choose shorter --lengths, or fewer sites"


def hungry(inputs, options):
    torch.empty(PETABYTES)


def wrapping(inputs, options):
    try:
        torch.empty(PETABYTES)
    except RuntimeError as reason:
        raise ValueError("the kernel failed") from reason


def wrong(inputs, options):
    raise TypeError("no such block")


@pytest.fixture(scope="module")
def wide(catalogue):
    """The catalogue with backends that ask for more memory than there is, and with one that just raises."""
    eager = catalogue.find("backend", "eager")
    more = [
        dataclasses.replace(eager, name=f"acme.{name}", attend=f"{__name__}:{name}", prepare=None)
        for name in ("hungry", "wrapping", "wrong")
    ]
    assert all(isinstance(entry, AttentionBackend) for entry in more)

    class Acme:
        @hookimpl
        def tfkit_attention_backends(self):
            return more

    return catalogue.with_plugin(Acme(), "acme")


@pytest.fixture(scope="module")
def spec(wide):
    return tfkit.parse_spec(SPECS["decoder"], wide)


def evaluated(spec, wide, *backends, **more):
    return verify(spec, backends=backends, lengths=LENGTHS["decoder"], catalogue=wide, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["acme.hungry", "acme.wrapping"])
def test_a_backend_that_does_not_fit_is_not_run_at_a_site_nor_in_the_model(name, spec, wide):
    report = evaluated(spec, wide, "eager", name)
    rows = [row for row in report.rows if row.backend == name]
    assert {row.part for row in rows} == {"sub-layers", "whole model"}
    assert {row.status for row in rows} == {"not run"}
    for row in rows:
        assert "not enough memory: " in row.message
        assert "you tried to allocate 4503599627370496 bytes" in row.message
        assert FIX in row.message
    assert {row.status for row in report.rows if row.backend == "eager"} <= {"passed", "not applicable", "reported"}
    assert (report.verdict, report.exit_code) == ("INCOMPLETE", 3)
    assert set(report.missed) == set(rows)


@pytest.mark.parametrize("length", [PETABYTES, 2**23])
def test_a_batch_that_does_not_fit_is_not_run(length, spec, wide, monkeypatch):
    monkeypatch.setattr(torch, "ones", lambda *arguments, **keywords: pytest.fail("nothing is drawn"))
    report = verify(spec, lengths={"tokens": length}, catalogue=wide)
    assert {(row.status, row.dtype) for row in report.rows} == {("not run", "float32"), ("not run", "float64")}
    assert report.exit_code == 3
    assert all(FIX in row.message for row in report.rows)


@pytest.mark.slow
@pytest.mark.parametrize("raised", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")])
@pytest.mark.parametrize("function", ["reference", "bounds_of"])
def test_a_reference_that_does_not_fit_leaves_its_sites_not_run(function, raised, spec, wide, monkeypatch):
    def fail(*arguments, **keywords):
        raise raised

    monkeypatch.setattr(sites, function, fail)
    report = evaluated(spec, wide, "eager", parts=["sub-layers"])
    rows = [row for row in report.rows if row.property.startswith("attention")]
    assert {row.status for row in rows} == {"not run"}
    assert {row.where for row in rows} == {"body.0.self_attention", "body.1.self_attention"}
    assert report.exit_code == 3
    monkeypatch.setattr(sites, function, lambda *arguments, **keywords: {}["something else"])
    with pytest.raises(KeyError):
        evaluated(spec, wide, "eager", parts=["sub-layers"])


@pytest.mark.slow
def test_what_a_backend_raises_is_reported_with_its_line(spec, wide):
    report = evaluated(spec, wide, "eager", "acme.wrong")
    told = {row.message for row in report.rows if row.status == "failed"}
    place = f"(verification/test_memory.py:{wrong.__code__.co_firstlineno + 1})"
    raised = f"raised TypeError: no such block {place}"
    assert told == {raised, f"{raised} for a call that it declares"}
    assert report.exit_code == 1


CUDA = "CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (MemoryError(), "not enough memory: MemoryError; "),
        (MemoryError("Unable to allocate 3 GiB"), "not enough memory: Unable to allocate 3 GiB; "),
        (torch.OutOfMemoryError(f"{CUDA} GPU 0 has\nmore"), f"{CUDA} GPU 0 has; "),
        (RuntimeError("not enough memory: you tried to allocate 64 bytes."), "you tried to allocate 64 bytes."),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), "MPS backend out of memory"),
        (RuntimeError("CUDA error: out of memory"), "CUDA error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "CUBLAS_STATUS_ALLOC_FAILED"),
        (RuntimeError("Storage size calculation overflowed with sizes=[4611686018427387904]"), "Storage size"),
    ],
)
def test_messages_of_all_allocators_are_recognised(reason, words):
    assert words in no_room(reason)
    assert FIX in no_room(reason)


@pytest.mark.parametrize(
    "reason",
    [RuntimeError("shape mismatch"), ValueError("out of memory"), KeyError("memory"), BuildError(Diagnostic("TFK045", "x"))],
)
def test_other_exceptions_are_not_about_memory(reason):
    assert no_room(reason) == ""


def test_an_exception_while_handling_a_lack_of_memory_is_a_failure():
    reason = KeyError("the smaller block")
    reason.__context__ = MemoryError()
    assert no_room(reason) == ""
    reason.__cause__ = MemoryError()
    assert no_room(reason)
