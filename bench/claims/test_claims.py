"""Every claim runs, once and tiny; no figure is compared."""

import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("claim", "picture", "reversal", "test_claims"))
TRAINED = [name for name in SCRIPTS if "from reversal" in (HERE / f"{name}.py").read_text(encoding="utf-8")]


@pytest.mark.slow
def test_measured_claims_run(tmp_path):
    import claim

    for name in sorted(set(SCRIPTS) - set(TRAINED)):
        page = tmp_path / f"{name}.html"
        found = claim.main(import_module(name).CLAIM, ["--tiny", "--seeds", "2", "--figure", str(page)])
        assert found["verdict"]
        assert "<polyline" in page.read_text(encoding="utf-8")


def test_every_result_has_a_picture_of_it():
    root = HERE.parents[1]
    results = sorted((root / "bench" / "results" / "claims").glob("*.json"))
    stored = root / "docs" / "_static" / "claims"
    assert {path.stem for path in results} == {path.stem for path in stored.glob("*.svg")}
    assert sum(path.stat().st_size for path in stored.iterdir()) < 600_000
    for path in results:
        found = json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True, allow_nan=False)
        digest = hashlib.sha256(found.encode()).hexdigest()
        drawn = (stored / f"{path.stem}.svg").read_text(encoding="utf-8")
        assert digest in drawn, f"draw it again: python bench/claims/picture.py {path.relative_to(root)} docs/_static/claims"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_recipes_of_trained_claims_can_be_compared(name, tmp_path):
    import reversal

    from tfkit import load_catalogue
    from tfkit.comparison.candidates import load_candidates

    script = import_module(name)
    given = reversal.candidates(tmp_path, script.VARIANTS, specs=getattr(script, "SETTINGS", {}).get("specs", {}))
    assert len(load_candidates(given, load_catalogue())) > 1


@pytest.mark.exhaustive
def test_a_trained_claim_runs(tmp_path, monkeypatch):
    """The runs train in this process; `tests/comparison` has runs in processes of their own."""
    import quality_by_length
    import reversal

    from tfkit.comparison import runner
    from tfkit.comparison.worker import run_job

    monkeypatch.setattr(runner.Workers, "train", lambda workers, job: run_job(job) or "")
    place = ["--directory", str(tmp_path), "--json", str(tmp_path / "found.json")]
    script = quality_by_length
    found = reversal.main(script.TEXT, script.VARIANTS, ["--tiny", "--seeds", "1", "--workers", "1", *place], **script.SETTINGS)
    assert set(found["accuracy_by_length"]) == set(script.VARIANTS)
    assert not any(each["failures"] for each in found["recipes"])
