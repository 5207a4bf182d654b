"""A report of `tfkit bench attention` as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from .bench_words import FORMULA, READING, ceiling_in_words, figures, machine_in_words, said, shape_in_words

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #5d6b7a; --line: #dde3ea; --page: #fbfcfd; --bar: #9db7d5;
  --best: #2f8f5b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ef; --soft: #98a5b3; --line: #2c3744; --page: #12171d; --bar: #47617f;
  --best: #4fbf83; --bad: #ff8a80; } }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; color: var(--ink); background: var(--page);
  font: 15px/1.45 system-ui, sans-serif; }
p, h3, li, .words { overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.1rem 0 .2rem; } h3 small, p, footer { color: var(--soft); font-weight: normal; }
p { margin: .3rem 0; } code { font-size: .9em; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .5rem .2rem 0; text-align: right; vertical-align: top; border-top: 1px solid var(--line); }
th { font-weight: 600; } td:first-child, th:first-child, .words { text-align: left; }
thead th { color: var(--soft); font-weight: normal; font-size: .85rem; border: 0; }
.track { width: 32%; padding-top: .5rem; }
.bar { height: .7rem; min-width: 1px; border-radius: 2px; background: var(--bar); }
.best .bar { background: var(--best); } .best th { color: var(--best); }
.words { color: var(--soft); } .bad { color: var(--bad); }
.pair { white-space: nowrap; }
@media (max-width: 40rem) { .wide { display: none; } .track { width: 30%; } body { padding: .7rem; }
  td, th { padding-right: .35rem; }
  table { font-size: .88rem; } thead th { font-size: .78rem; } }
""".strip()


def bench_page(data: Mapping[str, Any]) -> str:
    """The page. A bar is as long as the share of the ceiling, scaled so that the longest of a cell's family fills its track."""
    parts = [
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">', "<title>tfkit bench attention</title>",
        f"<style>{STYLE}</style>", "<h1>Attention backends</h1>", f"<p>{escape(machine_in_words(data))}</p>",
        f"<p>{escape(ceiling_in_words(data))}</p>", f"<p><code>{escape(data['command'])}</code></p>",
    ]  # fmt: skip
    if data["interrupted"]:
        parts.append('<p class="bad">The run was interrupted.</p>')
    for family in dict.fromkeys(cell["family"] for cell in data["cells"]):
        cells = [cell for cell in data["cells"] if cell["family"] == family]
        longest = max((row["share"] or 0.0 for cell in cells for row in cell["backends"]), default=0.0)
        parts += [f"<h2>{escape(family)}</h2>", *(_cell(cell, longest) for cell in cells)]
    if data["missing"]:
        items = "".join(f"<li>{escape(row['cell'])}: {escape(row['reason'])}</li>" for row in data["missing"])
        parts += ["<h2>Not run</h2>", f"<ul>{items}</ul>"]
    notes = f"{FORMULA} {READING} Memory: {data['settings']['memory']}. Bars: share of the ceiling."
    return "\n".join([*parts, f"<footer><p>{escape(notes)}</p></footer>", "</html>", ""])


def _cell(cell: Mapping[str, Any], longest: float) -> str:
    timed = [row["median"] for row in cell["backends"] if row["status"] == "timed" and row["median"]]
    heads = (
        "<thead><tr><th></th><th></th><th>median</th><th class=wide>spread</th><th>rate</th><th class=wide>of ceiling</th>"
        "<th class=wide>memory</th><th class=wide>best peer</th></tr></thead>"
    )
    rows = "".join(_row(row, cell["decode"], longest, min(timed, default=0.0)) for row in cell["backends"])
    title = f"<h3>{escape(cell['name'])} <small>{escape(shape_in_words(cell))}</small></h3>"
    return f"{title}<table>{heads}<tbody>{rows}</tbody></table>"


def _row(row: Mapping[str, Any], decode: bool, longest: float, best: float) -> str:
    name, words = f"<th>{escape(row['name'])}</th>", figures(row, decode)
    if row["status"] != "timed":
        kind = "words bad" if row["status"] in ("wrong", "failed") else "words"
        title = escape("; ".join(row["reasons"]) or row["reason"])
        return f'<tr>{name}<td class="{kind}" colspan="7" title="{title}">{escape(said(row))}</td></tr>'
    width = 100 * (row["share"] or 0.0) / longest if longest else 0.0
    first = ' class="best"' if row["median"] == best else ""
    figured = "".join(
        f'<td class="pair{" wide" if key in ("spread", "share", "memory", "peer") else ""}">{escape(words[key])}</td>'
        for key in ("time", "spread", "rate", "share", "memory", "peer")
    )
    return f'<tr{first}>{name}<td class="track"><div class="bar" style="width:{width:.1f}%"></div></td>{figured}</tr>'
