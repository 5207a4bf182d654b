"""Every claim runs, once and tiny; no figure is compared."""

import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

NO_CLAIMS = ("__main__", "claim", "picture", "reversal", "test_claims")
SCRIPTS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NO_CLAIMS)
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


def test_the_command_lists_every_claim_and_refuses_another_name(capsys):
    import runpy

    command = runpy.run_path(str(HERE / "__main__.py"))["main"]
    assert command([]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line in SCRIPTS] == SCRIPTS
    assert command(["tokenorder"]) == 2
    assert "did you mean `token_order`?" in capsys.readouterr().err
    assert command(["token_order", "--stored", str(HERE.parent / "results" / "claims" / "token_order.json")]) == 0
    assert "verdict: The data agree" in capsys.readouterr().out


def test_the_norm_of_the_jacobian_is_that_of_the_explicit_matrix():
    import torch
    from scaled_scores import jacobian_norm

    p = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(1)
    explicit = torch.autograd.functional.jacobian(lambda x: x.softmax(1), p.log())
    norms = torch.stack([explicit[row, :, row].norm() for row in range(5)])
    torch.testing.assert_close(jacobian_norm(p), norms, rtol=1e-12, atol=0)


def test_products_in_a_row_are_counted_on_the_longest_path():
    import steps_in_time

    import tfkit
    from tfkit import parse_spec

    counts = {
        name: steps_in_time.products_in_a_row(tfkit.build(parse_spec(spec)), 5) for name, spec in steps_in_time.SPECS.items()
    }
    assert counts == {"rnn_tanh": 5, "gru": 10, "gru_reset_after": 5, "lstm": 5, steps_in_time.LAYER: 6}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_recipes_of_trained_claims_can_be_compared(name, tmp_path):
    import reversal

    from tfkit import load_catalogue
    from tfkit.comparison.candidates import load_candidates

    script = import_module(name)
    catalogue = load_catalogue()
    given = reversal.candidates(tmp_path, script.VARIANTS, specs=script.SETTINGS.get("specs", {}))
    found = {each.name: leaves(each.recipe, catalogue) for each in load_candidates(given, catalogue)}
    assert script.SETTINGS["pairs"]
    for pair in script.SETTINGS["pairs"]:
        better, other = found[pair.better], found[pair.other]
        paths = (better.keys() | other.keys()) - {("parameters",)}
        differ = [path for path in paths if better.get(path) != other.get(path)]
        assert differ, pair
        keys = {pair.setting, f"final_{pair.setting}", pair.for_equal_parameters}
        assert [path for path in differ if not keys & {*path}] == [], pair
        assert not pair.for_equal_parameters or better["parameters",] == other["parameters",]


def leaves(recipe, catalogue):
    """Every value of a recipe and of its spec, filled in, by its path; and the number of parameters."""
    from tfkit import graph_of, load_spec
    from tfkit.spec import resolved

    loaded = load_spec(recipe.model, catalogue, recipe.changes)
    spec, parameters = resolved(loaded), graph_of(loaded).parameters()
    written = {key: value for key, value in recipe.written().items() if key not in ("model", "changes", "data")}

    def walk(value, path):
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        return [leaf for key, part in parts for leaf in walk(part, (*path, key))] or [(path, value)]

    return {**dict(walk({**written, "spec": spec}, ())), ("parameters",): parameters}


@pytest.mark.parametrize("name", sorted(path.stem for path in (HERE.parent / "results" / "claims").glob("*.json")))
def test_every_stored_verdict_follows_from_its_data(name):
    import claim
    import reversal

    result = json.loads((HERE.parents[1] / "bench" / "results" / "claims" / f"{name}.json").read_text(encoding="utf-8"))
    script = import_module(name)
    if name in TRAINED:
        pairs = script.SETTINGS["pairs"]
        verdict = script.SETTINGS.get("verdict", lambda result: reversal.verdict_of_pairs(result, pairs))
        assert result["verdict"] == verdict(result)
        run = [each["name"] for each in result["recipes"]]
        assert result["variants"] == {name: list(script.VARIANTS[name]) for name in run}
    else:
        assert result["verdict"] == script.CLAIM.verdict(claim.stored_summary(result))


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
