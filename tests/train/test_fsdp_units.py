"""FSDP2 with any sensible units: a sharded model trains and decodes as the unsharded one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from train.fsdp_units import UNITS

CASES = [(tied, units, True) for tied in (True, False) for units in UNITS]
CASES += [(True, units, False) for units in ("layers", "embedding", "nodes")]


@pytest.fixture(scope="module")
def results(fork_jobs: Any) -> dict[str, Any]:
    done = fork_jobs.script(Path(__file__).with_name("fsdp_units.py"), json.dumps(CASES))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.xdist_group("fsdp units")
@pytest.mark.parametrize(("tied", "units", "reshard"), CASES)
def test_it_trains_and_decodes_as_the_unsharded_model(tied: bool, units: str, reshard: bool, results: dict[str, Any]) -> None:
    result = results[json.dumps([tied, units, reshard])]
    # float64: sums of a few hundred terms in another order
    assert result["losses"] < 1e-13
    assert result["gradients"] < 1e-12
    assert result["ids"]
    assert result["weights"]
