"""What the commands' arguments have in common, and how a wrong command line is told."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from ..errors import Diagnostic, TfkitError

DTYPES = ("float32", "float64", "bfloat16", "float16")
COMMON: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}


class UsageError(TfkitError):
    """The command line is wrong."""


def usage_error(message: str, fix: str = "") -> UsageError:
    return UsageError(Diagnostic("TFK090", message, fix))


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` if anything known is near."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean `{near[0]}`?" if near else ""


class Parser(argparse.ArgumentParser):
    """argparse, whose documented place to change what happens on an error is this method: a fault instead of an exit."""

    def error(self, message: str) -> NoReturn:
        raise usage_error(message, "" if message.endswith("?") else f"`{self.prog} --help` tells how")


def parse(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """The parsed words, and the whole `command_line`; options and files may come in any order. Raises UsageError."""
    options, unknown = parser.parse_known_intermixed_args(words)
    options.command_line = shlex.join([*parser.prog.split(), *words])
    if unknown:
        word = unknown[0].partition("=")[0]
        known = re.findall(r"--[a-z-]+", parser.format_help())
        fix = nearest(word, known) if word.startswith("-") else ""
        kind = "option" if word.startswith("-") else "argument"
        raise usage_error(f"{parser.prog} has no {kind} `{word}`", fix or f"`{parser.prog} --help` tells how")
    return options


def tells_json(words: Sequence[str]) -> bool:
    """Whether faults are JSON on standard output: after `--json`, and where a command writes its JSON to a file, `--json -`."""
    if words[:1] in (["conformance"], ["bench"]):
        return "--json=-" in words or ("--json", "-") in pairwise(words)
    return "--json" in words


def add_common(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, faults too")
    parser.add_argument("--traceback", action="store_true", help="print where tfkit itself failed, for a bug report")


def add_spec(parser: Parser) -> None:
    parser.add_argument("spec", metavar="SPEC", type=reading, help="a spec, YAML or JSON")
    add_set(parser)


def add_set(parser: Parser) -> None:
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides",
        help="change one value, for instance encoder.num_layers=12; may be given again",
    )  # fmt: skip


def add_device(parser: Parser) -> None:
    parser.add_argument("--device", type=device, default="cpu", metavar="DEVICE", help="cpu, cuda or cuda:1 (default cpu)")


def add_placing(parser: Parser) -> None:
    """Where a model runs, and what computes its attention; `tfkit.cli.device.placed` reads it."""
    add_device(parser)
    add_backend(parser)
    add_auto_table(parser)


def add_backend(parser: Parser) -> None:
    parser.add_argument(
        "--backend", metavar="NAME[,NAME]", type=names, help="attention backend for every site, or several to fall back on"
    )


def add_auto_table(parser: Parser) -> None:
    parser.add_argument(
        "--auto-table", metavar="FILE", type=reading, help="let `auto` go by this table first (tfkit bench auto --json FILE)"
    )


def add_dtype(parser: Parser) -> None:
    parser.add_argument("--dtype", type=dtype, default="float32", help=f"{', '.join(DTYPES)} (default float32)")


def names(text: str) -> list[str]:
    found = text.split(",")
    if not all(found):
        raise argparse.ArgumentTypeError("names with commas between them are expected")
    return found


def dtype(text: str) -> str:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"unknown dtype `{text}`; {nearest(text, DTYPES) or 'known: ' + ', '.join(DTYPES)}")
    return text


def whole(text: str, lowest: int = 1) -> int:
    """A whole number from `lowest` that fits a torch seed or size."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < lowest:
        raise argparse.ArgumentTypeError(f"a whole number from {lowest} is expected, `{text}` is written")
    return int(text)


def place(text: str) -> str:
    """The path of a file or directory that is written."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("a path is expected")
    if not text.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in text):
        raise argparse.ArgumentTypeError("the path is not UTF-8 text; rename the file or a directory on its way")
    try:
        os.lstat(text)
    except OSError as reason:
        if reason.errno == errno.ENAMETOOLONG:
            message = f"`{text[:40]}...` has {len(text):,} characters, more than a path may have here"
            raise argparse.ArgumentTypeError(message) from None
    return text


def reading(text: str) -> str:
    """The path of a file or directory that is read. The hostile-input tests find such arguments by this type."""
    return place(text)


def seed(text: str) -> int:
    return whole(text, 0)


def lengths_by_input(text: str) -> dict[str, int]:
    """`source=32,target=32`."""
    found: dict[str, int] = {}
    for item in text.split(","):
        name, equals, length = item.partition("=")
        if not name or not equals:
            raise argparse.ArgumentTypeError(f"lengths are written source=32,target=32, `{text}` is written")
        if name in found:
            raise argparse.ArgumentTypeError(f"`{name}` has two lengths")
        found[name] = whole(length)
    return found


def queries_by_keys(text: str) -> tuple[int, int]:
    """`128x512`, or `128` for both."""
    queries, cross, keys = text.partition("x")
    if not queries or (cross and not keys):
        raise argparse.ArgumentTypeError(f"lengths are written 128x512 (queries x keys) or 128, `{text}` is written")
    return whole(queries), whole(keys if cross else queries)


def planned_device(text: str) -> tuple[str, tuple[int, int] | None]:
    """`cpu`, `cuda`, or `cuda:sm90` with its compute capability."""
    if text in ("cpu", "cuda"):
        return text, None
    found = re.fullmatch(r"cuda:sm_?([0-9]{1,2})([0-9])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"unknown device `{text}`; write cpu, cuda, or cuda:sm90 for compute capability 9.0")
    return "cuda", (int(found[1]), int(found[2]))


def device(text: str) -> str:
    """`cpu`, `cuda` or `cuda:1`."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"unknown device `{text}`; write cpu, cuda or cuda:1")
    return text
