"""Several corpora: their shares of an epoch, their validation, and exact resumption in the middle of an epoch."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from tfkit import InputError, SpecError, load_recipe
from tfkit.cli import main
from tfkit.data import Mixture, read_data, read_tokenisers
from tfkit.text import model_in
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in
from translation_task import sentences, write_task

pytestmark = pytest.mark.xdist_group("corpora")
CORPORA = [
    {"name": "news", "source": "news.src", "target": "news.trg", "weight": 3, "held_out": 6},
    {"name": "talks", "source": "talks.src", "target": "talks.trg", "validation_source": "v.src", "validation_target": "v.trg"},
]


def recipe_for(folder, corpora=CORPORA, **data):
    path = write_task(folder)
    recipe = yaml.safe_load(path.read_text())
    recipe["data"] = {"kind": "parallel", "corpora": corpora, **data}
    for name, rows, seed in (("news", 30, 1), ("talks", 90, 2), ("v", 10, 3)):
        pairs = sentences(rows, seed)
        for side, suffix in enumerate(("src", "trg")):
            (folder / f"{name}.{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    train(load_recipe(recipe_for(folder), ["validation={every_steps: 9, metric: chrf}"]), folder / "run")
    return folder


@pytest.mark.parametrize(("sizes", "counts"), [((5, 20), (20, 5)), ((7, 3), (4, 6)), ((3,), (3,))])
def test_every_row_of_a_corpus_is_read_before_one_is_read_again(sizes, counts):
    mixture = Mixture(sizes, counts)
    starts = np.cumsum([0, *sizes])
    read = [[] for _ in sizes]
    for epoch in range(1, 9):
        rows = mixture.rows(4, epoch)
        assert np.array_equal(rows, mixture.rows(4, epoch))
        for at in range(len(sizes)):
            inside = rows[(rows >= starts[at]) & (rows < starts[at + 1])]
            assert len(inside) == counts[at]
            read[at] += inside.tolist()
    for at, size in enumerate(sizes):
        for first in range(0, len(read[at]) - size + 1, size):
            assert len(set(read[at][first : first + size])) == size
        assert read[at][:size] != read[at][size : 2 * size] or size < 4


def test_shares_are_the_weights_or_sizes_to_the_power_of_one_over_t():
    assert Mixture.of([24, 90], [0.75, 0.25]).counts == (86, 28)  # 85.5 and 28.5
    shares = [size ** (1 / 5) for size in (1_000_000, 1_000)]
    counts = Mixture.of([1_000_000, 1_000], [share / sum(shares) for share in shares]).counts
    assert counts[0] / counts[1] == pytest.approx(1000 ** (1 / 5), rel=1e-4)
    assert Mixture.of([10, 1], [0.9999, 0.0001]).counts == (10, 1)


def test_batches_of_an_epoch_have_the_rows_of_the_mixture(whole, tmp_path):
    recipe = load_recipe(whole / "run" / "recipe.yaml")
    data = read_data(recipe, whole / "run" / "data", read_tokenisers(whole / "run", ("source", "target")))
    assert {name: counts.kept for name, counts in data.parts["train"].items()} == {"news": 24, "talks": 90}
    assert {name: len(corpus) for name, corpus in data.validation_parts().items()} == {"news": 6, "talks": 10}
    assert data.validation_parts()["talks"].text("source_text", 10) == [source for source, _ in sentences(10, 3)]
    from tfkit.train.batches import TrainingBatches

    for compiled in (False, True):
        batches = TrainingBatches(recipe.model_copy(update={"compile": compiled}), data, None, torch.device("cpu"))
        for epoch in (1, 2):
            rows = np.concatenate(batches.epoch(epoch).batches)
            assert Counter(rows.tolist()) == Counter(batches.mixture.rows(recipe.seed, epoch).tolist())
            assert (rows < 24).sum() == 86
            widest = [max(data.train.lengths[side][batch].max() for side in ("source", "target")) * len(batch)
                      for batch in batches.epoch(epoch).batches]  # fmt: skip
            assert max(widest) <= recipe.batching.tokens


def test_a_run_stopped_within_an_epoch_resumes_with_the_same_bits(whole, tmp_path):
    path = recipe_for(tmp_path)
    train(load_recipe(path, ["validation={every_steps: 9, metric: chrf}", "stopping.max_steps=13"]), tmp_path / "run")
    resume(tmp_path / "run", overrides=["stopping.max_steps=24"])
    for name in ("model", "optimiser", "average"):
        mine, theirs = (load_file(checkpoints_in(folder / "run" / "checkpoints")[-1] / f"{name}.safetensors")
                        for folder in (tmp_path, whole))  # fmt: skip
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs), name


def test_the_scores_are_means_of_the_corpora_or_those_of_the_chosen_one(whole, tmp_path):
    entries = [json.loads(line) for line in (whole / "run" / "log.jsonl").read_text().splitlines()]
    last = [entry for entry in entries if entry["kind"] == "validation"][-1]
    parts = last["corpora"]
    assert parts.keys() == {"news", "talks"}
    assert last["nll"] == pytest.approx(sum(part["nll"] for part in parts.values()) / 2)
    assert last["scores"]["chrf"] == pytest.approx(sum(part["chrf"] for part in parts.values()) / 2)
    best = json.loads((whole / "run" / "models" / "best.json").read_text())
    assert best["score"] == max(entry["scores"]["chrf"] for entry in entries if entry["kind"] == "validation")
    change = "validation={every_steps: 9, metric: chrf, corpus: talks}"
    train(load_recipe(recipe_for(tmp_path), [change]), tmp_path / "run")
    chosen = json.loads((tmp_path / "run" / "models" / "best.json").read_text())
    assert chosen["score"] == max(entry["corpora"]["talks"]["chrf"] for entry in entries if entry["kind"] == "validation")


def test_what_is_printed_and_a_prefix_of_sources(tmp_path, capsys):
    corpora = [{**CORPORA[0], "source_prefix": "<2x>"}, CORPORA[1]]
    del corpora[0]["weight"]
    path = recipe_for(tmp_path, corpora, temperature=2)
    assert main(["train", str(path), "-o", str(tmp_path / "run"), "--set", "stopping.max_steps=2"]) == 0
    out = capsys.readouterr().err
    assert "train: 114 of 114 rows\n  news: 24 of 24 rows\n  talks: 90 of 90 rows\n" in out
    assert "an epoch has 39 rows of news (34.2%), 75 rows of talks (65.8%)\n" in out
    assert "validation mean of both: ppl " in out
    assert "\n  news: ppl " in out
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml")
    data = read_data(recipe, tmp_path / "run" / "data", read_tokenisers(tmp_path / "run", ("source", "target")))
    starts = [data.tokenisers["source"].decode(row.tolist())[:4] for row in data.train.rows("source", (0, 23, 24, 113))]
    assert starts[:2] == ["<2x>"] * 2
    assert "<2x>" not in starts[2:]
    assert main(["translate", str(model_in(tmp_path / "run")), "--help"]) == 0


WRONG = {
    "both": ({"source": "a"}, CORPORA, r"TFK021 data: `source` is written beside `corpora`"),
    "temperature": ({"temperature": 5}, CORPORA, r"TFK021 data: write `temperature` or a `weight`, not both"),
    "names": ({}, [CORPORA[0], {**CORPORA[1], "name": "news"}], r"two of `corpora` have the name `news`"),
    "missing": ({}, [{"name": "news", "source": "news.src"}], r"data.corpora.0: `target` is missing"),
    "key": (
        {},
        [{**CORPORA[0], "wieght": 3}],
        r"yaml:\d+:\d+: TFK010 data.corpora.0: unknown key `wieght`; did you mean `weight`",
    ),
    "weight": ({}, [{**CORPORA[0], "weight": 0}], r"data.corpora.0.weight: more than 0.* is expected"),
    "alone": ({"temperature": 5}, None, r"`temperature` divides an epoch among `corpora`"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_corpora_are_refused_with_their_place(wrong, tmp_path):
    data, corpora, message = WRONG[wrong]
    path = recipe_for(tmp_path, corpora, **data)
    if corpora is None:
        path.write_text(path.read_text().replace("  corpora: null\n", ""))
    with pytest.raises(SpecError, match=message):
        load_recipe(path)


def test_files_and_the_chosen_corpus_are_checked_before_anything_is_written(tmp_path):
    path = recipe_for(tmp_path)
    (tmp_path / "talks.trg").write_text("one line\n")
    with pytest.raises(InputError, match=r"TFK112 validation.corpus: there is no corpus `new`; did you mean `news`\?"):
        train(load_recipe(path, ["validation.corpus=new"]), tmp_path / "run")
    with pytest.raises(InputError, match=r"TFK102"):
        train(load_recipe(path), tmp_path / "run")
    with pytest.raises(InputError, match=r"data.corpora.1.held_out: rows are held out only if no validation files"):
        train(load_recipe(recipe_for(tmp_path), ["data.corpora.1.held_out=3"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["language", "masked", "classification"])
def test_other_kinds_have_several_corpora_too(kind, tmp_path):
    from kinds_task import recipe_for as recipe_of_kind

    path = recipe_of_kind(tmp_path, kind)
    recipe = yaml.safe_load(path.read_text())
    key = "table" if kind == "classification" else "text"
    file = recipe["data"].pop(key)
    recipe["data"].pop("held_out", None)
    rows = (tmp_path / file).read_text().splitlines(keepends=True)
    (tmp_path / "one").write_text("".join(rows[: len(rows) // 3]))
    (tmp_path / "two").write_text("".join(rows[len(rows) // 3 :]))
    recipe["data"]["corpora"] = [{"name": name, key: name, "weight": 1, "held_out": 5} for name in ("one", "two")]
    path.write_text(yaml.safe_dump(recipe))
    train(load_recipe(path, ["stopping={max_steps: 2}"]), tmp_path / "run")
    entry = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()][-1]
    assert entry["corpora"].keys() == {"one", "two"}
