"""One cell of every kind that `tfkit bench attention` measures, for tests that want them all."""

from __future__ import annotations

from tfkit_conformance.bench.cells import CELLS

KINDS = list(dict.fromkeys(cell.name.partition("/")[0].rpartition("-")[0] + "-" for cell in CELLS))
ONE_OF_EACH = [next(cell.name for cell in CELLS if cell.name.startswith(kind)) for kind in KINDS]
