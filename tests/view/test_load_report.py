"""The report of weights that were not loaded: whole parts and equal layers folded, other shapes one by one."""

from pathlib import Path

from tfkit.train.pretrained import LoadReport, SkippedTensor
from tfkit.view.load_report import load_report_data, load_report_text

LAYER = (("query.weight", (4, 4)), ("query.bias", (4,)), ("norm.weight", (4,)))


def layer(number):
    return [
        SkippedTensor(f"nodes.body.layers.{number}.{name}", shape, "not in the pretrained model", True) for name, shape in LAYER
    ]


def test_parts_layers_and_shapes_are_reported_together():
    skipped = [
        *layer(1),
        *layer(2),
        SkippedTensor("nodes.words.weight", (9, 4), "of another shape", True, (8, 4)),
        SkippedTensor("nodes.out.weight", (2, 4), "not in the pretrained model", True),
        SkippedTensor("nodes.body.layers.0.extra", (3,), "not in the pretrained model", True),
        SkippedTensor("nodes.old.bias", (5,), "not in the new model", False),
    ]
    names = ("nodes.body.layers.0.query.weight", "nodes.body.layers.0.norm.weight")
    report = LoadReport(Path("runs/a"), names, 2_000, 3_000, tuple(skipped))
    assert load_report_text(report).splitlines() == [
        "pretrained: 2,000 of 3,000 weights are loaded from runs/a",
        "  initialised, not in the pretrained model: body.layers.1-2 (3 tensors, 24 weights) each, out.weight (2, 4), "
        "body.layers.0.extra (3)",
        "  initialised, of another shape: words.weight (9, 4), pretrained (8, 4)",
        "  not used, not in the new model: old.bias (5)",
    ]
    data = load_report_data(report)
    assert (data["model"], data["loaded"], data["weights"], len(data["skipped"])) == ("runs/a", 2_000, 3_000, len(skipped))
    assert data["skipped"][6] == {
        "name": "nodes.words.weight", "shape": (9, 4),
        "reason": "of another shape", "initialised": True, "pretrained_shape": (8, 4),
    }  # fmt: skip


def test_a_full_load_is_one_line():
    assert load_report_text(LoadReport(Path("a"), ("nodes.x",), 5, 5, ())) == "pretrained: 5 of 5 weights are loaded from a"
