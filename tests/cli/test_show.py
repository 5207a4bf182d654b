"""`tfkit show`."""

import json

import pytest

from tfkit import load_spec, parse_spec

BASE = "specs/transformer-base.yaml"


def test_json_describes_the_model(tfkit):
    data = tfkit("show", BASE, "--json").json()
    assert (data["name"], data["parameters"], data["frozen_parameters"]) == ("transformer-base", 63_082_496, 0)
    assert data["outputs"] == ["logits"]
    nodes = {node["name"]: node for node in data["nodes"]}
    assert {name: node["kind"] for name, node in nodes.items()} == {
        "source": "tokens", "target": "tokens", "encoder": "stack", "decoder": "stack", "logits": "token_logits",
    }  # fmt: skip
    assert nodes["logits"]["shape"] == ["B", "L_target", 37000]
    assert nodes["decoder"]["reads"] == {"input": "target", "memory": "encoder"}
    assert nodes["logits"]["shares"] == "source"
    assert sum(node["parameters"] for node in nodes.values()) == 63_082_496
    assert nodes["source"]["parameters"] == 37000 * 512
    sites = [site["name"] for site in data["sites"]]
    assert len(sites) == len(set(sites)) == 18
    assert data["sites"][sites.index("decoder.5.cross_attention")]["cross"]


def test_flops_are_those_of_the_matrix_products(tfkit):
    B, S, T, M, F, V = 3, 40, 28, 512, 2048, 37000
    data = tfkit("show", BASE, "--json", "--batch", B, "--lengths", f"source={S},target={T}").json()
    assert data["batch"] == {"size": B, "lengths": {"source": S, "target": T}}

    def attention(queries, keys):
        return 2 * (2 * queries * M * M + 2 * keys * M * M) + 4 * queries * keys * M

    encoder = 6 * B * (attention(S, S) + 4 * S * M * F)
    decoder = 6 * B * (attention(T, T) + attention(T, S) + 4 * T * M * F)
    assert data["flops"] == encoder + decoder + 2 * B * T * M * V


def test_the_tree_folds_the_layers(tfkit):
    done = tfkit("show", BASE)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert sum("6 x layer, post, layer_norm" in line for line in lines) == 2
    [cross] = [line for line in lines if "cross_attention" in line and "heads" in line]
    assert "8 heads of 64, reads encoder" in cross
    assert f"{6 * 4 * (512 * 512 + 512):,}" in cross
    assert "63,082,496" in done.out
    assert "18 attention sites: encoder.0-5.self_attention, decoder.0-5.self_attention, decoder.0-5.cross_attention" in done.out
    assert all(len(line) <= 120 and line == line.rstrip() for line in lines)
    assert "\x1b" not in done.out


def test_resolved_loads_back_equal(tfkit, tmp_path, catalogue):
    for spec in ("specs/gemma2-9b.yaml", "specs/transformer-prenorm.yaml"):
        done = tfkit("show", spec, "--resolved", "--set", "expect=null")
        path = tmp_path / "resolved.yaml"
        path.write_text(done.out)
        assert load_spec(path, catalogue) == load_spec(spec, catalogue, ["expect=null"])
        as_json = tfkit("show", spec, "--resolved", "--json", "--set", "expect=null")
        assert json.loads(as_json.out)["nodes"]
        assert parse_spec(as_json.out, catalogue) == load_spec(path, catalogue)


def test_mermaid_labels_memories_and_dots_shared_tables(tfkit):
    lines = tfkit("show", BASE, "--mermaid").out.splitlines()
    assert lines[0] == "flowchart TD"
    text = "\n".join(lines)
    assert 'n2["encoder<br/>stack of 6<br/>(B, L_source, 512)"]' in text
    assert "n2 -->|memory| n3" in text
    assert "n0 -.->|table| n1" in text
    assert "n3 --> n4" in text


def test_a_position_table_limits_the_lengths(tfkit):
    assert tfkit("show", "specs/gpt2.yaml", "--lengths", "tokens=1024").code == 0
    done = tfkit("show", "specs/gpt2.yaml", "--lengths", "tokens=1025")
    assert (done.code, done.out) == (2, "")
    assert "1024" in done.err
    short = tfkit("show", "specs/gpt2.yaml", "--json", "--set", "defaults.position.max_len=7", "--set", "expect=null")
    assert short.json()["batch"]["lengths"] == {"tokens": 7}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "garbage"], "source=32,target=32"),
        (["--lengths", "source=1,source=2"], "two lengths"),
        (["--lengths", "source=3"], "target"),
        (["--lengths", "sorce=3,target=3"], "did you mean `source`?"),
        (["--lengths", "source=0,target=3"], "from 1"),
        (["--lengths", ""], "source=32,target=32"),
        (["--lengths", f"source={10**30},target=1"], "whole number"),
        (["--batch", "0"], "from 1"),
        (["--batch", "-1"], "from 1"),
        (["--batch", "²"], "whole number"),
        (["--batch"], "expected one argument"),
        (["--mermaid", "--resolved"], "exclude each other"),
        (["other.yaml"], "no argument `other.yaml`"),
    ],
)
def test_a_wrong_command_line_is_reported(tfkit, words, message):
    done = tfkit("show", BASE, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_mermaid_is_no_json(tfkit):
    done = tfkit("show", BASE, "--mermaid", "--json")
    assert done.code == 2
    assert done.json()["diagnostics"][0]["code"] == "TFK090"


def test_errors_are_json_too(tfkit):
    done = tfkit("show", "tests/cli/slips.yaml", "--json")
    assert done.code == 2
    assert len(done.json()["diagnostics"]) == 7


@pytest.mark.slow
def test_too_many_sites_to_list_are_refused(tfkit, small):
    few = [f"--set=nodes.{stack}.num_layers=1" for stack in ("encoder", "decoder")]
    done = tfkit("show", small, *few, "--set", "encoder.num_layers=100000")
    assert (done.code, done.out) == (2, "")
    assert "attention sites" in done.err


def test_no_number_is_cut_off(tfkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = tfkit("show", "specs/transformer-base.yaml", "--lengths", "source=99999999999999,target=5")
    assert done.code == 0
    assert "\u2026" not in done.out
