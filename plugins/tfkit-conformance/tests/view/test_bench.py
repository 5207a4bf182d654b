"""A report of measurements in words and as a page."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tfkit.commands import bytes_in_words, scaled, seconds_in_words
from tfkit_conformance.view.bench_page import bench_page
from tfkit_conformance.view.bench_text import bench_text


def backend(name, status="timed", **known):
    return {
        "name": name, "status": status, "reason": "", "reasons": [], "seconds": [0.02, 0.02], "median": 0.02, "low": 0.019,
        "high": 0.021, "flops_per_second": 5e11, "bytes_per_second": None, "share": 0.5, "peak_bytes": 3 << 20,
        "prepare_seconds": None, "best_peer": 2.0, "worst_error": 0.1, "worst_tensor": "output", **known,
    }  # fmt: skip


NO_TIME = {"seconds": [], "median": None, "low": None, "high": None, "flops_per_second": None, "share": None, "best_peer": None}


@pytest.fixture
def data():
    shape = {"batch": 2, "heads": 8, "kv_heads": 8, "queries": 3, "keys": 4, "head_dim": 64}
    decoding = {**shape, "kv_heads": 2}
    rows = [
        backend("fast"),
        backend("slow<er>", median=0.04, share=0.25, best_peer=0.5),
        backend("no", "refused", reason="dropout is not declared", reasons=["dropout is not declared", "b", "c"], **NO_TIME),
        backend("off", "wrong", reason="query is off by 7 times its bound", **NO_TIME),
        backend("short", "memory", reason="out of memory", **NO_TIME),
    ]
    decode = [backend("fast", flops_per_second=1e9, bytes_per_second=2e12, peak_bytes=None, seconds=[0.02])]
    return {
        "tfkit_bench": 1, "command": "tfkit bench attention", "seconds": 3.0, "interrupted": True,
        "machine": {
            "device": "cuda", "device_name": "GPU <X>", "capability": [9, 0], "threads": 1, "versions": {"torch": "2.11"},
        },
        "settings": {"dtype": "bfloat16", "memory": "as torch counts it"},
        "ceiling": {"flops": 1e12, "bytes": 4e12},
        "cells": [
            {"name": "a/forward", "family": "dense", "training": False, "decode": False, "shape": shape, "backends": rows},
            {"name": "d/forward", "family": "decode", "training": False, "decode": True, "shape": decoding, "backends": decode},
        ],
        "missing": [{"cell": "b/forward", "reason": "interrupted"}, {"cell": "c/forward", "reason": "interrupted"}],
    }  # fmt: skip


def test_the_text_has_a_line_for_every_backend(data, drawn):
    text = drawn(*bench_text(data), width=118)
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.startswith("  ")}
    assert lines["fast"] == "fast 20 ms once 2 TB/s 50.0 % not measured 2.00 x"
    assert lines["slow<er>"] == "slow<er> 40 ms ±3 % 500 GFLOP/s 25.0 % 3 MiB 0.50 x"
    assert lines["no"] == "no refused: dropout is not declared (and 2 more)"
    assert lines["off"] == "off WRONG, not timed: query is off by 7 times its bound"
    assert lines["short"] == "short out of memory"
    assert "GPU <X> (sm_90), bfloat16; torch 2.11" in text
    assert "Ceilings: 1 TFLOP/s (matrix product), 4 TB/s (copy)." in text
    assert "B2 H8 G2 Q3 K4 D64" in text
    assert "not run, interrupted: b/forward, c/forward" in text
    assert "4 x head_dim" in text
    assert max(map(len, text.splitlines())) <= 118


def test_the_page_is_self_contained_and_escapes_its_input(data):
    page = bench_page(data)
    assert not re.search(r"<script|<link|src=|https?:|url\(|@import", page)
    assert "<X>" not in page
    assert "GPU &lt;X&gt;" in page
    assert "slow&lt;er&gt;" in page
    assert 'title="dropout is not declared; b; c"' in page
    assert "viewport" in page
    assert "prefers-color-scheme: dark" in page
    widths = [float(width) for width in re.findall(r"width:([0-9.]+)%\"", page)]
    assert widths == [100.0, 50.0, 100.0]
    assert page.count('class="best"') == 2
    for word in ("WRONG, not timed", "out of memory", "Not run", "b/forward: interrupted", "The run was interrupted."):
        assert word in page
    assert "Content-Security-Policy" in page
    for tag in ("table", "tbody", "tr", "td", "th", "div", "p", "h2", "h3", "ul", "li"):
        assert len(re.findall(f"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (
            seconds_in_words,
            {2.5: "2.5 s", 0.0123: "12.3 ms", 1e-3: "1 ms", 0.000999: "999 us", 1.5e-7: "0.15 us", 123.4: "123 s"},
        ),
        (
            partial(scaled, unit="FLOP/s"),
            {6.48e14: "648 TFLOP/s", 1e12: "1 TFLOP/s", 8.38e10: "83.8 GFLOP/s", 5e8: "500 MFLOP/s"},
        ),
        (partial(scaled, unit="B/s"), {3.35e12: "3.35 TB/s", 2.54e10: "25.4 GB/s"}),
        (bytes_in_words, {512: "512 B", 1536: "1.5 KiB", 36 << 20: "36 MiB", 3 << 30: "3 GiB"}),
    ],
)
def test_units(words, number):
    assert {key: words(key) for key in number} == number
