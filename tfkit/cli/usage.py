"""A wrong command line as a diagnostic."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import click

from ..errors import Diagnostic, TfkitError


class UsageError(TfkitError):
    """The command line is wrong."""


def usage_error(message: str, fix: str = "") -> UsageError:
    """The error about a wrong command line.

    Args:
        message: the error.
        fix: how to repair it.

    Returns:
        The exception, to be raised; the command then ends with exit code 2.
    """
    return UsageError(Diagnostic("TFK090", message, fix))


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` if a known word is similar, else an empty text."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean `{near[0]}`?" if near else ""


def from_click(error: click.ClickException, words: Sequence[str]) -> UsageError:
    """Convert an error of click about the command line `tfkit WORDS...`."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    program = context.command_path if context else f"tfkit {words[0]}"
    fix = f"see `{program} --help`"
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        if context and context.parent is None:
            message, fix = f"options follow a command, `{words[0]}` comes before", "for instance `tfkit check spec.yaml --json`"
        else:
            message = f"{program} has no option `{error.option_name}`"
            fix = nearest(error.option_name, error.possibilities or ()) or fix
    elif isinstance(error, click.MissingParameter) and context:
        missing = [param for param in context.command.params if param.required and param.name not in context.params]
        message = f"the following arguments are required: {', '.join(map(name_of, missing))}"
    elif isinstance(error, click.BadParameter) and error.param:
        message = f"argument {name_of(error.param)}: {error.message}"
        fix = "" if error.message.endswith("?") else fix
    elif isinstance(error, click.BadOptionUsage):
        has_value = any(word.startswith(f"{error.option_name}=") for word in words)
        message = f"argument {error.option_name}: {'takes no value' if has_value else 'expected one argument'}"
    elif type(error) is click.UsageError:
        extra = [word for word in words if f"({word})" in message or f"({word} " in message]
        message = f"{program} has no argument `{extra[0]}`" if extra else message
    return usage_error(message, fix)


def name_of(parameter: click.Parameter) -> str:
    """The name of a parameter in the help text: `-o/--output`, `SPEC`."""
    return "/".join(parameter.opts) if isinstance(parameter, click.Option) else parameter.human_readable_name.strip("[.]")


def wants_json(command: click.Command | None, words: Sequence[str]) -> bool:
    """Whether errors are JSON on standard output: after `--json`, and where `--json` takes a file, after `--json -`."""
    option = next((param for param in command.params if "--json" in param.opts), None) if command else None
    if isinstance(option, click.Option) and not option.is_flag:
        return "--json=-" in words or ("--json", "-") in pairwise(words)
    return "--json" in words
