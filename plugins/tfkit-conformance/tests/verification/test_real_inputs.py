"""The checks of patches, convolutions, similarities and spans pass for the modules as they are, and fail for each wrong one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import tfkit
from tfkit.nn import convolutions, heads
from tfkit.plugin.model_parts import Linear
from tfkit_conformance.finding import Violation
from tfkit_conformance.verification.batch import draw, lengths_for
from tfkit_conformance.verification.recording import record
from tfkit_conformance.verification.tokenwise import (
    convolutions as check_convolutions,
    patches as check_patches,
    similarity as check_similarity,
    spans as check_spans,
)
from verification.shrunk import OVERRIDES

SPECS = Path(__file__).parents[4] / "specs"
CHECKS: dict[str, tuple[str, str, Callable[..., float]]] = {
    "patches": ("clip-b32", "image", check_patches),
    "convolutions": ("whisper-small", "frames", check_convolutions),
    "similarity": ("clip-b32", "match", check_similarity),
    "spans": ("bert-qa", "answer", check_spans),
}


def checked(kind: str, catalogue: tfkit.Catalogue) -> float:
    name, node, check = CHECKS[kind]
    spec = tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, OVERRIDES[name])
    model, graph = tfkit.build(spec, catalogue).eval(), tfkit.graph_of(spec)
    batch = draw(model, lengths_for(graph, None), 3, 0, "cpu")
    return check(model, record(model, batch), graph.nodes[node])


@pytest.mark.parametrize("kind", CHECKS)
def test_the_module_as_it_is_passes(kind: str, catalogue: tfkit.Catalogue) -> None:
    assert checked(kind, catalogue) < 1


def transposed(self: nn.Conv2d, images: Tensor) -> Tensor:
    return nn.functional.conv2d(images.mT, self.weight, self.bias, self.stride)


def turned(self: Linear, x: Tensor, head: Any = None) -> Tensor:
    return nn.functional.linear(x, self.weight, self.bias).flip(-1)


def shifted(convolution: nn.Conv1d, x: Tensor) -> Tensor:
    around = nn.functional.pad(x.mT, (2, 0))
    return nn.functional.conv1d(around, convolution.weight, convolution.bias, convolution.stride).mT


def to_the_end(ids: Tensor, end_id: int, visible: Tensor) -> Tensor:
    return visible & ((ids == end_id).cumsum(1) > 0)


def no_padding(padding: Any, stride: int) -> Any:
    return type(padding)(None, None)


WRONG = [
    ("patches", nn.Conv2d, "forward", transposed),
    ("convolutions", convolutions, "_convolved", shifted),
    ("convolutions", convolutions, "_strided", no_padding),
    ("similarity", heads, "_unit", lambda x: x),
    ("similarity", heads, "_unit", lambda x: x / x.abs().sum(-1, keepdim=True)),
    ("spans", heads, "second_text", lambda ids, end_id, visible: visible),
    ("spans", heads, "second_text", to_the_end),
    ("spans", Linear, "forward", turned),
]


@pytest.mark.parametrize(("kind", "owner", "name", "wrong"), WRONG)
def test_a_wrong_module_is_found(
    kind: str, owner: Any, name: str, wrong: Any, catalogue: tfkit.Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(Violation):
        checked(kind, catalogue)


def test_a_position_that_is_left_out_is_found(catalogue: tfkit.Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfkit.builtin.position.embedding_positions import Learned

    monkeypatch.setattr(Learned, "embed", lambda self, x, span: x)
    name, node, check = CHECKS["patches"]
    spec = tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, OVERRIDES[name])
    model, graph = tfkit.build(spec, catalogue).eval(), tfkit.graph_of(spec)
    recording = record(model, draw(model, lengths_for(graph, None), 3, 0, "cpu"))
    monkeypatch.undo()
    with pytest.raises(Violation):
        check(model, recording, graph.nodes[node])
