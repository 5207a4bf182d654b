"""`tfkit conformance` as text: the part, check by check and cell by cell, what is wrong, the verdict in a
sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfkit.commands import shown

from ..process.messages import cell_in_words, format_number, numbers_in_words

Data = Mapping[str, Any]

STYLES = {
    "passed": "green", "failed": "bold red", "inconclusive": "yellow", "not run": "yellow", "not applicable": "dim",
}  # fmt: skip

SNIPPETS = 3
"""How many findings are shown with their Python; the report has it for all."""


def conformance_text(data: Data, file: str | None = None) -> list[RenderableType]:
    """A report as `ConformanceReport.as_data` gives it; `file` is where it was written, for `--replay`."""
    parts: list[RenderableType] = [
        *_header(data),
        *function_lines(data.get("function")),
        "",
        checks_table(data["checks"]),
        *_notes(data["checks"]),
    ]
    if data["ledger"]:
        parts += ["", *_ledger(data["ledger"])]
    if data["grades"]:
        grades = ", ".join(f"{dtype} {grade}" for dtype, grade in data["grades"].items())
        parts += ["", Text(f"accuracy: {grades}: error relative to that of a careful kernel (A up to 1.5, B up to 3)")]
    by_message: dict[str, list[Data]] = {}
    for finding in data["findings"]:
        by_message.setdefault(finding["message"], []).append(finding)
    for number_of_it, same in enumerate(by_message.values()):
        parts += ["", *_finding(same, number_of_it < SNIPPETS)]
    if any(finding["case"] for finding in data["findings"]):
        parts += ["", Text(_how_to_replay(data, file), "dim")]
    return [*parts, "", verdict_line(data), Text(f"exit code {data['exit_code']}, {data['seconds']:.0f} s")]


def _header(data: Data) -> list[Text]:
    slot = "" if data["slot"] == "backend" else f"{data['slot']} "
    source = data["distribution"]
    title = Text(slot).append(shown(data["name"]), "bold").append(f" of {source}" if source else "")
    options = " ".join(f"{name}={value}" for name, value in data["options"].items())
    words = [data["device"], ", ".join(data["dtypes"]) or "no dtype", f"profile {data['profile']}", f"seed {data['seed']}"]
    versions = [f"{name} {version}" for name, version in data["versions"].items()]
    lines = [title, Text(", ".join(words)), Text(", ".join([*versions, f"suite {data['suite']}"]), "dim")]
    return lines[:1] + ([Text(f"options: {shown(options)}")] if options else []) + lines[1:]


def function_lines(function: Data | None) -> list[RenderableType]:
    """What is known of a plain function: its form, what it supports, and what it does not."""
    if not function:
        return []
    lines: list[RenderableType] = ["", Text(f"called as {shown(function['definition'])}", no_wrap=False)]
    how = "found by tiny calls" if function["probed"] else "as declared"
    lines.append(Text(f"supports, {how}: {', '.join(function['supports']) or 'plain calls only'}"))
    if (function["head_dim"], function["length"]) != ("1 up", "1 up"):
        lines.append(Text(f"head dim {function['head_dim']}; lengths {function['length']}"))
    lines += [Text(f"not {name}: {shown(reason)}", "dim") for name, reason in function["refused"].items()]
    lines += [Text(f"wrong {name}: {shown(reason)}", "bold red") for name, reason in function["wrong"].items()]
    if function["probed"]:
        lines.append(Text(f"to declare what is right: {shown(function['declaration'])}"))
    return lines


def checks_table(checks: Iterable[Data]) -> Table:
    """Check, rule, examples, largest error as a share of its bound, verdict, seconds."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("check", overflow="fold")
    table.add_column("rule", overflow="fold")
    for name in ("examples", "error/bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for check in _folded(checks):
        style = STYLES[check["status"]]
        table.add_row(
            Text(shown(check["name"]), "dim" if style == "dim" else ""), Text(check["rule"], "dim"), str(check["examples"]),
            format_number(check["worst"], 3), Text("FAILED" if check["status"] == "failed" else check["status"], style),
            f"{check['seconds']:.1f}",
        )  # fmt: skip
    return table


def _folded(checks: Iterable[Data]) -> list[Data]:
    """The checks as rows: relations that passed in one row together, and what does not apply left to the remarks."""
    rows = [check for check in checks if check["status"] != "not applicable"]
    passed = [row for row in rows if row["status"] == "passed" and _is_relation(row["name"])]
    if len(passed) < 2:
        return rows
    together = {
        "name": f"{len(passed)} relations",
        "rule": "",
        "status": "passed",
        "examples": sum(row["examples"] for row in passed),
        "worst": max((row["worst"] for row in passed if isinstance(row["worst"], (int, float))), default=None),
        "seconds": sum(row["seconds"] for row in passed),
    }
    first = rows.index(passed[0])
    kept = [row for row in rows if row not in passed]
    return [*kept[:first], together, *kept[first:]]


def _is_relation(name: str) -> bool:
    """Relations are called by their number: `R12 batch_split`, `A7 kept_share`."""
    return re.match(r"[AR][0-9]+ ", name) is not None


def _notes(checks: Iterable[Data]) -> list[RenderableType]:
    """Each remark once, with the checks that it is about."""
    by_note: dict[str, list[str]] = {}
    for check in checks:
        if check["note"]:
            status = check["status"]
            words = (
                check["note"] if status in ("passed", "failed") else f"{status}: {check['note'].removeprefix(f'{status}: ')}"
            )
            by_note.setdefault(words, []).append(check["name"])
    lines = [Text(f"{_few(names)}: {shown(note)}", "dim") for note, names in by_note.items()]
    return ["", *lines] if lines else []


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _ledger(rows: list[Data]) -> list[RenderableType]:
    """A line for every group of cells; every cell that was missed, or refused by its declaration, is named."""
    groups: dict[str, list[Data]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("declared", no_wrap=True)
    table.add_column("exercised", no_wrap=True)
    table.add_column("fewest examples of a cell", overflow="fold")
    for group, cells in groups.items():
        wanted = [cell for cell in cells if not cell["refused"]]
        met = sum(not cell["missing"] for cell in wanted)
        refused = f", {len(cells) - len(wanted)} refused" if len(wanted) < len(cells) else ""
        table.add_row(
            group, Text(f"{met} of {len(wanted)}{refused}", "" if met == len(wanted) else "bold yellow"), _fewest(wanted)
        )
    lines: list[RenderableType] = [table]
    lines += [Text(f"not exercised: {cell_in_words(row)}", "bold yellow") for row in rows if row["missing"]]
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row["refused"]:
            by_reason.setdefault(row["refused"], []).append(_cell(row))
    lines += [Text(f"refused: {'; '.join(cells)}: {shown(reason)}", "dim") for reason, cells in by_reason.items()]
    return lines


def _fewest(cells: list[Data]) -> str:
    fewest: dict[str, int] = {}
    for cell in cells:
        for dtype, count in cell["counts"].items():
            fewest[dtype] = min(count, fewest.get(dtype, count))
    return ", ".join(f"{dtype} {count}" for dtype, count in fewest.items())


def _cell(row: Data) -> str:
    return f"{row['group']}: {row['cell']}"


def _finding(same: list[Data], with_snippet: bool) -> list[RenderableType]:
    """What one or more findings say in the same words."""
    finding = same[0]
    rule = f" ({finding['rule']})" if 0 < len(finding["rule"]) <= 8 else ""
    often = f", {finding['failed']} of {finding['examples']} examples" if finding["failed"] else ""
    lines = [Text("FAILED ", "bold red").append(f"{shown(finding['check'])}{rule}{often}", "bold")]
    lines.append(Text(shown(finding["message"])))
    if numbers := numbers_in_words(finding):
        lines.append(Text(numbers))
    lines += [Text(shown(line)) for line in finding.get("call", "").splitlines()]
    if finding["looks_like"]:
        lines.append(Text("looks like: ").append(shown(finding["looks_like"]), "bold"))
    if len(same) > 1:
        lines.append(Text(f"the same in {_few([other['check'] for other in same[1:]])}", "dim"))
    shown_lines: list[RenderableType] = [lines[0], *(Padding(line, (0, 0, 0, 2)) for line in lines[1:])]
    if finding["snippet"] and with_snippet:
        shown_lines += ["", _python(finding["snippet"])]
    return shown_lines


def _python(snippet: str) -> RenderableType:
    """Neither indented nor wrapped, so that it can be pasted. (Rich prints a nested Text unchanged.)"""
    return Group(Text(snippet.rstrip(), "dim", no_wrap=True, overflow="ignore"))


def _how_to_replay(data: Data, file: str | None) -> str:
    slot = "" if data["slot"] == "backend" else f"--slot {data['slot']} "
    if function := data.get("function"):
        named = f"--callable {data['name']} {function['declaration'].partition(' --supports')[0]}"
        named = f"--huggingface {data['name'].partition(':')[2]}" if data["name"].startswith("transformers:") else named
        if not data["name"].partition(":")[0].replace(".", "_").isidentifier():
            named = named.replace("--callable", "--hf-kernel", 1)
        return f"run the findings again: tfkit conformance {shown(named)} --replay {shown(file or 'FILE')}"
    if file is not None:
        return f"run the findings again: tfkit conformance --replay {shown(file)}"
    return f"run the findings again: tfkit conformance {slot}{data['name']} --json FILE, then tfkit conformance --replay FILE"


def verdict_line(data: Data) -> Text:
    """The verdict in one sentence."""
    verdict, words = verdict_in_words(data)
    style = {"CONFORMANT": "bold green", "NONCONFORMANT": "bold red"}.get(verdict, "bold yellow")
    return Text(verdict, style).append(f" {words}", "")


def verdict_in_words(data: Data) -> tuple[str, str]:
    """The verdict, and what it means here."""
    tried = [dtype for dtype in data["dtypes"] if any(row["counts"].get(dtype) for row in data["ledger"])] or data["dtypes"]
    refused = [dtype for dtype in data["dtypes"] if dtype not in tried]
    where = f"on {data['device']} for {', '.join(tried) or 'no dtype'}"
    by_status: dict[str, list[Data]] = {}
    for check in data["checks"]:
        by_status.setdefault(check["status"], []).append(check)
    if data["verdict"] == "CONFORMANT":
        left = f"; {' and '.join(refused)} {'is' if len(refused) == 1 else 'are'} refused there" if refused else ""
        return "CONFORMANT", f"{where}: {data['name']} passed every check, and every declared feature was exercised{left}"
    if data["verdict"] == "NONCONFORMANT":
        names = [check["name"] for check in by_status["failed"]]
        return "NONCONFORMANT", f"{where}: {_count(len(names), 'check')} failed: {_few(names)}"
    left_out = by_status.get("not run", [])
    if left_out and "inconclusive" not in by_status and len(by_status.get("passed", [])) <= 1:
        notes = dict.fromkeys(check["note"].removeprefix("not run: ") for check in left_out if check["note"])
        return "NOT RUN", f"{where}: {'; '.join(notes) or 'nothing was tried'}"
    reasons = []
    missing = [row for row in data["ledger"] if row["missing"]]
    if missing:
        was = "was" if len(missing) == 1 else "were"
        reasons.append(f"{_count(len(missing), 'declared cell')} {was} not exercised: {_few([_cell(row) for row in missing])}")
    for status in ("inconclusive", "not run"):
        names = [check["name"] for check in by_status.get(status, [])]
        if names:
            reasons.append(f"{_count(len(names), 'check')} {status}: {_few(names)}")
    return "INCOMPLETE", f"{where}: {'; '.join(reasons) or 'no check ran'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


SAID = {
    "passed": ("passes now", "bold green"), "refused": ("refused now", "bold green"), "failed": ("still fails", "bold red"),
}  # fmt: skip


def replay_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """A block for every case, then how many still fail."""
    lines: list[RenderableType] = []
    for row in data["replayed"]:
        words, style = SAID.get(row["status"], (row["status"], "bold yellow"))
        label = f"{row['check'] or 'all layers'} of {row['name']} on {row['device']}"
        lines.append(Text(words, style).append(f"  {shown(label)}", ""))
        now = _now(row)
        if row["was"] and row["was"] != now:
            lines.append(Padding(Text(f"then: {shown(row['was'])}", "dim"), (0, 0, 0, 2)))
        if now:
            when = "then and now" if row["was"] == now else "now"
            lines.append(Padding(Text(f"{when}: {shown(now)}"), (0, 0, 0, 2)))
        lines.append("")
    counts = {status: sum(row["status"] == status for row in data["replayed"]) for status in ("failed", "passed", "refused")}
    total = len(data["replayed"])
    other = total - sum(counts.values())
    more = f", {counts['refused']} refused by the declaration" if counts["refused"] else ""
    more += f", {other} could not be evaluated" if other else ""
    summary = (
        f"{counts['failed']} of {total} still fail, {counts['passed']} pass{more}" if total else "the report has no findings"
    )
    return [*lines, Text(summary, "bold").append(f" (exit code {data['exit_code']})", "")]


def _now(row: Mapping[str, Any]) -> str:
    """The result of the case now, without the status and the check, which are in its label."""
    if row["status"] == "passed":
        return ""
    begin = row["check"] if row["status"] == "failed" else row["status"]
    return str(row["now"]).removeprefix(f"{begin}: ")
