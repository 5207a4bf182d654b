"""Rows of several documents, positions that the caller gives, masks of attention sites, and prefixes that all tokens see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import tfkit
from tfkit import Model

SCHEMES = [
    "none", "sinusoidal", "{kind: learned, max_len: 12}", "{kind: learned, max_len: 12, count: visible, offset: 2}",
    "rotary_half", "rotary_interleaved", "alibi", "relative_t5", "relative_shaw",
]  # fmt: skip
LENGTHS = {"source": [[5, 3, 1], [9, 2]], "target": [[4, 1, 3], [2, 7]]}
"""The lengths of the documents of two rows; padding makes the rows equally long."""

Ids = Callable[..., Tensor]


def packed(parts: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """Ids (B, L) of rows of documents, and the number of each token's document; padding is 0 and belongs to none."""
    rows = [torch.cat(row) for row in parts]
    numbers = [torch.cat([torch.full_like(part, 7 + 2 * number) for number, part in enumerate(row)]) for row in parts]
    ids, documents = (torch.nn.utils.rnn.pad_sequence(tensors, True, 0) for tensors in (rows, numbers))
    return ids, documents


def pieces(ids_of: Ids, name: str) -> list[list[Tensor]]:
    return [[ids_of(1, length, 10 * row + at)[0] for at, length in enumerate(row_lengths)]
            for row, row_lengths in enumerate(LENGTHS[name])]  # fmt: skip


def cases() -> list[Any]:
    plain = [(shape, scheme, "eager") for shape in ("decoder", "encoder-decoder") for scheme in SCHEMES]
    return [*plain, ("decoder", "rotary_half", "sdpa"), ("encoder-decoder", "alibi", "sdpa"), ("decoder", "alibi", "flex")]


@pytest.mark.parametrize(("shape", "scheme", "backend"), cases())
def test_each_document_of_a_row_is_computed_as_alone(
    shape: str, scheme: str, backend: str, model_of: Callable[..., Model], ids_of: Ids, rounding: Callable[..., float]
) -> None:
    model = model_of(shape, position=scheme, dtype=torch.float64, backend=backend)
    names = {"source": "source", "target": "target"} if shape == "encoder-decoder" else {"tokens": "target"}
    parts = {name: pieces(ids_of, like) for name, like in names.items()}
    whole = {name: packed(rows) for name, rows in parts.items()}
    ids, documents = ({name: pair[at] for name, pair in whole.items()} for at in (0, 1))
    with torch.no_grad():
        together = model(**ids, documents=documents)["logits"]
        read = [*names][-1]
        for row in range(2):
            start = 0
            for at, part in enumerate(parts[read][row]):
                alone = model(**{name: rows[row][at][None] for name, rows in parts.items()})["logits"][0]
                here = together[row, start : start + len(part)]
                assert float((here - alone).abs().max()) <= rounding(model, alone, ids[read].shape[1])
                start += len(part)
        if scheme != "none":  # without `documents`, the second document would see the first
            assert float((together - model(**ids)["logits"])[0, 5:].abs().max()) > 1e-3


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_the_loss_of_packed_rows_is_the_mean_over_their_documents(
    shape: str, model_of: Callable[..., Model], ids_of: Ids
) -> None:
    model = model_of(shape, dtype=torch.float64)
    targets = pieces(ids_of, "target")
    labels, numbers = packed(targets)
    sources = pieces(ids_of, "source")
    total, count = 0.0, 0
    for row, rows in enumerate(targets):
        for at, part in enumerate(rows):
            if shape == "decoder":
                logits, wanted = model(tokens=part[None])["logits"][0, :-1], part[1:]
            else:
                shifted = torch.cat([torch.tensor([1]), part[:-1]])[None]
                logits, wanted = model(source=sources[row][at][None], target=shifted)["logits"][0], part
            total += functional.cross_entropy(logits, wanted, reduction="sum").item() if len(wanted) else 0.0
            count += len(wanted)
    if shape == "decoder":
        loss = model(tokens=labels, documents={"tokens": numbers}, labels=labels)["loss"]
    else:
        ids, documents = packed(sources)
        loss = model(source=ids, documents={"source": documents, "target": numbers}, labels=labels)["loss"]
    assert loss.item() == pytest.approx(total / count, rel=1e-12)


def test_gradients_of_packed_rows_are_those_of_their_documents(model_of: Callable[..., Model], ids_of: Ids) -> None:
    model = model_of("decoder", position="rotary_half", dtype=torch.float64)
    parts = pieces(ids_of, "target")
    ids, documents = packed(parts)
    weight = torch.randn(2, ids.shape[1], 19, dtype=torch.float64)
    logits = model(tokens=ids, documents={"tokens": documents})["logits"]
    (logits * weight * (ids != 0)[..., None]).sum().backward()
    together = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    for row, rows in enumerate(parts):
        start = 0
        for part in rows:
            (model(tokens=part[None])["logits"][0] * weight[row, start : start + len(part)]).sum().backward()
            start += len(part)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(parameter.grad, together[name], rtol=1e-10, atol=1e-10), name


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "none"])
def test_positions_of_a_permuted_set_give_the_permuted_output(
    scheme: str, model_of: Callable[..., Model], ids_of: Ids, rounding: Callable[..., float]
) -> None:
    """Without a causal mask a Transformer sees a set: tokens in another order, with the positions that they had, give the same
    vectors in that order."""
    encoder = """
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 2, causal: false}
outputs: [body]
"""
    model = model_of(encoder, position=scheme, dtype=torch.float64)
    ids = ids_of(2, 8, 3)
    order = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)])
    with torch.no_grad():
        straight = model(tokens=ids)["body"].gather(1, order[..., None].expand(-1, -1, 24))
        shuffled = model(tokens=ids.gather(1, order), positions={"tokens": order})["body"]
        unmoved = model(tokens=ids.gather(1, order))["body"]
    assert float((shuffled - straight).abs().max()) <= rounding(model, straight, 8)
    assert float((unmoved - straight).abs().max()) > 1e-3


def test_a_prefix_is_seen_from_all_tokens_and_the_rest_is_causal(
    model_of: Callable[..., Model], ids_of: Ids, rounding: Callable[..., float]
) -> None:
    model = model_of("decoder", position="alibi", dtype=torch.float64)
    ids, prefixes = ids_of(3, 7, 4), torch.tensor([3, 0, 7])
    places = torch.arange(7)
    pairs = torch.stack([(places <= places[:, None]) | (places < prefix) for prefix in prefixes])
    with torch.no_grad():
        logits = model(tokens=ids, prefixes={"tokens": prefixes})["logits"]
        causal = model(tokens=ids)["logits"]
        for row in range(3):
            for changed in range(7):
                other = ids.clone()
                other[row, changed] = 3 + (ids[row, changed] - 2) % 16
                moved = (model(tokens=other, prefixes={"tokens": prefixes})["logits"] - logits)[row].abs().amax(-1) > 1e-6
                assert torch.equal(moved, pairs[row, :, changed]), (row, changed)
    assert torch.allclose(logits[1], causal[1], rtol=0, atol=rounding(model, causal, 7))


def test_a_mask_of_a_site_hides_pairs_at_that_site_alone(model_of: Callable[..., Model], ids_of: Ids) -> None:
    model = model_of("encoder-decoder", dtype=torch.float64)
    inputs = {"source": ids_of(2, 6, 5), "target": ids_of(2, 4, 6)}
    pairs = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(3)) < 0.5
    pairs[:, :, 0] = True
    sites = ("decoder.0.cross_attention", "decoder.1.cross_attention")
    with torch.no_grad():
        outputs = model(**inputs, masks={sites[1]: pairs}, weights=sites)
        plain = model(**inputs, weights=sites)
    assert torch.equal(outputs["weights"][sites[0]], plain["weights"][sites[0]])
    hidden = ~pairs[:, None].expand(-1, 6, -1, -1)
    assert float(outputs["weights"][sites[1]][hidden].abs().max()) == 0.0
    seen = (plain["weights"][sites[1]] * pairs[:, None]).double()
    assert torch.allclose(outputs["weights"][sites[1]], seen / seen.sum(-1, keepdim=True), rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        both = model(**inputs, masks={"*.cross_attention": pairs, "source": torch.ones(2, 6, dtype=torch.bool)})["logits"]
    assert not torch.allclose(both, outputs["logits"])


def test_documents_compile(model_of: Callable[..., Model], ids_of: Ids) -> None:
    model = model_of("decoder", position="rotary_half")
    ids, documents = packed(pieces(ids_of, "target"))
    with torch.no_grad():
        eager = model(tokens=ids, documents={"tokens": documents})["logits"]
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(tokens=ids, documents={"tokens": documents})
    assert torch.allclose(compiled["logits"], eager, rtol=1e-4, atol=1e-4)


RNN = """
nodes:
  tokens: {kind: tokens}
  first:  {kind: stack, input: tokens, num_layers: 1, causal: false}
  body:   {kind: rnn, input: first, d_state: 24, cell: gru}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""
LONG = torch.zeros(2, 4, dtype=torch.int64)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a list": ({"documents": {"tokens": [[0]]}}, "the documents of `tokens` is a list"),
    "no mapping": ({"documents": LONG}, "`documents` is a Tensor"),
    "another input": ({"positions": {"token": LONG}}, "positions name `token`, which is no input"),
    "another shape": ({"documents": {"tokens": LONG[:, :3]}}, r"torch.int64 \(2, 3\), its ids \(2, 4\)"),
    "real numbers": ({"positions": {"tokens": LONG.float()}}, "positions are integers"),
    "falling": ({"documents": {"tokens": torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0]])}}, r"hold 0 at \[1, 3\]"),
    "negative": ({"positions": {"tokens": torch.tensor([[0, 1, 2, 3], [0, -1, 0, 0]])}}, r"hold -1 at \[1, 1\]"),
    "beyond": ({"prefixes": {"tokens": torch.tensor([0, 5])}}, r"hold 5 at \[1\]: a prefix has 0 to 4 tokens|hold 5 at \[1\]"),
    "two": ({"prefixes": {"tokens": torch.tensor([0, 1])}, "documents": {"tokens": LONG}}, "has documents and prefixes"),
    "two masks of a site": (
        {"masks": {"body.*": torch.ones(2, 4, 4, dtype=torch.bool), "body.0.*": torch.ones(2, 4, 4, dtype=torch.bool)}},
        "`body.0.self_attention` has two masks",
    ),
    "no site": ({"masks": {"bodi.*": torch.ones(2, 4, 4, dtype=torch.bool)}}, "`bodi.*` matches no attention site"),
    "pairs of others": ({"masks": {"body.*": torch.ones(2, 4, 3, dtype=torch.bool)}}, "its queries and keys are 4 and 4"),
    "pairs that are numbers": ({"masks": {"body.*": torch.ones(2, 4, 4)}}, "bool .batch, queries, keys."),
    "pairs of an input": ({"masks": {"tokens": torch.ones(2, 4, 4, dtype=torch.bool)}}, "batch and length are"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str, model_of: Callable[..., Model], ids_of: Ids) -> None:
    arguments, message = WRONG[case]
    model = model_of("decoder")
    with pytest.raises(tfkit.TfkitError, match=message):
        model(tokens=ids_of(2, 4), **arguments)


@pytest.mark.parametrize(
    ("shape", "position", "label", "message"),
    [
        (RNN, "none", "documents", "`body` .rnn. mixes tokens by more than attention"),
        (RNN, "none", "positions", "no position scheme reads them"),
        (RNN, "none", "prefixes", "no causal stack reads it"),
        ("encoder-decoder", "sinusoidal", "documents", "none of `target`"),
    ],
)
def test_a_model_that_cannot_is_named(
    shape: str, position: str, label: str, message: str, model_of: Callable[..., Model], ids_of: Ids
) -> None:
    model = model_of(shape, position=position)
    inputs = {name: ids_of(2, 4) for name in model.plan.inputs}
    name = next(iter(inputs))
    with pytest.raises(tfkit.InputError, match=message):
        model(**inputs, **{label: {name: torch.zeros(2, dtype=torch.int64) if label == "prefixes" else LONG}})


def test_documents_of_other_numbers_are_refused(model_of: Callable[..., Model], ids_of: Ids) -> None:
    model = model_of("encoder-decoder")
    numbers = {"source": torch.tensor([[0, 0, 1, 1]]), "target": torch.tensor([[1, 1, 2, 2]])}
    with pytest.raises(tfkit.InputError, match=r"row 0 of `target` has the documents \[1, 2\], of `source` \[0, 1\]"):
        model(source=ids_of(1, 4), target=ids_of(1, 4), documents=numbers)


def test_a_window_and_a_prefix_exclude_each_other(model_of: Callable[..., Model], ids_of: Ids) -> None:
    model = model_of("decoder", "body.attention.window=3")
    with pytest.raises(tfkit.InputError, match="`body` has attention windows"):
        model(tokens=ids_of(2, 4), prefixes={"tokens": torch.tensor([1, 2])})


def test_positions_beyond_a_learned_table_are_an_error(model_of: Callable[..., Model], ids_of: Ids) -> None:
    model = model_of("decoder", position="{kind: learned, max_len: 4}")
    with pytest.raises(tfkit.InputError, match="has position 4, and the table of learned positions ends at `max_len` 4"):
        model(tokens=ids_of(1, 2), positions={"tokens": torch.tensor([[0, 4]])})
    padded, whole = torch.tensor([[5, 6, 7, *[0] * 9]]), torch.zeros(1, 12, dtype=torch.int64)
    with torch.no_grad():  # padding has no position
        logits = model(tokens=padded, documents={"tokens": whole})["logits"][:, :3]
        assert torch.equal(logits, model(tokens=padded, positions={"tokens": torch.arange(12)[None]})["logits"][:, :3])
        torch.testing.assert_close(logits, model(tokens=padded[:, :3])["logits"])
    ids = ids_of(1, 6)  # longer than the table, but no document is
    assert model(tokens=ids, documents={"tokens": torch.tensor([[0, 0, 0, 1, 1, 1]])})["logits"].shape == (1, 6, 19)
