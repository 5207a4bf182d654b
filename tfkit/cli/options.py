"""The options and the types of options that several commands share."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .usage import nearest

DTYPES = ("float32", "float64", "bfloat16", "float16")
PRECISIONS = ("float32", "bfloat16", "int8")
Declared = TypeVar("Declared", bound=Callable[..., Any])


class _Path(click.ParamType[str, str]):
    name = "path"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value or "\0" in value:
            self.fail("a path is expected", param, ctx)
        if ctx is not None and value.startswith("-") and any(value in parameter.opts for parameter in ctx.command.params):
            self.fail(f"expected one argument, `{value}` is an option", param, ctx)
        if not value.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in value):
            self.fail("the path is not UTF-8 text; rename the file or a directory on its way", param, ctx)
        try:
            os.lstat(value)
        except OSError as reason:
            if reason.errno == errno.ENAMETOOLONG:
                self.fail(f"`{value[:40]}...` has {len(value):,} characters, more than a path may have here", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


NAMED = {"spec": ("spec",), "first": ("spec",), "second": ("spec",), "before": ("spec",), "subject": ("spec",),
         "specs": ("spec", "recipe"), "recipe": ("recipe", "spec"), "recipes": ("recipe",)}  # fmt: skip
"""Parameters that may name what tfkit ships, for the shell."""


class InputPath(_Path):
    """A file or directory that the command reads. The tests with hostile input find such parameters by this type."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names of shipped specs or recipes that the parameter may have, and files."""
        from ..spec.published import published

        names = [name for kind in NAMED.get(param.name or "", ()) for name in published(kind) if name.startswith(incomplete)]
        return [*super().shell_complete(ctx, param, incomplete), *map(CompletionItem, dict.fromkeys(names))]


class OutputPath(_Path):
    """A file or directory that the command writes."""


class OneOf(click.ParamType[str, str]):
    """One of a few words. An unknown word is an error that names the nearest one.

    Args:
        kind: what the words name, for the error: `dtype`.
        words: the words.
    """

    name = "word"

    def __init__(self, kind: str, words: Sequence[str]) -> None:
        self.kind, self.words = kind, words

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Validate a word, as click requires.

        Args:
            value: the word on the command line.
            param: the option that reads it.
            ctx: the context of the command.

        Returns:
            The word.

        Raises:
            click.BadParameter: the word is unknown.
        """
        if value not in self.words:
            known = f"known: {', '.join(self.words)}"
            self.fail(f"unknown {self.kind} `{value}`; {nearest(value, self.words) or known}", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that begin as written."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


READ, WRITE, DTYPE = InputPath(), OutputPath(), OneOf("dtype", DTYPES)


def whole(value: str | int, lowest: int = 1) -> int:
    """Parse a whole number that fits a torch seed or size.

    Args:
        value: the text of an option, or its default.
        lowest: the smallest valid number.

    Returns:
        The number.

    Raises:
        ValueError: the text is no such number.
    """
    if not re.fullmatch(r"[0-9]{1,18}", str(value)) or int(value) < lowest:
        raise ValueError(f"a whole number from {lowest} is expected, `{value}` is written")
    return int(value)


def seed(value: str | int) -> int:
    """Parse a seed.

    Args:
        value: the text of an option, or its default.

    Returns:
        A whole number from 0.

    Raises:
        ValueError: the text is no such number.
    """
    return whole(value, 0)


def number(value: str | float) -> float:
    try:
        if "_" in str(value) or not str(value).isascii():  # Python reads 1_0 and digits of any script
            raise ValueError
        return float(value)
    except ValueError:
        raise ValueError(f"a number is expected, `{value}` is written") from None


def names(text: str) -> list[str]:
    """Parse a list of names.

    Args:
        text: names with commas between them.

    Returns:
        The names.

    Raises:
        ValueError: a name is empty.
    """
    parts = text.split(",")
    if not all(parts):
        raise ValueError("names with commas between them are expected")
    return parts


def dtypes(text: str) -> list[str]:
    """Parse a list of dtypes.

    Args:
        text: dtypes with commas between them.

    Returns:
        The dtypes, each once.

    Raises:
        click.BadParameter: a dtype is unknown.
    """
    return [DTYPE.convert(name, None, None) for name in dict.fromkeys(names(text))]


def device(text: str) -> str:
    """Parse a device.

    Args:
        text: `cpu`, `cuda` or `cuda:1`.

    Returns:
        The text.

    Raises:
        ValueError: the text is no such device.
    """
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise ValueError(f"unknown device `{text}`; write cpu, cuda or cuda:1")
    return text


def run_device(text: str) -> str:
    """Parse `auto` or a device, for a command that runs a model; `tfkit.cli.device.chosen_device` says what that is."""
    if text == "auto":
        return text
    try:
        return device(text)
    except ValueError:
        raise ValueError(f"unknown device `{text}`; write auto, cpu, cuda or cuda:1") from None


def lengths_by_input(text: str) -> dict[str, int]:
    """Parse the lengths of inputs.

    Args:
        text: `source=32,target=32`.

    Returns:
        The lengths by input.

    Raises:
        ValueError: the text has another form, or an input has two lengths.
    """
    lengths: dict[str, int] = {}
    for item in text.split(","):
        name, equals, length = item.partition("=")
        if not name or not equals:
            raise ValueError(f"lengths are written source=32,target=32, `{text}` is written")
        if name in lengths:
            raise ValueError(f"`{name}` has two lengths")
        lengths[name] = whole(length)
    return lengths


TRACEBACK = "Print the traceback of a bug in tfkit, for a report."
traceback_option = click.option("--traceback", is_flag=True, expose_value=False, help=TRACEBACK)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, errors too.")
spec_argument = click.argument("spec", type=READ, help="A spec, YAML or JSON, or its name (`tfkit specs`).")
set_option = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True,
    help="Change one value, for instance encoder.num_layers=12. May be repeated.",
)  # fmt: skip
device_option = click.option("--device", type=device, metavar="DEVICE", default="cpu", help="cpu, cuda or cuda:1.")
run_device_option = click.option(
    "--device", type=run_device, metavar="DEVICE", default="auto",
    help="auto, cpu, cuda or cuda:1; auto is cuda if torch can use one.",
)  # fmt: skip
dtype_option = click.option("--dtype", type=DTYPE, metavar="DTYPE", default="float32", help=f"{', '.join(DTYPES)}.")
backend_option = click.option(
    "--backend", type=names, metavar="NAME[,NAME]", help="Attention backend for every site; further names are fallbacks."
)
auto_table_option = click.option(
    "--auto-table", type=READ, metavar="FILE", help="Let `auto` read this table first (tfkit bench auto --json FILE)."
)


precision_option = click.option(
    "--precision", type=OneOf("precision", PRECISIONS), metavar="NAME", default="float32",
    help="float32; or bfloat16 or int8: faster on a CPU, a half or a quarter of the memory.",
)  # fmt: skip


cpu_table_option = click.option(
    "--cpu-table", type=READ, metavar="FILE", help="Choose products on a CPU by this table (tfkit bench cpu --json FILE)."
)


def common(command: Declared) -> Declared:
    """Add the options `--json` (the argument `as_json`) and `--traceback` to a command.

    Args:
        command: the function of the command.

    Returns:
        The function with the options.
    """
    return json_option(traceback_option(command))


allow_nan_option = click.option(
    "--allow-nan", is_flag=True, help="Load weights that hold NaN or infinity too, to examine them."
)


large_option = click.option(
    "--large", is_flag=True, help="Make more than 1,000 sub-layers, which takes minutes."
)  # MAX_SUBLAYERS of tfkit.graph.rules


def placement(command: Declared) -> Declared:
    """Add the options of device and attention backends, the arguments of `tfkit.cli.device.placed`."""
    return run_device_option(backend_option(auto_table_option(command)))


def loading(command: Declared) -> Declared:
    """Add the options of commands that run a saved model, the arguments of `tfkit.cli.device.loaded`."""
    return placement(allow_nan_option(command))
