"""`greedy(model, source)`: inputs by their place, for every kind of model and search."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tfkit

SPECS = Path(__file__).parents[2] / "specs"
SOURCE = torch.tensor([[5, 6, 7, 2], [8, 9, 10, 2]])
SMALL = {"d_model": 16, "vocab_size": 20, "pad_id": 0, "position": {"kind": "learned", "max_len": 9}, "placement": "pre",
         "norm": "layer_norm", "attention": {"num_heads": 2}, "ffn": {"d_ff": 8, "activation": "relu"}}  # fmt: skip
DECODER = {
    "tokens": {"kind": "tokens", "start_id": 1},
    "body": {"kind": "stack", "input": "tokens", "num_layers": 1, "causal": True},
    "logits": {"kind": "token_logits", "input": "body", "share": "tokens"},
}
SEARCHES = [tfkit.greedy, tfkit.beam_search, lambda *given, **options: tfkit.sample(*given, seed=1, **options)]


def ids_of(found):
    return [found.ids] if isinstance(found, tfkit.Generated) else [each.ids for row in found for each in row]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(ids_of(one), ids_of(other), strict=True))


@pytest.fixture(scope="module")
def translator(catalogue):
    return tfkit.build(SPECS / "transformer-tiny.yaml", catalogue, seed=1).eval()


@pytest.fixture(scope="module")
def decoder(catalogue):
    return tfkit.build({"tfkit": 1, "name": "d", "defaults": SMALL, "nodes": DECODER, "outputs": ["logits"]}, catalogue).eval()


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sample"])
def test_a_source_by_its_place(search, translator):
    want = search(translator, source=SOURCE, max_new_tokens=4)
    assert equal(search(translator, SOURCE, max_new_tokens=4), want)
    assert equal(search(translator, SOURCE, target="target", max_new_tokens=4), want)
    prompt = torch.tensor([[1, 7], [1, 8]])
    want = search(translator, source=SOURCE, prompt=prompt, max_new_tokens=4)
    assert equal(search(translator, SOURCE, prompt=prompt, max_new_tokens=4), want)


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sample"])
def test_a_prompt_by_its_place(search, decoder):
    prompt = torch.tensor([[1, 7, 8]])
    assert equal(search(decoder, prompt, max_new_tokens=4), search(decoder, prompt=prompt, max_new_tokens=4))


def test_sources_by_their_places(catalogue):
    small = ["d_model=16", "vocab_size=30", "attention.num_heads=4", "ffn.d_ff=8"]
    overrides = [*(f"defaults.{size}" for size in small), "target.start_id=1"]
    model = tfkit.build(tfkit.load_spec(SPECS / "multi-source.yaml", catalogue, overrides), catalogue).eval()
    first, second = [name for name in model.plan.inputs if name != "target"]
    one, other = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
    want = tfkit.greedy(model, max_new_tokens=3, **{first: one, second: other}).ids
    assert torch.equal(tfkit.greedy(model, one, other, max_new_tokens=3).ids, want)
    assert torch.equal(tfkit.greedy(model, other, max_new_tokens=3, **{first: one}).ids, want)
    with pytest.raises(tfkit.InputError, match=rf"TFK073 positional inputs: 1; inputs not given by name: {first}, {second}"):
        tfkit.greedy(model, one, max_new_tokens=3)


@pytest.mark.slow
def test_a_limit_that_is_not_given_is_that_of_the_paper(translator):
    found = tfkit.greedy(translator, SOURCE)
    assert torch.equal(found.ids, tfkit.greedy(translator, SOURCE, max_new_tokens=54).ids)
    assert int(found.lengths.max()) == 54


def test_a_limit_that_is_not_given_ends_with_the_positions(decoder):
    assert tfkit.greedy(decoder, torch.tensor([[1, 7, 8]])).lengths.tolist() == [7]  # the last token is never read
    assert tfkit.greedy(decoder).lengths.tolist() == [9]


@pytest.mark.parametrize(
    ("given", "named"),
    [((SOURCE, SOURCE), {}), ((SOURCE,), {"source": SOURCE}), ((SOURCE,), {"source": SOURCE, "target": "target"})],
)
def test_too_many_inputs(given, named, translator):
    with pytest.raises(tfkit.InputError, match=r"TFK073 positional inputs: .*; inputs not given by name: "):
        tfkit.greedy(translator, *given, max_new_tokens=3, **named)


def test_a_prompt_is_given_once(decoder):
    prompt = torch.tensor([[1, 7, 8]])
    with pytest.raises(tfkit.InputError, match="TFK073"):
        tfkit.greedy(decoder, prompt, prompt=prompt)
    with pytest.raises(tfkit.InputError, match="TFK073"):
        tfkit.greedy(decoder, prompt, prompt)


def test_an_encoder_has_nothing_to_decode(catalogue):
    nodes = {name: {**node} for name, node in DECODER.items()}
    nodes["body"]["causal"] = False
    model = tfkit.build({"tfkit": 1, "name": "e", "defaults": SMALL, "nodes": nodes, "outputs": ["logits"]}, catalogue)
    with pytest.raises(tfkit.InputError, match="TFK075 `tokens` cannot be decoded step by step"):
        tfkit.greedy(model, SOURCE)
