"""Log-probabilities of texts that exist: those of training's loss, of the search that made the text, and of a plain loop."""

import copy
import math

import pytest
import torch

from tfkit import InputError, Rescorer, Search, Translator, load_recipe
from tfkit.cli import main
from tfkit.data import Corpus, task_of
from tfkit.train import train
from tfkit.train.distributed.process_group import ProcessGroup
from tfkit.train.loss import smoothed_cross_entropy
from tfkit.train.validation import validation_nll
from translation_task import sentences

pytestmark = pytest.mark.xdist_group("translator")


@pytest.fixture(scope="module")
def rescorer(trained):
    return Rescorer.load(trained)


@pytest.fixture(scope="module")
def language_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    (folder / "text").write_text("".join(f"{source}\n" for source, _ in sentences(60)))
    (folder / "lm.yaml").write_text(
        "tfkit: 1\nname: lm\nmodel: spec.yaml\ndata: {kind: language, text: text, held_out: 5}\nbatching: {max_length: 12}\n"
        "tokeniser: {kind: bpe, vocab_size: 90, byte_fallback: false}\nstopping: {max_steps: 3}\n"
    )
    (folder / "spec.yaml").write_text(
        "tfkit: 1\nname: lm\ndefaults: {d_model: 16, vocab_size: 90, pad_id: 0, placement: pre, norm: layer_norm,\n"
        "  position: {kind: learned, max_len: 12}, attention: {num_heads: 2}, ffn: {d_ff: 32, activation: relu}}\n"
        "nodes:\n  text: {kind: tokens}\n  decoder: {kind: stack, input: text, num_layers: 1, causal: true}\n"
        "  logits: {kind: token_logits, input: decoder, share: text}\noutputs: [logits]\n"
    )
    train(load_recipe(folder / "lm.yaml"), folder / "run")
    return folder / "run"


def in_float64(model, source, target):
    """log P of every target token, one step after another, in float64 and without a batch."""
    total, tokens = 0.0, [1]
    for wanted in target:
        logits = model(source=torch.tensor([source]), target=torch.tensor([tokens])).logits[0, -1].tolist()
        largest = max(logits)
        total += logits[wanted] - largest - math.log(math.fsum(math.exp(logit - largest) for logit in logits))
        tokens.append(wanted)
    return total


def test_it_is_a_plain_loop_in_float64(rescorer):
    wide = copy.deepcopy(rescorer.model).double().eval()
    pairs = sentences(3, seed=7)
    for pair, result in zip(pairs, rescorer.rescore(pairs), strict=True):
        source, target = (rescorer.tokenisers["target"].encode([text])[0] for text in pair)  # both sides share a vocabulary
        with torch.no_grad():
            expected = in_float64(wide, [*source, 2], [*target, 2])
        assert result.log_probability == pytest.approx(expected, rel=1e-5)
        assert list(result.pieces) == rescorer.tokenisers["target"].pieces([*target, 2])


def test_it_is_the_loss_of_a_validation(trained, rescorer):
    corpus = Corpus(trained / "data" / "validation.arrow")
    pairs = list(zip(corpus.text("source_text", 1000), corpus.text("target_text", 1000), strict=True))
    results = list(rescorer.rescore(pairs))
    recipe = load_recipe(trained / "recipe.yaml")
    task = task_of(recipe, rescorer.roles, rescorer.tokenisers)
    nll, _ = validation_nll(rescorer.model, corpus, task, recipe, torch.device("cpu"), ProcessGroup())
    count = sum(len(result.pieces) for result in results)
    assert -sum(result.log_probability for result in results) / count == pytest.approx(nll, rel=1e-5)


def test_with_the_end_it_is_the_loss_of_rows_of_texts(tmp_path, language_run, capsys):
    folder = language_run.parent
    changes = [f"data={{kind: texts, text: {folder / 'text'}, held_out: 5}}", "batching.max_length=13", "stopping.max_steps=4"]
    train(load_recipe(folder / "lm.yaml", changes), tmp_path / "run")
    rescorer = Rescorer.load(tmp_path / "run", end=True)
    corpus = Corpus(tmp_path / "run" / "data" / "validation.arrow")
    texts = corpus.text("target_text", 100)
    results = list(rescorer.rescore(texts))
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml")
    task = task_of(recipe, rescorer.roles, rescorer.tokenisers)
    nll, _ = validation_nll(rescorer.model, corpus, task, recipe, torch.device("cpu"), ProcessGroup())
    assert all(result.pieces[-1] == "</s>" for result in results)
    count = sum(len(result.pieces) for result in results)
    assert -sum(result.log_probability for result in results) / count == pytest.approx(nll, rel=1e-5)
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    assert main(["rescore", str(tmp_path / "run"), str(tmp_path / "texts"), "--end"]) == 0
    printed = capsys.readouterr().out.split()
    assert printed == [f"{result.log_probability:.4f}" for result in results]
    without = list(Rescorer.load(tmp_path / "run").rescore(texts))
    assert all(len(one.pieces) == len(other.pieces) - 1 for one, other in zip(without, results, strict=True))


def test_it_is_the_loss_of_the_rows_of_a_language_model(language_run):
    rescorer = Rescorer.load(language_run)
    texts = ["the dog sings", "old cat", "one two red blue"]
    results = list(rescorer.rescore(texts))
    for text, result in zip(texts, results, strict=True):
        ids = torch.tensor([rescorer.tokenisers["target"].encode([text])[0]])
        with torch.no_grad():
            logits = rescorer.model(text=ids[:, :-1]).logits
        nll = smoothed_cross_entropy(logits, ids[:, 1:], 0.0, "uniform", -100).nll
        assert result.log_probability == pytest.approx(-float(nll), rel=1e-5)
        assert len(result.pieces) == ids.shape[1] - 1
    (too_long, one) = rescorer.rescore(["the dog sings " * 9, "the"])
    assert too_long.log_probability is one.log_probability is None
    assert "and at most 13 are read" in too_long.reason
    assert one.reason == "the text has one token, and the first one is not predicted"


def test_it_is_what_a_beam_search_gives_its_hypotheses(trained, rescorer):
    sources = [source for source, _ in sentences(8, seed=5)]
    found = list(Translator.load(trained, Search(beams=3, n_best=3)).translate(sources))
    rows = [(one.source, text) for one in found for text in one.texts]
    hypotheses = [hypothesis for one in found for hypothesis in one.hypotheses]
    compared = 0
    for result, hypothesis in zip(rescorer.rescore(rows), hypotheses, strict=True):
        if list(result.pieces) == rescorer.tokenisers["target"].pieces(hypothesis.ids.tolist()):
            assert result.log_probability == pytest.approx(hypothesis.log_probability, rel=1e-4)
            compared += 1
    assert compared > 8


def test_a_row_has_one_result_in_any_batch(rescorer):
    pairs = [*sentences(12, seed=3), ("", ""), ("the dog", ""), ("", "la hundo")]
    whole = list(rescorer.rescore(pairs))
    alone = Rescorer(rescorer.model, rescorer.tokenisers, batch_tokens=1)
    for one, other in zip(whole, alone.rescore(pairs, chunk=2), strict=True):
        assert (one.source, one.target, one.pieces, one.reason) == (other.source, other.target, other.pieces, other.reason)
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, rel=1e-4, abs=1e-6)
    assert [one.reason for one in whole[-3:]] == ["", "the target is empty", "the source is empty"]
    (cut,) = Rescorer(rescorer.model, rescorer.tokenisers, max_length=3).rescore([("the old dog sings", "la")])
    assert cut.reason.startswith("the source has ")


def test_pairs_are_aligned_as_the_search_that_made_them(trained):
    sources = [source for source, _ in sentences(6, seed=2)]
    found = list(Translator.load(trained, Search(kind="greedy"), alignment=True).translate(sources))
    rescorer = Rescorer.load(trained, alignment=True)
    results = list(rescorer.rescore([(one.source, one.text) for one in found]))
    same = [
        result.alignment == one.alignments[0]
        for one, result in zip(found, results, strict=True)
        if result.pieces == one.pieces[0]
    ]
    assert len(same) > 2
    assert all(same)


@pytest.mark.parametrize("rows", ["the dog", [("a",)], ["ab"], [("a", None)]])
def test_rows_that_are_no_pairs_are_refused(rescorer, rows):
    with pytest.raises(InputError):
        list(rescorer.rescore(rows))
