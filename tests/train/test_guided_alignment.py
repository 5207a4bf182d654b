"""Links of words that a head of cross-attention learns: their loss, their files, validation, resuming, and the saved head."""

import json
import shutil

import pytest
import torch

from tfkit import InputError, Translator, load, load_recipe
from tfkit.data import Corpus, read_data, read_tokenisers
from tfkit.io.alignment_site import AlignmentSite
from tfkit.text import model_in
from tfkit.train import resume, train
from tfkit.train.averaging import average_checkpoints, average_models
from tfkit.train.loss import SMALLEST, alignment_loss
from tfkit.train.step import TrainStep
from translation_task import sentences, write_task

pytestmark = pytest.mark.xdist_group("guided alignment")  # its module fixture is trained once
ROWS = 120


def write_links(folder, rows=ROWS):
    """Word n of a sentence of the task is translated by word n."""
    counts = [len(source.split()) for source, _ in sentences(rows)]
    (folder / "train.links").write_text("".join(" ".join(f"{at}-{at}" for at in range(count)) + "\n" for count in counts))
    return write_task(folder, rows)


CHANGES = [
    "model.defaults.d_model=32", "model.defaults.dropout=0.0", "batching.tokens=512", "stopping.max_steps=60",
    "validation.every_steps=60",
]  # fmt: skip


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guided")
    recipe = write_links(folder, 600)
    changes = [f"data.alignment={folder / 'train.links'}", "loss.alignment.weight=1.0", *CHANGES]
    train(load_recipe(recipe, changes), folder / "run")
    return folder / "run"


def validations(run):
    return [
        entry for line in (run / "log.jsonl").read_text().splitlines() if (entry := json.loads(line))["kind"] == "validation"
    ]


def test_the_loss_is_the_equation():
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    links = torch.tensor([[0, 0, 1], [0, 0, 4], [0, 2, 0], [1, 3, 2], [1, 3, 3], [1, 3, 4]])
    weights = scores.softmax(-1)
    loss = alignment_loss(weights, links, 1)
    expected = 0.0
    for row, target, sources in ((0, 0, (1, 4)), (0, 2, (0,)), (1, 3, (2, 3, 4))):
        expected -= sum(weights[row, 1, target, source].log().item() for source in sources) / len(sources)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, scores)
    right = torch.zeros_like(scores)  # softmax minus the shared probability, where a token has links
    for row, target, sources in ((0, 0, (1, 4)), (0, 2, (0,)), (1, 3, (2, 3, 4))):
        right[row, 1, target] = weights[row, 1, target].detach()
        right[row, 1, target, list(sources)] -= 1 / len(sources)
    torch.testing.assert_close(gradient, right, rtol=1e-5, atol=1e-6)
    assert alignment_loss(torch.zeros(1, 1, 1, 1), torch.tensor([[0, 0, 0]]), 0).item() == pytest.approx(
        -torch.tensor(SMALLEST).log().item()
    )
    assert alignment_loss(weights, torch.zeros(0, 3, dtype=torch.int64), 0).item() == 0


def test_a_head_learns_to_align_and_the_model_keeps_it(guided, tmp_path):
    plain = [f"data.alignment={guided.parent / 'train.links'}", "loss.alignment.weight=1.0e-9", *CHANGES]
    train(load_recipe(guided.parent / "small-recipe.yaml", plain), tmp_path / "run")
    with_links, without = (validations(run)[-1]["scores"]["aer"] for run in (guided, tmp_path / "run"))
    assert with_links < 20 < 2 * with_links < without  # 11 and 60 were measured
    translator = Translator.load(guided, alignment=True)
    assert translator.alignment == AlignmentSite(site="decoder.0.cross_attention", head=0)
    assert json.loads((model_in(guided) / "alignment.json").read_text()) == {"site": "decoder.0.cross_attention", "head": 0}


def test_links_of_words_become_links_of_their_pieces(guided):
    corpus = Corpus(guided / "data" / "train.arrow")
    tokenisers = Translator.load(guided).tokenisers
    for row in range(3):
        (source,), (target,), (links,) = (corpus.rows(name, [row]) for name in ("source", "target", "links"))
        words = []
        for ids in (source, target):
            word, of_pieces = -1, []
            for piece in tokenisers["source"].pieces(ids.tolist()):
                word += piece.startswith("▁")
                of_pieces.append(None if piece in ("</s>", "▁") else word)
            words.append(of_pieces)
        pairs = {
            (s, t) for s, one in enumerate(words[0]) for t, other in enumerate(words[1]) if one is not None and one == other
        }
        assert {(int(s), int(t)) for s, t in links.reshape(-1, 2)} == pairs


def test_a_resumed_run_ends_with_the_same_weights(guided, tmp_path):
    recipe = write_links(tmp_path)
    changes = [f"data.alignment={tmp_path / 'train.links'}", "loss.alignment.weight=0.5"]
    train(load_recipe(recipe, [*changes, "stopping.max_steps=6"]), tmp_path / "whole")
    train(load_recipe(recipe, [*changes, "stopping.max_steps=3"]), tmp_path / "cut")
    resume(tmp_path / "cut", overrides=["stopping.max_steps=6"])
    for (name, one), (_, other) in zip(
        load(tmp_path / "whole").named_parameters(), load(tmp_path / "cut").named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    with pytest.raises(InputError, match="TFK111"):
        resume(tmp_path / "cut", overrides=["loss.alignment.weight=2.0"])


def test_every_saved_model_names_the_head_and_old_ones_are_removed(tmp_path):
    changes = [f"data.alignment={tmp_path / 'train.links'}", "stopping.max_steps=6", "validation.every_steps=2"]
    train(load_recipe(write_links(tmp_path), [*changes, "keeping.every_steps=2"]), tmp_path / "run")
    assert len(list((tmp_path / "run" / "models").glob("step-*"))) == 1
    average_checkpoints(tmp_path / "run", None, tmp_path / "checkpoints")
    average_models([tmp_path / "run", tmp_path / "checkpoints"], tmp_path / "models")
    for place in ("run", "checkpoints", "models"):
        assert Translator.load(tmp_path / place, alignment=True).alignment.head == 0


def test_a_gold_alignment_is_compared_without_a_head_that_learns(tmp_path):
    recipe = write_task(tmp_path)
    pairs = sentences(5, seed=4)
    (tmp_path / "val.src").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "val.trg").write_text("".join(f"{target}\n" for _, target in pairs))
    (tmp_path / "val.gold").write_text("0-0 1?1\n" * 5)
    files = [f"data.validation_{name}={tmp_path / file}" for name, file in (("source", "val.src"), ("target", "val.trg"))]
    gold = [f"data.validation_alignment={tmp_path / 'val.gold'}", "data.held_out=null", "stopping.max_steps=2"]
    train(load_recipe(recipe, [*files, *gold, "validation.metric=bleu"]), tmp_path / "run")
    scores = validations(tmp_path / "run")[-1]["scores"]
    assert 0 < scores["aer"] <= 100
    assert "bleu" in scores
    assert Translator.load(tmp_path / "run", alignment=True).alignment.head is None


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ([], "0-0\n" * 119, "TFK102 the files have different numbers of lines: .*train.trg has 120, .*train.links has 119"),
        ([], "0-0\n" * 7 + "99-0\n" + "\n" * 112, "train.links:8:1: TFK137 a link names word 99 of the source, which has "),
        ([], "0-0\n" * 7 + "0-0 0:1\n" + "\n" * 112, "train.links:8:5: TFK137 `0:1` is no link"),
        (["loss.alignment.head=2"], None, "TFK076 .*`decoder.0.cross_attention` has no head 2"),
        (["loss.alignment.site=encoder.0.self_attention"], None, "TFK076 .* matches 1 sites, of which 0 align"),
        (["compile=true"], None, "TFK108 .*a compiled model returns no attention weights"),
        (["data.alignment=null", "loss.alignment.weight=1"], None, "TFK108 .*the data have no links of words to learn"),
        (["data.validation_alignment=train.links"], None, "TFK108 .*a gold alignment belongs to validation files"),
        (["data.alignment=absent"], None, "TFK100"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(changes, text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = write_links(tmp_path)
    if text is not None:
        (tmp_path / "train.links").write_text(text)
    with pytest.raises(InputError, match=message):
        train(load_recipe(recipe, ["data.alignment=train.links", *changes]), tmp_path / "run")


def test_a_corpus_whose_links_were_altered_is_refused(guided, tmp_path):
    shutil.copytree(guided, tmp_path / "run")
    corpus = Corpus(tmp_path / "run" / "data" / "train.arrow")
    corpus._columns["links"].values[0] = corpus._columns["links"].values[0] + 999
    with pytest.raises(Exception, match=r"TFK082 .*`links` links a token that its row does not have"):
        corpus.check({"source": 90, "target": 90}, links="links")


@pytest.mark.parametrize("spec", ["transformer", "recurrent"])
def test_the_gradient_of_weights_is_that_of_a_plain_softmax(spec, tmp_path):
    """Against a difference of losses, with stored activations that are computed again, in both kinds of decoders."""
    recipe = write_links(tmp_path)
    if spec == "recurrent":
        text = (tmp_path / "small.yaml").read_text()
        attention = "{attend: before_cell, score: additive}"
        layers = f"{{kind: rnn, input: target, memory: encoder, cell: gru, d_state: 16, cross_attention: {attention}}}"
        text = text.replace("{kind: stack, input: target, memory: encoder, num_layers: 1, causal: true}", layers)
        (tmp_path / "small.yaml").write_text(text)
    changes = ["loss.alignment.weight=3.0", "stopping.max_steps=1", "model.defaults.dropout=0.0", "loss.label_smoothing=0.0"]
    changes += [f"data.alignment={tmp_path / 'train.links'}", "activation_checkpointing=true"][: 2 - (spec == "recurrent")]
    train(load_recipe(recipe, changes), tmp_path / "run")
    step = opened(tmp_path / "run")
    batch, weights = step.batch(0), {"logits": 1.0}
    parameter = next(p for name, p in step.model.named_parameters() if "decoder" in name and "cross" in name and p.dim() > 1)
    loss = step._losses(step.model, batch, weights).loss
    loss.backward()
    direction = torch.zeros_like(parameter)
    direction[0] = parameter.grad[0] / parameter.grad[0].norm()
    slope = float((parameter.grad * direction).sum())
    ends = []
    for size in (1e-2, -1e-2):
        with torch.no_grad():
            parameter.add_(direction, alpha=size)
            ends.append(float(step._losses(step.model, batch, weights).loss))
            parameter.sub_(direction, alpha=size)
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.02)


def opened(run):
    """The step of a run, with its model in training mode."""
    recipe = load_recipe(run / "recipe.yaml")
    tokenisers = read_tokenisers(run, ("source", "target"))
    step = TrainStep(load(run), recipe, read_data(recipe, run / "data", tokenisers))
    step.model.train()
    return step
