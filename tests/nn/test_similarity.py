"""`similarity` against loops, and the rules of its edges."""

from __future__ import annotations

import math

import pytest
import torch

import tfkit
from real_inputs import CLIP, HEAD, drawn


def test_it_is_the_scaled_cosine_of_every_pair(catalogue: tfkit.Catalogue) -> None:
    model = tfkit.build(tfkit.parse_spec(HEAD + CLIP, catalogue), catalogue, dtype=torch.float64)
    assert model.nodes["match"].scale.item() == pytest.approx(math.log(1 / 0.07))
    outputs = model(text=torch.tensor([[1, 2], [3, 4], [5, 6]]), image=drawn(3, 3, 6, 6))
    a, b, match = outputs.words.tolist(), outputs.pixels.tolist(), outputs.match.tolist()
    for i in range(3):
        for j in range(3):
            product = sum(x * y for x, y in zip(a[i], b[j], strict=True))
            lengths = math.sqrt(sum(x * x for x in a[i])) * math.sqrt(sum(y * y for y in b[j]))
            assert match[i][j] == pytest.approx(product / lengths / 0.07, rel=1e-12)


def test_a_zero_vector_has_no_similarity_and_a_finite_gradient(catalogue: tfkit.Catalogue) -> None:
    model = tfkit.build(tfkit.parse_spec(HEAD + CLIP, catalogue), catalogue)
    with torch.no_grad():
        model.nodes["text"].embedding.weight[0] = 0.0
    match = model(text=torch.tensor([[0], [1]]), image=torch.randn(2, 3, 6, 6)).match
    assert torch.equal(match[0], torch.zeros(2))
    match.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("inputs: [words, pixels]", "inputs: [words]", "nodes.match.inputs", "two nodes is expected, 1 are written"),
        ("inputs: [words, pixels]", "inputs: words", "nodes.match.inputs", "a list is expected"),
        ("inputs: [words, pixels]", "inputs: [words, image]", "nodes.match.inputs.1", "`image` is a sequence, (B, 4, 12)"),
        ("inputs: [words, pixels]", "inputs: [words, pixel]", "nodes.match.inputs.1", "there is no node `pixel`"),
        ("patch: 3}", "patch: 3, d_model: 8}", "nodes.match.inputs", "`words` is 12 wide, `pixels` 8"),
        ("outputs: [match", "  after: {kind: dense, input: match}\noutputs: [after", "nodes.after.input", "(B, B)"),
    ],
)
def test_wrong_edges_are_located(catalogue: tfkit.Catalogue, old: str, new: str, path: str, words: str) -> None:
    text = (HEAD + CLIP).replace(old, new)
    with pytest.raises(tfkit.SpecError) as error:
        tfkit.graph_of(tfkit.parse_spec(text, catalogue, file="a.yaml"))
    (diagnostic,) = error.value.diagnostics
    assert words in diagnostic.message
    assert diagnostic.path == path
    assert diagnostic.location is not None
