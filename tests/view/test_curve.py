"""The page of a run, whatever its log says."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest

from tfkit import StoreError
from tfkit.commands import page
from tfkit.view import curve
from tfkit.view.curve import draw_curve
from tfkit.view.pages import POLICY

EVIL = '</title></svg><script>alert(1)</script><img src=x onerror="alert(1)">'


def step(number, **changed):
    return {
        "kind": "step", "step": number, "epoch": 1, "loss": 5 / number, "nll": 4 / number, "rate": 1e-3, "norm": 1.0,
        "source_tokens": 10, "target_tokens": 12, "seconds": 0.5, **changed,
    }  # fmt: skip


def validation(number, **changed):
    return {
        "kind": "validation", "step": number, "epoch": 1, "nll": 3 / max(number, 1), "scores": {"bleu": 12.35}, "best": False,
        "signatures": {"bleu": "nrefs:1|case:mixed"}, "seconds": 1.0, "sample": ["a", "b", "c"], **changed,
    }  # fmt: skip


@pytest.fixture
def drawn(tmp_path):
    """The page of these entries."""

    def draw(*entries, title="run"):
        log, place = tmp_path / "log.jsonl", tmp_path / "curve.html"
        log.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        draw_curve(log, place, title)
        return place.read_text(encoding="utf-8")

    return draw


class Tags(HTMLParser):
    """Which elements and attributes a page has."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.open = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen |= {tag, *(name for name, _ in attributes)}
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen |= {tag, *(name for name, _ in attributes)}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_numbers_and_names_are_on_the_page(drawn):
    text = drawn(step(1), step(2), validation(2), step(3), step(4), validation(4, best=True), title="en-de")
    assert text.count("<polyline") == 5
    assert "<h1>en-de</h1>" in text
    assert "4 steps, 48 target tokens, 24 of them a second while training. Best at step 4: validation perplexity 2.12" in text
    assert ", BLEU 12.35.</p>" in text
    assert text.count("<tr") == 3
    assert re.search(r'<tr class="best"><td>4</td><td>1</td><td>2\.12</td>', text)
    assert "BLEU: <code>nrefs:1|case:mixed</code>" in text
    assert Tags(text).open == []


def test_a_log_cannot_write_elements_into_the_page(drawn):
    hostile = {"scores": {EVIL[:90]: 1.0}, "signatures": {EVIL[:90]: EVIL}, "sample": [EVIL] * 3}
    tags = Tags(drawn(step(1), validation(1, best=True, **hostile), title=EVIL))
    assert not tags.seen & {"script", "img", "onerror", "src", "link", "iframe"}
    assert tags.open == []
    for field in ("epoch", "step", "nll"):
        with pytest.raises(StoreError, match="TFK082"):
            drawn(step(1), validation(1, **{field: EVIL}))


def test_the_page_forbids_scripts(drawn):
    text = drawn(step(1))
    assert re.search('<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)[1].replace("&#39;", "'") == POLICY
    assert POLICY.startswith("default-src 'none';")
    assert "script" not in POLICY


@pytest.mark.parametrize("entries", [[], [step(1, loss=None, nll=None)], [validation(0, nll=None, scores={"bleu": None})]])
def test_a_log_without_numbers_has_a_page(drawn, entries):
    text = drawn(*entries)
    assert Tags(text).open == []
    assert ("No step was made." in text) is (not entries or entries[0]["kind"] == "validation")


def test_a_value_that_a_template_lacks_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        page(Path(curve.__file__).with_name("curve.html"), title="run")
