"""The picture of a claim, drawn from its stored result: `python bench/claims/picture.py RESULT.json ... DIRECTORY`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

COLOURS = ("#0b57a4", "#b3400b", "#1b7a3d", "#7a2f9e", "#6b6b00", "#444444")
DASHES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))
MARKERS = "os^Dvx"
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "tfkit", "font.size": 9, "axes.spines.top": False,
            "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "axes.titlesize": 9,
            "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "savefig.facecolor": "white"}  # fmt: skip


def draw(result: Mapping[str, Any], place: Path) -> None:
    """Write the picture of a result to a file, whose suffix names the format."""
    found = json.loads(json.dumps(result, allow_nan=False))  # keys are text, as in a file
    lengths = found.get("accuracy_by_length")
    panels = list(found["measured"].items()) if "measured" in found else [("scores", None), *([("", None)] if lengths else [])]
    columns = 1 if len(panels) == 1 else 3 if len(panels) in (3, 5, 6) else 2
    rows = -(-len(panels) // columns)
    with plt.rc_context(SETTINGS):
        figure, grid = plt.subplots(
            rows, columns, figsize=(7.6 if columns > 1 else 5.2, 2.5 * rows + 0.6), layout="constrained", squeeze=False
        )
        axes = list(grid.flat)
        if "measured" in found:
            for ax, (quantity, series) in zip(axes, panels, strict=False):
                _lines(ax, quantity, found["x"], series)
        else:
            _scores(axes[0], found)
            if lengths:
                _by_length(axes[1], lengths, found.get("measure_by_length", "letters right, per cent"))
        for ax in axes[len(panels) :]:
            ax.remove()
        count = found["seeds"] if isinstance(found["seeds"], int) else len(found["seeds"])
        figure.supxlabel(f"{found['command']}, {count} seeds\ntorch {found['torch']}, {found['machine']}"
                         f" ({found['instructions']}), {found['threads']} thread", fontsize=7.5, color="#444444")  # fmt: skip
        digest = hashlib.sha256(json.dumps(found, sort_keys=True, allow_nan=False).encode()).hexdigest()
        metadata: dict[str, str | None] = {"Date": None} if place.suffix == ".svg" else {}
        metadata["Description"] = f"sha256 of the result: {digest}"
        figure.savefig(place, dpi=110, metadata=metadata)
        plt.close(figure)
    if place.suffix == ".svg":  # indentation is a tenth of the file
        lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines()]
        place.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines(ax: Axes, quantity: str, label: str, series: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Mean over seeds, with the range as a band."""
    means = []
    for at, (name, points) in enumerate(series.items()):
        rows = sorted((float(x), *spread) for x, spread in points.items())
        xs, mean, _, low, high = zip(*rows, strict=True)
        means += mean
        ax.plot(xs, mean, color=COLOURS[at % 6], linestyle=DASHES[at % 6], marker=MARKERS[at % 6], markersize=4, label=name)
        ax.fill_between(xs, low, high, color=COLOURS[at % 6], alpha=0.15, linewidth=0)
    if min(xs) > 0 and max(xs) / min(xs) >= 8 and len(xs) < 10:
        ax.set_xscale("log", base=2)
        ax.set_xticks(xs, [f"{x:g}" for x in xs], minor=False)
    positive = [mean for mean in means if mean > 0]
    if "per cent" not in quantity and min(means) >= 0 and positive and max(positive) / min(positive) > 30:
        ax.set_yscale("log" if min(means) > 0 else "symlog")
    if min(means) == 0 or (min(means) > 0 and ax.get_yscale() == "linear"):
        ax.set_ylim(bottom=0)
    ax.set(xlabel=label)
    ax.set_title(fill(quantity, 34))
    ax.legend(frameon=False, fontsize=8)


def _scores(ax: Axes, found: Mapping[str, Any]) -> None:
    """A mark for each run, and a bar at the mean."""
    names = [each["name"] for each in found["recipes"]]
    for at, each in enumerate(found["recipes"]):
        scores = list(each["scores"].values())
        ax.plot(scores, [at] * len(scores), MARKERS[at % 6], color=COLOURS[at % 6], markersize=6, alpha=0.7)
        ax.plot([fmean(scores)] * 2, [at - 0.3, at + 0.3], color=COLOURS[at % 6], linewidth=2)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    better = "lower" if found["metric"] == "loss" else "higher"
    ax.set_title(f"validation {found['metric']}, {better} is better:\na mark for each seed, a bar at the mean")


def _by_length(ax: Axes, found: Mapping[str, Mapping[str, Sequence[float]]], measured: str) -> None:
    """Mean over seeds by length, with the range as a band."""
    for at, (name, buckets) in enumerate(found.items()):
        values = list(buckets.values())
        ax.plot(range(len(values)), [fmean(each) for each in values], color=COLOURS[at % 6], linestyle=DASHES[at % 6],
                marker=MARKERS[at % 6], markersize=4, label=name)  # fmt: skip
        ax.fill_between(range(len(values)), [min(v) for v in values], [max(v) for v in values], color=COLOURS[at % 6],
                        alpha=0.15, linewidth=0)  # fmt: skip
    ax.set_xticks(range(len(buckets)), list(buckets))
    ax.set(xlabel="length", ylabel=measured, ylim=(0, None))
    ax.legend(frameon=False, fontsize=7.5, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2 if len(found) > 3 else 3)


if __name__ == "__main__":
    *results, directory = map(Path, sys.argv[1:])
    for stored in results:
        draw(json.loads(stored.read_text(encoding="utf-8")), directory / f"{stored.stem}.svg")
