"""Recipes: read back as written, changed by --set, and errors reported with their position."""

import os
from pathlib import Path

import pytest
import yaml

from tfkit import SpecError, load_catalogue, load_recipe, load_spec
from tfkit.recipe import chosen_for, describes_model, recipe_of, recipe_text

SHIPPED = sorted((Path(__file__).parents[2] / "specs" / "recipes").glob("*.yaml"))
BASE = "tfkit: 1\nname: x\nmodel: m.yaml\nstopping: {max_steps: 5}\n"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_names_a_spec_and_reads_back_equal(path):
    recipe = load_recipe(path)
    load_spec(recipe.model, load_catalogue(), recipe.changes)
    assert recipe_of(yaml.safe_dump(recipe.written()), "again") == recipe


@pytest.mark.parametrize("rows", [1, 2_000, 2_001, 29_000, 500_000, 10**7])
def test_settings_for_a_corpus_are_a_valid_recipe(rows):
    recipe = recipe_of(recipe_text("a b", "m.yaml", "parallel", rows), "<chosen>")
    assert recipe.batching.tokens == chosen_for(rows).tokens
    assert recipe.tokeniser.options.vocab_size == chosen_for(rows).vocab_size


def test_a_larger_corpus_gets_no_smaller_vocabulary_and_warm_up():
    found = [chosen_for(10**power) for power in range(2, 9)]
    assert [each.vocab_size for each in found] == sorted(each.vocab_size for each in found)
    assert [each.warmup_steps for each in found] == sorted(each.warmup_steps for each in found)


def test_file_names_are_relative_to_the_recipe_and_those_of_set_to_here(tmp_path):
    (tmp_path / "r.yaml").write_text(BASE + "data: {kind: parallel, source: a.txt, target: b.txt}\n")
    recipe = load_recipe(tmp_path / "r.yaml", ["data.source=c.txt", "model.defaults.dropout=0.5"])
    assert recipe.model == str(tmp_path / "m.yaml")
    assert (recipe.data.options.source, recipe.data.options.target) == ("c.txt", str(tmp_path / "b.txt"))
    assert recipe.changes == ("defaults.dropout=0.5",)


@pytest.mark.parametrize(
    ("lines", "overrides", "slot", "kind", "options"),
    [
        ("", ["optimiser.eps=1e-8"], "optimiser", "adam", {"eps": 1e-8}),
        ("", ["optimiser={eps: 1.0e-8}"], "optimiser", "adam", {"eps": 1e-8}),
        ("", ["optimiser.eps=1e-8", "optimiser.beta1=0.5"], "optimiser", "adam", {"eps": 1e-8, "beta1": 0.5}),
        ("", ["optimiser.weight_decay=0.5", "optimiser.kind=adamw"], "optimiser", "adamw", {"weight_decay": 0.5}),
        ("", ["optimiser={kind: adamw}", "optimiser.eps=1e-8"], "optimiser", "adamw", {"eps": 1e-8}),
        ("optimiser: adamw\n", ["optimiser.eps=1e-8"], "optimiser", "adamw", {"eps": 1e-8}),
        ("tokeniser: {kind: unigram}\n", ["tokeniser=null", "tokeniser.joint=false"], "tokeniser", "bpe", {"joint": False}),
        ("", ["schedule.warmup_steps=7"], "schedule", "noam", {"warmup_steps": 7}),
        ("", ["data.held_out=7"], "data", "parallel", {"held_out": 7}),
        ("", ["data.text=a.txt", "data.kind=language"], "data", "language", {"text": "a.txt"}),
    ],
)
def test_an_override_of_an_option_keeps_the_kind(lines, overrides, slot, kind, options):
    part = getattr(recipe_of(BASE + lines, "r.yaml", overrides), slot)
    assert part.kind == kind
    assert {name: getattr(part.options, name) for name in options} == options


@pytest.mark.parametrize(
    ("lines", "override", "message"),
    [
        (
            "",
            "optimiser.weight_decay=0.1",
            "TFK018 optimiser: `weight_decay` does not belong here; it belongs under `optimiser: {k",
        ),
        ("", "schedule.peak=0.1", "TFK018 schedule: `peak` does not belong here"),
        ("", "optimiser.kind=null", "TFK022 optimiser: `kind` is missing"),
        ("optimiser: {eps: 1.0e-8}\n", "optimiser.beta1=0.5", "TFK022 optimiser: `kind` is missing"),
    ],
)
def test_an_override_that_does_not_fit_the_kind_is_reported(lines, override, message):
    with pytest.raises(SpecError) as caught:
        recipe_of(BASE + lines, "r.yaml", [override])
    assert message in str(caught.value)


def test_a_recipe_extends_another(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE + "batching: {tokens: 100, accumulate: 2}\nclip_norm: 1.0\n")
    (tmp_path / "near.yaml").write_text("tfkit: 1\nname: y\nextends: base.yaml\nbatching: {tokens: 50}\nclip_norm: null\n")
    recipe = load_recipe(tmp_path / "near.yaml")
    assert (recipe.name, recipe.batching.tokens, recipe.batching.accumulate, recipe.clip_norm) == ("y", 50, 2, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bathing: {tokens: 1}", "5:1: TFK010 unknown key `bathing`; did you mean `batching`?"),
        ("batching: {token: 1}", "5:12: TFK010 batching: unknown key `token`; did you mean `tokens`?"),
        ("batching: {tokens: 0}", "5:20: TFK021 batching.tokens: at least 1 is expected, `0` is written"),
        ("batching: {tokens: many}", "5:20: TFK020 batching.tokens: a whole number is expected, `many` is written"),
        (
            "batching: {label_smoothing: 0.1}",
            "TFK018 batching: `label_smoothing` does not belong here; it belongs under `loss`",
        ),
        ("precision: fp16", "5:12: TFK021 precision: `float32` or `bfloat16` or `float16` is expected, `fp16` is written"),
        ("tokeniser: {kind: bpe, vocab_size: 3}", "5:36: TFK021 tokeniser.vocab_size: at least 4 is expected, `3` is written"),
        *(
            (f"data: {{kind: {kind}, {columns}}}", f"TFK021 data: {message}; write two columns")
            for kind, columns, message in (
                ("classification", "text_column: 2", "`label_column` and `text_column` are both 2"),
                ("tagged", "label_column: 1", "`label_column` and `text_column` are both 1"),
                ("pairs", "second_column: 1", "`second_column` and `text_column` are both 1"),
                ("pairs", "label_column: 2", "`label_column` and `second_column` are both 2"),
            )
        ),
        ("data: paralel", "5:7: TFK012 data: unknown data `paralel`; did you mean `parallel`?"),
        ("loss: {label_smoothing: 1.0}", "less than 1.0 is expected"),
        ("average: .nan", "5:10: TFK008 average: the number is not finite"),
        ("seed: 1\nseed: 2", "TFK004"),
    ],
)
def test_errors_are_reported_with_their_location(line, message):
    with pytest.raises(SpecError) as caught:
        recipe_of(BASE + line + "\n", "r.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("r.yaml:")


def test_a_recipe_that_never_ends_is_refused():
    with pytest.raises(SpecError, match="or it never ends"):
        recipe_of(BASE.replace("{max_steps: 5}", "{}"), "r.yaml")


def test_all_errors_are_reported_at_once():
    with pytest.raises(SpecError) as caught:
        recipe_of("tfkit: 1\nmodle: m.yaml\nseed: -1\nstopping: {max_steps: 0}\n", "r.yaml")
    codes = sorted(diagnostic.code for diagnostic in caught.value.diagnostics)
    assert codes == ["TFK010", "TFK021", "TFK021", "TFK030"]  # modle, seed, max_steps, name


def test_a_spec_is_distinguished_from_a_recipe(tmp_path):
    (tmp_path / "r.yaml").write_text(BASE)
    assert not describes_model((tmp_path / "r.yaml").read_text(), "r.yaml")
    spec = SHIPPED[0].parent.parent / "transformer-tiny.yaml"  # it extends another, whose nodes it has
    assert describes_model(spec.read_text(), str(spec))


@pytest.mark.parametrize("kind", ["named pipe", "device"])
def test_a_model_that_is_no_regular_file_is_refused_where_it_is_written(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "r.yaml"
    path.write_text(BASE.replace("m.yaml", "pipe" if kind == "named pipe" else "/dev/zero"))
    with pytest.raises(SpecError, match=rf"r\.yaml:\d+:\d+: TFK000 model: .* cannot be read: it is a {kind}"):
        load_recipe(path)
