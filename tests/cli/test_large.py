"""A model of very many layers is made only if the user asks for it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import tfkit
from command_line import SMALL
from tfkit import graph_of
from tfkit.cli import main
from tfkit.graph.rules import MAX_SUBLAYERS


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    return str(tmp_path / "small.yaml")


@pytest.mark.parametrize("name", ["build", "eject", "verify"])
def test_many_sublayers_need_the_option(name, small, capsys):
    deep = ["--set", "encoder.num_layers=1000"]
    assert main([name, small, *deep]) == 2
    error = capsys.readouterr().err
    assert re.search(
        r".*small.yaml:\d+:\d+: TFK045 nodes\.encoder: the model runs 2,\d{3} sub-layers, 2,000 of them in `encoder`, "
        r"and has [\d,]+ parameters; more than 1,000 take minutes: use fewer, or pass --large where",
        error,
    ), error
    assert main(["check", small, *deep]) == 0


MANY = ", ".join(f"{{kind: ffn, name: f{number}}}" for number in range(60))


@pytest.mark.parametrize("layers", ["[{repeat: 2000, shared: true}]", f"[{{repeat: 20, sublayers: [{MANY}]}}]"])
def test_what_counts_is_the_sublayers_that_run(layers, tmp_path, capsys):
    (tmp_path / "small.yaml").write_text(SMALL.replace("source, num_layers: 2", f"source, layers: {layers}"))
    assert main(["build", str(tmp_path / "small.yaml")]) == 2
    assert "sub-layers, " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--set", "encoder.num_layers=480"], ["--large", "--set", "encoder.num_layers=600"]])
def test_fewer_sublayers_and_the_option_make_it(words, small, capsys):
    assert main(["eject", small, *words]) == 0
    assert not capsys.readouterr().err


def test_the_help_names_the_limit(capsys):
    assert main(["build", "--help"]) == 0
    assert f"more than {MAX_SUBLAYERS:,} sub-layers" in " ".join(capsys.readouterr().out.split())


def test_the_memory_of_the_trial_counts(small, capsys, monkeypatch):
    graph = graph_of(tfkit.load_spec(small))
    free = 4 * graph.parameters() + 100
    monkeypatch.setattr("tfkit.builder.initialisation.available_memory", lambda device: free)
    tfkit.build(small)
    assert main(["build", small]) == 2
    assert re.search(
        rf"TFK045 nodes\.\w+: the parameters need {free - 100:,} bytes in torch\.float32, a forward pass of 3 rows "
        rf"\(source 8, target 7\) [\d,]+ more, and cpu has {free:,} free; make the model smaller",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize(
    ("position", "nodes", "message"),
    [
        ("{kind: learned, max_len: 1000000000000}", 1, "needs 32,000,000,000,000 bytes, and cpu has "),
        ("sinusoidal", 201, "201 position schemes"),
    ],
)
def test_pictures_of_position_schemes_are_bounded(position, nodes, message, tmp_path, capsys):
    names = [f"text_{number}" for number in range(nodes)]
    texts = "".join(f"  {name}: {{kind: tokens, d_model: 8, vocab_size: 9, position: {position}}}\n" for name in names)
    (tmp_path / "s.yaml").write_text(f"tfkit: 1\nname: s\nnodes:\n{texts}outputs: [{', '.join(names)}]\n")
    assert main(["positions", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "p.html")]) == 2
    error = capsys.readouterr().err
    assert "TFK045" in error
    assert message in error


HEADS = """
tfkit: 1
name: s
nodes:
  source: {kind: tokens, vocab_size: 9, d_model: 4}
  body:
    {kind: stack, input: source, num_layers: 1, placement: pre, norm: layer_norm, position: alibi, sublayers: [self_attention],
     attention: {num_heads: 257, head_dim: 1}}
outputs: [body]
"""
IMAGE = """
tfkit: 1
name: s
nodes:
  image: {kind: patches, size: 65, patch: 1, channels: 1, d_model: 4, position: sinusoidal_2d}
  body: {kind: stack, input: image, num_layers: 1, placement: pre, norm: layer_norm, sublayers: [self_attention],
         attention: {num_heads: 1}}
outputs: [body]
"""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (HEADS, "the position scheme of `body` has 257 heads, and at most 256 are evaluated; use fewer heads"),
        (IMAGE, "the position scheme of `image` has 4,225 positions, and at most 4,096 are evaluated; use larger patches"),
    ],
)
def test_the_picture_of_one_scheme_is_bounded(spec, message, tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(spec)
    assert main(["positions", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "p.html")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_memory_that_a_process_is_allowed_counts():
    code = (
        "import resource, torch; from tfkit.builder.initialisation import available_memory as free; here = torch.device('cpu');"
    )
    code += "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
    code += "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), -1)); print(free(here))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1 << 28


def test_a_png_has_at_most_200_nodes_and_an_svg_more(tmp_path, capsys):
    nodes = "".join(
        f"  n{number}: {{kind: dense, input: {'n' + str(number - 1) if number else 'source'}}}\n" for number in range(200)
    )
    text = f"tfkit: 1\nname: s\nnodes:\n  source: {{kind: tokens, vocab_size: 9, d_model: 4}}\n{nodes}outputs: [n199]\n"
    (tmp_path / "s.yaml").write_text(text)
    assert main(["show", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "p.png")]) == 2
    assert (
        "a PNG of 201 nodes takes too much time and memory, and at most 200 are drawn; write .svg or .html"
        in capsys.readouterr().err
    )
    assert main(["show", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "p.svg")]) == 0
