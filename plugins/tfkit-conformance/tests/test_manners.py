"""Whatever a backend does when it is called is a finding in words, and never an exception of the suite."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
import torch

from small_backend import changing, declaring, small
from tfkit.plugin import AttentionOutput, Range
from tfkit_conformance.attention.case_data import case_of
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.suite.again import replay
from tfkit_conformance.suite.conformance import check_backend


def writes(inputs, options):
    answer = Kernel()(inputs)
    with torch.no_grad():
        inputs.key.detach().add_(1)
    return answer


def sleeps(inputs, options):
    while True:
        time.sleep(0.01)


def raises(inputs, options):
    raise ArithmeticError("no such block size")


def raises_late(inputs, options):
    if inputs.key.shape[2] > 7:
        raise IndexError("tuple index out of range")
    return Kernel()(inputs)


def drawing(inputs, answer):
    torch.rand(1)
    return answer


INPUTS_VIEW = changing(lambda inputs, answer: replace(answer, output=inputs.value[:, :, :1].detach().expand_as(answer.output)))
BAD_MANNERS = {
    "raises": (raises, "raised ArithmeticError: no such block size (plugins/tfkit-conformance/tests/"),
    "raises late": (raises_late, "raised IndexError: tuple index out of range (plugins/tfkit-conformance/tests/"),
    "None": (lambda inputs, options: None, "returned a NoneType, expected an AttentionOutput"),
    "a tensor": (lambda inputs, options: Kernel()(inputs).output, "returned a Tensor, expected an AttentionOutput"),
    "no output": (lambda inputs, options: AttentionOutput(None), "output is a NoneType, expected a tensor"),
    "a number": (changing(lambda inputs, answer: replace(answer, lse=1.0)), "lse is a float, expected a tensor"),
    "dtype": (changing(lambda inputs, answer: replace(answer, output=answer.output.double())), "torch.float64 on cpu, exp"),
    "shape": (changing(lambda inputs, answer: replace(answer, output=answer.output[:, :1, :, :1])), ", expected "),
    "nan": (changing(lambda inputs, answer: replace(answer, output=answer.output * torch.nan)), "output[0, 0, 0, 0] is nan"),
    "infinity": (changing(lambda inputs, answer: replace(answer, output=answer.output.exp() * torch.inf)), "is inf"),
    "view": (INPUTS_VIEW, "the output shares memory with an input"),
    "writes": (writes, ""),
    "draws": (changing(drawing), "drew random numbers although dropout is 0"),
    "moods": (changing(lambda inputs, answer: replace(answer, output=answer.output * (1 + random.random()))),
              "the same call gave a different output the second time"),
    "cut off": (changing(lambda inputs, answer: replace(answer, output=answer.output.detach())),
                "the output does not require gradients although its inputs do"),
    "asleep": (sleeps, "did not finish within 0.2 seconds"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("manners", BAD_MANNERS)
def test_misbehaviour_of_a_backend_is_a_finding_with_a_message(manners, few):
    attend, words = BAD_MANNERS[manners]
    limit = 0.2 if manners == "asleep" else 60.0
    report = check_backend(small(attend), profile="quick", stop_at_first=True, limit=limit)
    assert report.verdict == "NONCONFORMANT"
    assert [found.check for found in report.findings] == ["contract"]
    assert words in report.findings[0].message
    assert replay(small(attend), case_of(report.findings[0].case), limit=limit).startswith("contract: ")


def test_a_written_input_is_named():
    can = declaring(backward=False, deterministic_backward=False)
    report = check_backend(small(writes, can), profile="quick", stop_at_first=True)
    assert report.findings[0].message == "an input (1, 1, 1, 8) torch.float32 was written to"


def test_an_answer_of_another_shape_to_larger_calls_is_reported(few):
    """The read-outs and the grade make larger calls than the case that is evaluated."""
    for wide in (lambda inputs: inputs.value.shape[3] >= 16, lambda inputs: inputs.key.shape[2] > 200):
        cut = changing(lambda inputs, answer, wide=wide: AttentionOutput(answer.output[..., 1:]) if wide(inputs) else answer)
        can = declaring(head_dim=Range(), query_length=Range(), key_length=Range())
        report = check_backend(small(cut, can), profile="quick", stop_at_first=True)
        assert report.verdict == "NONCONFORMANT"
        assert ", expected " in report.findings[0].message


def test_a_backend_that_hangs_gets_no_further_calls(few):
    asked = []

    def attend(inputs, options):
        asked.append(inputs)
        return sleeps(inputs, options)

    report = check_backend(small(attend), profile="quick", limit=0.1, shrink_steps=40)
    assert [found.message for found in report.findings] == ["did not finish within 0.1 seconds"]
    assert report.missing
    assert len(asked) == 1
    assert sum(check.examples for check in report.checks) < 60
