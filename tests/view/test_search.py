"""Results of searches in notebooks."""

import re

import torch

from tfkit import Hypothesis
from tfkit.text import Continuation, Translation

HOSTILE = '</td><script>alert(1)</script>"'


def hypothesis(*probabilities):
    logs = torch.tensor(probabilities).log()
    return Hypothesis(torch.arange(len(logs)), float(logs.sum()), float(logs.sum()) / 2, logs, True)


def cells(html):
    return re.findall(r"<td.*?>(.*?)</td>", html, re.DOTALL)


def test_a_notebook_shows_hypotheses_with_the_probability_of_each_token():
    one, two = hypothesis(0.5, 0.25), hypothesis(0.125)
    made = Translation("a b", ("x y", HOSTILE), (one, two), (("x", "y"), (HOSTILE,)), (1, 2), 0)._repr_html_()
    assert "<script" not in made
    assert [cells(made)[at] for at in (0, 1, 2, 3, 6)] == ["<bdi>x y</bdi>", "-1.04", "-2.079", "yes", "-1.04"]
    assert re.findall(r"<bdi>(\S+)</bdi> <small.*?>([\d.]+)<", cells(made)[4]) == [("x", "0.50"), ("y", "0.25")]
    assert re.findall(r"<bdi>(\S+)</bdi> <small.*?>([\d.]+)<", one._repr_html_()) == [("0", "0.50"), ("1", "0.25")]
    assert "<bdi>then</bdi>" in Continuation("first", "then", one, ("x", "y"), 1, 0)._repr_html_()
    assert cells(Translation("", ("",), (), (), (), 0)._repr_html_()) == []
