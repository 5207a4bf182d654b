"""What follows a guided call: other calls of the same sizes, in which what a kernel keeps between calls shows.

    numbers     one field alone, or one tensor alone, is another, or its order is; its memory holds other numbers
    sizes       there is a query or key more or less, as in the next step of decoding
    between     another call, a change of the mask or of an input comes between forward and backward pass
    elsewhere   the backward pass runs in another thread, or with another default dtype
    kept        all results of many calls are kept by the caller, and stay as they are
    one tensor  is query and key, key and value, or all three
    prepared    one prepared mask serves calls with different biases; two masks are prepared before either is used
    axes        those of size 1 are left out of masks and biases
    integers    lengths, offsets and segments are in a narrower type
    scores      a score function computes them, with the other sign
    error       a score function raises an error: settings stay, and the next call is right
    least       rows in which each score is the least finite number

Each gives the largest error as a share of its bound, or None where it does not apply to the call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tfkit.inspection import SCORE_SETTINGS
from tfkit.plugin import AttentionInputs, DenseBias, Mask, shapes_of

from ..attention.bound import SMALLEST, UNIT
from ..attention.case import Case
from ..attention.compare import leaves_of, request_of
from ..attention.evaluated import Call, backward_of
from ..attention.score_functions import negated_product
from ..differences import differing, first_of
from ..finding import Violation
from ..relations.paired_calls import at_once, leaf_copies, lying_as, named, wants_gradients
from .call_maker import CHECK, CallMaker, check_settings, default_dtype, product_precision, torch_threads
from .layers import mask_tensors, process_settings, within
from .spellings import INTEGERS, NARROW, fewer_axes, invert, overwrite

ALMOST = 1 + 2.0**-14
"""The factor of numbers that are almost the same."""
KEPT_CALLS = 20
"""So many calls whose results are kept."""
MAX_KEPT = 100_000
"""The largest B * H * Q * K * (D + V) of these calls."""
WAYS = ("other numbers", "its numbers reversed", "its first and last numbers are the same")
"""In which a tensor differs."""
AGAIN = 64
"""The most queries and keys of a call in which one tensor is several inputs."""


@dataclass(frozen=True)
class First:
    """The call that is followed.

    Args:
        maker: makes the calls.
        case: of the call.
        inputs: the call.
        sent: the gradient of its output.
        right: its reference and bounds.
        draw: random numbers.
        spelt: the inputs of a case in the form in which those of the first call are.
    """

    maker: CallMaker
    case: Case
    inputs: AttentionInputs
    sent: Tensor
    right: Call
    draw: random.Random
    spelt: Callable[[Case], AttentionInputs]

    def again(self, when: str, **more: Any) -> float:
        """The call once more."""
        return self.maker.make(self.inputs, self.sent, when, right=self.right, **more)

    def accepts(self, inputs: AttentionInputs) -> bool:
        return self.maker.subject.accepts(request_of(inputs))


def one_field(first: First) -> float | None:
    """One field is another, in half of the calls nothing else."""
    changes = _accepted_changes(first)
    return _with_field(first, first.draw.choice(changes)) if changes else None


def every_field(first: First) -> float | None:
    """Each field in turn is another."""
    return max((_with_field(first, change) for change in _accepted_changes(first)), default=None)


def _accepted_changes(first: First) -> list[Case]:
    """Functions of torch give NaN for a scale below 0 beside a causal flag: such a change is not asked of a function."""
    subject = first.maker.subject
    accepted = [change for change in _changes(first.case, first.draw) if subject.accepts(change.request(subject.device))]
    return [change for change in accepted if subject.kernel is None or not (change.causal and (change.scale or 1.0) < 0)]


def _with_field(first: First, changed: Case) -> float:
    if first.draw.random() < 0.5:
        changed = replace(changed, seed=changed.seed + 1)
    sent = changed.grad_output(first.maker.subject.device)
    when = f" after a call of the same sizes with another {_field(first, changed)}"
    return first.maker.make(first.spelt(changed), sent, when)


def _field(first: First, changed: Case) -> str:
    names = [field.name for field in fields(Case) if getattr(first.case, field.name) != getattr(changed, field.name)]
    return " and ".join(name for name in names if name != "seed" or names == ["seed"])


def _changes(case: Case, draw: random.Random) -> Iterator[Case]:
    """The case with another value in one field."""
    yield replace(case, seed=case.seed + 1)
    for factor in (-1.0, draw.choice([0.5, 1.25])):
        yield replace(case, scale=(case.scale or case.D**-0.5) * factor)
    yield replace(case, dtype="float64" if case.dtype != "float64" else "float32")
    for setting in SCORE_SETTINGS:
        value = getattr(case, setting.name)
        if value is not None:
            yield replace(case, **{setting.name: value * draw.choice([0.5, 2.0])})
    if case.window is not None:
        left, right = case.window
        step = draw.choice([1, 2, 7])
        yield replace(case, window=(None if right is not None and left is not None else (left or 0) + step, right))
        yield replace(case, window=(left, (right or 0) + step))
        if left is not None:
            yield replace(case, window=(left + step, right))
        if left is None or right is None:
            yield replace(case, window=(left or 0, right or 0))
        yield replace(case, window=(left, None) if left is not None else (None, right))
    if case.offset is not None:
        for far in (1, -1, 1 << 8, 1 << 16):
            yield replace(case, offset=_moved(case.offset, far))
        yield replace(case, causal=not case.causal)
    for name, most in (("offset", case.K), ("key_lengths", case.K), ("query_lengths", case.Q)):
        rows = getattr(case, name)
        if isinstance(rows, tuple):
            row = draw.randrange(len(rows))
            other: dict[str, Any] = {name: (*rows[:row], max(1, most - max(0, rows[row])), *rows[row + 1 :])}
            yield replace(case, **other)
            other = {name: rows[::-1]}
            yield replace(case, **other)
    if case.bias == "distance":
        yield replace(case, bias_low=case.bias_low + draw.choice([-2, -1, 1, 2]))
        yield replace(case, bias_values=case.bias_values // 2 or 4)
    if case.bias in ("linear", "distance"):
        yield replace(case, bias="linear" if case.bias == "distance" else "distance", bias_dtype="float32", bias_gradient=False)


def _moved(offset: int | tuple[int, ...], step: int) -> int | tuple[int, ...]:
    return offset + step if isinstance(offset, int) else tuple(position + step for position in offset)


def one_tensor_alone(first: First) -> float | None:
    """One tensor, of the mask or the bias above all, holds other numbers, or the same in another order."""
    mask = _mask_tensors(first.inputs.mask)
    bias = ["bias"] * 4 * ("bias" in leaves_of(first.inputs))
    return _with_tensor(first, first.draw.choice([*mask, *mask, *bias, "query", "key", "value"]))


def every_tensor(first: First) -> float | None:
    """Each tensor in turn holds other numbers, or the same in another order; those of the mask and the bias in every way."""
    leaves, mask = leaves_of(first.inputs), _mask_tensors(first.inputs.mask)
    pairs = [*product([*mask, *leaves.keys() & {"bias"}], WAYS), *((name, None) for name in leaves if name != "bias")]
    return max((share for name, way in pairs if (share := _with_tensor(first, name, way)) is not None), default=None)


def _mask_tensors(mask: Mask) -> list[str]:
    return [field.name for field in fields(Mask) if isinstance(getattr(mask, field.name), Tensor)]


def _with_tensor(first: First, name: str, way: str | None = None) -> float | None:
    draw, leaves = first.draw, leaves_of(first.inputs)
    other = first.spelt(replace(first.case, seed=first.case.seed + 1))
    old: Tensor = leaves[name] if name in leaves else getattr(first.inputs.mask, name)
    new: Tensor = (leaves_of(other)[name] if name in leaves else getattr(other.mask, name)).detach()
    axes = [axis for axis in range(old.dim()) if old.shape[axis] > 1]
    axis = draw.choice(axes) if axes else 0
    alike, size = new.dtype == old.dtype and new.shape == old.shape, old.shape[axis] if axes else 1
    turned = old.detach().flip(axis) if axes else old.detach()
    ways = [WAYS[0]] * alike + [WAYS[1]] * (size > 1) + [WAYS[2]] * (size > 2)
    if way not in (None, *ways) or not ways:
        return None
    way = way or draw.choice([*ways, *ways[:2]])
    if way == WAYS[1]:
        new = turned
    elif way == WAYS[2]:
        inside = torch.arange(1, size - 1, device=old.device)
        new = old.detach().index_copy(axis, inside, (new if alike else turned).index_select(axis, inside))
    if name in leaves:
        inputs = leaf_copies(first.inputs, **{name: new})
    else:
        term: dict[str, Any] = {name: lying_as(old, new)}
        inputs = replace(first.inputs, mask=replace(first.inputs.mask, **term))
    return first.maker.make(inputs, first.sent, f" after a call that differs in {name} alone: {way}")


def another_size(first: First) -> float | None:
    """There is a query or a key more or less. With a key more the positions move on, as in decoding."""
    case, draw, subject = first.case, first.draw, first.maker.subject
    name, step = draw.choice(["K", "K", "Q"]), draw.choice([1, 1, -1])
    size = getattr(case, name) + step
    offset = case.offset if name == "Q" or case.offset is None else _moved(case.offset, step)
    sized: dict[str, Any] = {name: size, "offset": offset}
    other = replace(case, **sized)
    if size < 1 or case.shared_lengths or not subject.accepts(other.request(subject.device)):
        return None
    when = f" after a call with one {'query' if name == 'Q' else 'key'} {'more' if step > 0 else 'less'}"
    return first.maker.make(first.spelt(other), other.grad_output(subject.device), when)


def narrow_integers(first: First) -> float | None:
    """Lengths, offsets and segments in a narrower type."""
    mask, dtype = first.inputs.mask, first.draw.choice(NARROW)
    narrow: dict[str, Any] = {}
    for name in INTEGERS:
        tensor = getattr(mask, name)
        if isinstance(tensor, Tensor) and bool((tensor.to(dtype).long() == tensor).all()):
            narrow[name] = tensor.to(dtype)
    inputs = replace(leaf_copies(first.inputs), mask=replace(mask, **narrow))
    if not narrow or not first.accepts(inputs):
        return None
    return first.maker.make(inputs, first.sent, f" with its {' and '.join(narrow)} as {dtype}", right=first.right)


def axes_left_out(first: First) -> float | None:
    """Leading axes of size 1 of a mask or a bias are left out, all of them too."""
    inputs = leaf_copies(first.inputs)
    fewer = fewer_axes(inputs)
    if _axes(fewer) == _axes(inputs) or not first.accepts(fewer):
        return None
    return first.maker.make(fewer, first.sent, " without leading axes of size 1")


def _axes(inputs: AttentionInputs) -> list[int]:
    bias = inputs.bias.values if isinstance(inputs.bias, DenseBias) else None
    return [tensor.dim() for tensor in (inputs.mask.visible, bias) if tensor is not None]


def numbers_overwritten(first: First) -> float | None:
    """The same tensors hold other numbers, and then their own again. In some calls torch does not see that they were written
    to."""
    other, unseen = first.spelt(replace(first.case, seed=first.case.seed + 1)), first.draw.random() < 0.5
    whole = leaf_copies(first.inputs)
    whole = replace(whole, mask=_copied(whole.mask))
    if not all(leaf.is_leaf for leaf in leaves_of(first.inputs).values()) or not overwrite(first.inputs, other, unseen):
        return None
    try:
        return first.maker.make(first.inputs, first.sent, " after the numbers in its tensors changed")
    finally:
        overwrite(first.inputs, whole)


def _copied(mask: Mask) -> Mask:
    terms = {field.name: getattr(mask, field.name) for field in fields(Mask)}
    copies: dict[str, Any] = {name: term.clone() for name, term in terms.items() if isinstance(term, Tensor)}
    return replace(mask, **copies)


def a_call_between(first: First) -> float | None:
    """Another call comes before the backward pass."""
    between = first.spelt(replace(first.case, seed=first.case.seed + 1))
    when = " with another call before its backward pass"
    return first.again(when, between=lambda _: first.maker.run(between)) if wants_gradients(first.inputs) else None


def a_mask_between(first: First) -> float | None:
    """The caller changes the mask before the backward pass."""
    if not wants_gradients(first.inputs) or not mask_tensors(first.inputs.mask):
        return None
    changed = first.spelt(first.case)
    when = " after the mask changed before its backward pass"
    return first.maker.make(changed, first.sent, when, lambda _: invert(changed.mask), right=first.right)


def an_input_between(first: First) -> float | None:
    """The caller changes an input before the backward pass, as an optimiser's step does: an error, or the right gradients."""
    changed = leaf_copies(first.inputs)
    leaves = leaves_of(changed)
    names = [name for name, leaf in leaves.items() if 0 not in leaf.stride() or leaf.numel() == 1]
    if not wants_gradients(changed) or not names:
        return None
    name = first.draw.choice(names)

    def change(_: Tensor) -> None:
        with torch.no_grad():
            leaves[name].mul_(2.0).add_(1.0)

    when = f" after its {name} changed before its backward pass, which should be an error or make no difference"
    return first.maker.make(changed, first.sent, when, change, right=first.right)


def a_result_between(first: First) -> float | None:
    """The caller writes to the output before the backward pass: an error, or the right gradients."""
    if not wants_gradients(first.inputs):
        return None

    def change(output: Tensor) -> None:
        with torch.no_grad():
            output.mul_(2.0).add_(1.0)

    when = " after its output changed before its backward pass, which should be an error or make no difference"
    return first.maker.make(leaf_copies(first.inputs), first.sent, when, change, right=first.right)


def another_gradient(first: First) -> float | None:
    """A second backward pass, to which another gradient comes."""
    if not wants_gradients(first.inputs):
        return None
    inputs, sent = leaf_copies(first.inputs), first.sent * -0.5
    leaves = {name: leaf for name, leaf in leaves_of(inputs).items() if leaf.requires_grad}
    output = first.maker.run(inputs).output
    if not output.requires_grad:
        return None
    with backward_of(first.maker.subject, CHECK):
        torch.autograd.grad(output, list(leaves.values()), first.sent, retain_graph=True)
        gradients = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), sent), strict=True))
    right, worst = first.maker.reference(inputs, sent), 0.0
    for name, gradient in gradients.items():
        limits = right.reference.gradients[name], right.bounds.gradients[name]
        words = f"gradient of {name} after a backward pass with another gradient of the output"
        worst = max(worst, within(CHECK, words, gradient, *limits))
    return worst


def another_default_dtype(first: First) -> float | None:
    """The whole call under another default dtype."""
    _ = first.right.reference.gradients, first.right.bounds.gradients  # under the usual one
    dtype = first.draw.choice([torch.bfloat16, torch.float64])
    with default_dtype(dtype):
        return first.again(f" under the default dtype {dtype}")


def a_backward_elsewhere(first: First) -> float | None:
    """The backward pass runs in another thread, or under another default dtype."""
    if not wants_gradients(first.inputs):
        return None
    if first.draw.random() < 0.6:
        return first.again(" with its backward pass in another thread", elsewhere=lambda work: at_once([work]))

    def under_float64(work: Callable[[], Any]) -> Any:
        with default_dtype(torch.float64):
            return work()

    return first.again(" with its backward pass under another default dtype", elsewhere=under_float64)


def weights_requested(first: First) -> float | None:
    """A request for the weights changes no bit of the output."""
    asked = replace(first.inputs, return_weights=True)
    if not first.accepts(asked):
        return None
    plain = first.maker.run(replace(first.inputs, return_weights=False)).output
    if not torch.equal(first.maker.run(asked).output, plain):
        raise Violation(CHECK, "a request for the weights changes the output")
    return 0.0


def almost_the_same_bias(first: First) -> float | None:
    if first.inputs.bias is None:
        return None
    bias = leaves_of(first.inputs)["bias"].detach() * ALMOST
    return first.maker.make(leaf_copies(first.inputs, bias=bias), first.sent, " after a call with almost the same bias")


def results_kept(first: First) -> float | None:
    """The caller keeps what many calls return, as a search and a training step of many layers do. The backward passes come in
    the end, in the order of the calls."""
    draw, case = first.draw, first.case
    if case.B * case.H * case.Q * case.K * (case.D + case.V) > MAX_KEPT:
        return None
    wants = wants_gradients(first.inputs) and draw.random() < 0.5
    calls = []
    for inputs in (first.inputs, first.spelt(replace(case, seed=case.seed + 1))):
        full = leaf_copies(inputs)
        for asked in (replace(full, return_lse=True), replace(full, return_lse=True, return_weights=True)):
            full = asked if first.accepts(asked) else full
        calls.append(full)
    if not wants:
        for leaf in (leaf for call in calls for leaf in leaves_of(call).values()):
            leaf.requires_grad_(False)
    kept: list[tuple[str, Tensor, Tensor]] = []

    def keep(number: int, results: dict[str, Tensor]) -> None:
        kept.extend((f"{name} of call {number + 1}", result, result.clone()) for name, result in results.items())

    answers = []
    with nullcontext() if wants else torch.no_grad():
        for number in range(KEPT_CALLS):
            inputs = calls[number > 0]
            answers.append((inputs, first.maker.run(inputs)))
            keep(number, named(answers[-1][1], {}))
    for number, (inputs, answer) in enumerate(answers if wants else ()):
        leaves = {name: leaf for name, leaf in leaves_of(inputs).items() if leaf.requires_grad}
        if answer.output.requires_grad:
            with backward_of(first.maker.subject, CHECK):  # and not `backward`, which copies gradients
                gradients = torch.autograd.grad(answer.output, list(leaves.values()), first.sent)
            keep(number, named(answer, dict(zip(leaves, gradients, strict=True))))
    for name, result, copy in kept:
        if bool(differing(result, copy).any()):
            raise Violation(CHECK, f"the {name} changed while {KEPT_CALLS} calls of the same sizes were made")
    worst = 0.0
    for name, result, _ in kept:
        part, _, place = name.rpartition(" of call ")
        if place == "1" and part.startswith("gradient of "):
            part = part.removeprefix("gradient of ")
            limits = first.right.reference.gradients[part], first.right.bounds.gradients[part]
            worst = max(worst, within(CHECK, f"gradient of {part} of the first of {KEPT_CALLS} calls", result, *limits))
    return worst


def one_mask_prepared(first: First) -> float | None:
    """Layers with biases of their own share one prepared mask."""
    subject, inputs = first.maker.subject, first.inputs
    if subject.prepare is None or inputs.bias is None:
        return None
    prepared = subject.prepare(inputs.mask, None, shapes_of(inputs), subject.options)
    worst, when = 0.0, " with its mask prepared"
    for bias in (leaves_of(inputs)["bias"].detach(), leaves_of(inputs)["bias"].detach() * -0.75):
        layer = replace(leaf_copies(inputs, bias=bias), prepared=prepared)
        worst, when = max(worst, first.maker.make(layer, first.sent, when)), f"{when}, after a call with another bias"
    return worst


def another_mask_prepared(first: First) -> float | None:
    """Two masks of the same sizes are prepared, and then each serves its call."""
    prepare, changes = first.maker.subject.prepare, _accepted_changes(first)
    return _each_prepared(first, first.draw.choice(changes), prepare) if prepare is not None and changes else None


def every_mask_prepared(first: First) -> float | None:
    """The same with each field in turn another."""
    prepare = first.maker.subject.prepare
    if prepare is None:
        return None
    return max((_each_prepared(first, change, prepare) for change in _accepted_changes(first)), default=None)


def _each_prepared(first: First, changed: Case, prepare: Callable[..., Any]) -> float:
    subject, other = first.maker.subject, first.spelt(changed)
    when = f" with its mask prepared, as another was that differs in {_field(first, changed)}"
    prepared = [
        replace(inputs, prepared=prepare(inputs.mask, None, shapes_of(inputs), subject.options))
        for inputs in (leaf_copies(first.inputs), leaf_copies(other))
    ]
    sent = (first.sent, changed.grad_output(subject.device))
    return max(first.maker.make(inputs, gradient, when) for inputs, gradient in zip(prepared, sent, strict=True))


def one_tensor_as_several(first: First) -> float | None:
    """One tensor is several of query, key and value: its gradient is the sum of theirs."""
    subject, draw = first.maker.subject, first.draw
    names = draw.choice([("key", "value"), ("query", "key"), ("query", "value"), ("query", "key", "value")])
    case = replace(first.case, V=first.case.D, regime="normal")
    if "query" in names:
        length = max(1, min(max(case.Q, case.K), AGAIN))
        case = replace(case, Q=length, K=length, H=case.G)
    case = replace(case, gradients=case.gradients and draw.random() < 0.5)
    if not subject.accepts(case.request(subject.device)):
        return None
    inputs = case.inputs(subject.device)
    shared: dict[str, Any] = dict.fromkeys(names, getattr(inputs, names[0]))
    inputs, sent = replace(inputs, **shared), case.grad_output(subject.device)
    right: Any = Call(subject, inputs, sent)
    if case.gradients:
        right = _summed(right, names)
    when = f" where one tensor is {' and '.join(names)}"
    return first.maker.make(inputs, sent, when, right=right)


def _summed(call: Call, names: tuple[str, ...]) -> Any:
    """Reference and bounds, with the sum of these gradients for each of them. Each addition is rounded."""
    exact, bounds, dtype = call.reference, call.bounds, call.inputs.query.dtype
    total = sum(exact.gradients[name] for name in names)
    size = sum(exact.gradients[name].abs() + bounds.gradients[name] for name in names)
    limit = sum(bounds.gradients[name] for name in names) + 2 * len(names) * UNIT[dtype] * size + SMALLEST[dtype]
    parts = {part: getattr(exact, part) for part in ("output", "lse", "weights")}
    limits = {part: getattr(bounds, part) for part in ("output", "lse", "weights")}
    return SimpleNamespace(
        reference=SimpleNamespace(**parts, gradients=exact.gradients | dict.fromkeys(names, total)),
        bounds=SimpleNamespace(**limits, gradients=bounds.gradients | dict.fromkeys(names, limit)),
    )


class Interrupted(Exception):
    """What a score function of the suite raises."""


def a_score_function(first: First) -> float | None:
    """The scores, with the other sign, by a score function."""
    inputs = leaf_copies(first.inputs)
    scored = replace(inputs, **negated_product(inputs))
    if "*" not in first.maker.subject.capabilities.scores or first.inputs.score is not None or not first.accepts(scored):
        return None
    return first.maker.make(scored, first.sent, " by a score function")


def after_an_error(first: First) -> float | None:
    """A score function raises an error, in a process with other settings than torch's own."""

    def score(query: Tensor, key: Tensor) -> Tensor:
        raise Interrupted

    inputs = replace(first.inputs, score=score)
    if not first.accepts(inputs):
        return None
    with torch_threads(2), default_dtype(torch.float64), product_precision("high"):
        settings = process_settings()
        try:
            first.maker.subject.call(inputs)
        except Exception:  # that of the score function, as is right, or another one that the kernel raises in its place
            pass
        else:
            raise Violation(CHECK, "gives a result although the score function raised an error")
        check_settings(settings, " after a score function raised an error")
    return first.again(" after a call whose score function raised an error")


def least_scores(first: First) -> float | None:
    """Rows in which the bias is the least finite number, as some models hide keys. What they give depends on roundings, and it
    is no NaN: every score is finite."""
    subject, draw, numerics = first.maker.subject, first.draw, first.maker.subject.capabilities.numerics
    case = replace(first.case, bias="dense", bias_axes=draw.choice(["BHQK", "Q", "HQ", "BQ", "BQK"]), softcap=None,
                   regime="normal", scale=None, gradients=False, bias_gradient=False, bias_dtype="query")  # fmt: skip
    if "storage" in (numerics.scores, numerics.gradients) or not subject.accepts(case.request(subject.device)):
        return None
    inputs = case.inputs(subject.device)
    values = leaves_of(inputs)["bias"]
    rows = torch.rand(values.shape[:3], generator=torch.Generator().manual_seed(case.seed))[..., None] < 0.5
    least = leaf_copies(inputs, bias=values.where(rows.logical_not().to(values.device), torch.finfo(values.dtype).min))
    wrong = first.maker.run(least).output.isnan()
    if bool(wrong.any()):
        row = first_of(wrong)[:3]
        raise Violation(CHECK, f"output row {row[2]} of batch row {row[0]}, head {row[1]} is NaN, where each score is finite: "
                        f"some rows have a bias of {torch.finfo(values.dtype).min:.6g} alone")  # fmt: skip
    return 0.0


FollowUp = Callable[[First], float | None]
FOLLOW_UPS: tuple[FollowUp, ...] = (
    one_field, one_field, one_field, one_field, one_tensor_alone, one_tensor_alone, one_tensor_alone, another_size,
    another_size, narrow_integers, narrow_integers, axes_left_out, numbers_overwritten, numbers_overwritten, a_call_between,
    a_call_between, a_mask_between, an_input_between, a_backward_elsewhere, a_result_between, another_gradient,
    another_default_dtype, almost_the_same_bias, results_kept, results_kept, one_mask_prepared,
    another_mask_prepared,
    one_tensor_as_several, a_score_function, after_an_error, least_scores,
)  # fmt: skip
"""Those that are drawn more often occur more than once."""


def follow_by_all(first: First) -> float:
    """All follow-ups that apply to the call."""
    several = (one_field, one_tensor_alone, another_mask_prepared)
    every = [
        every_field,
        every_tensor,
        every_mask_prepared,
        *(follow_up for follow_up in FOLLOW_UPS if follow_up not in several),
    ]
    return max((share for follow_up in every if (share := follow_up(first)) is not None), default=0.0)


def follow(first: First, number: int) -> float:
    """So many of the follow-ups that apply to the call, in a random order."""
    worst = 0.0
    for follow_up in first.draw.sample(FOLLOW_UPS, len(FOLLOW_UPS)):
        share = follow_up(first) if number else None
        if share is not None:
            worst, number = max(worst, share), number - 1
    return worst
