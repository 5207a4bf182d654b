"""Every claim of `tfkit claims`: its verdict follows from its data, its recipes can be compared, and it runs. No figure of a
measurement is compared."""

import gzip
import json
import sys

import pytest

from command_line import ROOT, no_lines_of_progress, tfkit, usual_width
from forced import trained_by
from tfkit import graph_of, load_catalogue, load_spec
from tfkit.claims import CLAIMS, claim_of, stored
from tfkit.claims.claim import Measured, Request, model_of
from tfkit.claims.picture import digest
from tfkit.comparison.candidates import load_candidates
from tfkit.comparison.worker import run_job
from tfkit.spec import resolved

__all__ = ["no_lines_of_progress", "tfkit", "trained_by", "usual_width"]
TRAINED = [name for name in CLAIMS if not isinstance(claim_of(name), Measured)]
PICTURES = ROOT / "docs" / "_static" / "claims"


def test_the_list_has_every_claim_with_the_verdict_of_its_data(tfkit):
    done = tfkit("claims")
    assert done.code == 0
    assert [line.partition(":")[0] for line in done.out.splitlines() if not line.startswith(" ")] == [*CLAIMS]
    assert "embedding_scale: Embeddings need the factor sqrt(d_model).\n    -> scaled is better than" in done.out
    listed = json.loads(tfkit("claims", "--json").out)["claims"]
    assert [each["verdict"] for each in listed] == [(d := stored(name)) and claim_of(name).verdict(d) for name in CLAIMS]


def test_a_verdict_turns_with_its_data():
    claim, data = claim_of("embedding_scale"), stored("embedding_scale")
    assert "the data agree" in claim.verdict(data)
    data["scores"] = {"scaled": data["scores"]["not scaled"], "not scaled": data["scores"]["scaled"]}
    assert "the data say the opposite" in claim.verdict(data)
    claim, data = claim_of("token_order"), stored("token_order")
    [series] = data["measured"].values()
    series["none"] = series["alibi"]
    assert claim.verdict(data).startswith("The data do not agree")


def test_a_tiny_claim_is_measured_written_and_drawn(tfkit, tmp_path):
    for ending in ("html", "json", "svg"):
        done = tfkit("claims", "token_order", "--tiny", "--seeds", "2", "-o", tmp_path / f"new.{ending}", "--json")
        assert done.code == 0
        assert json.loads(done.out)["verdict"] is None
    assert (
        json.loads(done.out)["data"].keys()
        == json.loads((tmp_path / "new.json").read_text()).keys()
        == {*stored("token_order")}
    )
    assert "Verdict: none" in tfkit("claims", "token_order", "--tiny", "--seeds", "1").out
    again = tfkit("claims", "token_order", "--stored", "-o", tmp_path / "new.html")
    assert again.code != 0
    assert "TFK080" in again.err
    assert tfkit("claims", "quality_by_length", "--stored", "--force", "-o", tmp_path / "new.html").code == 0
    page = (tmp_path / "new.html").read_text()
    assert page.count("<polyline points=") >= 5
    assert "19-24 letters" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tokenorder"], "unknown claim `tokenorder`; did you mean `token_order`?"),
        (["nonsense"], "unknown claim `nonsense`; known: ablations, "),
        (["--tiny"], "--tiny belongs to one claim"),
        (["-o", "page.html"], "-o belongs to one claim"),
        (["ablations", "--stored", "--seeds", "2"], "--seeds is for measuring, and --stored measures nothing"),
        (["ablations", "-o", "page.pdf"], "ends in none of .html, .svg, .png or .json"),
        (["token_order", "--tiny", "--seeds", "10001"], "10,001 seeds are more than the 10,000 of a comparison"),
        (["token_order", "--workers", "2"], "token_order trains no recipes"),
        (["token_order", "--text", "specs"], "token_order makes its own data"),
        (["quality_ko_en"], "quality_ko_en is on text that does not come with tfkit"),
        (["quality_ko_en", "--text", "specs"], "specs/test.ko.gz"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(words, said, tfkit):
    done = tfkit("claims", *words)
    assert done.code == 2
    assert said in done.err


def test_a_missing_extra_is_named_before_any_work(tfkit, monkeypatch):
    for package in ("tokenizers", "matplotlib"):
        monkeypatch.setitem(sys.modules, package, None)  # Python takes it for not installed
    assert "tfkit-core[train]" in tfkit("claims", "ablations").err
    assert "tfkit-core[pictures]" in tfkit("claims", "token_order", "--stored", "-o", "new.svg").err


@pytest.fixture
def in_this_process(trained_by):
    """Runs train in this process; `tests/comparison` has runs in processes of their own."""
    trained_by(lambda job: run_job(job) or "")


def test_a_trained_claim_runs(tfkit, in_this_process, tmp_path):
    kept = ["--directory", tmp_path / "runs", "--workers", "1"]
    done = tfkit("claims", "embedding_scale", "--tiny", "--seeds", "1", "--json", *kept)
    assert json.loads(done.out)["data"]["scores"].keys() == {"scaled", "not scaled"}
    assert "not scaled, seed 0: " in done.err
    assert "2 of 2 runs\n" in done.err


@pytest.mark.slow
def test_claims_by_length_run_on_letters_and_on_text(in_this_process, tmp_path):
    for part in ("train", "test"):
        for language, words in (
            ("ko", "빨간 개 가 하나 있다"),
            ("en", "there is one red dog here and there it will be all day"),
        ):
            rows = [" ".join(words.split()[: 2 + at % 11]) for at in range(220)]
            with gzip.open(tmp_path / f"{part}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{row}\n" for row in rows)
    for name in ("quality_by_length", "quality_ko_en"):
        claim = claim_of(name)
        data = claim.run(Request(1, True, tmp_path / name, 1, tmp_path, lambda line: None))
        assert not data["failures"]
        assert data["by_length"].keys() == {"rnn", "rnn with attention"}
        assert "open, one seed" in claim.verdict(data)


@pytest.mark.slow
def test_every_measured_claim_runs():
    for name in sorted(set(CLAIMS) - set(TRAINED)):
        claim = claim_of(name)
        data = claim.run(Request(2, True, report=lambda line: None))
        assert claim.verdict(data)
        assert len(claim.charts(data)) == len(claim.tables(data)) == len(data["measured"])


def test_every_result_has_a_picture_of_it():
    pictures = {path.stem: path.read_text(encoding="utf-8") for path in PICTURES.glob("*.svg")}
    assert pictures.keys() == {name for name in CLAIMS if stored(name)}
    assert sum(map(len, pictures.values())) < 600_000
    for name, drawn in pictures.items():
        place = f"docs/_static/claims/{name}.svg"
        assert digest(stored(name)) in drawn, f"draw it again: tfkit claims {name} --stored --force -o {place}"


def test_the_norm_of_the_jacobian_is_that_of_the_explicit_matrix():
    import torch

    from tfkit.claims.scaled_scores import jacobian_norm

    p = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(1)
    explicit = torch.autograd.functional.jacobian(lambda x: x.softmax(1), p.log())
    norms = torch.stack([explicit[row, :, row].norm() for row in range(5)])
    torch.testing.assert_close(jacobian_norm(p), norms, rtol=1e-12, atol=0)


def test_products_in_a_row_are_counted_on_the_longest_path():
    from tfkit.claims import steps_in_time

    models = {name: model_of(text, 0, *overrides) for name, (text, overrides) in steps_in_time.SPECS.items()}
    counts = {name: steps_in_time.steps_of(model, 5) for name, model in models.items()}
    assert counts == {"rnn_tanh": 5, "gru": 10, "gru_reset_after": 5, "lstm": 5, steps_in_time.LAYER: 6}


def test_the_operations_of_one_more_token_are_those_of_the_equations():
    from tfkit.claims import decoding_time

    d, vocabulary, tokens = 256, 1000, 8
    matrices = 4 * d * d + 2 * d * d + 2 * d * 4 * d  # self-attention; queries and outputs of the other; feed-forward
    scores_and_mixing = 2 * (tokens + 1) * d + 2 * tokens * d
    model = model_of(decoding_time.SPECS[decoding_time.TRANSFORMER], 0).eval()
    steps = 1 + 2 + 1 + 1 + 2 + 1 + 2 + 1  # projection, scores and mixing, output, twice; feed-forward; logits
    assert decoding_time.step_counts(model, tokens) == (steps, 2 * (matrices + scores_and_mixing + vocabulary * d))


def leaves(recipe, catalogue):
    """Every value of a recipe and of its spec, filled in, by its path; and the number of parameters."""
    loaded = load_spec(recipe.model, catalogue, recipe.changes)
    written = {key: value for key, value in recipe.written().items() if key not in ("model", "changes", "data")}

    def walk(value, path):
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        return [leaf for key, part in parts for leaf in walk(part, (*path, key))] or [(path, value)]

    return {**dict(walk({**written, "spec": resolved(loaded)}, ())), ("parameters",): graph_of(loaded).parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_recipes_of_a_pair_differ_in_one_setting(name, tmp_path):
    claim, catalogue = claim_of(name), load_catalogue()
    for part in ("train", "test"):
        for language in ("ko", "en"):
            with gzip.open(tmp_path / f"{part}.{language}.gz", "wt", encoding="utf-8") as file:
                file.writelines("a " * (1 + 20 * (at % 2)) + "\n" for at in range(300))
    candidates = claim.candidates(tmp_path, Request(text=tmp_path))
    recipes = {each.name: leaves(each.recipe, catalogue) for each in load_candidates(candidates, catalogue)}
    assert claim.pairs
    for pair in claim.pairs:
        better, other = recipes[pair.better], recipes[pair.other]
        paths = (better.keys() | other.keys()) - {("parameters",)}
        differ = [path for path in paths if better.get(path) != other.get(path)]
        assert differ, pair
        keys = {pair.setting, f"final_{pair.setting}", pair.for_equal_parameters}
        assert [path for path in differ if not keys & {*path}] == [], pair
        assert not pair.for_equal_parameters or better["parameters",] == other["parameters",]
    data = stored(name)
    assert data["variants"] == {recipe: list(claim.variants[recipe]) for recipe in data["variants"]}
