"""R1, R40, R41: how a call is made is no part of what it says.

again          the same call twice; the same call after another of the same sizes; two calls at once in two threads
no gradients   under no_grad and inference_mode                     p = 0     leaves the generator alone
checkpoint     non-reentrant, with the forward pass done again      compiled  traced by Dynamo, run op by op
prepared       with the mask rendered once for all layers
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tfkit.attention.types import AttentionInputs, Bias, Shapes

from ..attention.case import Case
from ..attention.compare import gradients_of
from ..attention.evaluated import Judged, run, run_backward
from ..attention.subject import BackendUnderTest
from ..finding import Violation
from ..raised import told
from .call_parts import repeats
from .draws import generator_state
from .fitting import NO_GRADIENTS
from .paired_calls import Call, all_identical, identical, leaves_again, named, outcome, wants_gradients, within
from .relation import Feature, Relation


def _again(judged: Judged) -> None:
    because = "is another when the same call is made again"
    found = run(judged.subject, leaves_again(judged.inputs)).output
    first = run(judged.subject, leaves_again(judged.inputs)).output
    identical("again", "output", found.detach(), first.detach(), because)


def _after_another_call(judged: Judged) -> None:
    """A, then B with another mask, bias and numbers, then A. Gradients are compared where they are deterministic."""
    case = judged.case
    first = Call(judged.subject, leaves_again(judged.inputs), judged.grad_output)
    before = outcome(first)
    other = replace(case, seed=case.seed + 1)
    if case.key_lengths is not None:
        other = replace(other, key_lengths=tuple(case.K - max(0, length) for length in case.key_lengths))
    if case.query_lengths is not None:
        other = replace(other, query_lengths=tuple(case.Q - max(0, length) for length in case.query_lengths))
    outcome(Call(judged.subject, other.inputs(judged.subject.device), other.grad_output(judged.subject.device)))
    after = outcome(Call(judged.subject, leaves_again(judged.inputs), judged.grad_output))
    because = "changed after a call with another mask and other numbers: something is kept between calls"
    for name in filter(_comparable(judged), before):
        identical("after_another_call", name, after[name], before[name], because)


def _two_threads(judged: Judged) -> None:
    """What a thread gives alone, it gives beside another that makes another call."""
    case, subject = judged.case, judged.subject
    other = replace(case, seed=case.seed + 1)
    calls = [(case, judged.inputs), (other, other.inputs(subject.device))]
    alone = [_in_threads(subject, [call])[0] for call in calls]
    for _ in range(2):
        together = _in_threads(subject, calls)
        for before, after in zip(alone, together, strict=True):
            for name in filter(_comparable(judged), before):
                because = "changed because another thread made a call at the same time"
                identical("two_threads", name, after[name], before[name], because)


def _in_threads(subject: BackendUnderTest, calls: list[tuple[Case, AttentionInputs]]) -> list[dict[str, Tensor]]:
    """The outcome of each call, each made in a thread of its own, all at once."""
    ready = threading.Barrier(len(calls))
    found: list[dict[str, Tensor]] = [{} for _ in calls]
    raised: list[BaseException] = []

    def work(index: int, case: Case, inputs: AttentionInputs) -> None:
        leaves, sent = leaves_again(inputs), case.grad_output(subject.device)
        ready.wait()
        try:  # no cached property here: some Pythons hold a lock while one is made
            output = run(subject, leaves)
            found[index] = named(output, run_backward(subject, output, leaves, sent) if wants_gradients(leaves) else {})
        except BaseException as reason:  # carried to the thread that waits, and raised there
            raised.append(reason)

    threads = [threading.Thread(target=work, args=(index, *call), daemon=True) for index, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return found


def _comparable(judged: Judged) -> Callable[[str], bool]:
    sure, same = judged.subject.capabilities.deterministic_backward, repeats(judged)
    return lambda name: same(name) and (sure or not name.startswith("gradient"))


def _without_gradients(judged: Judged) -> float:
    worst = 0.0
    for name, mode in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with mode():
            found = run(judged.subject, judged.inputs, "without_gradients")
        if found.output.requires_grad:
            raise Violation("without_gradients", f"the output requires gradients under {name}")
        because = f"differs under {name} by more than both bounds"
        want, bound = judged.output.output, 2 * judged.bounds.output
        worst = max(worst, within("without_gradients", "output", found.output, want, bound, because))
    return worst


def _checkpoint(judged: Judged) -> float:
    inputs = leaves_again(judged.inputs)

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return judged.subject.call(replace(inputs, query=query, key=key, value=value)).output

    try:
        found = checkpoint(output, inputs.query, inputs.key, inputs.value, use_reentrant=False)
        gradients = gradients_of(found, inputs, judged.grad_output)
    except Exception as reason:  # whatever the backend or torch raises, the author is told
        raise Violation("checkpoint", f"fails when the call is checkpointed: {told(reason)}") from reason
    return _within("checkpoint", judged, gradients, "differs by more than both bounds when the call is checkpointed")


def _compiled(judged: Judged) -> float:
    """Dynamo's state is cleared first: it would stop compiling after a few calls of other shapes."""
    inputs = leaves_again(judged.inputs)
    torch._dynamo.reset()
    traced = torch.compile(lambda: judged.subject.attend(inputs, judged.subject.options).output, backend="aot_eager")
    try:
        found = traced()
        gradients = gradients_of(found, inputs, judged.grad_output) if wants_gradients(inputs) else {}
    except Exception as reason:  # whatever tracing raises, the author is told
        raise Violation("compiled", f"fails under torch.compile, although compile is declared: {told(reason)}") from reason
    because = "differs by more than both bounds when the call is compiled"
    worst = within("compiled", "output", found, judged.output.output, 2 * judged.bounds.output, because)
    return max(worst, _within("compiled", judged, gradients, because))


def _within(check: str, judged: Judged, gradients: dict[str, Tensor], because: str) -> float:
    worst = 0.0
    for name, gradient in gradients.items():
        bound = 2 * judged.bounds.gradients[name]
        worst = max(worst, within(check, f"gradient of {name}", gradient, judged.gradients[name], bound, because))
    return worst


def _prepared(judged: Judged) -> None:
    """What `prepare` made of the mask, with or without the bias, changes no bit."""
    subject, inputs = judged.subject, judged.inputs
    if subject.prepare is None:
        return
    query, key = inputs.query, inputs.key
    shapes = Shapes(query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.dtype, query.device)
    for given in ("mask and bias", "mask") if inputs.bias is not None else ("mask",):
        leaves = leaves_again(inputs)
        bias: Bias | None = leaves.bias if given == "mask and bias" else None
        made = subject.prepare(leaves.mask, bias, shapes, subject.options)
        because = f"is another when the call comes with its {given} prepared"
        call = Call(subject, replace(leaves, prepared=made), judged.grad_output)
        all_identical("prepared", call, judged, because, _comparable(judged))


def _generator_left_alone(judged: Judged) -> None:
    before = generator_state(judged.subject.device)
    outcome(Call(judged.subject, leaves_again(judged.inputs), judged.grad_output))
    if not torch.equal(before, generator_state(judged.subject.device)):
        raise Violation("generator_left_alone", "a call without dropout draws from torch's generator")


_NO_COMPILE = Feature("compile is not declared", lambda case, subject: not subject.capabilities.compile)
_NO_PREPARE = Feature("it has no `prepare`", lambda case, subject: subject.prepare is None)
_NO_QUERY_GRADIENTS = Feature(NO_GRADIENTS.words, lambda case, subject: not case.gradients)

MODES = (
    Relation("again", "R1", "The same call twice gives the same output.", "exact", _again),
    Relation("after_another_call", "R1", "Nothing is kept between calls.", "exact", _after_another_call),
    Relation("two_threads", "R1", "Two threads that call at once give what each gives alone.", "exact", _two_threads),
    Relation("generator_left_alone", "R40", "A call without dropout draws no random number.", "exact",
             _generator_left_alone, rule="A7"),
    Relation("without_gradients", "R41", "Under no_grad and inference_mode the output is the same.", "bound",
             _without_gradients),
    Relation("checkpoint", "R41", "A checkpointed call gives the same gradients.", "bound",
             _checkpoint, rule="A10", voided_by=(_NO_QUERY_GRADIENTS,)),
    Relation("compiled", "R41", "A compiled call gives the same.", "bound", _compiled, rule="A11",
             voided_by=(_NO_COMPILE,), slow=True),
    Relation("prepared", "R41", "A call with its mask prepared for all layers gives the same.", "exact",
             _prepared, voided_by=(_NO_PREPARE,)),
)  # fmt: skip
