"""R1, R40, R41: the way a call is made does not change its result.

again          the same call twice; the same call after another of the same sizes; two calls at once in two threads;
               another call between forward and backward; two backward passes of one forward pass
memory         no input of a call is kept alive
no gradients   under no_grad and inference_mode                     p = 0     leaves the generator alone
checkpoint     non-reentrant, with the forward pass done again      compiled  traced by Dynamo, run op by op
prepared       with the mask rendered once for all layers
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tfkit.plugin import AttentionInputs, Bias, shapes_of

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import gradients_of, leaves_of
from ..attention.evaluated import Call, Evaluated, run, run_backward
from ..differences import differing
from ..finding import Inconclusive, Violation
from ..raised import format_exception
from .call_parts import repeats
from .draws import generator_state
from .fitting import NO_GRADIENTS, NO_QUERY_GRADIENTS, undeclared
from .paired_calls import all_identical, at_once, identical, leaf_copies, named, outcome, wants_gradients, within
from .relation import Feature, Relation


def _again(evaluated: Evaluated) -> None:
    because = "differs when the same call is made again"
    other = run(evaluated.subject, leaf_copies(evaluated.inputs)).output
    first = run(evaluated.subject, leaf_copies(evaluated.inputs)).output
    identical("again", "output", other.detach(), first.detach(), because)


def _after_another_call(evaluated: Evaluated) -> None:
    """A, then B with another mask, bias and numbers, then A. Gradients are compared where they are deterministic."""
    case = evaluated.case
    first = Call(evaluated.subject, leaf_copies(evaluated.inputs), evaluated.grad_output)
    before = outcome(first)
    other = replace(case, seed=case.seed + 1)
    if case.key_lengths is not None:
        other = replace(other, key_lengths=tuple(case.K - max(0, length) for length in case.key_lengths))
    if case.query_lengths is not None:
        other = replace(other, query_lengths=tuple(case.Q - max(0, length) for length in case.query_lengths))
    outcome(Call(evaluated.subject, other.inputs(evaluated.subject.device), other.grad_output(evaluated.subject.device)))
    after = outcome(Call(evaluated.subject, leaf_copies(evaluated.inputs), evaluated.grad_output))
    because = "changed after a call with another mask and other numbers: something is kept between calls"
    for name in filter(_comparable(evaluated), before):
        identical("after_another_call", name, after[name], before[name], because)


def _a_call_before_the_backward(evaluated: Evaluated) -> float:
    """A forward, another forward of the same sizes, then the backward of the first."""
    check, case, subject = "a_call_before_the_backward", evaluated.case, evaluated.subject
    inputs = leaf_copies(evaluated.inputs)
    answer = run(subject, inputs, check)
    run(subject, replace(case, seed=case.seed + 1).inputs(subject.device), check)
    gradients = run_backward(subject, answer, inputs, evaluated.grad_output, check)
    because = "differs by more than both bounds if another call comes between forward and backward: something is kept per call"
    return _within(check, evaluated, gradients, because)


def _backward_twice(evaluated: Evaluated) -> float:
    check, inputs, worst = "backward_twice", leaf_copies(evaluated.inputs), 0.0
    output = run(evaluated.subject, inputs, check).output
    for turn in ("first", "second"):
        try:
            gradients = gradients_of(output, inputs, evaluated.grad_output, retain_graph=True)
        except Exception as reason:  # any exception of the backend or torch is reported
            raise Violation(check, f"the {turn} backward pass with retain_graph raises {format_exception(reason)}") from reason
        because = f"differs by more than both bounds in the {turn} of two backward passes with retain_graph"
        worst = max(worst, _within(check, evaluated, gradients, because))
    return worst


def _inputs_released(evaluated: Evaluated) -> None:
    """After a call, and after a second one, nothing refers to their tensors."""
    for _ in range(2):
        inputs = leaf_copies(evaluated.inputs)
        alive = {name: weakref.ref(leaf) for name, leaf in leaves_of(inputs).items()}
        outcome(Call(evaluated.subject, inputs, evaluated.grad_output))
        del inputs
        if any(leaf() is not None for leaf in alive.values()):
            gc.collect()  # slow, and only for what refers to itself
        kept = [name for name, leaf in alive.items() if leaf() is not None]
        if kept:
            raise Violation("inputs_released", f"the {kept[0]} of an earlier call is kept alive")


def _two_threads(evaluated: Evaluated) -> None:
    """What a thread gives alone, it gives beside another that makes another call. The second time a call of other sizes comes
    first, so that nothing that a kernel keeps fits."""
    case, subject = evaluated.case, evaluated.subject
    other = replace(case, seed=case.seed + 1)
    calls = [(case, evaluated.inputs), (other, other.inputs(subject.device))]
    alone = [_in_threads(subject, [call])[0] for call in calls]
    longer = replace(case, Q=case.Q + 1, K=case.K + 1)
    for earlier in (case, longer):
        if subject.accepts(earlier.request(subject.device)):
            run(subject, earlier.inputs(subject.device))
        together = _in_threads(subject, calls)
        for before, after in zip(alone, together, strict=True):
            for name in filter(_comparable(evaluated), before):
                because = "changed because another thread made a call at the same time"
                identical("two_threads", name, after[name], before[name], because)


def _in_threads(subject: BackendUnderTest, calls: list[tuple[Case, AttentionInputs]]) -> list[dict[str, Tensor]]:
    """The outcome of each call, each made in a thread of its own, all at once."""

    def outcome_of(leaves: AttentionInputs, sent: Tensor) -> dict[str, Tensor]:
        output = run(subject, leaves)  # no cached property here: some Pythons hold a lock while one is made
        return named(output, run_backward(subject, output, leaves, sent) if wants_gradients(leaves) else {})

    return at_once([partial(outcome_of, leaf_copies(inputs), case.grad_output(subject.device)) for case, inputs in calls])


def _comparable(evaluated: Evaluated) -> Callable[[str], bool]:
    sure, same = evaluated.subject.capabilities.deterministic_backward, repeats(evaluated)
    return lambda name: same(name) and (sure or not name.startswith("gradient"))


def _without_gradients(evaluated: Evaluated) -> float:
    case, worst = evaluated.case, 0.0
    other = replace(case, seed=case.seed + 1, gradients=False, bias_gradient=False).inputs(evaluated.subject.device)
    for name, mode in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with mode():
            answer = run(evaluated.subject, evaluated.inputs, "without_gradients")
            kept = answer.output.clone()
            run(evaluated.subject, other, "without_gradients")
            if bool(differing(answer.output, kept).any()):
                raise Violation("without_gradients", f"another call of the same sizes under {name} overwrites the output")
        if answer.output.requires_grad:
            raise Violation("without_gradients", f"the output requires gradients under {name}")
        because = f"differs under {name} by more than both bounds"
        want, bound = evaluated.output.output, 2 * evaluated.bounds.output
        worst = max(worst, within("without_gradients", "output", answer.output, want, bound, because))
    return worst


def _checkpoint(evaluated: Evaluated) -> float:
    inputs = leaf_copies(evaluated.inputs)

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return evaluated.subject.call(replace(inputs, query=query, key=key, value=value)).output

    try:
        attended = checkpoint(output, inputs.query, inputs.key, inputs.value, use_reentrant=False)
        gradients = gradients_of(attended, inputs, evaluated.grad_output)
    except Inconclusive:
        raise
    except Exception as reason:  # any exception of the backend or torch is reported
        raise Violation("checkpoint", f"fails when the call is checkpointed: {format_exception(reason)}") from reason
    return _within("checkpoint", evaluated, gradients, "differs by more than both bounds when the call is checkpointed")


def _compiled(evaluated: Evaluated) -> float:
    """Dynamo's state is cleared first: it would stop compiling after a few calls of other shapes."""
    inputs = leaf_copies(evaluated.inputs)
    torch._dynamo.reset()
    traced = torch.compile(lambda: evaluated.subject.attend(inputs, evaluated.subject.options).output, backend="aot_eager")
    try:
        output = traced()
        gradients = gradients_of(output, inputs, evaluated.grad_output) if wants_gradients(inputs) else {}
    except Exception as reason:  # any exception of tracing is reported
        raise Violation(
            "compiled", f"fails under torch.compile, although compile is declared: {format_exception(reason)}"
        ) from reason
    because = "differs by more than both bounds when the call is compiled"
    worst = within("compiled", "output", output, evaluated.output.output, 2 * evaluated.bounds.output, because)
    return max(worst, _within("compiled", evaluated, gradients, because))


class _Exported(torch.nn.Module):
    def __init__(self, evaluated: Evaluated) -> None:
        super().__init__()
        self.subject, self.inputs = evaluated.subject, leaf_copies(evaluated.inputs)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        inputs = replace(self.inputs, query=query, key=key, value=value)
        return self.subject.attend(inputs, self.subject.options).output


def _exported(evaluated: Evaluated) -> float:
    tensors = tuple(leaf.detach() for leaf in (evaluated.inputs.query, evaluated.inputs.key, evaluated.inputs.value))
    with torch.no_grad():
        try:
            output = torch.export.export(_Exported(evaluated), tensors).module()(*tensors)
        except Exception as reason:  # any exception of tracing is reported
            message = f"fails under torch.export, although export is declared: {format_exception(reason)}"
            raise Violation("exported", message) from reason
    because = "differs by more than both bounds when the call is exported"
    return within("exported", "output", output, evaluated.output.output, 2 * evaluated.bounds.output, because)


def _shared_heads(case: Case, subject: BackendUnderTest) -> Case:
    """Without gradients; four query heads for two key heads, where that is declared, of several queries and keys."""
    plain = replace(case, gradients=False, bias_gradient=False, weights=False, lse=False, regime="normal")
    shared = replace(plain, H=4, G=2, Q=max(case.Q, 5), K=max(case.K, 7))
    return shared if subject.accepts(shared.request(subject.device)) else plain


def _within(check: str, evaluated: Evaluated, gradients: dict[str, Tensor], because: str) -> float:
    worst = 0.0
    for name, gradient in gradients.items():
        bound = 2 * evaluated.bounds.gradients[name]
        worst = max(worst, within(check, f"gradient of {name}", gradient, evaluated.gradients[name], bound, because))
    return worst


def _prepared(evaluated: Evaluated) -> None:
    """What `prepare` made of the mask, with or without the bias, changes no bit."""
    subject, inputs = evaluated.subject, evaluated.inputs
    if subject.prepare is None:
        return
    for what in ("mask and bias", "mask") if inputs.bias is not None else ("mask",):
        leaves = leaf_copies(inputs)
        bias: Bias | None = leaves.bias if what == "mask and bias" else None
        prepared = subject.prepare(leaves.mask, bias, shapes_of(inputs), subject.options)
        because = f"differs when the call comes with its {what} prepared"
        call = Call(subject, replace(leaves, prepared=prepared), evaluated.grad_output)
        all_identical("prepared", call, evaluated, because, _comparable(evaluated))


def _generator_left_alone(evaluated: Evaluated) -> None:
    before = generator_state(evaluated.subject.device)
    outcome(Call(evaluated.subject, leaf_copies(evaluated.inputs), evaluated.grad_output))
    if not torch.equal(before, generator_state(evaluated.subject.device)):
        raise Violation("generator_left_alone", "a call without dropout draws from torch's generator")


_NO_PREPARE = Feature("it has no `prepare`", lambda case, subject: subject.prepare is None)

MODES = (
    Relation("again", "R1", "The same call twice gives the same output.", "exact", _again),
    Relation("after_another_call", "R1", "Nothing is kept between calls.", "exact", _after_another_call),
    Relation("a_call_before_the_backward", "R1", "Another call between forward and backward changes no gradient.", "bound",
             _a_call_before_the_backward, rule="A10", voided_by=(NO_GRADIENTS,)),
    Relation("backward_twice", "R1", "Two backward passes of one forward pass give the same gradients.", "bound",
             _backward_twice, rule="A10", voided_by=(NO_GRADIENTS,)),
    Relation("inputs_released", "R1", "No tensor of a call is kept alive.", "exact", _inputs_released, rule="A1"),
    Relation("two_threads", "R1", "Two threads that call at once give what each gives alone.", "exact", _two_threads),
    Relation("generator_left_alone", "R40", "A call without dropout draws no random number.", "exact",
             _generator_left_alone, rule="A7"),
    Relation("without_gradients", "R41", "Under no_grad and inference_mode the output is the same, and stays.", "bound",
             _without_gradients),
    Relation("checkpoint", "R41", "A checkpointed call gives the same gradients.", "bound",
             _checkpoint, rule="A10", voided_by=(NO_QUERY_GRADIENTS,)),
    Relation("compiled", "R41", "A compiled call gives the same.", "bound", _compiled, rule="A11",
             voided_by=(undeclared("compile"),), slow=True),
    Relation("exported", "R41", "An exported call gives the same.", "bound", _exported, rule="A11", adapt=_shared_heads,
             voided_by=(undeclared("export"),), slow=True),
    Relation("prepared", "R41", "A call with its mask prepared for all layers gives the same.", "exact",
             _prepared, voided_by=(_NO_PREPARE,)),
)  # fmt: skip
