"""The command `tfkit`: one module per command, imported when it is asked for.

Exit codes: 0 fine, 1 a check or a run failed, 2 the input is wrong, 3 incomplete; 130 interrupted, 141 the reader of a pipe
went away. Data goes to standard output, faults to standard error; with `--json` everything is JSON on standard output
(`tfkit conformance` and `tfkit bench` write their report to a file, `--json FILE`: there it is `--json -` that does so).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BackendRefused, Diagnostic, InputError, SpecError, StoreError, TfkitError
from ..view.terminal import OutputError, standard_streams
from .arguments import COMMON, Parser, UsageError, nearest, parse, tells_json, usage_error
from .output import print_bug, print_diagnostics

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = {
    "check": "find every fault of specs and recipes",
    "show": "what a spec describes: nodes, shapes, parameters, costs",
    "plan": "which attention backend each site will use, and why",
    "build": "build and initialise a model, run it once, save it",
    "train": "train a model from text, or go on with a run",
    "translate": "translate lines of text with a trained model",
    "generate": "let a trained decoder go on from a prompt",
    "classify": "label lines of text with a trained classifier",
    "score": "BLEU and chrF of translations against a reference",
    "average": "one model from several of a run",
    "plugins": "what is installed, slot by slot",
    "schema": "the JSON Schema of a spec or a recipe, for editors",
    "explain": "what an error code, a rule or a check means",
}

OF_DISTRIBUTIONS = {"verify": "conformance", "conformance": "conformance", "bench": "conformance"}
"""Commands of distributions of this project, and the extra that installs each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code and lets no exception out."""
    words = list(sys.argv[1:] if argv is None else argv)
    with standard_streams():
        try:
            code = _ended(words)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            return 141
        except OutputError as failed:
            print_diagnostics([failed.diagnostic], as_json=False)  # also with --json: standard output is what failed
            return 1


def _ended(words: list[str]) -> int:
    try:
        return _run(words)
    except SystemExit as stop:  # argparse has printed a help text
        return int(stop.code or 0)
    except KeyboardInterrupt:
        print("tfkit: interrupted", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    as_json = tells_json(words)
    try:
        _check_working_directory()
        if not words:
            raise usage_error("a command is missing", "`tfkit --help` lists them")
        if words[0] in ("-h", "--help"):
            return _help()
        if words[0] == "--version":
            return _version()
        command, parser = command_named(words[0])
        return int(command.run(parse(parser, words[1:])))
    except TfkitError as error:
        if not error.reported_by_other_rank:
            print_diagnostics(error.diagnostics, as_json)
        return exit_code(error)
    except MemoryError:
        print_diagnostics(
            [Diagnostic("TFK045", "there is not enough memory", "make the model smaller, or choose a smaller dtype")], as_json
        )
        return 2
    except (BrokenPipeError, OutputError):
        raise
    except Exception as bug:
        print_bug(bug, as_json, "--traceback" in words)
        return 1


def _check_working_directory() -> None:
    """Raises UsageError where the working directory was removed: libraries fail there in ways of their own."""
    try:
        os.getcwd()
    except OSError:
        raise usage_error("the working directory does not exist any more", "change to one that does: cd ..") from None


def exit_code(error: Exception) -> int:
    """2 for what a user wrote or asked for, 1 where a plugin, a build or a disk failed."""
    if isinstance(error, (SpecError, BackendRefused, InputError, UsageError)):
        return 2
    codes = {diagnostic.code for diagnostic in error.diagnostics} if isinstance(error, TfkitError) else set()
    if isinstance(error, StoreError):
        return 1 if codes == {"TFK081"} else 2
    return 2 if codes & {"TFK045", "TFK046", "TFK097"} else 1


def command_named(word: str) -> tuple[Any, Parser]:
    """The module of a command and its parser. Raises UsageError where there is no such command."""
    added = {} if word in COMMANDS else _added()
    if word in COMMANDS:
        command, summary = import_module(f".{word}", __name__), COMMANDS[word]
    elif word in added:
        command = added[word].load()
        summary = command.SUMMARY
    else:
        raise _unknown(word, [*COMMANDS, *added])
    parser = Parser(prog=f"tfkit {word}", description=_sentence(summary), epilog=command.EPILOG, **COMMON)
    command.arguments(parser)
    return command, parser


def command_names() -> list[str]:
    """The names of all commands, those of plugins last."""
    return [*COMMANDS, *(name for name in _added() if name not in COMMANDS)]


def _added() -> dict[str, EntryPoint]:
    """The commands that installed distributions add."""
    from importlib.metadata import entry_points

    return {point.name: point for point in sorted(entry_points(group="tfkit.commands"), key=lambda point: point.name)}


def _unknown(word: str, known: list[str]) -> UsageError:
    if word in OF_DISTRIBUTIONS:
        extra = OF_DISTRIBUTIONS[word]
        return usage_error(f"`tfkit {word}` belongs to tfkit-{extra}, which is not installed", f"pip install 'tfkit[{extra}]'")
    if word.startswith("-"):
        return usage_error(f"options follow a command, `{word}` comes before", "for instance `tfkit check spec.yaml --json`")
    return usage_error(f"there is no command `{word}`", nearest(word, known) or f"commands: {', '.join(known)}")


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _help() -> int:
    print("usage: tfkit COMMAND ...\n\nA spec becomes a running Transformer in which every part is a plugin.\n")
    summaries = {**{name: point.load().SUMMARY for name, point in _added().items()}, **COMMANDS}
    for name in command_names():
        print(f"  {name:<13}{summaries[name]}")
    print("\n  --version    print the version\n  -h, --help   print this; `tfkit COMMAND --help` tells more")
    print("\nExit codes: 0 fine, 1 a check or a run failed, 2 the input is wrong, 3 incomplete.")
    return 0


def _version() -> int:
    from importlib.metadata import version

    print(f"tfkit {version('tfkit')}")
    return 0
