"""The node `probabilities`: softmax of logits as an output; searches and training read the logits."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.data import roles_of

BESIDE = ("nodes.p={kind: probabilities, input: logits}", "outputs=[p, logits]")


def test_they_are_the_softmax_of_the_logits_and_nothing_else_reads_them(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model, plain = (model_of("encoder-decoder", *overrides, dtype=torch.float64) for overrides in (BESIDE, ()))
    source, target = ids_of(2, 5, 1), ids_of(2, 4, 2)
    outputs = model(source=source, target=target)
    for row, got in zip(outputs["logits"].flatten(0, 1).tolist(), outputs["p"].flatten(0, 1).tolist(), strict=True):
        total = sum(map(exp, row))
        assert got == pytest.approx([exp(x) / total for x in row], rel=1e-12)
    assert torch.equal(model(source=source, labels=target).loss, plain(source=source, labels=target).loss)
    best, known = (tfkit.beam_search(m, source=source, beams=3, max_new_tokens=5) for m in (model, plain))
    assert [row[0].ids.tolist() for row in best] == [row[0].ids.tolist() for row in known]
    assert roles_of(model.plan, "parallel").output == "logits"
    state = model.start(source=source)
    steps = [model.step(state, target[:, t : t + 1])["p"] for t in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), outputs["p"], rtol=0, atol=1e-12)


def test_of_what_is_no_logits_they_are_refused(spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue) -> None:
    overrides = ("nodes.p={kind: probabilities, input: encoder}", "outputs=[p, logits]")
    with pytest.raises(tfkit.SpecError, match=r"nodes\.p\.input: `encoder` gives no logits; read a token_logits"):
        tfkit.build(spec_of("encoder-decoder", *overrides), catalogue)
