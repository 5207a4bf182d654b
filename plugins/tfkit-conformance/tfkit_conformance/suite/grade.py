"""The accuracy of a backend beyond the bound: a grade, not a verdict.

    ratio = rms(output - exact) / rms(best - exact)       best: float32 accumulation throughout, rounded once to storage

over 1024 keys, the largest over output and gradients: A up to 1.5, B up to 3, C beyond. The worst-case bound cannot see an
accumulator that is kept in a half type; this can. It fails only a backend that promises a better grade (`Numerics.grade`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, accumulation, expand_heads

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.cells import Cell, cells, plan_of
from ..attention.evaluated import Evaluated
from ..attention.strategies import cases
from ..differences import double
from ..finding import Inconclusive, Violation, renamed
from ..raised import format_exception
from ..relations import RELATIONS, Relation, fit
from ..relations.call_parts import deterministic_if_declared
from ..report import LedgerRow
from ..search import search
from .layers import LAYERS, gradients, output
from .runner import Run, Tally

ATTEMPTS = 4
"""How often cases are drawn anew, each time more, for a relation that few of them fit."""


def check_relations(run: Run, gradients: bool, turn: int, examples: int) -> None:
    """One round: so many examples of every relation, in every dtype; a slow one gets a single example in the first round."""
    for number, relation in enumerate(RELATIONS):
        for dtype in run.dtypes[:1] if relation.slow and turn == 0 else run.dtypes:
            if run.over:
                return
            wanted = 1 + turn if relation.slow else examples
            _relation(run, relation, dtype, gradients, wanted, turn * 1009 + number)


def _relation(run: Run, relation: Relation, dtype: str, gradients: bool, wanted: int, salt: int) -> None:
    name = f"{relation.number} {relation.name}"
    tally, reported = run.tally(name, relation.rule, relation.summary), run.reported_checks()
    void: set[str] = set()
    shrinking = False
    enough = tally.examples + wanted

    def evaluate(drawn: Case) -> None:
        nonlocal shrinking
        if relation.slow and tally.examples >= enough and not shrinking:
            return
        case = fit(relation, run.subject, drawn)
        if isinstance(case, str):
            void.add(case)
            return
        run.event(name, case)
        try:
            _relation_evaluate(run, relation, name, case, tally, not shrinking)
        except Violation as violation:
            shrinking = shrinking or violation.check not in reported
            raise

    for attempt in range(ATTEMPTS):
        outcome = search(
            cases(run.subject, dtype, None, gradients), evaluate, examples=wanted * (attempt + 1) + 1,
            seed=run.seed * 6007 + salt * 101 + attempt, shrink_steps=run.steps_left(), limit=run.limit, reported=reported,
        )  # fmt: skip
        run.record(outcome, lambda case: relation.adapt(case, run.subject))
        if tally.examples >= enough or tally.finding is not None or run.over:
            break
    if not tally.examples and void:
        tally.void = "; ".join(sorted(void)[:2])


def _relation_evaluate(run: Run, relation: Relation, name: str, case: Case, tally: Tally, counted: bool) -> None:
    with tally.example(counted):
        evaluated = Evaluated(run.subject, case)
        try:
            with deterministic_if_declared(evaluated):
                tally.saw(relation.run(evaluated), counted)
        except Violation as violation:
            raise renamed(violation, name) from violation
        except (RuntimeError, IndexError, ValueError, TypeError) as reason:  # a result of the wrong shape or type
            raise Violation(name, f"returned a result that cannot be compared: {format_exception(reason)}") from reason


PATIENCE = 30
"""How many cases are drawn for a cell that none of its own examples met, before it counts as refused or missing."""


def check_cells(run: Run, gradients: bool, turn: int, examples: int) -> None:
    """One round: so many examples of every declared cell, in every dtype."""
    declared = cells(run.subject.capabilities, gradients)
    for cell in declared:
        empty = LedgerRow(cell.group, cell.name, dict.fromkeys(run.dtypes, 0))
        run.ledger.setdefault((cell.group, cell.name), empty)
    for number, cell in enumerate(declared):
        for dtype in run.dtypes:
            if run.over:
                return
            row = run.ledger[cell.group, cell.name]
            if not row.refused and dtype in row.counts:
                _cell(run, cell, declared, dtype, gradients, examples, (turn * 1009 + number) * 31)


def _cell(run: Run, cell: Cell, all_cells: list[Cell], dtype: str, gradients: bool, examples: int, salt: int) -> None:
    row, reported = run.ledger[cell.group, cell.name], run.reported_checks()
    refused: set[str] = set()
    shrinking = False

    def evaluate(case: Case) -> None:
        nonlocal shrinking
        verdict = run.subject.evaluate(case.request(run.subject.device))
        if not verdict.accepted:
            refused.update(verdict.refused)
            return
        if not shrinking:
            plan = plan_of(case)
            for other in all_cells:
                if other.meets(plan):
                    counts = run.ledger[other.group, other.name].counts
                    counts[dtype] = counts.get(dtype, 0) + 1
        try:
            _cell_evaluate(run, case, not shrinking)
        except Violation as violation:
            shrinking = shrinking or violation.check not in reported
            raise

    for attempt, number in enumerate((examples, PATIENCE)):
        outcome = search(
            cases(run.subject, dtype, cell, gradients), evaluate, examples=number, seed=run.seed * 7919 + salt + attempt,
            shrink_steps=run.steps_left(), limit=run.limit, reported=reported,
        )  # fmt: skip
        run.record(outcome)
        if row.counts[dtype] or run.over:
            return
    if refused:
        del row.counts[dtype]
        if not row.counts:
            nothing = dict.fromkeys(run.dtypes, 0)
            run.ledger[cell.group, cell.name] = replace(row, counts=nothing, refused="; ".join(sorted(refused)))


def _cell_evaluate(run: Run, case: Case, counted: bool) -> None:
    """All layers, the first that fails ends it."""
    run.event("layers", case)
    evaluated = Evaluated(run.subject, case)
    undecided: Inconclusive | None = None
    for layer in LAYERS:
        tally = run.tally(layer.name, layer.rule, layer.summary)
        try:
            with tally.example(counted):
                tally.saw(layer.evaluate(evaluated), counted)
        except Inconclusive as reason:
            undecided = reason
    if undecided is not None:
        raise undecided


GRADES = {"A": 1.5, "B": 3.0, "C": float("inf")}


def ratios(subject: BackendUnderTest, dtype: str, seed: int = 0) -> dict[str, float]:
    """The ratio of root mean square errors by tensor: output, and each gradient where there is a backward."""
    return _ratios(Evaluated(subject, _case(subject, dtype, seed)))


def _ratios(evaluated: Evaluated) -> dict[str, float]:
    case, exact = evaluated.case, evaluated.reference
    best = _best(evaluated.inputs, evaluated.grad_output)
    results: dict[str, Tensor] = {"output": evaluated.output.output}
    wanted = {"output": exact.output, **exact.gradients}
    if case.gradients:
        results |= evaluated.gradients
    return {name: _rms(tensor, wanted[name]) / _rms(best[name], wanted[name]) for name, tensor in results.items()}


def grade_of(ratio: float) -> str:
    """The letter of a ratio; C for NaN."""
    return next((letter for letter, limit in GRADES.items() if ratio <= limit), "C")


def check_grade(subject: BackendUnderTest, dtype: str, seed: int = 0) -> tuple[str, float]:
    """The letter and the largest ratio. Raises Violation where the declaration promises a better one, and where the graded call
    is beyond the bound as any other one."""
    evaluated = Evaluated(subject, _case(subject, dtype, seed))
    output(evaluated)
    gradients(evaluated)
    rms_ratios = _ratios(evaluated)
    name = max(rms_ratios, key=lambda tensor: rms_ratios[tensor])
    letter, promised = grade_of(rms_ratios[name]), subject.capabilities.numerics.grade
    if promised is not None and letter > promised:
        times = f"{rms_ratios[name]:.2f} times the rounding error of a careful kernel"
        message = f"{name} in {dtype} has {times}: {letter}, where {promised} is promised"
        raise Violation("grade", message, tensor=name, got=rms_ratios[name], bound=GRADES[promised])
    return letter, rms_ratios[name]


def _case(subject: BackendUnderTest, dtype: str, seed: int) -> Case:
    """Few queries, many keys, as near to 16 x 1024 x 64 as the declaration allows."""
    can = subject.capabilities
    plain = Case(B=1, H=2, G=2, Q=16, K=1024, D=64, V=64, dtype=dtype, seed=seed)
    fits = [
        replace(plain, Q=Q, K=K, D=D, V=D, gradients=gradients)
        for gradients in (can.backward, False)
        for D in (64, 32, 128, 16, 8, 256)
        for Q, K in ((16, 1024), (64, 1024), (128, 1024), (1024, 1024), (1, 1024), (16, 256), (128, 256), (16, 64))
    ]
    for case in fits:
        if subject.accepts(case.request(subject.device)):
            return case
    raise LookupError("the declaration accepts none of the sizes that are graded")


def _best(inputs: AttentionInputs, grad_output: Tensor) -> dict[str, Tensor]:
    """A plain call computed in float32 (float64 for float64), every result rounded once."""
    wide = accumulation(inputs.query.dtype)
    leaves = [tensor.detach().to(wide).requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value)]
    query, key, value = leaves
    heads = query.shape[1]
    weights = torch.softmax(inputs.scale * query @ expand_heads(key, heads).mT, -1)
    output = weights @ expand_heads(value, heads)
    grads = dict(zip(("query", "key", "value"), torch.autograd.grad(output, leaves, grad_output.to(wide)), strict=True))
    return {name: tensor.detach().to(inputs.query.dtype) for name, tensor in {"output": output, **grads}.items()}


def _rms(got: Tensor, wanted: Tensor) -> float:
    error = double(got) - wanted
    return max(float(error.square().mean().sqrt()), 1e-300)
