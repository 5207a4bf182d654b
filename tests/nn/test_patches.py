"""`patches` against loops over pixels; positions, class token and registers; other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tfkit
from real_inputs import bicubic_by_loops, drawn, image_spec, patches_by_loops, sinusoid_2d

Built = Callable[..., Any]


@pytest.fixture
def built(catalogue: tfkit.Catalogue) -> Built:
    def make(text: str) -> Any:
        model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue, dtype=torch.float64).eval()
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(drawn(*parameter.shape, seed=number))
        return model

    return make


@pytest.mark.parametrize("bias", [True, False])
def test_patches_are_products_of_pixels(built: Built, bias: bool) -> None:
    model, images = built(image_spec(bias=bias)), drawn(2, 2, 6, 6, seed=90)
    projection = model.nodes["image"].projection
    torch.testing.assert_close(model(image=images).image, patches_by_loops(images, projection.weight, projection.bias))


@pytest.mark.parametrize(("class_token", "distillation_token"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("registers", [0, 3])
def test_learned_vectors_stand_first_and_registers_have_no_position(
    built: Built, class_token: bool, distillation_token: bool, registers: int
) -> None:
    model = built(
        image_spec(class_token=class_token, distillation_token=distillation_token, registers=registers, position="learned")
    )
    images, node = drawn(2, 2, 6, 6, seed=90), model.nodes["image"]
    table = node.position.table
    assert table.shape == (9 + class_token + distillation_token, 12)
    bare = patches_by_loops(images, node.projection.weight, node.projection.bias)
    got, first = model(image=images).image, class_token + distillation_token
    assert got.shape == (2, first + registers + 9, 12)
    if class_token:
        torch.testing.assert_close(got[:, 0], (node.class_token + table[0]).expand(2, -1))
    if distillation_token:
        torch.testing.assert_close(got[:, 1], (node.distillation_token + table[1]).expand(2, -1))
    if registers:
        torch.testing.assert_close(got[:, first : first + registers], node.registers.expand(2, -1, -1))
    torch.testing.assert_close(got[:, first + registers :], bare + table[first:])


@pytest.mark.parametrize("last_frequency", ["inclusive", "exclusive"])
@pytest.mark.parametrize("class_token", [True, False])
def test_sinusoids_of_rows_and_columns(built: Built, last_frequency: str, class_token: bool) -> None:
    position = f"{{kind: sinusoidal_2d, base: 100.0, last_frequency: {last_frequency}}}"
    model = built(image_spec(class_token=class_token, position=position, any_size=True))
    node = model.nodes["image"]
    for rows, columns in ((3, 3), (2, 4)):
        images = drawn(1, 2, 2 * rows, 2 * columns, seed=90)
        bare = patches_by_loops(images, node.projection.weight, node.projection.bias)
        added = [
            sinusoid_2d(row, column, 12, 100.0, last_frequency == "inclusive")
            for row in range(rows)
            for column in range(columns)
        ]
        got = model(image=images).image
        torch.testing.assert_close(got[:, int(class_token) :], bare + torch.tensor(added, dtype=torch.float64))
        if class_token:
            torch.testing.assert_close(got[0, 0], node.class_token.detach())


def test_norm_and_dropout_come_last(built: Built) -> None:
    model = built(image_spec(embedding_norm="layer_norm", position="learned", dropout=0.5))
    images, node = drawn(2, 2, 6, 6, seed=90), model.nodes["image"]
    bare = patches_by_loops(images, node.projection.weight, node.projection.bias) + node.position.table
    want = torch.nn.functional.layer_norm(bare, (12,), node.embedding_norm.weight, node.embedding_norm.bias)
    torch.testing.assert_close(model(image=images).image, want)
    model.train()
    dropped = model(image=images).image
    kept = dropped != 0
    assert 0.3 < float(kept.double().mean()) < 0.7
    torch.testing.assert_close(dropped[kept], 2 * want[kept])


def test_learned_positions_are_interpolated_to_another_grid(built: Built) -> None:
    model = built(image_spec(class_token=True, registers=1, position="learned", any_size=True))
    node = model.nodes["image"]
    with torch.no_grad():
        node.projection.weight.zero_()
        node.projection.bias.zero_()
    table = node.position.table.detach()
    for rows, columns in ((5, 4), (2, 3), (1, 7)):
        got = model(image=torch.zeros(1, 2, 2 * rows, 2 * columns, dtype=torch.float64)).image[0]
        torch.testing.assert_close(got[0], (node.class_token + table[0]).detach())
        for feature in (0, 7):
            want = bicubic_by_loops(table[1:, feature].view(3, 3).tolist(), rows, columns)
            torch.testing.assert_close(got[2:, feature].view(rows, columns), torch.tensor(want, dtype=torch.float64))
    same = model(image=torch.zeros(1, 2, 6, 6, dtype=torch.float64)).image[0, 2:]
    assert torch.equal(same, table[1:])


def test_counts_and_costs(catalogue: tfkit.Catalogue) -> None:
    graph = tfkit.graph_of(tfkit.parse_spec(image_spec(class_token=True, registers=4, position="learned"), catalogue))
    assert graph.parameters() == 12 * 8 + 12 + 12 + 48 + 10 * 12
    costs = tfkit.graph.node_costs(graph, tfkit.graph.Batch(5, {}))["image"]
    assert sum(cost.flops for cost in costs) == 2 * 5 * 9 * 8 * 12
    assert graph.nodes["image"].signal.axes == ("B", 14, 12)


def test_it_compiles_and_exports(built: Built) -> None:
    model, images = built(image_spec(class_token=True, position="learned")), drawn(2, 2, 6, 6, seed=90)
    exported = torch.export.export(model, (), {"image": images}, strict=False).module()
    assert torch.equal(exported(image=images)["image"], model(image=images).image)


def test_it_is_saved_and_loaded(built: Built, tmp_path: Any) -> None:
    model, images = built(image_spec(class_token=True, position="learned")), drawn(2, 2, 6, 6, seed=90)
    tfkit.save(model, tmp_path / "m")
    again = tfkit.load(tmp_path / "m")
    assert torch.equal(again(image=images).image, model(image=images).image)


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"patch": 4}, "nodes.image.patch", "size 6 is no multiple of patch 4"),
        ({"position": "rotary_half"}, "nodes.image.position", "rotary_half acts inside attention"),
        ({"position": "{kind: learned, max_len: 5}"}, "nodes.image.position", "5 is less than the 9 positions"),
        ({"position": "sinusoidal_2d", "d_model": 6}, "nodes.image.position", "a multiple of 4"),
        ({"channels": 0}, "nodes.image.channels", "at least 1 is expected"),
        ({"distillation_token": True}, "nodes.image.distillation_token", "it stands after a class token, and there is none"),
        ({"registers": -1}, "nodes.image.registers", "at least 0 is expected"),
    ],
)
def test_wrong_options_are_located(catalogue: tfkit.Catalogue, options: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(tfkit.SpecError) as error:
        tfkit.graph_of(tfkit.parse_spec(image_spec(**options), catalogue, file="a.yaml"))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.path == path
    assert words in diagnostic.message
    assert diagnostic.location is not None


@pytest.mark.parametrize(
    ("images", "code", "words"),
    [
        (torch.zeros(2, 2, 8, 8), "TFK070", ["(2, 2, 8, 8)", "8 x 8", "6 x 6", "any_size: true"]),
        (torch.zeros(2, 3, 6, 6), "TFK070", ["3 channels", "takes 2"]),
        (torch.zeros(2, 6, 6, 2), "TFK070", ["permute(0, 3, 1, 2)"]),
        (torch.zeros(2, 6, 6), "TFK070", ["(2, 6, 6)", "(B, 2, H, W)"]),
        (torch.zeros(0, 2, 6, 6), "TFK070", ["(0, 2, 6, 6)"]),
        (torch.zeros(2, 2, 6, 6, dtype=torch.uint8), "TFK071", ["torch.uint8", ".float() / 255"]),
        (torch.zeros(2, 2, 6, 6, dtype=torch.float64), "TFK071", ["torch.float64", "torch.float32"]),
        (torch.full((2, 2, 6, 6), float("nan")), "TFK079", ["nan at [0, 0, 0, 0]"]),
        (torch.zeros(2, 2, 6, 6).index_put((torch.tensor(1),), torch.tensor(float("inf"))), "TFK079", ["inf at [1, 0, 0, 0]"]),
        ([[1.0]], "TFK071", ["a list"]),
    ],
)
def test_wrong_images_are_refused(catalogue: tfkit.Catalogue, images: Any, code: str, words: list[str]) -> None:
    model = tfkit.build(tfkit.parse_spec(image_spec(), catalogue), catalogue)
    with pytest.raises(tfkit.InputError) as error:
        model(image=images)
    assert error.value.diagnostics[0].code == code
    for each in words:
        assert each in str(error.value)


def test_images_have_no_mask_no_lengths_and_are_not_decoded(catalogue: tfkit.Catalogue) -> None:
    model = tfkit.build(tfkit.parse_spec(image_spec(any_size=True), catalogue), catalogue)
    images = torch.zeros(2, 2, 6, 6)
    for words in ({"masks": {"image": torch.ones(2, 9, dtype=torch.bool)}}, {"lengths": {"image": torch.tensor([1, 2])}}):
        with pytest.raises(tfkit.InputError, match="images have no padding"):
            model(image=images, **words)
    with pytest.raises(tfkit.InputError, match="no token ids"):
        model.start()
    with pytest.raises(tfkit.InputError, match="multiples of 2"):
        model(image=torch.zeros(2, 2, 6, 7))
    with pytest.raises(tfkit.InputError, match="model\\(image=images\\)"):
        model(images)
