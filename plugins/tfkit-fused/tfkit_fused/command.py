"""`python -m tfkit_fused tune`: measures which tiles are the fastest on this device, for calls of the kinds that are asked for,
and saves it for every later run; `show` prints what is saved."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from tfkit import TfkitError
from tfkit.plugin import BuildError, Diagnostic, InputError

from . import INTERPRETED, FusedOptions
from .saved import place, read, source

if TYPE_CHECKING:
    import torch

    from tfkit.plugin import AttentionInputs, Bias

MASKS = ("none", "causal", "padded", "causal-padded", "keys-padded")
DTYPES = ("bfloat16", "float16", "float32")
BIASES = ("none", "linear", "distance", "dense")
EPILOG = """\
Lists have commas: every combination is measured with random numbers, forward
and backward. Each takes seconds, most of them compilation; what is saved for
this device is not measured again (delete the file to measure it again).

The file is named by TFKIT_FUSED_TUNED, or is tfkit/fused.json in the user's
cache directory. A figure counts for one device, Triton and kernels' source.

Exit codes: 0 done; 2 the input is wrong; 3 there is no CUDA device."""


class Parser(argparse.ArgumentParser):
    """argparse that raises an error instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise InputError(Diagnostic("TFK090", message, f"`{self.prog} --help` tells how"))


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command and gives its exit code."""
    try:
        options = _parser().parse_args(words)
        return _show() if options.command == "show" else _tune(options)
    except TfkitError as error:
        for diagnostic in error.diagnostics:
            print(_plain(diagnostic), file=sys.stderr)
        return 3 if isinstance(error, BuildError) else 2
    except KeyboardInterrupt:
        return 130


def _parser() -> Parser:
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="python -m tfkit_fused", description="Which tiles the fused backend is fastest with.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    commands.add_parser("show", help="print what is saved", description="Prints what is saved, of every device.")
    tune = commands.add_parser("tune", help="measure and save", epilog=EPILOG, formatter_class=form, allow_abbrev=False)
    tune.add_argument("--batch", type=_sizes(1 << 16), default=[8], metavar="B,...", help="batch rows (default 8)")
    tune.add_argument("--heads", type=_sizes(1024), default=[16], metavar="H,...", help="query heads (default 16)")
    tune.add_argument("--group", type=_sizes(1024), default=[1], metavar="N,...", help="of them per key/value head (default 1)")
    tune.add_argument("--head-dim", type=_sizes(256), default=[64, 128], metavar="D,...", help="default 64,128")
    tune.add_argument("--lengths", type=_lengths, default=_lengths("512,2048"), metavar="L|QxK,...", help="default 512,2048")
    tune.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default bfloat16")
    for flag, names, default in (("--mask", MASKS, 3), ("--bias", BIASES, 1)):
        words = f"{', '.join(names)} (default {','.join(names[:default])})"
        tune.add_argument(flag, type=_among(names), default=names[:default], metavar="NAME,...", help=words)
    tune.add_argument("--dropout", type=_probability, default=0.0, metavar="P", help="default 0")
    tune.add_argument("--inference", action="store_true", help="forward only")
    tune.add_argument("--atomic", action="store_true", help="the backward of `fused.atomic`")
    return parser


def _show() -> int:
    path = place()
    try:
        sections, damage = read(path)
    except OSError as reason:
        raise InputError(Diagnostic("TFK090", f"{path} could not be read: {reason.strerror}")) from None
    if damage:
        raise InputError(Diagnostic("TFK090", f"{path} is damaged: {damage}", "delete it and measure again"))
    print(_plain(path) if sections else f"{_plain(path)}: nothing is saved")
    for environment, choices in sections.items():
        stale = "" if environment.kernels == source() else ", of other kernels: not used"
        capability = environment.capability.replace(".", "")
        print(_plain(f"{environment.device}, sm_{capability}, Triton {environment.triton}{stale}"))
        for name, choice in sorted(choices.items()):
            print(_plain(f"  {name}: {choice}"))
    return 0


def _plain(text: object) -> str:
    """The text of a file or a path on one line, control characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def _tune(options: argparse.Namespace) -> int:
    import torch

    wrong = [(heads, group) for heads in options.heads for group in options.group if heads % group]
    if wrong:
        raise InputError(
            Diagnostic("TFK090", "{} heads are no multiple of the group {}".format(*wrong[0]), "change --heads or --group")
        )
    device = _device()
    from .attend import attend, attend_atomic
    from .tuner import tuner_of

    tuner = tuner_of(device)
    print(_plain(f"{tuner.saved.environment.device}, saved in {tuner.saved.path}"), flush=True)
    for inputs in _calls(options, device):
        known = set(tuner.answers)
        try:
            output = (attend_atomic if options.atomic else attend)(inputs, FusedOptions(tuned="measure")).output
            if not options.inference:
                output.backward(torch.randn_like(output))
        except torch.OutOfMemoryError:
            what = f"a call of shape {tuple(inputs.query.shape)} with {inputs.key.shape[2]} keys does not fit in memory"
            raise InputError(Diagnostic("TFK090", what, "take a smaller --batch or --lengths")) from None
        for name in [name for name in tuner.answers if name not in known]:
            print(_plain(f"{name}: {tuner.measured.get(name) or f'{tuner.answers[name]}, saved before'}"), flush=True)
    return 0


def _device() -> torch.device:
    import torch

    if not torch.cuda.is_available():
        raise BuildError(Diagnostic("TFK060", "there is no CUDA device to measure on", "run it where the model will run"))
    if INTERPRETED:
        raise BuildError(Diagnostic("TFK060", "TRITON_INTERPRET is set: times of an interpreter say nothing", "unset it"))
    return torch.device("cuda", torch.cuda.current_device())


def _calls(options: argparse.Namespace, device: torch.device) -> Iterator[AttentionInputs]:
    import torch

    from tfkit.plugin import AttentionInputs, Mask

    dtype = getattr(torch, options.dtype)
    axes = (options.batch, options.heads, options.group, options.head_dim, options.lengths, options.mask, options.bias)
    for B, H, group, D, (Q, K), mask, bias in itertools.product(*axes):
        shapes = ((B, H, Q, D), (B, H // group, K, D), (B, H // group, K, D))
        tensors = [torch.randn(shape, dtype=dtype, device=device).requires_grad_(not options.inference) for shape in shapes]
        lengths = torch.linspace(0.5, 1.0, B, device=device) if "padded" in mask else None
        key_lengths, query_lengths = ((None if lengths is None else (lengths * length).ceil().long()) for length in (K, Q))
        if mask == "keys-padded":
            query_lengths = None
        terms = Mask(causal="causal" in mask, offset=K - Q, key_lengths=key_lengths, query_lengths=query_lengths)
        yield AttentionInputs(
            *tensors, terms, D**-0.5, bias=_bias(bias, (H, Q, K), not options.inference, device), dropout=options.dropout
        )


def _bias(kind: str, shape: tuple[int, int, int], gradient: bool, device: torch.device) -> Bias | None:
    import torch

    from tfkit.plugin import DenseBias, DistanceBias, LinearBias

    if kind == "linear":
        return LinearBias(torch.rand(shape[0], device=device).requires_grad_(gradient))
    if kind == "distance":
        return DistanceBias(torch.randn(shape[0], 257, device=device).requires_grad_(gradient), -128)
    return DenseBias(torch.randn(shape, device=device).requires_grad_(gradient)) if kind == "dense" else None


def _sizes(most: int) -> Callable[[str], list[int]]:
    def sizes(text: str) -> list[int]:
        numbers = [int(word) if word.isdecimal() and word.isascii() and len(word) < 9 else 0 for word in text.split(",")]
        if not all(1 <= size <= most for size in numbers):
            raise argparse.ArgumentTypeError(f"`{text}` is no list of whole numbers from 1 to {most}")
        return numbers

    return sizes


def _lengths(text: str) -> list[tuple[int, int]]:
    lengths = []
    for word in text.split(","):
        queries, both, keys = word.partition("x")
        lengths.append((*_sizes(1 << 20)(queries), *_sizes(1 << 20)(keys if both else queries)))
    return lengths


def _among(names: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        for word in text.split(","):
            if word not in names:
                raise argparse.ArgumentTypeError(f"`{word}` is none of {', '.join(names)}")
        return tuple(text.split(","))

    return chosen


def _probability(text: str) -> float:
    try:
        probability = float(text)
    except ValueError:
        probability = -1.0
    if not 0.0 <= probability < 1.0:
        raise argparse.ArgumentTypeError(f"`{text}` is no probability below 1")
    return probability
