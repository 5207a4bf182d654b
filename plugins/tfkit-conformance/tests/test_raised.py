"""Whatever a part raises is reported with the line of its own code, in attention, in the laws and in whole models."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tfkit import Diagnostic, InputError
from tfkit.plugin import Norm
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.finding import Violation
from tfkit_conformance.laws import check_part
from tfkit_conformance.mutants.kernel import entry_of
from tfkit_conformance.mutants.kernel.kernel import CAPABILITIES
from tfkit_conformance.raised import call_of, format_exception
from tfkit_conformance.suite import layers

FLASH = """
import json

import torch
from tfkit.plugin import AttentionOutput


def attend(inputs, options):
    return blocks(inputs)


def blocks(inputs):
    return inputs.query @ inputs.query


def reads(inputs, options):
    return json.loads("{")


def forgets(inputs, options):
    from tfkit.slots.lazy import load
    return load("nowhere:nothing")


class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, value):
        return query * value[..., :1, :1]

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("no backward yet")


def late(inputs, options):
    return AttentionOutput(Late.apply(inputs.query, inputs.value))


class Narrow(torch.nn.Module):
    def forward(self, x):
        self.check(x)
        return x

    def check(self, x):
        raise ValueError(f"width {x.shape[-1]} is odd")


def narrow(options, width):
    return Narrow()
"""
PLAIN = Case(B=2, H=4, G=4, Q=5, K=7, D=8, V=8, seed=3)


def line_of(words: str) -> int:
    return FLASH[: FLASH.index(words)].count("\n") + 1


@pytest.fixture
def flash(tmp_path, monkeypatch):
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text("def broken():\n    raise KeyError('block')\n")
    (tmp_path / "acme" / "flash.py").write_text(FLASH)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("acme", "acme.flash"):
        monkeypatch.delitem(importlib.sys.modules, name, raising=False)
    yield importlib.import_module("acme.flash")
    for name in ("acme", "acme.flash"):
        importlib.sys.modules.pop(name, None)


def contract(attend, case=PLAIN) -> str:
    with pytest.raises(Violation) as found:
        layers.contract(
            Evaluated(backend_under_test(entry_of("tried", "a backend on trial", CAPABILITIES), attend=attend), case)
        )
    return found.value.message


def test_the_innermost_line_of_the_backend_is_reported(flash):
    message = contract(flash.attend)
    assert message.startswith("raised RuntimeError: Expected size")
    assert message.endswith(f"(acme/flash.py:{line_of('return inputs.query @')}) for a call that it declares")


@pytest.mark.parametrize(("name", "words"), [("reads", "return json"), ("forgets", "return load")])
def test_neither_the_standard_library_nor_tfkit_is_the_backends_code(name, words, flash):
    assert f" (acme/flash.py:{line_of(words)}) for a call" in contract(getattr(flash, name))


def test_the_line_of_a_backward_pass_is_reported(flash):
    message = contract(flash.late, replace(PLAIN, gradients=True))
    where = f"(acme/flash.py:{line_of('raise NotImplementedError')})"
    assert message == f"its backward pass raised NotImplementedError: no backward yet {where} for a call that it declares"


def test_a_package_is_reported_as_its_init_file(flash):
    reason = raised_by_package()
    assert format_exception(reason) == "KeyError: 'block' (acme/__init__.py:2)"
    assert call_of(reason) == "broken"


def raised_by_package():
    """The exception as tfkit would see it: without the lines of this file."""
    with pytest.raises(KeyError) as caught:
        importlib.import_module("acme").broken()
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)


def test_what_tfkit_itself_raises_has_no_such_line():
    def refuse():
        raise InputError(Diagnostic("TFK073", "the reason", "the fix"))

    for reason in (ValueError("never\n raised"), ValueError()):
        assert format_exception(reason) in ("ValueError: never raised", "ValueError")
        assert call_of(reason) == ""
    with pytest.raises(InputError) as caught:
        refuse()
    caught.value.__traceback__ = None
    assert format_exception(caught.value) == "InputError: TFK073 the reason; the fix"


def test_a_long_message_is_cut_and_the_line_is_not(flash):
    reason = raised_by_package()
    reason.args = ("x" * 1000,)
    assert format_exception(reason).endswith("x (acme/__init__.py:2)")
    assert len(format_exception(reason)) < 350


def test_the_line_of_the_plugin_is_reported_and_not_that_of_its_library(flash, tmp_path, monkeypatch):
    (tmp_path / "calling.py").write_text("def call(function, *arguments):\n    return function(*arguments)\n")
    (tmp_path / "acme" / "wrap.py").write_text("import calling\n\n\ndef attend(inputs, options):\n    calling.call(int, 'x')\n")
    wrap = importlib.import_module("acme.wrap")
    assert "(calling.py:2)" in contract(wrap.attend)
    point = SimpleNamespace(module="acme", name="acme")
    monkeypatch.setattr("tfkit_conformance.raised.plugin_roots", lambda: {point.module})
    assert "(acme/wrap.py:5)" in contract(wrap.attend)


def test_a_law_reports_the_call_the_exception_and_the_line(flash):
    entry = Norm(name="acme.narrow", summary="x", parameters=lambda options, width: (), build="acme.flash:narrow")
    report = check_part("norm", entry, profile="quick", dtypes=["float32"])
    raised = [finding.message for finding in report.findings if "raised" in finding.message]
    assert raised
    where = f"(acme/flash.py:{line_of('raise ValueError')})"
    for message in raised:
        assert message.startswith("`Narrow.forward` raised ValueError: width ")
        assert message.endswith(f" is odd {where} for a call that it declares")


def test_a_shrunk_case_of_a_law_still_raises(flash):
    entry = Norm(name="acme.narrow", summary="x", parameters=lambda options, width: (), build="acme.flash:narrow")
    finding = next(each for each in check_part("norm", entry, profile="quick").findings if each.check == "outputs")
    assert "ValueError: width 2 is odd (" in finding.message
