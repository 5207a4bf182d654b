"""The curve of a training as one HTML page that needs nothing else: losses and scores over steps, drawn as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_whole
from ..train import log

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 260, 56, 34, 12
SCORES = {"bleu": "BLEU", "bleu_lowercase": "lowercase BLEU", "chrf": "chrF2", "accuracy": "accuracy"}
POINTS = 240
"""More steps than this are told by the mean of their neighbours: nobody sees more on a page."""


@dataclass(frozen=True)
class Line:
    """A curve: its name, the class that gives its colour, and its points (step, value)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


def draw_curve(path: Path, page: Path, title: str) -> None:
    """Write the page of a run's log. Raises StoreError."""
    write_whole(page, curve_page(read_log(path), title))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log; the last line, if it was cut off, is passed over. Raises StoreError for another that is none."""
    return [entry.model_dump() for entry in log.read_log(path)]


def curve_page(entries: Sequence[dict[str, Any]], title: str) -> str:
    """The page for the entries of a log."""
    steps = [entry for entry in entries if entry["kind"] == "step"]
    validations = [entry for entry in entries if entry["kind"] == "validation"]
    last = max((entry["step"] for entry in entries), default=1)
    losses = [
        Line("training loss, smoothed labels", "a", _points(steps, "loss")),
        Line("training nll", "b", _points(steps, "nll")),
        Line("validation nll", "c", [(entry["step"], entry["nll"]) for entry in validations]),
    ]
    names = sorted({name for entry in validations for name in entry["scores"]})
    scores = [
        Line(
            SCORES.get(name, name),
            colour,
            [(entry["step"], entry["scores"][name]) for entry in validations if name in entry["scores"]],
        )
        for name, colour in zip(names, "abc", strict=False)
    ]
    charts = [_chart("nats per target token", losses, last)]
    if scores:
        charts.append(_chart("scores of validation, 0 to 100", scores, last))
    charts.append(_chart("learning rate", [Line("learning rate", "a", _points(steps, "rate"))], last))
    best = next((entry for entry in reversed(validations) if entry["best"]), None)
    return PAGE.format(title=html.escape(title), facts=_facts(steps, best), charts="\n".join(charts), table=_table(validations))


def _facts(steps: Sequence[dict[str, Any]], best: dict[str, Any] | None) -> str:
    if not steps:
        return "<p>No step was made.</p>"
    target, seconds = sum(step["target_tokens"] for step in steps), sum(step["seconds"] for step in steps)
    said = (
        f"{len(steps):,} steps, {target:,} target tokens, {target / max(seconds, 1e-9):,.0f} of them a second while training."
    )
    if best is not None:
        scores = "".join(f", {html.escape(SCORES.get(name, name))} {value:.2f}" for name, value in best["scores"].items())
        said += f" Best at step {best['step']:,}: validation perplexity {math.exp(min(best['nll'], 700)):.2f}{scores}."
    return f"<p>{said}</p>"


def _points(entries: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    width = max(1, math.ceil(len(entries) / POINTS))
    groups = [entries[at : at + width] for at in range(0, len(entries), width)]
    return [(group[-1]["step"], sum(entry[key] for entry in group) / len(group)) for group in groups]


def _chart(label: str, lines: Sequence[Line], last: int) -> str:
    points = [point for line in lines for point in line.points if math.isfinite(point[1])]
    if not points:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - 8) * x / last
        down = TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / ((high - low) or 1)
        return f"{across:.1f},{down:.1f}"

    drawn = [f'<text class="label" x="{LEFT}" y="{HEIGHT - 4}">steps, 0 to {last:,.0f}</text>']
    for tick in ticks:
        down = float(place(0, tick).split(",")[1])
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{down:.1f}" y2="{down:.1f}"/>')
        drawn.append(f'<text class="tick" x="{LEFT - 6}" y="{down + 4:.1f}">{tick:g}</text>')
    for line in lines:
        path = " ".join(place(x, y) for x, y in line.points if math.isfinite(y))
        if path:
            drawn.append(f'<polyline class="{line.colour}" points="{path}"><title>{html.escape(line.name)}</title></polyline>')
    keys = " ".join(f'<span class="key {line.colour}">{html.escape(line.name)}</span>' for line in lines if line.points)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">{"".join(drawn)}</svg>'
    return f"<figure><figcaption>{html.escape(label)}: {keys}</figcaption>{svg}</figure>"


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers between two."""
    width = (high - low) or abs(high) or 1.0
    if not 1e-300 < width < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(width))
    step = next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if width / (size * part) <= 7)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def _table(validations: Sequence[dict[str, Any]]) -> str:
    if not validations:
        return ""
    names = sorted({name for entry in validations for name in entry["scores"]})
    head = "".join(f"<th>{html.escape(SCORES.get(name, name))}</th>" for name in ("step", "epoch", "perplexity", *names))
    best = next((entry for entry in reversed(validations) if entry["best"]), None)
    rows = []
    for entry in validations:
        cells = [f"{entry['step']:,}", str(entry["epoch"]), f"{math.exp(min(entry['nll'], 700)):.2f}"]
        cells += [f"{entry['scores'][name]:.2f}" if name in entry["scores"] else "" for name in names]
        mark = ' class="best"' if entry is best else ""
        rows.append(f"<tr{mark}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    signatures = {name: text for entry in validations for name, text in entry["signatures"].items()}
    notes = "".join(
        f"<li>{html.escape(SCORES.get(name, name))}: <code>{html.escape(text)}</code></li>" for name, text in signatures.items()
    )
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div><ul>{notes}</ul>"


PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --a: #2f6fde; --b: #c2560c; --c: #178a55; }}
@media (prefers-color-scheme: dark) {{ :root {{ --a: #7aa7ff; --b: #ff9d5c; --c: #5fd39a; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; }} figure {{ margin: 1.5rem 0; }} figcaption {{ margin-bottom: .4rem; }}
svg {{ width: 100%; height: auto; }} polyline {{ fill: none; stroke-width: 2; }}
polyline.a {{ stroke: var(--a); }} polyline.b {{ stroke: var(--b); }} polyline.c {{ stroke: var(--c); }}
.grid {{ stroke: currentColor; opacity: .15; }} .tick, .label {{ fill: currentColor; font-size: 12px; }}
.tick {{ text-anchor: end; }}
.key::before {{ content: ""; display: inline-block; width: 1.2em; height: 3px; margin: 0 .35em .25em .5em; }}
.key.a::before {{ background: var(--a); }} .key.b::before {{ background: var(--b); }} .key.c::before {{ background: var(--c); }}
div {{ overflow-x: auto; }} table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: right; padding: .15rem .5rem; }}
th {{ border-bottom: 1px solid; }} tr.best {{ font-weight: 600; }} code {{ overflow-wrap: anywhere; }}
</style></head><body>
<h1>{title}</h1>
{facts}
{charts}
{table}
</body></html>
"""
