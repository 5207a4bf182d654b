"""The click group of all commands, and the exit codes. A command's module is imported when the command is run.

A distribution adds commands through the entry-point group `tfkit.commands`. An entry point names a click command, or a module
whose attribute `command` is one.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import click

from ..distribution import install_line, version
from ..errors import BackendRefused, Diagnostic, InputError, SpecError, StoreError, TfkitError
from ..errors.arguments import check_characters
from ..errors.diagnostic import cut
from ..view.terminal import OutputError, standard_streams
from .output import print_bug, print_diagnostics
from .usage import UsageError, from_click, name_of, nearest, usage_error, wants_json

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = {
    "check": "find all errors in specs and recipes",
    "show": "what a spec describes: nodes, shapes, parameters, costs",
    "diff": "in what two specs or saved models differ",
    "plan": "which attention backend each site will use, and why",
    "positions": "the position schemes of a model as pictures",
    "build": "build and initialise a model, run it once, save it",
    "train": "train a model from text, or resume a run",
    "compare": "train several recipes over seeds and compare their scores",
    "claims": "what papers claim about Transformers, measured",
    "translate": "translate lines of text with a trained model",
    "shortlist": "likely target tokens of each source token, for faster translations",
    "generate": "continue a prompt with a trained decoder",
    "answer": "answer questions about texts with a trained model",
    "classify": "label lines of text with a trained classifier",
    "fill": "fill in the masks of a text with a pre-trained model",
    "serve": "answer requests over HTTP with a trained model",
    "tag": "tag the words of lines with a trained tagger",
    "look": "what a model attends to, as a page or a picture",
    "rescore": "the log-probability that a model gives to translations or texts",
    "score": "BLEU, chrF and TER of translations against references",
    "aer": "the error rate of word alignments against a gold alignment",
    "average": "average the weights of several models",
    "merge": "an adapter (LoRA) and its base model as one model",
    "eject": "a spec or a model as one readable file of PyTorch",
    "export": "a trained model for another engine",
    "import": "a model of Hugging Face transformers, with its tokeniser",
    "plugins": "what is installed, slot by slot",
    "doctor": "what is installed here, what is broken, how to repair it",
    "specs": "the specs and recipes that come with tfkit, by name",
    "new": "a plugin to start from, or a copy of a spec or a recipe",
    "completion": "the script that completes commands in a shell",
    "schema": "the JSON Schema of a spec or a recipe, for editors",
    "explain": "what an error code, a rule or a check means",
}
"""The commands of this distribution, with the line about each in `tfkit --help`."""

MODULES = {"import": "import_model"}
"""The modules of commands whose names are words of Python."""

MAX_SUMMARY = 1000
"""Characters of the first sentence about a plugin's command: `tfkit --help` shows it whole, on several lines if need be."""

ANSWER_BY_ONE = ("diff", "doctor")
"""Commands whose exit code 1 is an answer: the models differ, something is broken. If they cannot write it, the code is 2."""

EXTRAS = {"verify": "conformance", "conformance": "conformance", "bench": "conformance"}
"""Commands of other distributions of this project, with the extra that installs each."""


class WholeWords(click.HelpFormatter):
    """Wraps help between words. Python's wrapping also cuts words at their hyphens: `--max-` `length`."""

    UNCUT = "\N{NON-BREAKING HYPHEN}"

    def write(self, string: str) -> None:
        super().write(string.replace(self.UNCUT, "-"))

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", self.UNCUT))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, text.replace("-", self.UNCUT)) for name, text in rows], col_max, col_spacing)


class CommandContext(click.Context):
    formatter_class = WholeWords

    def invoke(self, callback: Any, /, *args: Any, **values: Any) -> Any:
        """Run the command, unless one of its arguments or options is no UTF-8."""
        for parameter in self.command.params:
            value = values.get(parameter.name or "")
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str):
                    check_characters(text, "TFK090", name_of(parameter), "write it in the encoding of the terminal")
        return super().invoke(callback, *args, **values)


class CommandGroup(click.Group):
    """All commands. Neither `list_commands` nor `get_command` imports other commands than the requested one."""

    context_class = CommandContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in _entry_points() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            loaded = import_module(f"{__package__}.{MODULES.get(name, name)}")
        elif name in (points := _entry_points()):
            loaded = points[name].load()
        else:
            return None
        command: click.Command = loaded if isinstance(loaded, click.Command) else loaded.command
        command.context_class = CommandContext
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str, click.Command, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None:
            raise _no_such_command(args[0], self.list_commands(ctx))
        return args[0], command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS.get(name) or self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def _summary(self, ctx: click.Context, name: str) -> str:
        """The help line of a plugin's command, or the reason why it cannot be imported. Other commands remain usable."""
        try:
            command = self.get_command(ctx, name)
        except Exception as reason:
            return f"cannot be imported: {reason}"
        return command.get_short_help_str(MAX_SUMMARY) if command else ""


def _print_version(context: click.Context, option: click.Parameter, chosen: bool) -> None:
    if chosen:
        click.echo(f"tfkit {version()}")
        context.exit()


@click.group(
    cls=CommandGroup,
    no_args_is_help=False,
    subcommand_metavar="COMMAND ...",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Exit codes: 0 fine, 1 a check or a run failed, 2 the input is wrong, 3 incomplete.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
def commands() -> None:
    """A spec becomes a running Transformer in which every part is a plugin."""


def run(words: list[str]) -> int:
    """Run the command line `tfkit WORDS...` and return its exit code. It raises no exception but KeyboardInterrupt."""
    if "_TFKIT_COMPLETE" in os.environ:  # the shell asks what may follow: `tfkit completion`
        from click.shell_completion import shell_complete

        try:
            return shell_complete(commands, {}, "tfkit", "_TFKIT_COMPLETE", os.environ["_TFKIT_COMPLETE"])
        except Exception:  # the line that is typed may be wrong; the shell shows no error while it is completed
            return 1
    with standard_streams(), _short_warnings():
        try:
            code = _run(words)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            return 141
        except OutputError as failed:
            print_diagnostics([failed.diagnostic], as_json=False)  # also with --json: standard output is what failed
            return _unanswered(words)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Warnings, also of libraries, are one line, without a place in their source."""
    usual = warnings.formatwarning

    def formatted(message: Any, *place: Any, **more: Any) -> str:
        return f"warning: {' '.join(cut(str(message)).split())}\n"

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


NO_MEMORY = re.compile("can't allocate memory|not enough memory|out of memory|Storage size calculation overflowed")
"""How torch says that memory does not suffice; its exception has a type only on CUDA."""


def _run(words: list[str]) -> int:
    command = None
    try:
        _check_working_directory()
        words = words or ["--help"]
        command = commands.get_command(click.Context(commands), words[0])
        with commands.make_context("tfkit", list(words), obj=shlex.join(["tfkit", *words])) as context:
            return int(commands.invoke(context) or 0)
    except click.exceptions.Exit as stop:  # a help text was printed
        return stop.exit_code
    except (BrokenPipeError, OutputError):
        raise
    except Exception as error:
        return _report(error, words, wants_json(command, words))


def _report(error: Exception, words: list[str], as_json: bool) -> int:
    """Print the error of a command; returns the exit code."""
    if isinstance(error, click.ClickException):
        error = from_click(error, words)
    if isinstance(error, TfkitError):
        if not error.reported_by_other_rank:
            print_diagnostics(error.diagnostics, as_json)
        return max(exit_code(error), _unanswered(words))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        fix = "make the model smaller, or choose a smaller dtype"
        print_diagnostics([Diagnostic("TFK045", "there is not enough memory", fix)], as_json)
        return 2
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if any(frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "torch" for frame in frames):
        from ..doctor.torch_facts import torch_failed

        print_diagnostics([torch_failed(error)], as_json)
        return 2
    if isinstance(error, OSError) and error.filename is not None:
        path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
        print_diagnostics([Diagnostic("TFK000", f"`{path}`: {error.strerror}", "name another file or directory")], as_json)
        return 2
    print_bug(error, as_json, "--traceback" in words)
    return 1


def _unanswered(words: list[str]) -> int:
    """The exit code of a command that could not write its answer."""
    return 2 if words[:1] and words[0] in ANSWER_BY_ONE else 1


def exit_code(error: Exception) -> int:
    """2 if the user can correct the input or the command, 1 if a plugin, a build or a disk failed."""
    if isinstance(error, (SpecError, BackendRefused, InputError, UsageError)):
        return 2
    codes = {diagnostic.code for diagnostic in error.diagnostics} if isinstance(error, TfkitError) else set()
    if isinstance(error, StoreError):
        return 1 if codes == {"TFK081"} else 2
    return 2 if codes & {"TFK045", "TFK046", "TFK047", "TFK097"} else 1


def _check_working_directory() -> None:
    """Raises UsageError if the working directory was removed. Libraries would fail later with errors that are hard to read."""
    try:
        os.getcwd()
    except OSError:
        raise usage_error("the working directory does not exist any more", "change to one that does: cd ..") from None


def _entry_points() -> dict[str, EntryPoint]:
    """The commands of installed distributions, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in sorted(entry_points(group="tfkit.commands"), key=lambda point: point.name)}


def _no_such_command(word: str, known: list[str]) -> UsageError:
    if word in EXTRAS:
        extra = EXTRAS[word]
        return usage_error(f"`tfkit {word}` belongs to tfkit-{extra}, which is not installed", install_line(extra))
    return usage_error(f"there is no command `{word}`", nearest(word, known) or f"commands: {', '.join(known)}")
