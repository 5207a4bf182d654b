"""The page of attention: its numbers, and hostile tokens. No browser."""

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest
import torch

from tfkit import InputError, load, load_recipe
from tfkit.look import AttentionFigure, Beam, Observation, Prediction, SiteWeights, attention
from tfkit.look.attention_page import attention_page, head_statistics, rollouts
from tfkit.look.request import with_targets
from tfkit.train import train
from translation_task import write_task

TEXT = "the old dog sees"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "</script><script>alert(1)</script>", '"><img src=https://example.com onerror=alert(1)>', "\u202eevil\u2066", "x" * 10_000,
    "</bdi><!--", "שלום", "猫", "{{ 7 * 7 }}",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    train(load_recipe(write_task(folder), ["stopping.max_steps=4", "validation.every_steps=2"]), folder / "run")
    return folder / "run"


def data_of(page):
    """The data of a page, with the tokens of each site in their place."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))
    for model in data["models"]:
        for site in model["sites"]:
            site.update({side: model["names"][site[side]] for side in ("queries", "keys")})
    return data


def weights_in(site):
    """The weights (H, Q, K) of a site of the page's data."""
    shape = len(site["queries"]), len(site["keys"])
    heads = [np.frombuffer(zlib.decompress(base64.b64decode(head)), np.uint8) for head in site["heads"]]
    return np.stack([head.reshape(shape) / 255 for head in heads])


def synthetic(length, layers=1, heads=2, tokens=None, seed=0):
    """An observation with random causal weights."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(0, 2, (layers, heads, length, length)) + np.where(np.tri(length), 0, -np.inf)
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    names = tuple(tokens or (f"word{at}" for at in range(length)))
    sites = tuple(
        SiteWeights(f"decoder.{layer}.self_attention", names, names, weights[layer].astype(np.float32), True)
        for layer in range(layers)
    )
    return Observation("drawn", "text", sites=sites)


def hostile():
    observation = synthetic(len(HOSTILE), tokens=HOSTILE)
    predictions = tuple(Prediction(token, 0.5, ((token, 0.5),)) for token in HOSTILE)
    beams = (Beam(tuple((token, 0.5) for token in HOSTILE), -1.0, True, ()),)
    name = HOSTILE[0]
    return Observation(name, HOSTILE[1], name, observation.sites, predictions, ((name, 1.0),), beams, notices=(HOSTILE[1],))


class Elements(HTMLParser):
    """All elements and their attributes, and the names of attributes that load something."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs


@pytest.mark.slow
def test_numbers_in_the_page_are_the_weights_of_the_model(run):
    """The reference runs the model again, on the tokens of the page."""
    figure = attention(run, text=TEXT, target="la olda hundo vidas")
    [shown] = data_of(figure.page())["models"]
    model = load(run).eval()
    pieces = json.loads(next(run.glob("models/*/tokeniser.json")).read_text())["model"]["vocab"]

    def ids(names):
        return torch.tensor([[pieces.get("▁" + name, pieces.get(name)) for name in names]])

    by_name = {site["name"]: site for site in shown["sites"]}
    source, target = by_name["encoder.0.self_attention"]["keys"], by_name["decoder.0.self_attention"]["keys"]
    assert (source[-1], target[0]) == ("</s>", "<s>")
    with torch.no_grad():
        outputs = model(source=ids(source), target=ids(target), weights=["*"])
    assert set(outputs["weights"]) == set(by_name)
    for site, expected in outputs["weights"].items():
        assert np.abs(weights_in(by_name[site]) - expected[0].numpy()).max() <= 0.5 / 255 + 1e-6
        assert np.array_equal(figure.observations[0].sites[[*by_name].index(site)].weights, expected[0].numpy())
    probabilities = outputs["logits"][0].softmax(-1)
    predicted = ids([each["token"] for each in shown["predictions"]])[0]
    assert [each["p"] for each in shown["predictions"]] == pytest.approx(
        probabilities.gather(1, predicted[:, None])[:, 0].tolist(), rel=1e-3
    )
    assert by_name["decoder.0.cross_attention"]["queries"] == [each["token"] for each in shown["predictions"]]


@pytest.mark.slow
def test_a_search_is_a_tree_whose_paths_are_the_hypotheses(run):
    [observation] = attention(run, text=TEXT, beams=3).observations

    def paths(beams):
        for beam in beams:
            tokens = [token for token, _ in beam.tokens]
            if beam.score is not None:
                yield tokens, beam
            yield from ((tokens + rest, end) for rest, end in paths(beam.children))

    found = list(paths(observation.beams))
    assert len(found) == 3
    assert len({tuple(tokens) for tokens, _ in found}) == 3
    [best] = [tokens for tokens, beam in found if beam.best and not any(child.best for child in beam.children)]
    assert best == [each.token for each in observation.predictions]
    assert max(found, key=lambda one: one[1].score)[0] == best


def test_hostile_tokens_are_text():
    page = attention_page([hostile(), hostile()])
    found = Elements(page)
    assert found.names.count("script") == 2
    assert not {"img", "link", "iframe", "object"} & set(found.names)
    assert not [name for name, _ in found.attributes if name in ("src", "href") or name.startswith("on")]
    site = data_of(page)["models"][0]["sites"][0]
    assert site["keys"][2] == HOSTILE[2]
    assert max(map(len, site["keys"])) == 60
    assert "{{ 7 * 7 }}" in site["keys"][-1]
    frame = Elements(AttentionFigure((hostile(),))._repr_html_())
    assert frame.names == ["iframe"]
    assert dict(frame.attributes)["sandbox"] == "allow-scripts"


def test_a_page_of_200_tokens_is_small_and_names_what_it_leaves_out(monkeypatch):
    page = attention_page([synthetic(200, layers=6, heads=8)])
    [shown] = data_of(page)["models"]
    assert len(page) < 2_000_000
    assert len(shown["sites"]) == 7
    monkeypatch.setattr("tfkit.look.attention_page.MOST_BYTES", 300_000)
    smaller = attention_page([synthetic(200, layers=6, heads=8)])
    [shown] = data_of(smaller)["models"]
    assert 0 < len(shown["sites"]) < 6
    assert sum(len(head) for site in shown["sites"] for head in site["heads"]) <= 300_000
    assert shown["notices"][-1].startswith(f"{7 - len(shown['sites'])} sites are not on this page")


def test_a_page_of_several_texts_is_small_and_each_text_has_its_share():
    """Short texts leave their share to longer ones; the page is bounded by its data, names of tokens in them."""
    short, long = (synthetic(length, layers=6, heads=8, tokens=["猫" * 20] * length) for length in (20, 200))
    data = data_of(attention_page([short] * 5 + [long], texts=6))
    assert [len(each["sites"]) for each in data["models"]] == [7] * 6
    assert len(data["models"][0]["names"]) == 1
    page = attention_page([long] * 6, texts=6)
    assert len(page.encode()) < 2_000_000
    counts = [len(each["sites"]) for each in data_of(page)["models"]]
    assert max(counts) < 7
    assert min(counts) > 0
    assert Elements(page).names.count("option") == 6


def test_statistics_and_rollout_of_known_weights():
    eye, first = np.eye(4, dtype=np.float32), np.zeros((4, 4), np.float32)
    first[:, 0] = 1
    uniform = np.full((4, 4), 0.25, np.float32)
    names = ("a", "b", "c", "d")
    site = SiteWeights("encoder.0.self_attention", names, names, np.stack([eye, first, uniform]), True)
    found = head_statistics(site)
    assert [each.entropy for each in found] == pytest.approx([0, 0, np.log(4)])
    assert [each.distance for each in found] == pytest.approx([0, 1.5, 1.25])
    assert [each.first for each in found] == pytest.approx([0.25, 1, 0.25])
    one = SiteWeights("encoder.0.self_attention", names, names, first[None], True)
    two = SiteWeights("encoder.1.self_attention", names, names, uniform[None], True)
    cross = SiteWeights("decoder.0.cross_attention", names, names, eye[None], False)
    assert head_statistics(cross)[0].distance is None
    [rollout] = rollouts(Observation("m", "t", sites=(one, two, cross)))
    assert rollout.name == "encoder.rollout"
    assert rollout.weights[0] == pytest.approx((uniform + eye) / 2 @ ((first + eye) / 2))


def lines_in(svg):
    """The strokes of each head: group -> (colour, dashes, width, from, to), in coordinates of the picture."""
    found = {}
    for group in ElementTree.parse(svg).iter(f"{SVG}g"):
        if ", head " in group.get("id", ""):
            for path in group.iter(f"{SVG}path"):
                style = dict(part.split(": ") for part in path.get("style").split("; "))
                ends = [float(each) for each in re.findall(r"-?[0-9.]+", path.get("d"))]
                stroke = style["stroke"], style.get("stroke-dasharray"), float(style["stroke-width"]), ends
                found.setdefault(group.get("id"), []).append(stroke)
    return found


def test_lines_join_each_query_with_the_keys_of_its_weights(tmp_path):
    """The reference counts the weights; the ends of a line are at the height of its words."""
    first = synthetic(5, layers=2, heads=3, tokens=["$x$", "猫", "</text>", "שלום", "a"])
    second = synthetic(7, layers=2, heads=3, seed=1)
    figure = AttentionFigure((first, second), texts=2)
    figure.save(tmp_path / "lines.svg", lines=True)
    figure.save(tmp_path / "lines.png", lines=True)
    assert (tmp_path / "lines.png").read_bytes().startswith(b"\x89PNG")
    found = lines_in(tmp_path / "lines.svg")
    assert len(found) == 2 * 2 * 3
    for number, observation in enumerate((first, second), 1):
        for site in observation.sites:
            strokes = [found[f"text {number}, {site.name}, head {head}"] for head in range(3)]
            assert len({each[0][:2] for each in strokes}) == 3
            heights = sorted({round(end, 3) for head in strokes for *_, ends in head for end in ends[1::2]})
            assert len(heights) == len(site.queries)
            for weights, head in zip(site.weights, strokes, strict=True):
                drawn = {
                    (heights.index(round(ends[1], 3)), heights.index(round(ends[3], 3))): width for *_, width, ends in head
                }
                assert set(drawn) == {(q, k) for q, k in np.argwhere(weights >= 0.05).tolist()}
                assert sorted(drawn, key=drawn.get) == sorted(drawn, key=lambda at: weights[at])
    text = (tmp_path / "lines.svg").read_text()
    assert all(each in text for each in ("$x$", "&lt;/text&gt;", ">head 2<"))


@pytest.mark.parametrize(("texts", "targets"), [(["dog", "a" * 20_001], None), ("dog", "a" * 20_001)])
def test_a_text_to_look_at_has_a_limit(texts, targets):
    with pytest.raises(InputError, match="TFK161 a text has 20,001 characters, and at most 20,000 are read"):
        with_targets(texts, targets)


@pytest.mark.parametrize(("lines", "length", "layers"), [(True, 101, 1), (True, 3, 201), (False, 3, 101)])
def test_a_picture_that_would_be_too_large_is_refused(tmp_path, lines, length, layers):
    with pytest.raises(InputError, match="TFK161"):
        AttentionFigure((synthetic(length, layers),)).save(tmp_path / "too-large.svg", lines)
    assert not list(tmp_path.iterdir())


def test_pictures_are_drawn_from_all_heads(tmp_path):
    figure = AttentionFigure((synthetic(5, layers=2, heads=3, tokens=["$x$", "猫", "</text>", "שלום", "a"]),))
    figure.save(tmp_path / "heads.svg")
    figure.save(tmp_path / "heads.png")
    text = (tmp_path / "heads.svg").read_text()
    assert len(re.findall("<image", text)) == 6
    assert "decoder.1.self_attention, head 2" in text
    assert "&lt;/text&gt;" in text
    assert "$x$" in text
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("lines", [True, False])
def test_characters_that_no_font_has_are_named(tmp_path, lines):
    figure = AttentionFigure((synthetic(3, tokens=["a", "\ue123", "b"]),))
    [notice] = figure.save(tmp_path / "heads.png", lines)
    assert "boxes stand for characters that no installed font has (\ue123, 1 in all)" in notice
    assert figure.save(tmp_path / "heads.svg", lines) == []
    assert AttentionFigure((synthetic(3, tokens=["a", "c", "b"]),)).save(tmp_path / "plain.png", lines) == []


@pytest.mark.skipif(matplotlib.__version_info__ < (3, 11), reason="matplotlib sets text from right to left since 3.11")
@pytest.mark.parametrize("lines", [True, False])
def test_a_png_sets_hebrew_from_right_to_left(tmp_path, lines):
    """The picture of a word equals that of its letters in visual order, whose direction is forced to left to right."""
    from matplotlib.image import imread

    pictures = []
    for at, word in enumerate(("שלום", "\u202dםולש\u202c", "םולש")):
        AttentionFigure((synthetic(3, tokens=["a", word, "b"]),)).save(tmp_path / f"{at}.png", lines)
        pictures.append(imread(tmp_path / f"{at}.png"))
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])
