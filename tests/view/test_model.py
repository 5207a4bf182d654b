"""The data of a model, its tree and its flowchart: every count adds up to what the graph counts."""

import json
import re

import pytest

from fixtures import SPECS
from tfkit.graph import Batch
from tfkit.view.mermaid import mermaid
from tfkit.view.model_data import model_data
from tfkit.view.model_tree import cost_lines, model_tree, site_line

NESTED = """
tfkit: 1
name: nested
defaults: {d_model: 8, placement: pre, norm: layer_norm, attention: {num_heads: 2}, ffn: {d_ff: 16, activation: relu}}
nodes:
  words: {kind: tokens, vocab_size: 10}
  body:
    kind: stack
    input: words
    causal: true
    layers:
      - repeat: 2
        layers:
          - {repeat: 3}
          - {attention: {num_heads: 4}, sublayers: [self_attention, {kind: ffn, name: wide, d_ff: 32}]}
      - {repeat: 5, shared: true, sublayers: [ffn]}
outputs: [body]
"""
LAYER = 2 * 2 * 8
ATTENTION = 4 * (8 * 8 + 8)


def ffn(inner):
    return 8 * inner + inner + inner * 8 + 8


def data_of(described, source):
    spec, graph = described(source)
    return model_data(spec, graph, Batch(2, {node.name: 16 for node in graph.inputs()})), graph


def test_nested_and_shared_layers_are_counted_where_they_stand(described):
    data, _ = data_of(described, NESTED)
    [turns, shared] = data["nodes"][1]["layers"]
    assert (turns["repeat"], turns["shared"], shared["repeat"], shared["shared"]) == (2, False, 5, True)
    three, one = turns["layers"]
    assert three["sublayers"][0]["parameters"] == 2 * 3 * ATTENTION
    assert three["sublayers"][1]["parameters"] == 2 * 3 * ffn(16)
    assert three["norms"] == 2 * 3 * LAYER
    assert three["parameters"] == 2 * 3 * (ATTENTION + ffn(16) + LAYER)
    assert [(sub["name"], sub["kind"], sub["parameters"]) for sub in one["sublayers"]] == [
        ("self_attention", "self_attention", 2 * ATTENTION),
        ("wide", "ffn", 2 * ffn(32)),
    ]
    assert three["sublayers"][0]["summary"] == "2 heads of 4"
    assert one["sublayers"][0]["summary"] == "4 heads of 2"
    assert shared["parameters"] == ffn(16) + LAYER // 2
    assert turns["parameters"] == three["parameters"] + one["parameters"]


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.glob("*.yaml")))
def test_parts_add_up_to_the_whole(described, name):
    data, graph = data_of(described, name)
    json.dumps(data)
    assert sum(node["parameters"] for node in data["nodes"]) == data["parameters"] == graph.parameters()
    for node in data["nodes"]:
        if "layers" not in node:
            continue
        layers = sum(group["parameters"] for group in node["layers"])
        assert layers + sum(node["other_parameters"].values()) == node["parameters"]
        for leaf in leaves(node["layers"]):
            assert sum(sub["parameters"] for sub in leaf["sublayers"]) + leaf["norms"] == leaf["parameters"]
    assert data["flops"] == sum(cost["flops"] for node in data["nodes"] for cost in node["costs"])


def leaves(groups):
    for group in groups:
        yield from leaves(group["layers"]) if "layers" in group else [group]


@pytest.mark.parametrize("width", [80, 120])
def test_no_name_or_number_is_cut_off(described, drawn, width):
    data, _ = data_of(described, "gemma2-9b.yaml")
    text = drawn(model_tree(data), *cost_lines(data), site_line(["a", "b"], 42), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    words = re.sub(r"[│├└─\s]+", "", text)
    for part in ("gemma-2-9b", "9,241,705,984", "(B,L_tokens,256000)", "924,844,032", "softcap", "final_norm"):
        assert part in words, part


def test_the_columns_of_all_depths_stand_below_each_other(described, drawn):
    data, _ = data_of(described, "transformer-base.yaml")
    lines = drawn(model_tree(data), width=100).splitlines()
    ends = {re.search(r"[\d,]+(?=\s+\d+\.\d%)", line).end() for line in lines if "%" in line}
    assert len(ends) == 1


def test_cost_lines_name_the_batch_and_the_terms(described, drawn):
    data, _ = data_of(described, "transformer-base.yaml")
    text = drawn(*cost_lines(data), width=200)
    assert "batch 2, lengths source=16 target=16" in text
    shares = [float(share) for share in re.findall(r"([\d.]+)%", text)]
    assert abs(sum(shares) - 100) < 0.3
    assert shares == sorted(shares, reverse=True)


def test_a_flowchart_escapes_mermaid_syntax():
    node = {"kind": "tokens", "shape": ["B", 'L_"x"', 8], "reads": {}, "shares": None}
    data = {
        "nodes": [{**node, "name": 'end"]; click'}, {**node, "name": "end", "reads": {"input": 'end"]; click.layers'}}],
        "outputs": ["end"],
    }
    lines = mermaid(data).splitlines()
    assert lines[1] == '    n0["end#34;#93;#59; click<br/>tokens<br/>(B, L_#34;x#34;, 8)"]'
    assert lines[2].startswith('    n1(["end')
    assert lines[3] == "    n0 -->|layers| n1"


def test_a_flowchart_has_every_edge(described):
    data, _ = data_of(described, "multi-source.yaml")
    text = mermaid(data)
    numbers = {node["name"]: f"n{index}" for index, node in enumerate(data["nodes"])}
    assert f"{numbers['other']} -->|memory| {numbers['decoder']}" in text
    assert f"{numbers['encoder']} -->|memory| {numbers['decoder']}" in text
    edges = sum(len(node["reads"]) + bool(node["shares"]) for node in data["nodes"])
    assert len(re.findall(r"-->|-\.->", text)) == edges
