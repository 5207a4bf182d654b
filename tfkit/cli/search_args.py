"""The options of commands that search: beams or samples, penalties and limits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .arguments import Parser, usage_error, whole

if TYPE_CHECKING:
    from ..generate import Search
    from ..nn.model import Model

PENALTIES = ("gnmt", "power")


def add_search(parser: Parser, beams: int) -> None:
    """`beams` is the number unless given; 1 is greedy."""
    parser.add_argument(
        "--beams", type=whole, metavar="N", default=None, help=f"beams of beam search, 1 is greedy (default {beams})"
    )
    parser.add_argument("--n-best", type=whole, metavar="N", default=1, help="hypotheses or samples of each line (default 1)")
    parser.add_argument(
        "--penalty", choices=PENALTIES, default=None,
        help="length penalty: gnmt is ((5 + length) / 6)^alpha, power is length^alpha (default gnmt)",
    )  # fmt: skip
    parser.add_argument("--alpha", type=_number, metavar="A", default=None, help="of the penalty, 0 is none (default 0.6)")
    parser.add_argument("--sample", action="store_true", help="draw tokens instead of searching for the best")
    parser.add_argument("--temperature", type=_number, metavar="T", default=None, help="of --sample (default 1)")
    parser.add_argument("--top-k", type=whole, metavar="K", default=None, help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=_number, metavar="P", default=None, help="draw from the likeliest that make up P")
    parser.add_argument("--seed", type=_seed, metavar="N", default=None, help="of --sample; the same seed, the same samples")


def add_workers(parser: Parser) -> None:
    parser.add_argument(
        "--workers", type=whole, metavar="N", default=None,
        help="batches searched at once on a CPU (default: as many as torch has threads)",
    )  # fmt: skip


def workers_of(options: argparse.Namespace) -> int:
    """What was asked for, or one thread for each batch. Raises UsageError on a device that searches one batch at a time."""
    import torch

    on_cpu = torch.device(options.device).type == "cpu"
    if options.workers is not None and options.workers > 1 and not on_cpu:
        raise usage_error(f"--workers is for a CPU, not for {options.device}", "leave it out")
    return options.workers or (torch.get_num_threads() if on_cpu else 1)


def check_workers(options: argparse.Namespace, model: Model) -> None:
    """Raises UsageError where more workers were asked for than the attention backends of the model allow."""
    one = model.not_thread_safe(options.device) if (options.workers or 1) > 1 else []
    if one:
        names = " and ".join(f"`{name}`" for name in one)
        message = f"--workers {options.workers} needs attention backends that several threads may call at once, {names} may not"
        raise usage_error(message, "leave it out, or choose others, as with --backend sdpa")


def search_of(options: argparse.Namespace, beams: int, **limits: Any) -> Search:
    """The search that was asked for. Raises UsageError for options that do not go together, InputError for wrong values."""
    from ..generate import GnmtLengthPenalty, PowerLengthPenalty, Search

    drawn = [name for name in ("temperature", "top_k", "top_p", "seed") if getattr(options, name) is not None]
    searched = [name for name in ("beams", "penalty", "alpha") if getattr(options, name) is not None]
    if options.sample:
        if searched:
            raise usage_error(f"--{searched[0]} belongs to beam search", "leave --sample out")
        values = {name: getattr(options, name) for name in drawn}
        return Search(kind="sample", n_best=options.n_best, **values, **limits)
    if drawn:
        raise usage_error(f"--{drawn[0].replace('_', '-')} belongs to --sample", "write --sample too")
    count = options.beams or beams
    if count == 1:
        if options.n_best > 1 or searched[1:] or (searched and searched != ["beams"]):
            raise usage_error("greedy search has one hypothesis and no penalty", "ask for more beams")
        return Search(kind="greedy", **limits)
    penalty = (PowerLengthPenalty if options.penalty == "power" else GnmtLengthPenalty)(
        0.6 if options.alpha is None else options.alpha
    )
    return Search(kind="beam", beams=count, n_best=options.n_best, length_penalty=penalty, **limits)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is expected, `{text}` is written") from None


def _seed(text: str) -> int:
    return whole(text, 0)
