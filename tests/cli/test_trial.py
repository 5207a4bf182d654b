"""The batch of the trial."""

from types import SimpleNamespace

import pytest
import torch

from tfkit.cli.dry_run import try_once
from tfkit.plugin.model_parts import InputRule


def rule(vocab_size, pad_id, start_id, end_id):
    return InputRule(vocab_size, pad_id, start_id, end_id, segments=0, counts_padding=False)


class Recorder(torch.nn.Module):
    """Stands for a model, and keeps what it was called with."""

    def __init__(self, answer=1.0, **rules):
        super().__init__()
        self.plan = SimpleNamespace(inputs=rules)
        self.answer = answer

    def forward(self, *, lengths, **inputs):
        self.inputs, self.lengths, self.trained = inputs, lengths, self.training
        return {"out": torch.full((3, 2), self.answer)}


def test_one_row_is_padded_and_no_other_id_is_padding():
    model = Recorder(source=rule(5, 0, None, None), target=rule(5, 3, 1, 2))
    dry_run = try_once(model, {"source": None, "target": None}, "cpu", seed=0)
    source, target = model.inputs["source"], model.inputs["target"]
    assert (source == 0).tolist() == [[False] * 8, [False] * 8, [False] * 5 + [True] * 3]
    assert (target == 3).tolist() == [[False] * 7, [False] * 7, [False] * 4 + [True] * 3]
    assert [row[row != 3][-1].item() for row in target] == [2, 2, 2]
    assert model.lengths == {}
    assert dry_run.inputs == {"source": (3, 8), "target": (3, 7)}
    assert int(source.max()) <= 4


def test_without_padding_lengths_say_it():
    model = Recorder(tokens=rule(7, None, None, None))
    try_once(model, {"tokens": None}, "cpu", seed=0)
    assert model.lengths["tokens"].tolist() == [8, 8, 5]


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_a_short_position_table_shortens_the_rows(limit):
    model = Recorder(tokens=rule(7, 0, None, 2))
    assert try_once(model, {"tokens": limit}, "cpu", seed=0).inputs == {"tokens": (3, limit)}


def test_a_vocabulary_of_padding_alone():
    model = Recorder(tokens=rule(1, 0, None, None))
    try_once(model, {"tokens": None}, "cpu", seed=0)
    assert not model.inputs["tokens"].any()


def test_seeds_draw_and_the_mode_stays():
    model = Recorder(tokens=rule(1000, 0, None, None))
    drawn = []
    for seed in (0, 0, 1):
        try_once(model, {"tokens": None}, "cpu", seed)
        drawn.append(model.inputs["tokens"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert (model.trained, model.training) == (False, True)
    model.eval()
    try_once(model, {"tokens": None}, "cpu", 0)
    assert not model.training


def test_numbers_that_are_none_are_seen():
    assert try_once(Recorder(float("nan"), x=rule(9, 0, None, None)), {"x": None}, "cpu", 0).not_finite == ("out",)
    assert try_once(Recorder(float("-inf"), x=rule(9, 0, None, None)), {"x": None}, "cpu", 0).not_finite == ("out",)
    assert try_once(Recorder(1.0, x=rule(9, 0, None, None)), {"x": None}, "cpu", 0).not_finite == ()
