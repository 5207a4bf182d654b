"""`tfkit generate`: a decoder-only model continues prompts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import Diagnostic, InputError, Location
from .line_stream import unknown_text
from .options import READ, common, cpu_table_option, loading, precision_option, whole
from .output import speak_utf8, standard_input
from .packages import TEXT, import_torch, need_packages
from .search_args import (
    SAVED_SEARCH,
    check_workers,
    cuda_graphs_option,
    saved_search_of,
    search_of,
    search_options,
    workers_of,
    workers_option,
)

if TYPE_CHECKING:
    from ..text import Continuation

TOKENS = 200
MAX_PROMPTS = 8 << 20
"""The most characters of all lines of standard input, which are continued at once."""
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
"""Escapes that write a text of several lines on one line."""
EPILOG = f"""\b
tfkit generate MODEL --prompt "Once upon" --sample --temperature 0.8 --seed 1

{SAVED_SEARCH}\b
The continuation of a --prompt is printed as it is. The continuation of a line
of standard input is printed on one line, in which \\n is a line break, \\r a
carriage return, \\t a tab and \\\\ a backslash. With --n-best N such a line is:
number of the input line, log-probability, text, with tabs between them.

\b
Of a prompt that does not fit, the last tokens are read: as many as leave
--tokens positions free, but at least half of the model's positions. Such
prompts, and texts that end early because the positions are used up, are
reported on standard error.

\b
--json prints one object per prompt: prompt, continuations (text,
log_probability, finished).
"""


@click.command("generate", epilog=EPILOG)
@click.argument("model", type=READ, help="A directory that `tfkit train` wrote.")
@click.option("--prompt", metavar="TEXT", multiple=True, help="Text to continue. May be repeated.")
@click.option(
    "--max-prompt", type=whole, metavar="N", default=8192, help="Last tokens of a prompt that a model without limit reads."
)
@click.option("--tokens", type=whole, metavar="N", help=f"New tokens at most (default: {TOKENS}).")
@search_options(beams=1)
@cuda_graphs_option
@workers_option
@precision_option
@loading
@cpu_table_option
@common
def command(
    model: str, prompt: tuple[str, ...], max_prompt: int, tokens: int | None, n_best: int, workers: int | None, precision: str,
    cuda_graphs: bool, device: str, backend: list[str] | None, auto_table: str | None, allow_nan: bool,
    cpu_table: str | None, as_json: bool, **search: Any,
) -> int:  # fmt: skip
    """Continue prompts with a trained decoder.

    The output is each prompt with its continuation. Without --prompt, each line of standard input is a prompt; an empty line
    stays empty.
    """
    need_packages("train", *TEXT)
    speak_utf8()
    import_torch()
    from ..data import groups, lines_of
    from ..errors.arguments import check_whole
    from ..generate import StepGraphs, recorded_steps
    from ..generate.prefill import MOST_TOKENS
    from ..generate.step_graphs import check_device
    from ..text import TextGenerator
    from .device import chosen_device, loaded, use_cpu_table

    if tokens is not None:
        check_whole("--tokens", tokens, 1, MOST_TOKENS)
    saved = saved_search_of(model)
    limit = tokens or (saved.extra_length if saved is not None and saved.length_factor == 0 else TOKENS)
    settings = search_of(1, saved, n_best=n_best, length_factor=0.0, extra_length=limit, **search)
    device = chosen_device(device, precision != "float32" or cpu_table or (workers or 1) > 1)
    threads = workers_of(workers, device)
    if cuda_graphs:
        check_device(device)
    use_cpu_table(cpu_table, device)
    generator = TextGenerator.load(
        model, precision=precision, max_prompt=max_prompt, **loaded(device, backend, auto_table, allow_nan)
    )
    check_workers(workers, device, generator.model)
    graphs = StepGraphs(generator.model) if cuda_graphs else recorded_steps(generator.model)
    # All lines at once, because the samples of a line depend on its number. If a line cannot be read, those before it.
    read = iter([list(prompt)]) if prompt else groups(lines_of(standard_input(), "<stdin>"), sys.maxsize, MAX_PROMPTS)
    count = 0
    for prompts in read:
        if count:
            message = f"the prompts of standard input have more than {MAX_PROMPTS:,} characters"
            raise InputError(Diagnostic("TFK101", message, "divide it", location=Location("<stdin>", count + 1)))
        count = len(prompts)
        continued = generator.continue_all(prompts, settings, workers=threads, graphs=graphs)
        for number, (text, continuations) in enumerate(zip(prompts, continued, strict=True), 1):
            name = f"prompt {number}" if prompt else f"<stdin>:{number}"
            if prompt and not continuations:
                raise InputError(Diagnostic("TFK077", f"{name} is empty", "a prompt has at least one token"))
            _report_limits(name, continuations, generator.positions, tokens)
            if as_json:
                rows = [
                    {
                        "text": continuation.text, "log_probability": continuation.hypothesis.log_probability,
                        "finished": continuation.hypothesis.finished,
                    }
                    for continuation in continuations
                ]  # fmt: skip
                print(json.dumps({"prompt": text, "continuations": rows}, allow_nan=False))
            else:
                _print(number, text, continuations, n_best, whole_texts=bool(prompt))
    return 0


def _print(number: int, prompt: str, continuations: list[Continuation], n_best: int, *, whole_texts: bool) -> None:
    """The texts as they are (`whole_texts`), or each on one line, which starts with number and score if `n_best` > 1."""
    texts = [f"{prompt}{continuation.text}" for continuation in continuations] or [prompt]
    if whole_texts:
        print(*texts, sep="\n")
    elif n_best == 1:
        print(texts[0].translate(ESCAPES))
    else:
        scores = [f"{continuation.hypothesis.log_probability:.4f}" for continuation in continuations] or [""]
        for text, score in zip(texts, scores, strict=True):
            print(number, score, text.translate(ESCAPES), sep="\t")


def _report_limits(name: str, continuations: list[Continuation], positions: int | None, wanted: int | None) -> None:
    """Report on standard error the unknown tokens of a prompt, and what the positions of the model cut off: of the prompt, and
    of the `wanted` new tokens."""
    if continuations and continuations[0].unknown:
        print(f"{name}: {unknown_text(continuations[0].unknown)}", file=sys.stderr)
    if continuations and continuations[0].cut:
        read, cut = continuations[0].read, continuations[0].cut
        reason = "see --max-prompt" if positions is None else f"the model has {positions:,} positions"
        limit = f"the last {read:,} were read; {reason}"
        print(f"{name}: {read + cut:,} tokens, {limit}", file=sys.stderr)
    short = [len(continuation.hypothesis.ids) for continuation in continuations if not continuation.hypothesis.finished]
    if wanted is not None and short and max(short) < wanted:
        count = f"{max(short):,} of {wanted:,} tokens were generated: with {continuations[0].read:,} of the prompt"
        print(f"{name}: {count} the model has no more positions", file=sys.stderr)
