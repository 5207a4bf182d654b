"""`features` and `convolutions` against loops over frames; padding, lengths and positions after strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from real_inputs import audio_spec, convolved_by_loops, drawn

PLAIN = ({"d_model": 4, "width": 3, "activation": "gelu"}, {"d_model": 8, "width": 3, "stride": 2, "activation": "gelu"})
WIDE = ({"d_model": 4, "width": 4, "stride": 3, "activation": "tanh"}, {"d_model": 6, "width": 2, "stride": 2})
SHORT = ({"d_model": 4, "width": 9, "activation": "relu", "bias": False},)


def built(catalogue: tfkit.Catalogue, text: str) -> Any:
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue, dtype=torch.float64).eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=number))
    return model


def by_loops(model: Any, convolutions: tuple[dict[str, Any], ...], frames: Tensor) -> Tensor:
    functions = {"gelu": torch.nn.functional.gelu, "tanh": torch.tanh, "relu": torch.relu}
    x = frames
    for written, module in zip(convolutions, model.nodes["frames"].convolutions, strict=True):
        bias = torch.zeros(module.out_channels) if module.bias is None else module.bias
        x = torch.tensor(convolved_by_loops(x.tolist(), module.weight, bias, written.get("stride", 1)), dtype=torch.float64)
        x = functions[written["activation"]](x) if "activation" in written else x
    return x


@pytest.mark.parametrize("convolutions", [PLAIN, WIDE, SHORT], ids=["whisper", "even widths", "wider than the input"])
@pytest.mark.parametrize("length", [1, 6, 7])
def test_convolutions_are_sums_over_frames(catalogue: tfkit.Catalogue, convolutions: Any, length: int) -> None:
    model, frames = built(catalogue, audio_spec(*convolutions)), drawn(2, length, 5, seed=90)
    got = model(audio=frames).frames
    for row in range(2):
        torch.testing.assert_close(got[row], by_loops(model, convolutions, frames[row]))


@pytest.mark.parametrize("convolutions", [PLAIN, WIDE, SHORT])
@pytest.mark.parametrize("how", ["lengths", "masks"])
def test_a_padded_row_is_that_row_alone(catalogue: tfkit.Catalogue, convolutions: Any, how: str) -> None:
    """What stands at padding reaches no real frame, and the padding of the result is that of its strides."""
    position = "{kind: sinusoidal, count: visible}"
    model = built(catalogue, audio_spec(*convolutions, position=position))
    stride = 1
    for each in convolutions:
        stride *= each.get("stride", 1)
    lengths, frames = torch.tensor([7, 4, 1]), drawn(3, 7, 5, seed=90)
    given = {"audio": lengths} if how == "lengths" else {"audio": torch.arange(7) < lengths[:, None]}
    got = model(audio=frames, **{how: given}).frames
    for row, length in enumerate(lengths.tolist()):
        alone = model(audio=frames[row : row + 1, :length]).frames[0]
        torch.testing.assert_close(got[row, : -(-length // stride)], alone)


def test_the_stack_behind_sees_the_shortened_padding(catalogue: tfkit.Catalogue) -> None:
    parts = "placement: pre, norm: layer_norm, attention: {num_heads: 2}, ffn: {d_ff: 8, activation: gelu}"
    stack = f"  body: {{kind: stack, input: frames, num_layers: 1, {parts}}}\n"
    text = audio_spec(*PLAIN).replace("outputs: [frames]", f"{stack}outputs: [body]")
    model = built(catalogue, text)
    lengths, frames = torch.tensor([7, 4, 1]), drawn(3, 7, 5, seed=90)
    got = model(audio=frames, lengths={"audio": lengths}).body
    for row, length in enumerate(lengths.tolist()):
        alone = model(audio=frames[row : row + 1, :length]).body[0]
        torch.testing.assert_close(got[row, : -(-length // 2)], alone)


def test_shapes_counts_and_costs(catalogue: tfkit.Catalogue) -> None:
    graph = tfkit.graph_of(tfkit.parse_spec(audio_spec(*PLAIN, position="{kind: learned, max_len: 9}"), catalogue))
    signal = graph.nodes["frames"].signal
    assert signal.axes == ("B", "L_audio/2", 8)
    assert graph.parameters() == 4 * 5 * 3 + 4 + 8 * 4 * 3 + 8 + 9 * 8
    assert tfkit.graph.max_input_lengths(graph) == {"audio": 18}
    costs = tfkit.graph.node_costs(graph, tfkit.graph.Batch(2, {"audio": 7}))["frames"]
    assert sum(cost.flops for cost in costs) == 2 * 2 * (7 * 3 * 5 * 4 + 4 * 3 * 4 * 8)


def test_positions_end_where_the_table_ends(catalogue: tfkit.Catalogue) -> None:
    model = built(catalogue, audio_spec(*PLAIN, position="{kind: learned, max_len: 2}"))
    assert model(audio=drawn(1, 4, 5)).frames.shape == (1, 2, 8)
    with pytest.raises(tfkit.InputError, match="reaches position 3"):
        model(audio=drawn(1, 5, 5))


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (audio_spec({"d_model": 4, "activation": "swiglu"}), "nodes.frames.convolutions.0.activation", "gated"),
        (audio_spec({"d_model": 4}, position="rotary_half"), "nodes.frames.position", "acts inside attention"),
        (audio_spec({"d_model": 4}, position="learned"), "nodes.frames.position", "`max_len` is needed"),
        (audio_spec({"d_model": 4, "stride": 0}), "nodes.frames.convolutions.0.stride", "at least 1"),
        (audio_spec(), "nodes.frames.convolutions", "it is empty"),
        (audio_spec({"width": 3}), "nodes.frames.convolutions.0", "`d_model` is missing"),
        (audio_spec({"d_model": 4, "wdth": 3}), "nodes.frames.convolutions.0", "unknown key `wdth`"),
    ],
)
def test_wrong_options_are_located(catalogue: tfkit.Catalogue, text: str, path: str, words: str) -> None:
    with pytest.raises(tfkit.SpecError) as error:
        tfkit.graph_of(tfkit.parse_spec(text, catalogue, file="a.yaml"))
    diagnostic = error.value.diagnostics[0]
    assert words in diagnostic.message
    assert diagnostic.path == path
    assert diagnostic.location is not None


@pytest.mark.parametrize(
    ("features", "words", "code", "said"),
    [
        (torch.zeros(2, 5, 7), {}, "TFK070", "features.mT"),
        (torch.zeros(2, 7, 4), {}, "TFK070", "features are (batch, length, 5)"),
        (torch.zeros(2, 5), {}, "TFK070", "(2, 5)"),
        (torch.zeros(2, 0, 5), {}, "TFK070", "at least 1"),
        (torch.zeros(2, 7, 5, dtype=torch.int64), {}, "TFK071", "torch.int64"),
        (torch.zeros(2, 7, 5, dtype=torch.float16), {}, "TFK071", "torch.float16"),
        (torch.zeros(2, 7, 5).log(), {}, "TFK079", "-inf at [0, 0, 0]"),
        (
            torch.zeros(2, 7, 5),
            {"masks": {"audio": torch.ones(2, 7, 5, dtype=torch.bool)}},
            "TFK070",
            "its batch and length are (2, 7)",
        ),
        (torch.zeros(2, 7, 5), {"lengths": {"audio": torch.ones(3, dtype=torch.int64)}}, "TFK070", "(2, 7)"),
        (torch.zeros(2, 7, 5), {"segments": {"audio": torch.zeros(2, 7, dtype=torch.int64)}}, "TFK073", "no segments"),
    ],
)
def test_wrong_features_are_refused(catalogue: tfkit.Catalogue, features: Tensor, words: Any, code: str, said: str) -> None:
    model = tfkit.build(tfkit.parse_spec(audio_spec(*PLAIN), catalogue), catalogue)
    with pytest.raises(tfkit.InputError) as error:
        model(audio=features, **words)
    assert error.value.diagnostics[0].code == code
    assert said in str(error.value)
