"""Wrong tensors at call time: an InputError with a code, the input's name and the numbers; nothing is padded or broadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model

IDS = torch.randint(3, 19, (2, 5), generator=torch.Generator().manual_seed(0))
WIDE = torch.ones(2, 5, dtype=torch.bool)


def changed(row: int, column: int, value: int) -> Tensor:
    ids = IDS.clone()
    ids[row, column] = value
    return ids


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "id too large": ({"target": changed(1, 3, 19)}, "TFK072", r"`target` \(2, 5\) holds the id 19 at \[1, 3\].*0\.\.18"),
    "id negative": ({"source": changed(0, 2, -1)}, "TFK072", r"`source` \(2, 5\) holds the id -1 at \[0, 2\]"),
    "float ids": ({"source": IDS.float()}, "TFK071", "`source` has dtype torch.float32"),
    "bool ids": ({"source": IDS > 4}, "TFK071", "`source` has dtype torch.bool"),
    "one axis": ({"source": IDS[0]}, "TFK070", r"`source` has shape \(5,\)"),
    "three axes": ({"source": IDS[None]}, "TFK070", r"`source` has shape \(1, 2, 5\)"),
    "no rows": ({"source": IDS[:0], "target": IDS[:0]}, "TFK070", r"`source` has shape \(0, 5\)"),
    "no tokens": ({"target": IDS[:, :0]}, "TFK070", r"`target` has shape \(2, 0\)"),
    "one row against two": ({"source": IDS[:1]}, "TFK070", "`target` has 2 rows, `source` has 1"),
    "a list": ({"source": [[3, 4]]}, "TFK071", "`source` is a list"),
    "sparse": ({"source": torch.tensor([[3, 4]]).to_sparse()}, "TFK071", "`source` has layout torch.sparse_coo"),
    "nothing": ({"source": None}, "TFK071", "`source` is a NoneType"),
    "unknown input": ({"sorce": IDS}, "TFK073", "unknown inputs: sorce.*takes source, target"),
    "mask too short": ({"masks": {"source": WIDE[:, :4]}}, "TFK070", r"mask of `source` is torch.bool \(2, 4\).*\(2, 5\)"),
    "mask of one row": ({"masks": {"source": WIDE[:1]}}, "TFK070", r"`source` is torch.bool \(1, 5\).*\(2, 5\)"),
    "mask of numbers": ({"masks": {"target": WIDE.long()}}, "TFK070", r"`target` is torch.int64 \(2, 5\)"),
    "mask that is a list": ({"masks": {"target": [[True]]}}, "TFK071", "mask of `target` is a list"),
    "mask for nothing": ({"masks": {"sauce": WIDE}}, "TFK073", "masks name `sauce`"),
    "mask and lengths": (
        {"masks": {"source": WIDE}, "lengths": {"source": torch.tensor([5, 5])}}, "TFK073", "both a mask and lengths.*`source`",
    ),
    "lengths for each token": ({"lengths": {"source": IDS}}, "TFK070", r"lengths of `source` are torch.int64 \(2, 5\)"),
    "lengths of floats": ({"lengths": {"source": torch.ones(2)}}, "TFK070", "lengths of `source` are torch.float32"),
    "lengths that are a list": ({"lengths": {"source": [5, 5]}}, "TFK071", "lengths of `source` is a list"),
    "segments without a table": ({"segments": {"source": IDS}}, "TFK073",
                                  "`source` has no segments.*token types.*`segments: 2`.*several documents.*`documents`"),
    "segments of another shape": ({"segments": {"target": IDS[:, :4]}}, "TFK070", r"\(2, 4\).*\(2, 5\)"),
    "segment out of range": ({"segments": {"target": IDS}}, "TFK072", r"segments of target.*0\.\.1"),
    "segments that are a list": ({"segments": {"target": [[0]]}}, "TFK071", "segments of target` is a list"),
    "smoothing of no loss": ({"smoothing": 0.1}, "TFK073", "`smoothing` is given without `labels`.*give both"),
    "site": ({"weights": ["encoder.9.*"]}, "TFK076", "encoder.9"),
}  # fmt: skip


@pytest.fixture
def model(model_of: Callable[..., Model]) -> Model:
    return model_of("encoder-decoder", "target.segments=2")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_call(name: str, model: Model) -> None:
    arguments, code, pattern = CASES[name]
    with pytest.raises(tfkit.InputError, match=pattern) as error:
        model(**{"source": IDS, "target": IDS, **arguments})
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == [code]
    assert isinstance(error.value, ValueError)


def test_a_missing_input(model: Model) -> None:
    with pytest.raises(tfkit.InputError, match=r"TFK073.*missing inputs: source.*takes source, target"):
        model(target=IDS)


def test_an_error_pickles_and_a_good_call_follows(model: Model) -> None:
    import pickle

    with pytest.raises(tfkit.InputError) as error:
        model(source=IDS, target=changed(0, 0, 99))
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    model(source=IDS.to(torch.int32), target=IDS)


START: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing left": ({"source": IDS, "target": IDS}, "TFK073", "inputs given: source, target"),
    "nothing given": ({}, "TFK073", "inputs given: none"),
    "an unknown input": ({"sorce": IDS}, "TFK073", "inputs given: sorce"),
    "another batch": ({"source": IDS, "batch": 3}, "TFK070", "`batch` is 3, the inputs have 2 rows"),
    "one axis": ({"source": IDS[0]}, "TFK070", r"`source` has shape \(5,\)"),
    "a number": ({"source": 3}, "TFK071", "`source` is a int"),
    "a mask of the target": ({"source": IDS, "masks": {"target": WIDE}}, "TFK073", "masks name `target`"),
    "no capacity": ({"source": IDS, "capacity": 0}, "TFK073", "capacity is 0"),
}


@pytest.mark.parametrize("name", START)
def test_a_wrong_start(name: str, model: Model) -> None:
    arguments, code, pattern = START[name]
    with pytest.raises(tfkit.InputError, match=f"{code}.*{pattern}"):
        model.start(**arguments)


@pytest.mark.parametrize(
    ("batch", "message"), [(None, "`batch`"), (0, "batch is 0; it is a whole"), (-1, "batch is -1; it is")]
)
def test_a_model_without_other_inputs_needs_a_batch(batch: int | None, message: str, model_of: Callable[..., Model]) -> None:
    with pytest.raises(tfkit.InputError, match=message):
        model_of("decoder").start(batch=batch)


def test_a_wrong_step_changes_nothing(model: Model) -> None:
    state = model.start(source=IDS)
    for ids, words, pattern in (
        (IDS[:1], {}, r"TFK070.*`target` has shape \(1, 5\).*2 rows"),
        (changed(0, 0, 19), {}, "TFK072.*`target`"),
        (IDS.float(), {}, "TFK071.*`target`"),
        (IDS, {"visible": WIDE[:, :2]}, r"TFK070.*`visible` is torch.bool \(2, 2\).*\(2, 5\)"),
        (IDS, {"visible": WIDE.long()}, "TFK070.*`visible` is torch.int64"),
        (IDS, {"visible": False}, "TFK07.*`visible`"),
        (IDS, {"weights": ["nowhere"]}, "TFK076"),
        ([[3]], {}, "TFK071.*list"),
    ):
        with pytest.raises(tfkit.InputError, match=pattern):
            model.step(state, ids, **words)
    assert state.length == 0
    assert not state.caches
    with torch.no_grad():
        want = model(source=IDS, target=IDS)["logits"]
    torch.testing.assert_close(model.step(state, IDS)["logits"], want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rows", [torch.tensor([0, 2]), torch.tensor([-1]), torch.tensor([True, False]), torch.tensor(1), [0]])
def test_rows_that_are_not_there_cannot_be_kept(rows: Any, model: Model) -> None:
    state = model.start(source=IDS)
    model.step(state, IDS[:, :1])
    with pytest.raises(tfkit.InputError, match=r"TFK07\d.*rows"):
        state.reorder(rows)
    model.step(state, IDS[:, 1:])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["body.causal=false"], r"TFK075.*`tokens` cannot be decoded step by step: `body` \(stack\) needs the whole sequence"),
        (
            ["nodes.mean={kind: pool, input: body, take: mean}", "outputs=[logits, mean]"],
            r"TFK075.*`mean` \(pool\) needs the whole sequence",
        ),
        (
            ["nodes.other={kind: stack, input: tokens, memory: body, causal: true, num_layers: 1}", "outputs=[logits, other]"],
            "TFK075.*`other` reads `body` as a memory, which would grow",
        ),
    ],
)
def test_models_that_cannot_be_decoded_give_the_reason(
    overrides: list[str], reason: str, model_of: Callable[..., Model]
) -> None:
    model = model_of("decoder", *overrides)
    with pytest.raises(tfkit.InputError, match=reason):
        model.start(batch=2)


def test_positions_beyond_a_table_are_an_error(model_of: Callable[..., Model]) -> None:
    model = model_of("decoder", position="{kind: learned, max_len: 6}")
    with pytest.raises(tfkit.InputError, match=r"TFK061.*position 7.*`max_len` 6"):
        model(tokens=torch.full((1, 7), 3))
    state = model.start(batch=1)
    model.step(state, torch.full((1, 6), 3))
    with pytest.raises(tfkit.InputError, match="TFK061"):
        model.step(state, torch.full((1, 1), 3))
    assert state.length == 6


def test_a_text_without_an_end_token_cannot_be_pooled_there(model_of: Callable[..., Model]) -> None:
    nodes = """
nodes:
  tokens: {kind: tokens, end_id: 2}
  body:   {kind: stack, input: tokens, num_layers: 1}
  one:    {kind: pool, input: body, take: end_token, tokens: tokens}
outputs: [one]
"""
    model = model_of(nodes)
    ids = IDS.clone()
    ids[0, 3] = 2
    with pytest.raises(tfkit.InputError, match=r"TFK074.*row 1.*\(2, 5\) has no end token 2"):
        model(tokens=ids)
    ids[1, 4] = 2
    assert model(tokens=ids)["one"].shape == (2, 24)


def test_positional_inputs_are_refused_with_the_names_of_the_inputs(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model = model_of()
    with pytest.raises(tfkit.InputError) as found:
        model(ids_of(2, 5), ids_of(2, 4))
    (diagnostic,) = found.value.diagnostics
    assert diagnostic.code == "TFK073"
    assert diagnostic.message == "`small` got 2 positional arguments"
    assert diagnostic.fix == "name the inputs: model(source=ids, target=ids)"
