"""What a model gives: a mapping with attributes that compiles, exports, pickles and copies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch.utils import _pytree as pytree

import tfkit
from tfkit import Model

IDS = torch.randint(3, 19, (2, 5), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model(model_of: Callable[..., Model]) -> Model:
    return model_of("encoder-decoder", "encoder.num_layers=1", "decoder.num_layers=1")


def test_an_output_is_an_entry_and_an_attribute(model: Model) -> None:
    outputs = model(source=IDS, target=IDS, labels=IDS, weights=["decoder.*"])
    assert isinstance(outputs, tfkit.Outputs)
    assert isinstance(outputs, dict)
    assert outputs.logits is outputs["logits"]
    assert outputs.loss is outputs["loss"]
    assert outputs.weights is outputs["weights"]
    assert list(outputs) == ["logits", "weights", "loss"]
    assert {"logits", "loss", "items"} <= set(dir(outputs))
    step = model.step(model.start(source=IDS), IDS[:, :1])
    assert step.logits is step["logits"]


def test_an_output_that_is_not_there_is_named_with_those_that_are(model: Model) -> None:
    outputs = model(source=IDS, target=IDS)
    with pytest.raises(AttributeError, match="there is no output `loss`; the outputs of this call: logits"):
        outputs.loss  # noqa: B018
    with pytest.raises(KeyError):
        outputs["loss"]
    assert not hasattr(outputs, "loss")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda outputs: pickle.loads(pickle.dumps(outputs))])
def test_outputs_copy_and_pickle(again: Callable[[tfkit.Outputs], tfkit.Outputs], model: Model) -> None:
    with torch.no_grad():
        outputs = model(source=IDS, target=IDS)
    found = again(outputs)
    assert isinstance(found, tfkit.Outputs)
    assert torch.equal(found.logits, outputs.logits)


def test_outputs_are_a_tree(model: Model) -> None:
    outputs = model(source=IDS, target=IDS, weights=["decoder.*"])
    leaves, tree = pytree.tree_flatten(outputs)
    assert len(leaves) == 3
    again = pytree.tree_unflatten(leaves, tree)
    assert isinstance(again, tfkit.Outputs)
    assert again.logits is outputs.logits
    doubled = pytree.tree_map(lambda tensor: 2 * tensor, outputs)
    assert torch.equal(doubled.logits, 2 * outputs.logits)


@pytest.mark.slow
def test_attributes_survive_the_compiler(model: Model) -> None:
    def total(ids: torch.Tensor) -> torch.Tensor:
        outputs = model(source=ids, target=ids)
        return outputs.logits.sum() + outputs["logits"].sum()

    torch._dynamo.reset()
    with torch.no_grad():
        outputs = torch.compile(model, fullgraph=True, backend="aot_eager")(source=IDS, target=IDS)
        want = model(source=IDS, target=IDS)
        assert isinstance(outputs, tfkit.Outputs)
        torch.testing.assert_close(outputs.logits, want.logits)
        torch.testing.assert_close(torch.compile(total, fullgraph=True, backend="aot_eager")(IDS), 2 * want.logits.sum())


@pytest.mark.slow
def test_attributes_survive_an_export_that_is_saved(model: Model) -> None:
    with torch.no_grad():
        program = torch.export.export(model, (), kwargs={"source": IDS, "target": IDS}, strict=False)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        outputs = torch.export.load(file).module()(source=IDS, target=IDS)
        want = model(source=IDS, target=IDS)
    assert isinstance(outputs, tfkit.Outputs)
    torch.testing.assert_close(outputs.logits, want.logits)
