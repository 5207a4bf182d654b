"""Milliseconds until headless Chromium has drawn a page of `tfkit look`: 200 tokens, 6 layers, 8 heads, causal weights."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

from tfkit.look import Observation, SiteWeights
from tfkit.look.attention_page import attention_page

TOKENS, LAYERS, HEADS = 200, 6, 8


def observation() -> Observation:
    """Causal attention whose scores are normal numbers."""
    random = np.random.default_rng(0)
    words = tuple(f"word{number}" for number in range(TOKENS))
    sites = []
    for layer in range(LAYERS):
        raw = np.exp(random.normal(0, 2, (HEADS, TOKENS, TOKENS))) * np.tri(TOKENS)
        weights = (raw / raw.sum(2, keepdims=True)).astype(np.float32)
        sites.append(SiteWeights(f"body.{layer}.self_attention", words, words, weights, True))
    return Observation("gpt", " ".join(words), sites=tuple(sites))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as driver:
        path = Path(directory) / "page.html"
        path.write_text(attention_page([observation()]), encoding="utf-8")
        browser = driver.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        page, took = browser.new_page(), []
        for _ in range(given.rounds + 1):
            page.goto(path.as_uri())
            page.wait_for_selector(".stage canvas")
            took.append(page.evaluate("performance.now()"))
        found = {
            "bytes": path.stat().st_size, "median_ms": round(statistics.median(took[1:])), "min_ms": round(min(took[1:])),
            "max_ms": round(max(took[1:])), "rounds": given.rounds, "browser": browser.version,
        }  # fmt: skip
        browser.close()
    print(json.dumps(found, indent=1, allow_nan=False))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
