"""The tables of the documentation that come from the code. `TABLES` maps their names to functions of `run`, which runs a
command line in a scratch directory and returns what it prints."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import tfkit
from tfkit import graph_of, hooks
from tfkit.claims import CLAIMS, claim_of, stored
from tfkit.claims.claim import machine
from tfkit.inspection import FEATURES, SCORE_SETTINGS, read_certificate
from tfkit.plugin.model_parts import AttentionSite

Run = Callable[[str], str]
JSON_FORMS = {
    "show --json": "tfkit.view.model_data", "plan --json": "tfkit.view.plan_data", "diff --json": "tfkit.view.diff_data",
    "plugins --json": "tfkit.view.plugins_data", "doctor --json": "tfkit.doctor",
    "bench attention --json FILE": "tfkit_conformance.bench.measure", "bench auto --json FILE": "tfkit.attention.auto_table",
    "bench cpu --json FILE": "tfkit.cpu.product_table_file",
}  # fmt: skip
"""The modules whose docstrings, behind the first paragraph, describe what a command prints."""
ROOT = Path(__file__).parents[1]
WRITTEN = {
    "backend": "attention: {backend: sdpa}", "score": "attention: {score: additive}", "position": "position: alibi",
    "norm": "norm: {kind: rms_norm, eps: 1.0e-6}", "placement": "placement: pre", "activation": "ffn: {activation: swiglu}",
    "sublayer": "sublayers: [self_attention, ffn]", "node": "encoder: {kind: stack}", "init": "init: bert",
    "cell": "encoder: {kind: rnn, cell: lstm}", "score_filter": "", "weight_map": "", "int8_kernel": "",
    "float32_kernel": "", "beam_top_k": "", "step_recorder": "",
}  # fmt: skip
"""How a spec names an entry of each slot; nothing where only commands name it."""


def rows(*cells: list[str]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([head, "|" + " --- |" * len(cells[0]), *body])


def built_in() -> tfkit.Catalogue:
    return tfkit.load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")


def slots(run: Run) -> str:
    catalogue = built_in()
    names = {slot: ", ".join(f"`{name}`" for name in catalogue.names(slot)) or "–" for slot in hooks.SLOTS}
    return rows(
        ["slot", "in a spec", "built in"],
        *([slot, f"`{WRITTEN[slot]}`" if WRITTEN[slot] else "–", names[slot]] for slot in hooks.SLOTS),
    )


def entries(run: Run) -> str:
    """Every built-in entry, slot by slot, with its options and their defaults."""
    catalogue, sections = built_in(), []
    for slot in filter(catalogue.names, hooks.SLOTS):
        body = [["name", "what it is", "options"]]
        for entry in catalogue.entries(slot):
            options = ", ".join(_option(name, field) for name, field in entry.options.model_fields.items())
            link = f" [Reference]({entry.reference})" if entry.reference else ""
            body.append([f"`{entry.name}`", _cell(entry.summary) + link, options or "–"])
        sections.append(f"## {slot}\n\n{rows(*body)}")
    return "\n\n".join(sections)


def _option(name: str, field: Any) -> str:
    default = field.get_default(call_default_factory=False)
    return f"`{name}: {json.dumps(default)}`" if isinstance(default, (str, int, float)) else f"`{name}`"


def hook_list(run: Run) -> str:
    lines = ["```python"]
    for hook, kind in hooks.SLOTS.values():
        lines += [f"def {hook}() -> list[{kind.__name__}]:", f'    """{inspect.getdoc(getattr(hooks, hook))}"""', "", ""]
    return "\n".join([*lines[:-2], "```"])


def backends(run: Run) -> str:
    able = json.loads(run("tfkit plugins --backends --json"))["backends"]
    table = [["", *(f"`{can['name']}`" for can in able)]]

    def row(label: str, cell: Callable[[dict[str, Any]], str]) -> None:
        table.append([label, *(cell(can) for can in able)])

    row("devices", lambda can: ", ".join(device["kind"] for device in can["devices"]))
    row("dtypes", lambda can: ", ".join(sorted(can["dtypes"])))
    row("head_dim", lambda can: _range(**can["head_dim"]))
    for term in sorted({term for can in able for term in can["mask_terms"]}):
        row(f"mask: {term}", lambda can, term=term: _tick(term in can["mask_terms"]))
    for kind in sorted({kind for can in able for kind in can["bias_kinds"]}):
        row(f"bias: {kind}", lambda can, kind=kind: _bias(kind, **can))
    row("scores", lambda can: ", ".join(sorted(can["scores"])).replace("*", "any"))
    row("weights", lambda can: can["weights"])
    for name in [name for name, value in able[0].items() if isinstance(value, bool)]:
        row(name.replace("_", " "), lambda can, name=name: _tick(can[name]))
    row("zeros for NaN", lambda can: ", ".join(can["numerics"]["nan_as_zero"]) or _tick(False))
    return rows(*table)


WRITES = {
    "mask_terms: key_visible": "`pad_id` of tokens", "mask_terms: causal": "`causal: true`",
    "mask_terms: window": "`window`", "mask_terms: visible": "`attention: {sink: ...}`",
    "bias_kinds: dense": "a position scheme with a dense bias (`relative_shaw`), or `sink`",
    "bias_kinds: distance": "`position: relative_t5`", "bias_kinds: linear": "`position: alibi`",
    "bias_gradient": "a bias with weights, in training", "dropout": "`attention: {dropout: ...}` above 0, in training",
    "grouped_queries": "`num_kv_heads` below `num_heads`",
    **{setting.capability: f"`attention: {{{setting.option}: ...}}`" for setting in SCORE_SETTINGS},
    "value_dim_differs": "`value_dim` other than `head_dim`", "scores": "`attention: {score: ...}` other than a dot product",
}  # fmt: skip
"""What a spec writes that makes a capability of a backend necessary."""


def _needs(site: AttentionSite) -> set[str]:
    """The capabilities that a backend must declare for a site, beside device, dtype and lengths."""
    found = {f"mask_terms: {term}" for term in site.mask_terms}
    found |= {f"bias_kinds: {site.bias}"} if site.bias else set()
    for needed, capability in (
        (site.bias_gradient, "bias_gradient"), (site.score != "dot", "scores"),
        (site.value_dim not in (None, site.head_dim), "value_dim_differs"),
        *((feature.in_site(site), feature.capability) for feature in FEATURES),
    ):  # fmt: skip
        found |= {capability} if needed else set()
    return found


def backend_needs(run: Run) -> str:
    """In how many of the shipped specs with attention a backend must declare each capability to serve all sites."""
    catalogue = built_in()
    graphs = (graph_of(tfkit.load_spec(path, catalogue)) for path in sorted((ROOT / "specs").glob("*.yaml")))
    needs = [set().union(*map(_needs, sites)) for graph in graphs if (sites := [site for _, site in graph.sites()])]
    count = Counter(capability for each in needs for capability in each)
    head = ["declare", "a spec needs it because of", f"specs, of {len(needs)}"]
    return rows(head, *([f"`{name}`", WRITES[name], str(number)] for name, number in count.most_common()))


def _bias(kind: str, bias_kinds: list[str], bias_gradient: list[str], **_: Any) -> str:
    return _tick(kind in bias_kinds) + (" and gradient" if kind in bias_gradient else "")


def _range(minimum: int, maximum: int | None, multiple: int) -> str:
    text = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
    return text if multiple == 1 else f"{text}, multiples of {multiple}"


def codes(run: Run) -> str:
    """Every error code with its rule, an example that breaks it, and the fix."""
    sections = []
    for code in (each for each in json.loads(run("tfkit explain --json")) if "code" in each):
        example = "\n".join(f"    {line}" for line in code["wrong"].splitlines())
        head = f"({code['code']})=\n## {code['code']}: {code['title']}\n\n{_text(code['rule'])}"
        sections.append(f"{head}\n\nWrong:\n\n{example}\n\nFix: {_text(code['fix'])}")
    return "\n\n".join(sections)


def rules(run: Run) -> str:
    found = [each for each in json.loads(run("tfkit explain --json")) if "text" in each]
    return rows(["rule", "title", "what it says"], *([rule["rule"], rule["title"], _cell(rule["text"])] for rule in found))


def checks(run: Run) -> str:
    found, sections = json.loads(run("tfkit explain checks --json")), []
    firsts = [list(check.values())[:4] for check in found]  # the name, what is checked, the rule, a summary
    for group in dict.fromkeys(group for _, group, *_ in firsts):
        body = [[_cell(name), rule, _cell(summary)] for name, kind, rule, summary in firsts if kind == group]
        sections.append(f"## {group[0].upper()}{group[1:]}\n\n" + rows(["check", "rule", "what it shows"], *body))
    return "\n\n".join(sections)


def commands(run: Run) -> str:
    """The help of every command."""
    shown = [("tfkit", run("tfkit --help"))]
    shown += [(f"tfkit {name}", run(f"tfkit {name} --help")) for name in re.findall(r"^  (\w+) {2}", shown[0][1], re.MULTILINE)]
    return "\n\n".join(f"## {name}\n\n```text\n{text}\n```" for name, text in shown)


def json_forms(run: Run) -> str:
    sections = []
    for command, module in JSON_FORMS.items():
        _, _, form = inspect.cleandoc(import_module(module).__doc__ or "").partition("\n\n")
        sections.append(f"### `tfkit {command}`\n\n```text\n{form.rstrip()}\n```")
    return "\n\n".join(sections)


def recipe_keys(run: Run) -> str:
    """Every key of a recipe, from its JSON Schema."""
    schema = json.loads(run("tfkit schema recipe"))
    known, top, sections = schema["$defs"], [], []
    for name, field in schema["else"]["properties"].items():
        references = [each["$ref"] for each in (field, *field.get("anyOf", [])) if "$ref" in each]
        inner = known.get(references[0].removeprefix("#/$defs/"), {}) if references else {}
        kinds = inner.get("else", {}).get("properties", {}).get("kind", {}).get("enum", [])
        if "properties" in inner:
            sections.append(f"## {name}\n\n{_keys(inner)}")
        for kind in kinds:
            part = known[f"part.{name}.{kind}"]
            sections.append(f"## {name}: {kind}\n\n{_keys(part)}")
            sections += [f"### {name}: {kind}, {key}\n\n{_keys(inside)}" for key, inside in _inside(part, known)]
        if "properties" not in inner:
            top.append((name, {**field, "enum": kinds} if kinds else field))
    return "\n\n".join([_keys({"properties": dict(top)}), *sections])


def _inside(part: dict[str, Any], known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings that a part holds, or lists of them, by key."""
    for key, field in part["properties"].items():
        for choice in (field, *field.get("anyOf", [])):
            reference = choice.get("$ref") or choice.get("items", {}).get("$ref")
            if reference and "properties" in (inside := known[reference.removeprefix("#/$defs/")]):
                yield key, inside


def _keys(schema: dict[str, Any]) -> str:
    body = []
    for name, field in schema["properties"].items():
        if name != "kind":
            default = field.get("default", "–")
            values = ", ".join(f"`{value}`" for value in field.get("enum", []))
            field_description = next(
                (each["description"] for each in [field, *field.get("anyOf", [])] if "description" in each), ""
            )
            words = "; ".join(filter(None, [_cell(field_description), values]))
            body.append([f"`{name}`", words, "–" if default in ("–", None) else f"`{json.dumps(default)}`"])
    return rows(["key", "meaning", "default"], *body)


def shipped_specs(run: Run) -> str:
    body, catalogue = [], built_in()
    for path in sorted((ROOT / "specs").glob("*.yaml")):
        spec = tfkit.load_spec(path, catalogue=catalogue)
        link = f"[source]({spec.reference})" if spec.reference else "–"
        body.append([f"`{path.name}`", f"{tfkit.graph_of(spec).parameters():,}", _cell(spec.description) or "–", link])
    return rows(["spec", "parameters", "what it is", "published"], *body)


AREAS = {
    "specs-api": ("tfkit.spec", "tfkit.recipe", "tfkit.graph", "tfkit.catalogue"),
    "models-api": ("tfkit.builder", "tfkit.io", "tfkit.nn", "tfkit.cpu"),
    "search-api": ("tfkit.generate", "tfkit.nn.runtime", "tfkit.text.saved_search"),
    "texts-api": ("tfkit.text", "tfkit.images", "tfkit.metrics"),
    "proof-api": ("tfkit_conformance", "tfkit.comparison"),
    "errors-api": ("tfkit.errors",),
}
"""The pages of the public names of `tfkit`, and the modules whose names they show; the longest name of a module wins."""


def area(value: object) -> str:
    """The page of a public name. Raises ValueError if no page has it."""
    module = str(getattr(value, "__module__", ""))
    held = [(len(place), page) for page, places in AREAS.items() for place in places if f"{module}.".startswith(f"{place}.")]
    return max(held)[1]


def api(module: str, page: str = "") -> Callable[[Run], str]:
    """autodoc directives for every public name of a module, or for those of one page."""

    def directives(run: Run) -> str:
        owner, groups = import_module(module), {"Functions": [], "Classes": [], "Exceptions": [], "Constants and types": []}
        for name in owner.__all__:
            value = getattr(owner, name)
            if page and area(value) != page:
                continue
            twice = "\n   :no-index:" if owner is not tfkit and name in tfkit.__all__ else ""
            if isinstance(value, type) and issubclass(value, BaseException):
                groups["Exceptions"].append(f".. autoexception:: {module}.{name}{twice}")
            elif isinstance(value, type) and not hasattr(value, "__origin__"):
                groups["Classes"].append(f".. autoclass:: {module}.{name}\n   :members:{twice}")
            elif inspect.isroutine(value) or hasattr(value, "__wrapped__"):
                groups["Functions"].append(f".. autofunction:: {module}.{name}{twice}")
            else:
                groups["Constants and types"].append(f".. py:data:: {module}.{name}")
        return "\n\n".join(
            f"## {title}\n\n```{{eval-rst}}\n" + "\n\n".join(group) + "\n```" for title, group in groups.items() if group
        )

    return directives


def _tick(flag: bool) -> str:
    return "yes" if flag else "–"


def _text(text: str) -> str:
    """Plain text in Markdown: emphasis and HTML stay the characters that they are, outside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*<\[{]|\b_|_\b)", r"\\\1", piece) for piece in pieces)


def _cell(text: str) -> str:
    return _text(text).replace("|", r"\|").replace("\n", " ")


def measurements(run: Run) -> str:
    """Every timed benchmark with its command, versions and device."""
    body = []
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "speed" in found:
            speeds = "; ".join(f"{_cell(name)} {speed:.2f}" for name, speed in found["speed"].items())
            device = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}, torch {found['torch']}"
            device += "".join(f", {name} {version}" for name, version in found.get("versions", {}).items())
            device += f", {found['processor']} with {' '.join(found['instructions'])}" if "processor" in found else ""
            body.append([f"{_cell(found['title'])}", speeds, f"{device}, Python {found['python']}", f"`{found['command']}`"])
    return rows(["what", "relative speed", "versions and device", "command"], *body)


def translation_cells(run: Run) -> str:
    """The time of CTranslate2 divided by that of tfkit, by cell, with the kernels of AVX-512 and limited to AVX2."""
    found = [
        json.loads((ROOT / "bench" / "results" / f"translate_cells_{kernels}_cpu.json").read_text(encoding="utf-8"))["cells"]
        for kernels in ("avx512", "avx2")
    ]
    body = []
    for cells in zip(*found, strict=True):
        search = "greedy" if cells[0]["beams"] == 1 else f"{cells[0]['beams']} beams"
        ratios = [cell[name] for cell in cells for name in ("float32", "int8")]
        shares = [f"{cell['products']:.2f}" for cell in cells]
        bold = [f"**{ratio:.2f}**" if ratio < 1.05 else f"{ratio:.2f}" for ratio in ratios]
        body.append([f"{cells[0]['shape']}, {search}", str(cells[0]["rows"]), *bold, *shares])
    kinds = ["AVX-512 float32", "AVX-512 int8", "AVX2 float32", "AVX2 int8", "products AVX-512", "products AVX2"]
    return rows(["", "batch", *kinds], *body)


def machine_code(run: Run) -> str:
    """Loops of `fused` for an H100, by the newest Triton, beside those of Triton's tutorial where it has the same."""
    versions = json.loads((ROOT / "bench" / "results" / "fused_sass.json").read_text(encoding="utf-8"))["versions"]
    newest = versions[max(versions, key=lambda version: tuple(map(int, version.split("."))))]
    columns = ("instructions", "wgmma", "mma", "wait", "cp.async", "tma", "registers")
    body = []
    for name, row in newest["cells"].items():
        cost = newest["programs"][row["sm_90"]]
        longest = max(cost["loops"], key=lambda loop: (loop.get("wgmma", 0) + loop.get("mma", 0), loop["instructions"]))
        copies = sum(loop.get("tma", 0) for loop in cost["loops"]) or ""  # specialised warps: in the loop of another group
        kinds = {**longest, "tma": copies, "registers": cost["registers"]}
        other = ""
        if "sm_100" in row:
            other = str(newest["programs"][row["sm_100"]]["loops"][0]["instructions"])
            other += "" if row["tiles_100"] == row["tiles_90"] else f" ({row['tiles_100']})"
        body.append([name, row["tiles_90"], *(str(kinds.get(column, "")) for column in columns), other])
    for name, row in newest["tutorial"].items():
        body.append([f"tutorial: {name}", row["tiles"], *(str(row.get(column, "")) for column in columns), ""])
    named = {"wait": "waits", "tma": "TMA"}
    return rows(["call", "tiles", *(named.get(column, column) for column in columns), "instructions on sm_100"], *body)


def fused_time(run: Run) -> str:
    """Times of `fused` on an H100 that were measured, beside those that its machine code predicts."""
    found = json.loads((ROOT / "bench" / "results" / "fused_time.json").read_text(encoding="utf-8"))
    body, outside = [], []
    for row in found["cells"]:
        error = row["predicted_us"] / row["measured_us"] - 1.0
        times = (f"{row[name]:,}" for name in ("measured_us", "predicted_us"))
        body.append([row["cell"], *times, f"{error:+.0%}", "" if row["counts"] else "host"])
        outside += [f"`{row['cell']}` ({error:+.0%})"] if abs(error) > 0.15 and (row["counts"] or error > 0.0) else []
    halves = (f"{half['worst']:.0%} there and {half['worst_of_others']:.0%} in the others" for half in found["halves"])
    said = f"""Two constants are fitted to {found["cells_fitted"]} times: START {found["constants"]["start"]:,.0f} cycles, WAIT
    {found["constants"]["wait"]:.0f} cycles. The largest error is {found["worst"]:.0%}. Fitted to every second one of the
    times alone, it is at most {", or ".join(halves)}. Outside of 15 %: {", ".join(outside)}."""
    said = textwrap.fill(" ".join(said.split()), 128, break_long_words=False, break_on_hyphens=False)
    return said + "\n\n" + rows(["cell", "measured, us", "predicted, us", "error", ""], *body)


def fused_tiles(run: Run) -> str:
    """The tiles that `fused` takes on sm_90, with the times that choose them."""
    body = []
    for row in json.loads((ROOT / "bench" / "results" / "fused_time.json").read_text(encoding="utf-8"))["tiles"]:
        (first, least), *others = row["predicted_us"].items()
        kind = f"{row['kernel']}, D {row['width']}, {row['features']}{', short' * row['short']}"
        slower = "; ".join(f"{name} {time / least:.2f}" for name, time in others)
        body.append([kind, first, str(row["programs"][first]), f"{least:,}", slower])
    return rows(["kernel and call", "tiles", "programs on a multiprocessor", "predicted, us", "others, relative time"], *body)


def certificates(run: Run) -> str:
    """Every plugin of the repository, with each certificate that it ships."""
    body = []
    for project in sorted((ROOT / "plugins").glob("*/pyproject.toml")):
        text = project.read_text(encoding="utf-8")
        if "[project.entry-points.tfkit]" not in text:
            continue
        row = [f"`{project.parent.name}`", _cell(re.search(r'^description = "(.*)"$', text, re.MULTILINE)[1])]
        for file in sorted(project.parent.glob("*/*.certificate.json")):
            found = read_certificate(file)
            made = found.environment
            where = f"{found.device} {made.get('instruction set') or made.get('gpu')}, {', '.join(found.dtypes)}"
            examples = sum(check.examples for check in found.checks)
            what = f"`{found.name}`: {found.profile}, {examples:,} examples, suite {found.suite}"
            body.append([*row, what, f"{where}, torch {made['torch']}"])
        if not any(each[0] == row[0] for each in body):
            body.append([*row, "none", "–"])
    return rows(["distribution", "what it is", "certificate", "made on"], *body)


def claims(run: Run) -> str:
    """Every claim with its picture, its verdict, the command and the machine; or `not run`."""
    parts = []
    for name in CLAIMS:
        claim, data, title = claim_of(name), stored(name), name.replace("_", " ").capitalize()
        parts.append(f"### {title}\n\n*{claim.sentence}.* {claim.about}")
        if data is None:
            parts.append(f"**Verdict**: not run. `tfkit claims {name}`")
            continue
        charts = ", ".join(chart.title for chart in claim.charts(data))
        parts.append(f"![{title}: {charts}](../_static/claims/{name}.svg)")
        parts.append(f"**Verdict**: {claim.verdict(data)}")
        parts.append(f"`tfkit claims {name}`, {machine(data)}.")
    return "\n\n".join(parts)


def claims_by_length(run: Run) -> str:
    """Quality by the length of the text, mean over the seeds, of every claim that measured it."""
    tables = [(name, table) for name in CLAIMS if (data := stored(name)) for table in claim_of(name).tables(data)[1:]
              if data.get("by_length")]  # fmt: skip
    return "\n\n".join(rows([f"`{name}`", *table.head[1:]], *map(list, table.rows)) for name, table in tables)


def field_report(run: Run) -> str:
    """Every public function that bench/field_report.py has checked."""
    body = []
    for row in json.loads((ROOT / "bench" / "results" / "field.json").read_text(encoding="utf-8"))["rows"]:
        said = _cell(" ".join(row["findings"][0]["message"].split())) if row["findings"] else ""
        features, dtypes = ", ".join(row["supports"]), ", ".join(row["dtypes"])
        versions = f"{row['library']} {row['version'].partition('+')[0]}"
        body.append([versions, _cell(row["what"]), features, dtypes, f"{row['examples']:,}", row["verdict"], said])
    return rows(["library", "function", "checked", "dtypes", "examples", "verdict", "first finding"], *body)


@cache
def _ejected(run: Run) -> str:
    return run("tfkit eject specs/transformer-base.yaml")


def ejected(name: str) -> Callable[[Run], str]:
    """One class or function of the file that `tfkit eject` writes for the base Transformer."""

    def part(run: Run) -> str:
        text = _ejected(run)
        [node] = [node for node in ast.parse(text).body if getattr(node, "name", None) == name]
        return f"```python\n{ast.get_source_segment(text, node)}\n```"

    return part


EJECTED = ("sinusoids", "Embedding", "MultiHeadAttention", "FeedForward", "EncoderLayer", "Decoder", "Transformer", "greedy")
TABLES: dict[str, Callable[[Run], str]] = {
    **{f"ejected-{name}": ejected(name) for name in EJECTED},
    **{page: api("tfkit", page) for page in AREAS},
    "backend-needs": backend_needs, "backends": backends, "checks": checks,
    "certificates": certificates, "claims": claims, "claims-by-length": claims_by_length,
    "codes": codes, "commands": commands, "entries": entries, "field-report": field_report, "fused-time": fused_time,
    "fused-tiles": fused_tiles,
    "hooks": hook_list, "json": json_forms, "machine-code": machine_code,
    "measurements": measurements, "translation-cells": translation_cells, "model-parts-api": api("tfkit.plugin.model_parts"),
    "flash-calls-api": api("tfkit.plugin.flash_calls"),
    "plugin-api": api("tfkit.plugin"), "recipe-keys": recipe_keys, "rules": rules, "slots": slots, "specs": shipped_specs,
}  # fmt: skip
