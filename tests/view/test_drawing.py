"""`tfkit show` and `tfkit diff` as drawings: what is in the SVG, in the page and in the PNG."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from tfkit import build, graph_of, load_spec
from tfkit.cli.batch_args import batch_of
from tfkit.view.drawing.boxes import depth, single_layers
from tfkit.view.drawing.layout import drawing
from tfkit.view.drawing.marks import Marks
from tfkit.view.drawing.page import model_drawing, model_page
from tfkit.view.drawing.svg import svg
from tfkit.view.model_data import model_data

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
BASE = "specs/transformer-base.yaml"
EVIL = '</script></svg><script>alert(1)</script><img src=x onerror="alert(1)">\u202e' + "w" * 10_000


def boxes(text):
    """The texts of each node of an SVG, by name."""
    root = ElementTree.fromstring(text)
    found = {}
    for node in root.iter(f"{SVG}g"):
        if "node" in node.get("class", "").split():
            found[node.get("data-name")] = [each.text for each in node.iter(f"{SVG}text")]
    return found


def test_the_boxes_have_the_numbers_of_the_data(tfkit):
    shown = boxes(tfkit("show", BASE, "--svg").out)
    data = tfkit("show", BASE, "--json").json()
    assert list(shown) == [node["name"] for node in data["nodes"]]
    for node in data["nodes"]:
        texts = shown[node["name"]]
        assert f"({', '.join(map(str, node['shape']))})" in texts
        for part in [node, *(part for group in node.get("layers", ()) for part in group["sublayers"])]:
            assert f"{part['parameters'] + part.get('frozen_parameters', 0):,} parameters" in texts
        for group in node.get("layers", ()):
            assert texts.count("6 x layer") == 1
            assert sum(part["flops"] for part in group["sublayers"]) == node["flops"]
            assert sum(part["activation_elements"] for part in group["sublayers"]) == node["activation_elements"]
    assert "1.64 GFLOPs, 9.04 MB of activations" in shown["decoder"]
    assert "output of the model" in shown["logits"]


def test_edges_are_inputs_memories_and_shared_tables(tfkit):
    root = ElementTree.fromstring(tfkit("show", BASE, "--svg").out)
    edges = [path for path in root.iter(f"{SVG}path") if path.get("marker-end")]
    assert sorted(edge.find(f"{SVG}title").text for edge in edges) == [
        "decoder to logits: input", "encoder to decoder: memory", "source to encoder: input", "source to logits: table",
        "source to target: table", "target to decoder: input",
    ]  # fmt: skip
    assert {edge.get("class") for edge in edges} == {"edge input", "edge memory", "edge table"}


def test_the_picture_of_the_guide_is_what_the_command_draws(tfkit, tmp_path):
    assert tfkit("show", BASE, "-o", tmp_path / "model.svg").code == 0
    assert (ROOT / "docs" / "_static" / "transformer-base.svg").read_bytes() == (tmp_path / "model.svg").read_bytes()


def inside(point, placed, tops):
    x, y = point
    height = placed.box.unfolded.height
    return placed.x + 1 < x < placed.x + 275 and tops[placed.row] + 1 < y < tops[placed.row] + height - 1


def check_single_layers(spec, graph):
    """The layers one by one have the numbers of their groups, and each the name of its sites."""
    for node in model_data(spec, graph, batch_of(graph, 1, None))["nodes"]:
        layers = list(single_layers(node.get("layers", ())))
        assert [layer["number"] for layer in layers] == list(range(depth(node.get("layers", ()))))
        for name in ("flops", "activation_elements"):
            parts = sum(part[name] for layer in layers for part in layer["sublayers"])
            assert parts == sum(total(group, name) for group in node.get("layers", ())), (spec.name, name)
        own = sum(layer["parameters"] for layer in layers if layer["owner"] == layer["number"])
        assert own == sum(group["parameters"] for group in node.get("layers", ())), spec.name


def total(group, name):
    inner = [total(each, name) for each in group.get("layers", ())]
    return sum([*inner, *(part[name] for part in group.get("sublayers", ()))])


@pytest.mark.slow
def test_every_shipped_spec_is_drawn_without_overlaps(catalogue):
    """Boxes do not overlap, and no corner or middle of an edge is inside of a box."""
    paths = sorted((ROOT / "specs").glob("*.yaml"))
    assert len(paths) > 50
    for path in paths:
        spec = load_spec(path, catalogue)
        graph = graph_of(spec)
        drawn = model_drawing(model_data(spec, graph, batch_of(graph, 1, None)))
        assert list(boxes(svg(drawn))) == list(graph.nodes), path.name
        check_single_layers(spec, graph)
        places = [(node.x, node.row) for node in drawn.nodes]
        assert len(set(places)) == len(places), path.name
        tops = drawn.tops
        for edge in drawn.edges:
            points = [(point.x, tops[point.row] + point.unfolded) for point in edge.points]
            points += [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in pairwise(points)]
            assert all(0 <= x <= drawn.width and 0 <= y <= drawn.height for x, y in points), (path.name, edge)
            hit = [node.box.name for node in drawn.nodes for point in points if inside(point, node, tops)]
            assert not hit, (path.name, edge.source, edge.target, hit)


class Page(HTMLParser):
    """The elements of a page, and the addresses in it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset", "action")]

    handle_startendtag = handle_starttag


def hostile(data):
    text = json.dumps(data)
    return json.loads(text.replace('"source"', json.dumps(EVIL)))


def test_names_are_inert(catalogue):
    """No name of a spec becomes an element, and a long one is cut in its box."""
    spec = load_spec(ROOT / BASE, catalogue)
    graph = graph_of(spec)
    data = hostile(model_data(spec, graph, batch_of(graph, 1, None)))
    text = model_page({**data, "name": EVIL, "description": EVIL, "reference": EVIL})
    page, plain = Page(text), Page(model_page(model_data(spec, graph, batch_of(graph, 1, None))))
    assert set(page.tags) == set(plain.tags)
    assert page.tags.count("script") == 2  # the data, and the script of the page
    assert page.addresses == []
    shown = boxes(svg(drawing(data, "", Marks())))
    assert max(map(len, shown[EVIL])) < 60
    assert "http" not in re.sub(r'"http://www.w3.org/2000/svg"', "", svg(drawing(data, "", Marks())))


@pytest.mark.parametrize("name", ["ends in \ufffe", "\uffff", "\x0c"], ids=["U+FFFE", "U+FFFF", "form feed"])
def test_a_character_that_xml_may_not_have_is_replaced(tfkit, tmp_path, name):
    text = (ROOT / BASE).read_text().replace("name: transformer-base", f"name: {json.dumps(name)}", 1)
    (tmp_path / "a.yaml").write_text(text)
    for words in (["show", tmp_path / "a.yaml", "--svg"], ["diff", tmp_path / "a.yaml", BASE, "--svg"]):
        drawn = tfkit(*words)
        if drawn.out:
            ElementTree.fromstring(drawn.out)
        else:
            assert drawn.err.startswith(f"{tmp_path / 'a.yaml'}:3:")


def test_a_diff_marks_what_differs(tfkit, tmp_path):
    place = tmp_path / "diff.html"
    done = tfkit("diff", BASE, BASE, "--set", "encoder.ffn.d_ff=1024", "--set", "expect=null", "-o", place)
    assert done.code == 1
    assert done.out == f"{place}: transformer-base and transformer-base side by side\n"
    text = place.read_text(encoding="utf-8")
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 2
    for each in drawings:
        shown = boxes(each)
        assert "≠ inside: ffn" in shown["encoder"]
        assert "≠ d_ff" in shown["encoder"]
        assert not any("≠" in line for name in ("source", "target", "decoder", "logits") for line in shown[name])
        assert each.count('class="part ffn marked"') == 1 + 6  # of the group, and of each layer
    assert "<td>d_ff</td><td>2048</td><td>1024</td><td>encoder.0-5.ffn</td>" in text
    equal = tfkit("diff", BASE, BASE, "--html")
    assert equal.code == 0
    assert "The models are equal." in equal.out
    assert "≠" not in "".join(re.findall(r"<svg.*?</svg>", equal.out, re.DOTALL))


@pytest.mark.slow
def test_a_diff_is_drawn_side_by_side(tfkit, tmp_path):
    words = ("diff", "specs/transformer-tiny.yaml", "specs/tiny-alibi.yaml")
    done = tfkit(*words, "--svg")
    assert done.code == 1
    root = ElementTree.fromstring(done.out)
    drawn = root.findall(f"{SVG}g/{SVG}svg")
    assert [list(boxes(ElementTree.tostring(each))) for each in drawn] == [
        ["source", "target", "encoder", "decoder", "logits"]
    ] * 2
    assert [text.text for text in root.findall(f"{SVG}text")] == [
        "A (specs/transformer-tiny.yaml)",
        "B (specs/tiny-alibi.yaml)",
    ]
    assert len({each.get("id") for each in root.iter() if each.get("id")}) == len([e for e in root.iter() if e.get("id")])
    assert float(root.get("width")) == sum(float(each.get("width")) for each in drawn)
    place = tmp_path / "diff.png"
    assert tfkit(*words, "-o", place).code == 1
    with Image.open(place) as png:
        assert png.size == tuple(int(float(root.get(axis)) * 1.6) for axis in ("width", "height"))


def test_what_only_one_model_has_is_marked(tfkit):
    done = tfkit("diff", BASE, "specs/bert-base.yaml", "--html")
    first, second = (boxes(each) for each in re.findall(r"<svg.*?</svg>", done.out, re.DOTALL))
    assert "+ only in this model" in first["decoder"]
    assert all("+ only in this model" in lines for name, lines in second.items() if name not in first)


@pytest.mark.slow
def test_a_png_has_the_size_of_the_drawing(tfkit, tmp_path):
    place = tmp_path / "model.png"
    assert tfkit("show", BASE, "-o", place).code == 0
    root = ElementTree.fromstring(tfkit("show", BASE, "--svg").out)
    with Image.open(place) as png:
        assert png.size == tuple(int(float(root.get(axis)) * 1.6) for axis in ("width", "height"))
        colours = {colour for _, colour in png.convert("RGB").getcolors(1 << 20)}
        assert {(0xFB, 0xE6, 0xE8), (0xFD, 0xEA, 0xCD), (0xE2, 0xEC, 0xFB), (0xDF, 0xF1, 0xF2)} <= colours


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--png"], "a PNG needs a file"),
        (["-o", "model.pdf"], "ends in none of .html, .svg or .png"),
        (["--svg", "--json"], "a drawing and --json exclude each other"),
        (["--html", "--mermaid"], "a drawing and --mermaid exclude each other"),
        (["-o", "model.svg", "--resolved"], "a drawing and --resolved exclude each other"),
        (["-o", "README.md", "--svg"], "README.md exists already"),
        (["-o", "nowhere/model.svg"], "nowhere is not a directory"),
    ],
)
def test_a_wrong_drawing_is_an_error(tfkit, words, message):
    done = tfkit("show", BASE, *words)
    assert done.code == 2
    assert message in done.err + done.out


def test_a_missing_package_names_the_extra(tfkit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # Python takes it for not installed
    for command in (["show", BASE], ["positions", BASE]):
        done = tfkit(*command, "-o", tmp_path / "model.png")
        assert done.code == 2
        assert "pip install 'tfkit-core[pictures]'" in done.err


def test_a_notebook_shows_a_model_and_a_graph(catalogue):
    spec = load_spec(ROOT / "specs" / "transformer-tiny.yaml", catalogue)
    model = build(spec, catalogue, device="meta")._repr_html_()
    graph = graph_of(spec)._repr_html_()
    for text in (model, graph):
        assert list(boxes(re.search(r"<svg.*</svg>", text, re.DOTALL)[0])) == list(spec.nodes)
