"""Pages of attention in a real browser, without a network."""

import re

import numpy as np
import pytest

from browser import missing_browser, opened, violations
from tfkit.look import Ends, Observation, Picture, Prediction, SiteWeights
from tfkit.look.attention_page import attention_page

from .test_attention_page import hostile, synthetic

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_browser()), reason=f"tests in a browser, {missing_browser()}"),
    pytest.mark.xdist_group("browser"),
]

COUNT_DECODED = """
window.decoded = 0;
DecompressionStream = class extends DecompressionStream { constructor(...words) { super(...words); window.decoded += 1; } };
"""
"""Counts the heads whose weights a page decodes."""


@pytest.fixture
def write(tmp_path):
    def written(*observations):
        path = tmp_path / "page.html"
        path.write_text(attention_page(observations), encoding="utf-8")
        return path

    return written


def caption(page):
    return page.locator(".caption").first.text_content()


def painted(page):
    """Whether the canvas of the stage has more than one colour."""
    script = "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    return page.locator(".stage canvas").first.evaluate(script) > 1


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_view_breaks_a_rule_of_axe_and_hostile_tokens_are_inert(write, width, scheme):
    with opened(write(hostile(), hostile()), width, scheme) as page:
        page.wait_for_selector(".stage canvas")
        for summary in page.locator("summary").all():
            if not summary.evaluate("each => each.parentNode.open"):
                summary.click()
        for view, drawn in (("map", ".stage canvas"), ("lines", ".stage svg.lines"), ("many", ".stage button")):
            page.locator(f"input[value={view}]").first.check()
            page.wait_for_selector(drawn)
            assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("img, iframe").count() == 0
        assert page.locator("section").count() == 2


def test_keys_move_and_choose_and_the_caption_says_the_weight(write):
    observation = synthetic(5, layers=2, heads=3)
    with opened(write(observation)) as page:
        page.wait_for_selector("[role=application]")
        assert painted(page)
        page.locator("#site0").focus()
        for _ in range(20):
            if page.evaluate("document.activeElement.getAttribute('role')") == "application":
                break
            page.keyboard.press("Tab")

        def weight_after(keys, start):
            """The weight in the caption that begins so and ends in the key; it changes once the head is decoded."""
            for key in keys:
                page.keyboard.press(key)
            page.locator(".caption", has_text=re.compile(start)).wait_for()
            assert page.evaluate("document.activeElement.getAttribute('role')") == "application"
            return float(re.search(start, caption(page)).group(1))

        weights = [site.weights for site in observation.sites]
        for keys, site, head, q, k in (
            (("2", "ArrowDown", "ArrowDown", "ArrowRight"), 0, 2, 2, 1),
            (("End", "Home", "ArrowUp"), 0, 2, 1, 0),
            (("PageDown", "1"), 1, 1, 1, 0),
        ):
            name = re.escape(observation.sites[site].name)
            weight = weight_after(keys, rf"^{name}, head {head}\. Query {q + 1},.* weight (\S+) on key {k + 1}\b")
            assert weight == pytest.approx(weights[site][head, q, k], abs=0.5 / 255 + 0.005)
        weight_after("m", r", mean of the heads\. .* weight (\S+) on key 1\b")
        page.locator("summary").first.click()
        row = page.locator("tbody tr").nth(3)
        best = int(weights[1].mean(0)[3].argmax())
        assert row.locator("th").text_content() == "4. word3"
        assert row.locator("td").first.text_content().startswith(f"word{best} ")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_one_of_several_texts_is_chosen_with_the_keyboard_and_keeps_the_view(tmp_path, width, scheme):
    runs = [synthetic(length, layers=2, heads=2, tokens=[f"{name}{at}" for at in range(length)], seed=length)
            for length, name in ((4, "first"), (6, "second"), (5, "third"))]  # fmt: skip
    path = tmp_path / "page.html"
    path.write_text(attention_page(runs, texts=3, lines=True), encoding="utf-8")
    with opened(path, width, scheme) as page:
        page.wait_for_selector(".stage svg.lines")
        assert page.locator(".run:visible").count() == 1
        page.locator("#site0").select_option("decoder.1.self_attention")
        page.locator("#head0").select_option("1")
        page.locator("#text").focus()
        page.keyboard.press("ArrowDown")
        page.locator("svg.lines:visible text", has_text="second5").first.wait_for()
        assert page.locator("#site1").input_value() == "decoder.1.self_attention"
        assert page.locator(".caption:visible").text_content().startswith("decoder.1.self_attention, head 1. Query 1, second0")
        page.locator("input[value=map]:visible").check()
        page.locator("#text").focus()
        page.keyboard.press("ArrowDown")
        canvas = page.locator("canvas[aria-label^='Heat map of decoder.1']:visible")
        canvas.wait_for()
        weights = runs[2].sites[1].weights[1]
        canvas.press("ArrowDown")
        page.locator(".caption:visible", has_text="Query 2, third1").wait_for()
        weight = float(re.search(r"weight (\S+) on key 1", page.locator(".caption:visible").text_content()).group(1))
        assert weight == pytest.approx(weights[1, 0], abs=0.5 / 255 + 0.005)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_of_many_texts_decodes_those_of_the_one_that_is_shown(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(attention_page([synthetic(40, layers=4, heads=4)] * 20, texts=20), encoding="utf-8")
    with opened(path) as page:
        page.wait_for_selector(".stage canvas")
        page.add_init_script(COUNT_DECODED)
        page.reload()
        page.wait_for_selector(".stage canvas")
        assert page.evaluate("window.decoded") == 4


def test_a_page_of_200_tokens_decodes_one_layer_to_open(write):
    """`bench/look_page.py` measures the time."""
    with opened(write(synthetic(200, layers=6, heads=8))) as page:
        page.wait_for_selector(".stage canvas")
        page.add_init_script(COUNT_DECODED)
        page.reload()
        page.wait_for_selector(".stage canvas")
        assert painted(page)
        assert page.evaluate("window.decoded") == 8


def test_an_image_is_drawn_with_its_patches_and_a_model_without_attention_has_its_probabilities(write):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    names = ("class", *(f"patch {at}" for at in range(4)))
    weights = np.full((2, 5, 5), 0.2, np.float32)
    patches = SiteWeights("body.0.self_attention", names, names, weights, True, True)
    words = SiteWeights("text.0.self_attention", ("a", "b"), ("a", "b"), np.eye(2, dtype=np.float32)[None], True)
    image = Observation(
        "vit", "image.png", sites=(patches, words), classes=(("one", 0.75), ("two", 0.25)), picture=Picture(pixels, 2, 2, 1),
        ends=(Ends("a", 0.75, 0.5), Ends("b", 0.25, 0.5)),
    )  # fmt: skip
    without = Observation(
        "rnn", "text", "word", predictions=(Prediction("word", 0.5, (("word", 0.5),)),), notices=("no attention",)
    )
    with opened(write(image, without)) as page:
        page.wait_for_selector(".stage canvas")
        assert painted(page)
        assert "weight 0.20" in caption(page)
        assert page.locator("section").nth(0).locator("tbody tr").first.text_content() == "one0.75"
        assert page.locator("section").nth(1).locator("tbody tr").first.text_content() == "1. word0.50word 0.50"
        assert page.locator(".note").last.text_content() == "no attention"
        assert page.locator("tr", has_text="1. a").locator("td").all_text_contents() == ["0.75", "0.50"]
        assert violations(page) == []
        page.locator("#site0").select_option("text.0.self_attention")
        page.locator("canvas[aria-label^='Heat map of text.0']").wait_for()
