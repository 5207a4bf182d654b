"""Writes the parts of README.md that come from the code: tables, files shown whole, and the output of every command.

`python tests/readme.py` rewrites them; tests/test_readme.py holds the file against the code.

    <!-- generated: NAME --> ... <!-- end -->      a table of this module
    <!-- file: PATH --> ... <!-- end -->           a file of the repository
    ```console
    $ tfkit ...                                    a command, followed by what it prints
    ```
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tfkit import hooks
from tfkit.attention.capabilities import BIAS_KINDS, MASK_TERMS, Capabilities
from tfkit.catalogue import Catalogue, load_catalogue
from tfkit.errors.codes import CODES
from tfkit.view import model_data, plan_data, plugins_data

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
WIDTH = 118


def slots(catalogue: Catalogue) -> str:
    rows = ["| slot | in a spec | built in |", "| --- | --- | --- |"]
    written = {
        "backend": "`attention: {backend: sdpa}`", "score": "`attention: {score: additive}`", "position": "`position: alibi`",
        "norm": "`norm: {kind: rms_norm, eps: 1.0e-6}`", "placement": "`placement: pre`",
        "activation": "`ffn: {activation: swiglu}`", "sublayer": "`sublayers: [self_attention, ffn]`",
        "node": "`encoder: {kind: stack}`", "init": "`init: bert`",
    }  # fmt: skip
    for slot in hooks.SLOTS:
        names = [name for name in catalogue.names(slot) if catalogue.registered[slot][name].plugin == "builtin"]
        rows.append(f"| {slot} | {written[slot]} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(rows)


def hook_list(catalogue: Catalogue) -> str:
    lines = ["```python"]
    for hook, _ in hooks.SLOTS.values():
        function = getattr(hooks, hook)
        returns = str(inspect.signature(function).return_annotation).strip("'")
        lines += [f"def {hook}() -> {returns}:", f'    """{inspect.getdoc(function)}"""', "", ""]
    return "\n".join([*lines[:-2], "```"])


def backends(catalogue: Catalogue) -> str:
    entries = [
        entry for entry in catalogue.entries("backend") if catalogue.registered["backend"][entry.name].plugin == "builtin"
    ]
    rows = [f"| | {' | '.join(f'`{entry.name}`' for entry in entries)} |", f"| --- |{' --- |' * len(entries)}"]

    def row(label: str, cells: list[str]) -> None:
        rows.append(f"| {label} | {' | '.join(cells)} |")

    able = [entry.capabilities for entry in entries]
    row("devices", [", ".join(device.kind for device in can.devices) for can in able])
    row("dtypes", [", ".join(sorted(can.dtypes)) for can in able])
    row("head_dim", [str(can.head_dim) for can in able])
    for term in MASK_TERMS:
        row(f"mask: {term}", [_tick(term in can.mask_terms) for can in able])
    for kind in BIAS_KINDS:
        cells = [_tick(kind in can.bias_kinds) + (" and gradient" if kind in can.bias_gradient else "") for can in able]
        row(f"bias: {kind}", cells)
    row("scores", [", ".join(sorted(can.scores)) for can in able])
    row("weights", [can.weights for can in able])
    for name, field in Capabilities.model_fields.items():
        if field.annotation is bool:
            row(name.replace("_", " "), [_tick(getattr(can, name)) for can in able])
    return "\n".join(rows)


def codes(catalogue: Catalogue) -> str:
    rows = ["| code | what is wrong |", "| --- | --- |"]
    return "\n".join(rows + [f"| {code} | {entry.title} |" for code, entry in CODES.items()])


def json_forms(catalogue: Catalogue) -> str:
    forms = {"show": model_data, "plan": plan_data, "plugins": plugins_data}
    lines = []
    for command, module in forms.items():
        _, _, form = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
        lines += [f"`tfkit {command} --json`", "", "```text", form.rstrip(), "```", ""]
    return "\n".join(lines).rstrip()


TABLES = {"json": json_forms, "slots": slots, "hooks": hook_list, "backends": backends, "codes": codes}


def _tick(flag: bool) -> str:
    return "yes" if flag else "–"


BUILT_IN_ONLY = """
import sys
import tfkit.catalogue as catalogue

installed = catalogue.entry_points
catalogue.entry_points = lambda group: [point for point in installed(group=group) if point.name == "builtin"]
from tfkit.cli import main

sys.exit(main(sys.argv[1:]))
"""
"""The command line as it is with no plugin installed, so that the page does not depend on where it was written."""


def run(command: str) -> str:
    """What a command of the README prints, on both streams."""
    words = shlex.split(command)
    assert words[0] == "tfkit", command
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", BUILT_IN_ONLY, *words[1:]],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def written(text: str) -> str:
    """The README with every generated part made anew."""
    catalogue = load_catalogue(point for point in entry_points(group="tfkit") if point.name == "builtin")

    def table(match: re.Match[str]) -> str:
        return f"<!-- generated: {match[1]} -->\n{TABLES[match[1]](catalogue)}\n<!-- end -->"

    def file(match: re.Match[str]) -> str:
        body = (ROOT / match[1]).read_text(encoding="utf-8").rstrip()
        language = {".py": "python", ".yaml": "yaml", ".toml": "toml"}[Path(match[1]).suffix]
        return f"<!-- file: {match[1]} -->\n```{language}\n{body}\n```\n<!-- end -->"

    def console(match: re.Match[str]) -> str:
        commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
        shown = [f"{line}\n{run(line[2:])}".rstrip() for line in commands]
        return "```console\n" + "\n".join(shown) + "\n```"

    text = re.sub(r"<!-- generated: (\w+) -->\n.*?<!-- end -->", table, text, flags=re.S)
    text = re.sub(r"<!-- file: (\S+) -->\n.*?<!-- end -->", file, text, flags=re.S)
    return re.sub(r"```console\n(\$ tfkit .*?)\n```", console, text, flags=re.S)


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
