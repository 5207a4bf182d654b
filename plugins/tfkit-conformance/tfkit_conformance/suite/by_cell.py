"""Checks every declared cell in every dtype by all layers; the ledger counts the examples of each cell."""

from __future__ import annotations

from dataclasses import replace

from ..attention.case import Case
from ..attention.cells import Cell, cells, plan_of
from ..attention.evaluated import Evaluated
from ..attention.strategies import cases
from ..finding import Inconclusive, Violation
from ..report import LedgerRow
from ..search import search
from .layers import LAYERS
from .runner import Run

PATIENCE = 30
"""How many cases are drawn for a cell that none of its own examples met, before it counts as refused or missing."""


def check_cells(run: Run, gradients: bool, turn: int, examples: int) -> None:
    """One round: so many examples of every declared cell, in every dtype."""
    found = cells(run.subject.capabilities, gradients)
    for cell in found:
        empty = LedgerRow(cell.group, cell.name, dict.fromkeys(run.dtypes, 0))
        run.ledger.setdefault((cell.group, cell.name), empty)
    for number, cell in enumerate(found):
        for dtype in run.dtypes:
            if run.over:
                return
            row = run.ledger[cell.group, cell.name]
            if not row.refused and dtype in row.counts:
                _cell(run, cell, found, dtype, gradients, examples, (turn * 1009 + number) * 31)


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
            _evaluate(run, case, not shrinking)
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


def _evaluate(run: Run, case: Case, counted: bool) -> None:
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
