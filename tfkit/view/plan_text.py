"""The text output of `tfkit plan`: one block for all sites with the same plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .formatting import bytes_in_words, float32_products
from .plan_data import faster_elsewhere_in_words, lengths_in_words, row_in_words
from .terminal import shown

SAME = ("requested", "lengths", "chosen", "candidates", "sdpa_kernels", "without_dense")


def plan_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """The text of `plan_data`. Sites with equal plans share a block."""
    parts: list[RenderableType] = [_title(data["name"], data["target"])]
    blocks: dict[str, tuple[list[str], list[Any]]] = {}
    by_name: dict[str, list[Any]] = {}
    for row in data["sites"]:
        by_name.setdefault(row["name"], []).append(row)
    for name, rows in by_name.items():
        plan = json.dumps([{key: row.get(key) for key in SAME} for row in rows], allow_nan=False)
        blocks.setdefault(plan, ([], rows))[0].append(name)
    for names, rows in blocks.values():
        parts += ["", Text(", ".join(names), "bold"), Text(f"  requested: {rows[0]['requested']}")]
        for row in rows:
            parts += [_chosen(row), Padding(_candidates(row["candidates"]), (0, 0, 0, 4))]
            if row.get("sdpa_kernels") and any(candidate["backend"] == "sdpa" for candidate in row["candidates"]):
                parts.append(Text(f"    sdpa runs {_kernels(row['sdpa_kernels'], bool(data['sdpa']['depends']))}", "dim"))
    if "sdpa" in data:
        parts += ["", Text(_sdpa(data["sdpa"]), "dim")]
        gains = faster_elsewhere_in_words([(row["name"], row.get("not_installed", {})) for row in data["sites"]])
        parts += [part for line in gains for part in ("", Text(line, "yellow"))]
        if unlocked := _unlocked(data["sites"]):
            parts += ["", Text(unlocked)]
    if data["unmeasured"] and any(row["requested"] == "auto" for row in data["sites"]):
        parts += ["", Text(f"auto does not consider backends without measured times: {', '.join(data['unmeasured'])}", "dim")]
    if "nan_as_zero" in data:
        hiding = ", ".join(data["nan_as_zero"])
        parts += ["", Text(f"where scores are NaN or infinite, the output may be zero instead of NaN: {hiding}", "dim")]
    shown_rows = [measurement for row in data["sites"] for candidate in row["candidates"] for measurement in candidate["rows"]]
    links = sorted({measurement["published"] for measurement in shown_rows if measurement["published"]})
    if links:
        parts += ["", Text(f"figures marked (published) were not measured by tfkit: {', '.join(links)}", "dim")]
    how = sorted({measurement["estimated"] for measurement in shown_rows if measurement["estimated"]})
    if how:
        unlock = "`tfkit bench auto --device cuda` measures this device"
        parts += ["", Text(f"figures marked (estimated) are not measurements: {'; '.join(how)}. {unlock}", "dim")]
    if "float32_products" in data:
        parts += ["", Text(f"float32 products of decoding: {float32_products(data['float32_products'])}", "dim")]
    if "products" in data:
        parts += ["", _products(data["products"])]
    if data.get("cancelling"):
        why = "no norm bounds their inputs; for large values the backward of sdpa loses gradients by cancellation"
        parts += ["", Text(f"{', '.join(data['cancelling'])}: {why}; `tfkit verify` shows it, eager rounds less", "yellow")]
    if not blocks:
        parts += ["", Text("The model has no attention.")]
    return parts


def _kernels(kernels: Mapping[str, str], depends: bool) -> str:
    """`torch's flash kernel, and efficient for batches with padding`. What cuDNN computes, flash can compute."""
    kernels = {name: "cudnn or flash" if depends and family == "cudnn" else family for name, family in kernels.items()}
    if "plain" not in kernels:
        return f"torch's {kernels['masked']} kernel, because each call has a dense mask or bias"
    padded = f", and {kernels['masked']} for batches with padding, whose mask is dense" if "masked" in kernels else ""
    return f"torch's {kernels['plain']} kernel{padded}"


def _sdpa(sdpa: Mapping[str, Any]) -> str:
    cudnn = f"cuDNN {sdpa['cudnn']}" if sdpa["cudnn"] else "no cuDNN is installed here"
    order = f"tries {', '.join(sdpa['order'])}; " if sdpa["order"] else ""
    depends = f"; {sdpa['depends']}" if sdpa["depends"] else ""
    return f"sdpa: torch {sdpa['torch']} {order}{cudnn}{depends} ({sdpa['source']})"


def _unlocked(sites: list[dict[str, Any]]) -> str:
    """How unmeasured backends that need no dense mask get into the table of `auto`."""
    names = sorted({name for row in sites if row["requested"] == "auto" for name in row.get("without_dense", ())})
    if not names:
        return ""
    command = f"tfkit bench auto --device cuda --backends sdpa,{','.join(names)} --json auto.json"
    return (
        f"{', '.join(names)}: accepted, without a dense mask or bias prepared for padding, T5 or ALiBi, but not measured; "
        f"`{command}` checks and measures on the device, and with `--auto-table auto.json` auto takes the fastest"
    )


def _title(name: str, target: Mapping[str, Any]) -> Text:
    capability = target["cuda_capability"]
    device = target["device"] + (f" sm_{capability[0]}{capability[1]}" if capability else "")
    words = [device, target["dtype"], "training" if target["training"] else "inference"]
    if target["compiled"]:
        words.append("compiled")
    words.append(f"{target['queries']} queries x {target['keys']} keys" if target["queries"] else "any lengths")
    return Text(shown(name), "bold").append(f" on {', '.join(words)}", "")


def _products(facts: Mapping[str, Any]) -> Text:
    count, precision = len(facts["weights"]), facts["precision"]
    if not count:
        return Text(f"{precision}: no weight is large enough; all products are float32")
    sizes = f"weights of {bytes_in_words(facts['bytes'])} instead of {bytes_in_words(facts['float32_bytes'])}"
    products = f"{count} {'product' if count == 1 else 'products'} by {facts['kernel']}"
    return Text(f"{precision}: {products}, {sizes}; ids may differ from float32's")


def _chosen(row: Mapping[str, Any]) -> Text:
    where = f", lengths {lengths_in_words(row['lengths'])}" if row["lengths"] and row["lengths"] != [1, None] else ""
    label = Text(f"  chosen{where}: ")
    return label.append(row["chosen"], "bold green") if row["chosen"] else label.append("nothing can serve this", "bold red")


def _candidates(candidates: list[dict[str, Any]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for candidate in candidates:
        time = candidate["relative_time"]
        words = "accepted" if candidate["accepted"] else f"refused: {'; '.join(candidate['reasons'])}"
        words += _measured(candidate["rows"])
        if candidate["depends"]:
            words += f"; depends on {', '.join(candidate['depends'])}"
        known = "" if time is None else f"{_times(candidate['rows'])} x eager{_origin(candidate['rows'])}"
        grid.add_row(candidate["backend"], known, Text(shown(words), "" if candidate["accepted"] else "dim"))
    return grid


def _origin(rows: list[dict[str, Any]]) -> str:
    """` (published)`, ` (estimated)` or both, for figures that tfkit did not measure."""
    kinds = [kind for kind in ("published", "estimated") if any(row[kind] for row in rows)]
    return f" ({', '.join(kinds)})" if kinds else ""


def _times(rows: list[dict[str, Any]]) -> str:
    """`0.60`, or `0.60 to 0.90` if classes of lengths differ."""
    times = sorted(row["relative_time"] for row in rows)
    return f"{times[0]:.2f}" if times[0] == times[-1] else f"{times[0]:.2f} to {times[-1]:.2f}"


def _measured(rows: list[dict[str, Any]]) -> str:
    """The rows of a relative time and the device on which they were measured."""
    measured = [row for row in rows if row["measured"]]
    if not measured:
        return ""
    joined = {**measured[-1], "lengths": [measured[0]["lengths"][0], measured[-1]["lengths"][1]]}
    where = " and ".join(dict.fromkeys(row["measured"] for row in measured))
    return f"; measured for {row_in_words(joined)} on {where}"
