"""Hidden words and next sentences, trained together: the loss and its gradient are Hugging Face's, times the weights."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from encoder_tasks import recipe_for, validations
from parity import name_maps
from parity.comparison import copy_weights, shake
from tfkit import InputError, build, load_recipe, load_spec
from tfkit.data import NO_LABEL, epoch_of, read_data, read_tokenisers
from tfkit.train import train
from tfkit.train.step import TrainStep
from tfkit.train.validation import evaluate

pytestmark = pytest.mark.xdist_group("several-outputs")  # its module fixture is built once


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    changes = ["data.held_out=60", "validation.every_steps=10", "average=0.9"]
    train(load_recipe(recipe_for(folder, "masked_pairs", steps=20), changes), folder / "run")
    return folder / "run"


@pytest.fixture
def both(run):
    """A step of a run, with changes to its recipe, and Hugging Face's model of the same random weights."""
    from transformers import BertConfig, BertForPreTraining

    def made(*changes):
        recipe = load_recipe(run.parent / "r.yaml", ["average=null", *changes])
        data = read_data(recipe, run / "data", read_tokenisers(run, ("target",)))
        ours = build(load_spec(run / "spec.yaml"), seed=1)
        config = BertConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, hidden_dropout_prob=0.0,
            vocab_size=data.tokenisers["target"].size, max_position_embeddings=40, attn_implementation="eager",
            attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5,
        )  # fmt: skip
        theirs = BertForPreTraining(config)
        shake(theirs)
        copy_weights(ours, theirs, name_maps.shipped("BertForPreTraining"))
        return TrainStep(ours, recipe, data), theirs

    return made


def theirs_on(model, batch):
    ids, lengths = batch.inputs["tokens"], batch.lengths["tokens"]
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    labels = {"labels": batch.labels, "next_sentence_label": batch.other_labels["next"]}
    return model(ids, attention_mask=real, token_type_ids=batch.segments["tokens"], **labels)


def gradients(step):
    """The gradient of a step, which is clipped to nothing afterwards: it is taken from the weights before their update."""
    found = {}
    clip = step._clip
    step._clip = lambda *given: (
        found.update({name: each.grad.clone() for name, each in step.model.named_parameters()}),
        clip(*given),
    )[1]
    return step.run(), found


def test_the_loss_is_that_of_bert_for_pretraining(both):
    step, theirs = both()
    expected = theirs_on(theirs, step.batch(0)).loss
    expected.backward()
    made, found = gradients(step)
    assert made.loss == pytest.approx(expected.item(), rel=1e-5)
    assert made.nll == pytest.approx(expected.item(), rel=1e-5)
    for name, there in (("nodes.tokens.segments.weight", theirs.bert.embeddings.token_type_embeddings.weight),
                        ("nodes.tokens.embedding.weight", theirs.bert.embeddings.word_embeddings.weight),
                        ("nodes.next.linear.weight", theirs.cls.seq_relationship.weight),
                        ("nodes.transform.linear.weight", theirs.cls.predictions.transform.dense.weight)):  # fmt: skip
        torch.testing.assert_close(found[name], there.grad, rtol=1e-4, atol=1e-6)


def test_logits_are_computed_for_hidden_tokens_alone(both):
    step, _ = both()
    rows = []
    step.model.nodes["words"].register_forward_hook(lambda node, arguments, output: rows.append(output.tensor.shape[0]))
    labels = step.batch(0).labels
    step.run()
    assert rows == [int((labels != NO_LABEL).sum())]
    assert rows[0] < labels.numel() / 4


def test_weights_and_several_batches_of_a_step(both):
    changes = ["loss.weights={next: 0.25, words: 2.0}", "batching.accumulate=3", "loss.label_smoothing=0.1"]
    step, theirs = both(*changes)
    batches = [step.batch(number) for number in range(3)]
    outputs = [theirs_on(theirs, batch) for batch in batches]
    words = torch.cat([each.prediction_logits.flatten(0, 1) for each in outputs])
    next_logits = torch.cat([each.seq_relationship_logits for each in outputs])
    labels = torch.cat([batch.labels.flatten() for batch in batches])
    follows = torch.cat([batch.other_labels["next"] for batch in batches])

    def total(smoothing):
        settings = {"ignore_index": NO_LABEL, "label_smoothing": smoothing}
        return 2 * functional.cross_entropy(words, labels, **settings) + functional.cross_entropy(
            next_logits, follows, **settings
        ).mul(0.25)

    total(0.1).backward()
    made, found = gradients(step)
    assert made.loss == pytest.approx(total(0.1).item(), rel=1e-5)
    assert made.nll == pytest.approx(total(0.0).item(), rel=1e-5)
    there = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(found["nodes.tokens.embedding.weight"], there, rtol=1e-4, atol=1e-6)


def test_validation_is_that_of_bert_for_pretraining(both):
    step, theirs = both("loss.weights={next: 0.5}")
    step.model.eval()
    theirs.eval()
    found = evaluate(step.model, step)
    corpus, losses, right = step.data.validation, [], 0.0
    for number, rows in enumerate(epoch_of(corpus.lengths, 400, 0, 0).batches):
        draw = np.random.Generator(np.random.PCG64([number]))
        batch = step.task.batch(corpus, sorted(rows.tolist()), draw)
        with torch.no_grad():
            output = theirs_on(theirs, batch)
        follows = batch.other_labels["next"]
        sums = [
            functional.cross_entropy(output.prediction_logits.flatten(0, 1), batch.labels.flatten(), reduction="sum"),
            functional.cross_entropy(output.seq_relationship_logits, follows, reduction="sum"),
        ]
        losses.append([*sums, batch.target_tokens, len(follows)])
        right += (output.seq_relationship_logits.argmax(-1) == follows).sum().item()
    words, other, labels, pairs = (sum(map(float, each)) for each in zip(*losses, strict=True))
    assert found.nll == pytest.approx(words / labels + 0.5 * other / pairs, rel=1e-5)
    assert found.scores["next_accuracy"].value == pytest.approx(100 * right / len(corpus))
    assert set(found.scores) == {"words_accuracy", "next_accuracy"}


def test_both_losses_fall(run):
    first, last = validations(run)
    assert last["nll"] < first["nll"]
    assert set(last["scores"]) == {"words_accuracy", "next_accuracy"}
    assert json.loads((run / "data" / "facts.json").read_text())["labels"] == []


def test_the_next_sentence_has_two_classes(tmp_path):
    path = recipe_for(tmp_path, "masked_pairs", steps=1)
    train(load_recipe(path, ["model.nodes.next.classes=3"]), tmp_path / "run")
    assert load_spec(tmp_path / "run" / "spec.yaml").nodes["next"].options.classes == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["loss.weights={{nxt: 1.0}}"], r"TFK112 loss.weights.nxt: `nxt` is no output that is trained.*: words, next"),
        (
            ["model.outputs=[words]", *(f"model.nodes.{name}=null" for name in ("next", "pooled", "first"))],
            r"TFK107 outputs over classes: none",
        ),
        (
            ["model.outputs=[next]", "model.nodes.words=null", "model.nodes.transform=null"],
            r"TFK107 outputs over the .* ids of `tokens`: none",
        ),
        (["data.text={tmp}/one.txt"], r"TFK124 data: the text, or its held-out end, is one document"),
        (["batching.max_length=4"], r"TFK124 batching.max_length: rows have at most 4 tokens"),
    ],
)
def test_recipes_that_do_not_fit_are_reported(tmp_path, changes, message):
    path = recipe_for(tmp_path, "masked_pairs")
    (tmp_path / "one.txt").write_text("the dog\nred cat\n" * 30)
    with pytest.raises(InputError, match=message):
        train(load_recipe(path, [change.format(tmp=tmp_path) for change in changes]), tmp_path / "run")
