"""The pages of `tfkit show`, `diff`, `positions` and `compare` in Chromium: no request, nothing for axe, folding by
mouse and keyboard."""

from __future__ import annotations

import json
import re

import pytest

from browser import missing_browser, opened, violations
from tfkit import Comparison
from tfkit.comparison.results import CandidateResult, RunResult
from tfkit.view.comparison import comparison_page
from tfkit.view.curve import draw_curve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_browser()), reason=f"tests in a browser, {missing_browser()}"),
]

BASE = "specs/transformer-base.yaml"


def check_everywhere(page):
    """On a desktop and on a phone, light and dark: nothing for axe, and the page itself does not scroll sideways."""
    for width, scheme in ((1280, "light"), (390, "dark"), (390, "light"), (1280, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_words_of_a_curve_can_be_read_on_a_phone(tmp_path):
    log, place = tmp_path / "log.jsonl", tmp_path / "curve.html"
    same = {"kind": "step", "epoch": 1, "norm": 1.0, "source_tokens": 10, "target_tokens": 12, "seconds": 0.5}
    steps = [{**same, "step": step, "loss": 9 / step, "nll": 8 / step, "rate": step / 400000} for step in range(1, 40)]
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in steps))
    draw_curve(log, place, "run")
    with opened(place) as page:
        check_everywhere(page)
        page.set_viewport_size({"width": 390, "height": 900})
        words = page.locator("svg text").evaluate_all("all => all.map(text => text.getBoundingClientRect().toJSON())")
        assert len(words) > 6
        assert min(word["height"] for word in words) >= 10, "pixels"
        assert all(word["left"] >= 0 and word["right"] <= 390 for word in words)


def test_the_page_of_a_model_folds_by_click_and_by_keyboard(tfkit, tmp_path):
    place = tmp_path / "model.html"
    assert tfkit("show", BASE, "-o", place).code == 0
    with opened(place) as page:
        check_everywhere(page)
        encoder, decoder = (page.locator(f'g.node[data-name="{name}"]') for name in ("encoder", "decoder"))
        edge = page.locator("path.memory[marker-end]")
        start, high = edge.get_attribute("d"), page.locator("svg").bounding_box()["height"]
        decoder.focus()
        page.keyboard.press("Enter")
        assert (decoder.get_attribute("aria-expanded"), encoder.get_attribute("aria-expanded")) == ("false", "true")
        assert not decoder.locator(".unfolded text", has_text="cross_attention").is_visible()
        assert edge.get_attribute("d") != start
        encoder.locator("text").first.dispatch_event("click")
        assert encoder.get_attribute("aria-expanded") == "false"
        assert page.locator("svg").bounding_box()["height"] < high
        page.get_by_role("button", name="Unfold all").click()
        assert decoder.locator(".unfolded text", has_text="cross_attention").is_visible()
        after, before = ([float(each) for each in re.findall(r"[\d.]+", text)] for text in (edge.get_attribute("d"), start))
        assert after == pytest.approx(before, abs=0.051)  # the static path has one decimal
        layers = page.get_by_role("button", name="decoder: each layer")
        decoder.focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert layers.get_attribute("aria-expanded") == "true"
        shown = [text for text in decoder.locator(".times").all_text_contents() if text.startswith("layer ")]
        assert shown == [f"layer {number}" for number in range(6)]
        assert decoder.locator(".single text", has_text="layer 5").is_visible()
        assert not decoder.locator(".unfolded text", has_text="6 x layer").is_visible()
        assert violations(page) == []
        layers.dispatch_event("click")
        assert decoder.locator(".unfolded text", has_text="6 x layer").is_visible()
        page.get_by_role("button", name="Each layer", exact=True).click()
        assert encoder.locator(".single text", has_text="layer 5").is_visible()


def test_the_page_of_a_diff_is_accessible(tfkit, tmp_path):
    place = tmp_path / "diff.html"
    assert tfkit("diff", BASE, "specs/transformer-prenorm.yaml", "-o", place).code == 1
    with opened(place) as page:
        check_everywhere(page)
        left, right = (page.locator("svg.model").nth(at).bounding_box() for at in (0, 1))
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]
        page.get_by_role("button", name="Fold all", exact=True).click()
        assert page.locator('g.node[aria-expanded="false"]').count() == 10


def test_the_page_of_positions_is_accessible(tfkit, tmp_path):
    place = tmp_path / "positions.html"
    assert tfkit("positions", "specs/tiny-alibi.yaml", "-o", place).code == 0
    with opened(place) as page:
        check_everywhere(page)
        assert page.locator("img").evaluate_all("all => all.every(one => one.complete && one.naturalWidth > 1000)")


def test_the_page_of_a_comparison_is_accessible(tmp_path):
    candidates = []
    for number in range(6):  # as many as there are colours
        result = {"step": 2, "steps": 4, "seconds": 1.0, "parameters": 9, "reason": "", "digest": ""}
        runs = {seed: RunResult(score=3.0 - seed, **result) for seed in (0, 1)}
        for seed in runs:
            place = tmp_path / f"{number}" / f"seed-{seed}"
            place.mkdir(parents=True)
            entry = {"kind": "validation", "epoch": 1, "scores": {}, "seconds": 1.0, "best": True, "signatures": {}}
            lines = [json.dumps({**entry, "step": step, "nll": 5.0 - step - seed}) for step in (1, 2)]
            (place / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))
        candidates.append(CandidateResult(f"recipe {number}", runs, {}, tmp_path / f"{number}"))
    place = tmp_path / "page.html"
    place.write_text(comparison_page(Comparison("loss", (0, 1), tuple(candidates)), "comparison"), encoding="utf-8")
    with opened(place) as page:
        check_everywhere(page)
        assert page.locator("circle").count() == 12
