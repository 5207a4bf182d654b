"""Links of words that a head of cross-attention learns: their loss, their files, validation, resuming, and the saved head."""

import json
import shutil

import pytest
import torch
import yaml

from tfkit import InputError, Translator, load, load_recipe
from tfkit.cli import main
from tfkit.data import Corpus, read_data, read_tokenisers
from tfkit.data.aligned_rows import AlignedRows, words_of_row
from tfkit.data.corpus_row import Row
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


@pytest.mark.parametrize("pieces", ["dropout: 0.6", "dropout: 0.0", "sampling: {alpha: 0.3}"])
@pytest.mark.parametrize("pack", [False, True])
def test_links_belong_to_the_pieces_that_are_drawn(pieces, pack, tmp_path, monkeypatch):
    """Word n of a row is linked with word n: every piece with every piece."""
    recipe = write_links(tmp_path)
    kind = "unigram" if "sampling" in pieces else "bpe"
    changes = [
        f"data.alignment={tmp_path / 'train.links'}",
        f"tokeniser={{kind: {kind}, vocab_size: 90, byte_fallback: false, {pieces}}}",
        f"batching.pack={str(pack).lower()}",
    ]  # fmt: skip
    lengths = []

    def words(step, column, ids):
        texts, count, result = step.data.tokenisers[column].pieces(ids), -1, []
        for text in texts:
            count += text.startswith("▁")
            result.append(None if text in ("▁", "<s>", "</s>", "<pad>") else count)
        return result

    def launch(step, tell):
        for epoch in (1, 2):
            for number in range(step.batches.count(epoch)):
                batch = step.batches.batch(epoch, number)
                target = torch.where(batch.labels < 0, 0, batch.labels)
                expected = set()
                for row in range(len(target)):
                    sides = [words(step, *side) for side in (("source", batch.inputs["source"][row].tolist()),
                                                             ("target", target[row].tolist()))]  # fmt: skip
                    expected |= {(row, to, at) for to, one in enumerate(sides[1]) for at, two in enumerate(sides[0])
                                 if one is not None and one == two}  # fmt: skip
                assert {tuple(link) for link in batch.links.tolist()} == expected
                lengths.append(int(batch.lengths["source"].sum()))
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainStep, "launch", launch)
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(recipe, changes), tmp_path / "run")
    assert len(lengths) > 2


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


CORPORA = [
    {
        "name": "linked", "source": "one.src", "target": "one.trg", "alignment": "one.links", "held_out": 5,
        "source_prefix": "<2x> y",
    },
    {
        "name": "plain", "source": "two.src", "target": "two.trg", "weight": 2,
        "validation_source": "v.src", "validation_target": "v.trg",
    },
]  # fmt: skip


def several(folder, **changes):
    """A recipe of two corpora; one has links, and its sources a prefix of two words."""
    recipe = yaml.safe_load(write_task(folder).read_text())
    for name, rows, seed in (("one", 40, 1), ("two", 30, 2), ("v", 6, 3)):
        pairs = [(f"{source} dog", target) for source, target in sentences(rows, seed)]
        for side, suffix in enumerate(("src", "trg")):
            (folder / f"{name}.{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
        links = [" ".join(f"{at}-{at}" for at in range(len(target.split()))) for _, target in pairs]
        (folder / f"{name}.links").write_text("".join(f"{line}\n" for line in links))
    recipe["data"] = {"kind": "parallel", "corpora": [CORPORA[0], CORPORA[1] | changes]}
    recipe["stopping"], recipe["validation"] = {"max_steps": 2}, {"every_steps": 2}
    (folder / "small-recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "small-recipe.yaml"


def words_of(pieces):
    """The word of each piece, None for the end and for a mark alone."""
    word, of_pieces = -1, []
    for piece in pieces:
        word += piece.startswith("▁")
        of_pieces.append(None if piece in ("</s>", "▁") else word)
    return of_pieces


def test_a_corpus_of_several_has_links_of_its_own(tmp_path):
    train(load_recipe(several(tmp_path), ["batching.max_length=14"]), tmp_path / "run")
    corpus = Corpus(tmp_path / "run" / "data" / "train.arrow")
    pieces = read_tokenisers(tmp_path / "run", ("source", "target"))["source"].pieces
    kept = json.loads((tmp_path / "run" / "data" / "facts.json").read_text())["parts"]["train"]["linked"]["kept"]
    assert 5 < kept < 30  # rows were left out and held out
    for row in range(len(corpus)):
        (source,), (target,), (links,) = (corpus.rows(name, [row]) for name in ("source", "target", "links"))
        one, other = words_of(pieces(source.tolist())), words_of(pieces(target.tolist()))
        pairs = {(s, t) for s, a in enumerate(one) for t, b in enumerate(other) if None not in (a, b) and a == b + 2}
        assert {(int(s), int(t)) for s, t in links.reshape(-1, 2)} == (pairs if row < kept else set())
        assert row >= kept or pairs
    (last,) = validations(tmp_path / "run")
    assert "aer" not in last["corpora"]["plain"]
    assert last["scores"]["aer"] == last["corpora"]["linked"]["aer"] > 0
    resume(tmp_path / "run", overrides=["stopping.max_steps=3"])
    assert Translator.load(tmp_path / "run", alignment=True).alignment.head == 0


def test_a_gold_alignment_of_one_corpus_is_its_own(tmp_path):
    """All links of the corpus are those of one word, so nearly all others that the model draws are wrong."""
    (tmp_path / "v.gold").write_text("0-0\n" * 6)
    path = several(tmp_path, validation_alignment="v.gold")
    train(load_recipe(path, ["data.corpora.0.alignment=null"]), tmp_path / "run")
    (last,) = validations(tmp_path / "run")
    assert "aer" not in last["corpora"]["linked"]
    assert last["scores"]["aer"] == last["corpora"]["plain"]["aer"] > 30
    assert not (model_in(tmp_path / "run") / "alignment.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.corpora.0.validation_alignment=one.links"], "TFK108 data.corpora.0.validation_alignment: a gold alignment bel"),
        (["data.alignment=one.links"], "`alignment` is written beside `corpora`"),
        (["compile=true"], "or `data.corpora.0.alignment`"),
        (["data.corpora.0.alignment=null", "loss.alignment.head=1"], "TFK108 loss.alignment: the data have no links"),
    ],
)
def test_check_refuses_settings_of_several_corpora_that_do_not_fit(changes, message, tmp_path, capsys):
    arguments = [word for change in changes for word in ("--set", change)]
    assert main(["check", str(several(tmp_path)), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_links_of_tokens_are_those_of_their_words_and_bounded(guided, tmp_path, monkeypatch):
    """Their number grows with the product of the tokens of two words, and their time with their number."""
    tokenisers = read_tokenisers(model_in(guided), ("source", "target"))
    texts = ("the dogdogdog runs", "la hundohundo")
    (tmp_path / "links").write_text("1-1 2-0 0-0\n")
    row = Row(1, texts, ([], []), (0, 0))
    sources, targets = (words_of_row(tokenisers[column], text) for column, text in zip(tokenisers, texts, strict=True))
    linked = {(1, 1), (2, 0), (0, 0)}
    wanted = [
        (place, at)
        for at, words in enumerate(targets)
        for place, others in enumerate(sources)
        if any((other, word) in linked for word in words for other in others)
    ]
    found = AlignedRows(str(tmp_path / "links"), tokenisers).tokens(row)
    assert [*zip(found[::2], found[1::2], strict=True)] == wanted
    monkeypatch.setattr("tfkit.data.aligned_rows.MAX_PAIRS", len(wanted) - 1)
    with pytest.raises(InputError, match=rf"links:1:1: TFK137 .* more than {len(wanted) - 1} links of their tokens"):
        AlignedRows(str(tmp_path / "links"), tokenisers).tokens(row)


def test_links_of_a_corpus_that_do_not_fit_are_located(tmp_path):
    path = several(tmp_path)
    (tmp_path / "one.links").write_text("0-0\n" * 6 + "8-0\n" + "0-0\n" * 33)
    with pytest.raises(InputError, match=r"one.links:7:1: TFK137 a link names word 8 of the source, which has [3-8] words"):
        train(load_recipe(path), tmp_path / "run")


def test_packed_rows_have_the_loss_of_their_links(tmp_path):
    pack = ["batching={tokens: 120, max_length: 40, pack: true}", "stopping.max_steps=1", "loss.alignment.weight=2"]
    train(load_recipe(write_links(tmp_path), [f"data.alignment={tmp_path / 'train.links'}", *pack]), tmp_path / "run")
    step = opened(tmp_path / "run")
    step.model.eval().double()
    for number in range(2):
        rows = step.batches.epoch(1).batches[number].tolist()
        alone, packed = step.task.batch(step.data.train, rows, None, 1), step.batches.batch(1, number)
        assert len(packed.labels) < len(alone.labels)
        assert len(packed.links) == len(alone.links) > 0
        results = []
        for batch in (alone, packed):
            step.model.zero_grad()
            loss = step._losses(step.model, batch, {"logits": 1.0}).loss
            loss.backward()
            results.append((loss.item(), [parameter.grad.clone() for parameter in step.model.parameters()]))
        assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)  # the sums of the loss are float32
        for one, other in zip(results[0][1], results[1][1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_adapters_keep_the_head_and_merged_models_too(guided, tmp_path):
    changes = [f"data.alignment={guided.parent / 'train.links'}", f"pretrained={guided}", "lora={rank: 2, targets: [query]}"]
    train(load_recipe(guided.parent / "small-recipe.yaml", [*CHANGES, *changes, "stopping.max_steps=2"]), tmp_path / "run")
    assert main(["merge", str(tmp_path / "run"), "-o", str(tmp_path / "merged")]) == 0
    for place in ("run", "merged"):
        assert Translator.load(tmp_path / place, alignment=True).alignment.head == 0


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
