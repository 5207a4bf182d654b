"""`tfkit conformance`: checks in a child process whether a part does what it declares."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tfkit.commands import (
    Parser,
    check_place,
    device,
    dtype,
    names,
    parse_json,
    place,
    print_bug_report,
    print_json,
    print_rich,
    reading,
    seed,
    usage_error,
    write_whole,
)

from .status_line import status_line

SUMMARY = "evaluate an attention backend, or another part, by the conformance suite"

EPILOG = """\
Exit codes: 0 conformant; 1 not; 2 the input is wrong; 3 incomplete: something
declared was not exercised or not checked, is a known failure, or its device is
not there. With --replay: 1 if a case still fails, 0 if all pass, else 3.

--json FILE writes the report: `slot`, `name`, `verdict`, `exit_code`, `checks`
(`name`, `rule`, `status`, `examples`, `worst`, the largest error as a share of
its bound), `findings` (`check`, `message`, `case`, `snippet`, ...), `ledger`
(examples of every declared cell by dtype), `grades`, `versions`, `suite`.
`--json -` writes it to standard output instead of the text, and errors too; a
number that JSON has not is a text: "nan", "inf", "-inf".

What the part prints goes to standard error. A part that kills its process or
never returns is reported of in the report as any other failure."""


def arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="an attention backend, or with --slot another part")
    parser.add_argument(
        "--slot", metavar="SLOT", default="backend", help="position, norm, placement or activation (default backend)"
    )
    parser.add_argument("--profile", metavar="PROFILE", help="quick, standard or deep (default standard)")
    parser.add_argument("--device", type=device, metavar="DEVICE", help="cpu, cuda or cuda:1 (default cpu)")
    parser.add_argument(
        "--dtype", metavar="DTYPE,...", type=dtypes, dest="dtypes", help="only these dtypes (default all that are declared)"
    )
    parser.add_argument("--options", metavar="JSON", type=mapping, help="options of the part, as a JSON object")
    parser.add_argument("--seed", metavar="N", type=seed, default=0, help="of the examples (default 0)")
    parser.add_argument("--limit", metavar="SECONDS", type=seconds, default=60.0, help="what one example may take (default 60)")
    parser.add_argument("--json", metavar="FILE", type=place, help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", type=place, help="write the report as JUnit XML")
    parser.add_argument("--replay", metavar="FILE", type=reading, help="run the cases of a report again")
    parser.add_argument("--traceback", action="store_true", help="print where tfkit itself failed, for a bug report")


def run(options: argparse.Namespace) -> int:
    if options.replay and options.junit:
        raise usage_error("--replay and --junit exclude each other", "leave one out")
    for path in (options.json, options.junit):
        if path not in (None, "-"):
            check_place(path)
    from ..process.parent import ChildBug

    try:
        return _replay(options) if options.replay else _evaluate(options)
    except ChildBug as bug:
        from tfkit.commands import innermost_plugin

        if options.traceback:
            print(bug.where, file=sys.stderr)
        print_bug_report(bug.said, innermost_plugin(bug.frames), options.json == "-")
        return 1


def _evaluate(options: argparse.Namespace) -> int:
    from ..process.parent import evaluated
    from ..profile import profile_of

    if options.name is None:
        raise usage_error("a name is missing", "`tfkit plugins` lists what is installed")
    task = {
        "slot": options.slot, "name": options.name, "profile": profile_of(options.profile or "standard").name,
        "device": options.device or "cpu", "dtypes": options.dtypes, "options": options.options, "seed": options.seed,
        "limit": options.limit,
    }  # fmt: skip
    with status_line() as write:
        data = evaluated(task, progress=lambda check, examples: write(f"{examples} examples, {check}"))
    _write(options, data)
    if options.junit is not None:
        from ..process.junit import junit

        write_whole(options.junit, junit(data))
    if options.json != "-":
        from ..view.conformance_text import conformance_text

        print_rich(*conformance_text(data, options.json))
    return int(data["exit_code"])


def _replay(options: argparse.Namespace) -> int:
    from ..process.parent import replayed
    from ..process.stored import read_stored, replay_data

    stored = read_stored(options.replay, options.name, options.device)
    data = replay_data(stored, replayed([each for each in stored if each.case], options.limit))
    _write(options, data)
    if options.json != "-":
        from ..view.replay_text import replay_text

        print_rich(*replay_text(data))
    return int(data["exit_code"])


def _write(options: argparse.Namespace, data: dict[str, Any]) -> None:
    if options.json == "-":
        print_json(data)
    elif options.json is not None:
        write_whole(options.json, json.dumps(data, indent=2) + "\n")


def dtypes(text: str) -> list[str]:
    return [dtype(each) for each in dict.fromkeys(names(text))]


def mapping(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as reason:
        raise argparse.ArgumentTypeError(f"a JSON object is expected: {reason}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError('a JSON object is expected, for instance {"eps": 1e-6}')
    return found


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.1 <= found <= 86400:
        raise argparse.ArgumentTypeError(f"seconds from 0.1 to 86400 are expected, `{text}` is written")
    return found
