"""What `--replay` reads: a report of `--json`, one of its findings, or a case alone, which then says of which part it is.

report      {"suite": 2, "slot": "backend", "name": "acme.flash", "device": "cpu", "options": {...}, "findings": [...]}
finding     {"check": "support", "case": {...}}                       the name comes from the command line
case        {"backend": "acme.flash", "B": 1, ...}                    and perhaps `check`, `device`, `options`
law's case  {"suite": 2, "slot": "norm", "name": "acme.norm", "law": ..., ...}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfkit import Diagnostic, InputError
from tfkit.commands import parse_json, read_text

from ..report import SUITE

FIX = "replay a report that `tfkit conformance NAME --json FILE` wrote, one of its findings, or a case"
DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
MAX_FINDINGS = 1_000
"""The most findings of one report that are run again."""
NAMED = ("backend", "check", "device", "options", "suite")


@dataclass(frozen=True)
class Stored:
    """One case to be run again, and by which part; a finding without a case has an empty one. `was` is its earlier message."""

    slot: str
    name: str
    check: str
    case: dict[str, Any]
    device: str = "cpu"
    options: dict[str, Any] | None = None
    was: str = ""


def read_stored(path: str, name: str | None, device: str | None) -> list[Stored]:
    """The cases in a file. `name` and `device` replace those of the file. Raises InputError."""
    try:
        data = parse_json(read_text(path, descriptors=True), values=1_000_000)
    except OSError as reason:
        raise _unusable(f"{path} cannot be read: {reason.strerror}", FIX) from None
    except ValueError as reason:
        raise _unusable(f"{path} is no JSON: {reason}", FIX) from None
    if not isinstance(data, dict):
        raise _unusable(f"{path} holds a {type(data).__name__}, expected a JSON object", FIX)
    if data.get("suite", SUITE) != SUITE:
        message = f"{path} is of suite {_short(data['suite'])}, this tfkit has suite {SUITE}"
        raise _unusable(message, "evaluate the part again with this tfkit, or replay it with the tfkit that wrote it")
    return _report(path, data, name, device) if "findings" in data else [_one(path, data, name, device, {})]


def _report(path: str, data: dict[str, Any], name: str | None, device: str | None) -> list[Stored]:
    if "suite" not in data:
        raise _unusable(f"{path} has findings but no `suite`, so it is no report", FIX)
    findings = data["findings"]
    if not isinstance(findings, list) or not all(isinstance(finding, dict) for finding in findings):
        raise _unusable(f"{path}: `findings` is no list of objects", FIX)
    if len(findings) > MAX_FINDINGS:
        fix = "replay one finding at a time: a file may hold one of them"
        raise _unusable(f"{path} has {len(findings):,} findings, and at most {MAX_FINDINGS:,} are run again", fix)
    if not all(isinstance(data.get(key), str) for key in ("slot", "name", "device")):
        raise _unusable(f"{path} does not say of which part it is (`slot`, `name`, `device`)", FIX)
    return [_one(f"{path}: findings[{number}]", finding, name, device, data) for number, finding in enumerate(findings)]


def _one(where: str, data: dict[str, Any], name: str | None, device: str | None, report: dict[str, Any]) -> Stored:
    """A finding, or a case alone."""
    if "case" in data:
        case, facts = data["case"], data
    else:
        case = {key: value for key, value in data.items() if key not in NAMED} if "law" not in data else data
        facts = {key: data[key] for key in NAMED if key in data}
        if not case or not ({"B", "K", "D", "law"} & case.keys()):
            raise _unusable(f"{where} is no report, no finding and no case", FIX)
    if not isinstance(case, dict):
        raise _unusable(f"{where}: `case` is no object", FIX)
    if case.get("suite", SUITE) != SUITE:
        message = f"{where} is of suite {_short(case['suite'])}, this tfkit has suite {SUITE}"
        raise _unusable(message, "evaluate the part again with this tfkit, or replay it with the tfkit that wrote it")
    fields: dict[str, Any] = {
        "slot": case.get("slot", report.get("slot", "backend")) if "law" in case else report.get("slot", "backend"),
        "name": name or case.get("name" if "law" in case else "backend") or facts.get("backend") or report.get("name"),
        "check": case.get("law", facts.get("check", "")),
        "device": device or facts.get("device") or report.get("device") or case.get("device", "cpu"),
        "was": facts.get("message", ""),
    }
    if not fields["name"]:
        raise _unusable(f"{where} names no part", "name it: `tfkit conformance NAME --replay FILE`")
    for key, value in fields.items():
        if not isinstance(value, str):
            raise _unusable(f"{where}: `{key}` is {_short(value)}, expected a text", FIX)
    if not DEVICE.fullmatch(fields["device"]):
        raise _unusable(f"{where}: `device` is {_short(fields['device'])}, expected cpu, cuda or cuda:1", FIX)
    options = facts.get("options", report.get("options"))
    if options is not None and not isinstance(options, dict):
        raise _unusable(f"{where}: `options` is no object", FIX)
    if name is not None and name != (report.get("name") or facts.get("backend") or name):
        options = None  # those of another part
    return Stored(case={key: value for key, value in case.items() if key != "backend"}, options=options, **fields)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unusable(message: str, fix: str) -> InputError:
    return InputError(Diagnostic("TFK095", message, fix))


def replay_data(stored: Sequence[Stored], answers: Sequence[str]) -> dict[str, Any]:
    """What each case says now, as data; `answers` is about those that have a case, in their order.

    Exit code 1 if any still fails, 0 if all pass or are refused by what the part declares now, 3 where one has no case or can
    no longer be evaluated.
    """
    remaining = iter(answers)
    rows = []
    for finding in stored:
        now = next(remaining) if finding.case else "not run: the finding has no case; evaluate the part again"
        status = "passed" if now == "passed" else now.partition(":")[0]
        rows.append(
            {
                "slot": finding.slot, "name": finding.name, "device": finding.device, "check": finding.check,
                "was": finding.was, "now": now,
                "status": status if status in ("passed", "refused", "inconclusive", "not run") else "failed",
                "case": finding.case,
            }
        )  # fmt: skip
    statuses = {row["status"] for row in rows}
    exit_code = 1 if "failed" in statuses else 3 if statuses - {"passed", "refused"} else 0
    return {"suite": SUITE, "replayed": rows, "exit_code": exit_code}
