"""The text output of `tfkit doctor`: facts, packages, the model, and last the problems with their fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from .formatting import bytes_in_words, float32_products
from .terminal import shown


def doctor_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """The text of the doctor's data."""
    parts: list[RenderableType] = [_facts(data), "", _extras(data["extras"])]
    if data["model"]:
        parts += ["", *_model(data["model"])]
    for note in data["notes"]:
        parts += ["", Text(f"note: {shown(note['what'])}", "yellow"), Text(f"  {shown(note['fix'])}")]
    for problem in data["problems"]:
        parts += ["", Text(f"problem: {shown(problem['what'])}", "bold red"), Text(f"  fix: {shown(problem['fix'])}")]
    number = len(data["problems"])
    end = f"{number} {'problem' if number == 1 else 'problems'}" if number else "nothing is broken"
    return [*parts, "", Text(end, "bold red" if number else "bold green")]


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, what in rows:
        grid.add_row(Text(name, "bold"), Text(shown(what)))
    return grid


def _facts(data: Mapping[str, Any]) -> Table:
    system, python, torch = data["machine"], data["python"], data["torch"]
    rows = [
        (
            "tfkit",
            f"{data['tfkit']['version'] or 'not installed'}, contract {data['tfkit']['contract']}, {data['tfkit']['path']}",
        ),
        ("Python", f"{python['version']} ({python['implementation']}), {python['path']}"),
        ("system", f"{system['system']}, {system['processors']} processors, {bytes_in_words(system['memory_bytes'])}"),
        ("processor", f"{system['processor']}; {' '.join(system['instructions']) or 'no known instruction sets'}"),
    ]
    if torch is None:
        rows.append(("torch", "cannot be imported"))
    else:
        build = f"built for CUDA {torch['cuda']}" if torch["cuda"] else "built for CPU"
        used = f"{torch['capability']} kernels, {torch['threads']} threads, {'with' if torch['onednn'] else 'without'} oneDNN"
        rows += [("torch", f"{torch['version']}, {build}, {torch['path']}"), ("", used)]
        rows += [(name, torch[name] or "this processor has no instructions for it") for name in ("bfloat16", "int8")]
        rows.append(("products", f"of decoding: {float32_products(torch['products'])}"))
        rows.append(("", f"of training: {_plain_products(torch['products']['plain'])}"))
        rows += [("cuDNN", _cudnn(torch["cudnn"])), ("flash", _flash(torch["flash"]))]
    rows.append(("Triton", data["triton"] or "not installed"))
    if data["ptxas"]:
        rows.append(("ptxas", f"{data['ptxas']['version'] or 'cannot be run'}, {data['ptxas']['path']}"))
    for place in data["devices"][1:] or [None]:
        rows.append(("CUDA", "no device" if place is None else _device(place)))
    rows += [("variable", f"{name}={value}") for name, value in data["variables"].items()]
    rows += [
        ("plugin", f"{plugin['name']}: {plugin['distribution']} {plugin['version']}".rstrip()) for plugin in data["plugins"]
    ]
    return _grid(rows)


def _cudnn(cudnn: Mapping[str, Any] | None) -> str:
    if cudnn is None:
        return "none"
    return f"{cudnn['version'] or cudnn['reason']}, {cudnn['path'] or 'its file is not known'}"


def _flash(flash: Mapping[str, Any] | None) -> str:
    if flash is None:
        return "this torch does not say which implementation is active"
    return f"{flash['active']} is active; registered: {', '.join(flash['registered']) or 'no other'}"


def _device(place: Mapping[str, Any]) -> str:
    major, minor = place["cuda_capability"]
    return f"{place['name']}: {place['what']}, sm_{major}{minor}, {bytes_in_words(place['memory_bytes'])}"


def _extras(extras: list[dict[str, Any]]) -> Table:
    rows = []
    for extra in extras:
        packages = ", ".join(f"{package['name']} {package['version'] or 'missing'}" for package in extra["packages"])
        rows.append((f"extra {extra['name']}", packages + ("" if extra["installed"] else f"; {extra['install']}")))
    return _grid(rows)


def _model(model: Mapping[str, Any]) -> list[RenderableType]:
    head = f"{shown(model['name'])}: weights of {bytes_in_words(model['weight_bytes'])} in {model['dtype']}"
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("attention site", "device", "training", "inference"):
        table.add_column(name, overflow="fold")
    for row in model["sites"]:
        table.add_row(row["name"], row["device"], row["training"] or "nothing", row["inference"] or "nothing")
    return [Text(head, "bold"), table if model["sites"] else Text("It has no attention.")]


def _plain_products(plain: Mapping[str, Any]) -> str:
    """How large products with plain weights are computed, as in training, and why: a phrase, from `plain` of what
    `tfkit.cpu.small_batch.products_here` returns."""
    if plain["ratio"] is None:
        return "as torch chooses: no processor like this one was measured (python bench/products.py measures it)"
    other, times = ("MKL", plain["ratio"]) if plain["by"] == "oneDNN" else ("oneDNN", 1 / plain["ratio"])
    speed = f"{times:.2f} x as fast as {other}" if abs(times - 1) > 0.005 else f"as fast as {other}"
    return f"by {plain['by']}, {speed} on {plain['processors']} (measured on an {plain['machine']})"
