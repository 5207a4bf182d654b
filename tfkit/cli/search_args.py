"""The options of commands that search: beams or samples, penalties and limits."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..files import parse_json
from .options import Declared, OneOf, number, seed as seed_number, whole
from .usage import usage_error

if TYPE_CHECKING:
    from ..generate import Search
    from ..generate.penalty import LengthPenalty
    from ..io.alignment_site import AlignmentSite
    from ..nn.model import Model

STOPPING: dict[str, bool | str] = {"never": "never", "true": True, "false": False}
SEED_BITS = 32
"""Bits of a seed that is drawn: short enough to be typed."""

SAVED_SEARCH = """\b
Where a saved model has a search of its own (generation.json), that search
replaces the defaults above. What is written here comes first.

"""
"""A paragraph at the end of the help texts of searches."""


def written_filter(value: str) -> dict[str, Any]:
    """Parse a score filter: `KIND`, `KIND:OPTION=VALUE` with a value in JSON, or a mapping in JSON with `kind` and options."""
    kind, _, rest = value.partition(":")
    name, _, written = rest.partition("=")
    try:
        if value.startswith("{"):
            return dict(parse_json(value))
        if name == "kind" or (rest and not name):
            raise ValueError(name)
        return {"kind": kind, name: parse_json(written)} if rest else {"kind": kind}
    except ValueError:
        raise ValueError(f"KIND:OPTION=VALUE is expected, as suppress:ids=[0,5], `{value}` is written") from None


def search_options(beams: int) -> Callable[[Declared], Declared]:
    """The options that `search_of` reads. `beams` is the default in the help text. The search of a model comes before these
    defaults."""
    options = [
        click.option("--beams", type=whole, metavar="N", help=f"Beams of beam search; 1 is greedy (default: {beams})."),
        click.option("--n-best", type=whole, metavar="N", default=1, help="Hypotheses or samples of each line."),
        click.option(
            "--penalty", type=OneOf("penalty", ("gnmt", "power")), metavar="NAME",
            help="Length penalty: gnmt is ((5 + length) / 6)^alpha, power is length^alpha (default: gnmt).",
        ),
        click.option("--alpha", type=number, metavar="A", help="Exponent of the penalty; 0 turns it off (default: 0.6)."),
        click.option(
            "--early-stopping", type=OneOf("early_stopping", tuple(STOPPING)), metavar="NAME",
            help="When beams stop, as in transformers: never before the best is found; true with as many results as beams; "
            "false when the best beam would not win if it ended now (default: never).",
        ),
        click.option("--sample", is_flag=True, help="Draw tokens instead of searching for the best."),
        click.option("--temperature", type=number, metavar="T", help="Of --sample (default: 1)."),
        click.option("--top-k", type=whole, metavar="K", help="Draw from the K likeliest tokens."),
        click.option("--top-p", type=number, metavar="P", help="Draw from the likeliest tokens that make up P."),
        click.option(
            "--filter", type=written_filter, metavar="KIND:OPTION=VALUE", multiple=True,
            help="Score filter, as no_repeat_ngram:size=3. May be repeated.",
        ),
        click.option("--seed", type=seed_number, metavar="N", help="Of --sample; one seed, one result (default: drawn)."),
    ]  # fmt: skip

    def add(command: Declared) -> Declared:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def alignment_options(command: Declared) -> Declared:
    """The options that `alignment_of` reads."""
    for option in (
        click.option("--alignment-head", type=seed_number, metavar="N", help="Align by this head, from 0 (default: the mean)."),
        click.option("--alignment-site", metavar="SITE", help="Align by this cross-attention, as decoder.4.cross_attention."),
        click.option("--alignment", is_flag=True, help="Also print which source word each word is aligned with: 0-0 1-2."),
    ):
        command = option(command)
    return command


def alignment_of(alignment: bool, site: str | None, head: int | None) -> AlignmentSite | bool:
    """The requested alignment. Raises UsageError for a head without a site."""
    from ..io.alignment_site import AlignmentSite

    if head is not None and site is None:
        raise usage_error("--alignment-head needs --alignment-site", "a head is one of a site")
    return alignment if site is None else AlignmentSite.model_construct(site=site, head=head)  # checked by the model


workers_option = click.option(
    "--workers", type=whole, metavar="N", help="Batches searched at once on a CPU (default: one per torch thread)."
)

cuda_graphs_option = click.option("--cuda-graphs", is_flag=True, help="Record a decoding step once and replay it (on a GPU).")


shortlist_option = click.option(
    "--shortlist", is_flag=True, help="Compute the logits of likely tokens only, those of `tfkit shortlist`."
)


def workers_of(workers: int | None, device: str) -> int:
    """The value of `--workers`, by default one per thread. Raises UsageError for several workers on another device than a
    CPU."""
    import torch

    on_cpu = torch.device(device).type == "cpu"
    if workers is not None and workers > 1 and not on_cpu:
        raise usage_error(f"--workers is for a CPU, not for {device}", "leave it out")
    return workers or (torch.get_num_threads() if on_cpu else 1)


def check_workers(workers: int | None, device: str, model: Model) -> None:
    """Raises UsageError if several threads may not call the attention backends of the model at once."""
    not_safe = model.not_thread_safe(device) if (workers or 1) > 1 else []
    if not_safe:
        names = " and ".join(f"`{name}`" for name in not_safe)
        message = f"--workers {workers} needs thread-safe attention backends, and {names} is not thread-safe"
        raise usage_error(message, "leave it out, or choose others, as with --backend sdpa")


def saved_search_of(model: str) -> Search | None:
    """The search that a saved model asks for, None if it has none. Raises StoreError."""
    from ..io import model_in
    from ..text.saved_search import saved_search

    return saved_search(model_in(Path(model)))


EXTRA_LENGTH = 50
"""Tokens of a translation more than the source, unless an option or the model says otherwise."""


def lengths_of(saved: Search | None, extra_length: int | None) -> dict[str, Any]:
    """The limits of a translation: those of `--extra-length`, else those of the model's own search."""
    if extra_length is None and saved is not None:
        return {"length_factor": saved.length_factor, "extra_length": saved.extra_length}
    return {"extra_length": EXTRA_LENGTH if extra_length is None else extra_length}


def search_of(
    usual_beams: int, saved: Search | None = None, *, beams: int | None, n_best: int, penalty: str | None,
    alpha: float | None, early_stopping: str | None = None, sample: bool, temperature: float | None, top_k: int | None,
    top_p: float | None, seed: int | None, filter: tuple[dict[str, Any], ...] = (), **limits: Any,
) -> Search:  # fmt: skip
    """The search of these options; what they leave open is as in the model's own search, `saved`. A seed that is needed and not
    given is drawn and named on standard error. Raises UsageError for options that exclude each other, InputError for wrong
    values."""
    from ..catalogue import load_catalogue
    from ..generate import GnmtLengthPenalty, PowerLengthPenalty, Search

    catalogue = load_catalogue()
    limits["filters"] = [*(saved.filters if saved else ()), *(catalogue.score_filter(written) for written in filter)]
    limits["special_tokens"] = saved is not None and saved.special_tokens
    sampled = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling: dict[str, Any] = {name: value for name, value in sampled.items() if value is not None}
    of_beams = {"beams": beams, "penalty": penalty, "alpha": alpha, "early-stopping": early_stopping}
    searching = [name for name, value in of_beams.items() if value is not None]
    if sample or (saved is not None and saved.kind == "sample" and not searching):
        if searching:
            raise usage_error(f"--{searching[0]} belongs to beam search", "leave --sample out")
        if saved is not None and saved.kind == "sample":
            sampling = {"temperature": saved.temperature, "top_k": saved.top_k, "top_p": saved.top_p} | sampling
        search = Search(kind="sample", n_best=n_best, **{"seed": secrets.randbits(SEED_BITS)} | sampling, **limits)
        if seed is None:  # said only now, when no value is wrong
            print(f"--seed {search.seed} was drawn and repeats this output", file=sys.stderr)
        return search
    if sampling:
        raise usage_error(f"--{next(iter(sampling)).replace('_', '-')} belongs to --sample", "write --sample too")
    own_beams = {"beam": saved.beams, "greedy": 1}.get(saved.kind) if saved else None
    count = beams or own_beams or usual_beams
    if count == 1:
        if n_best > 1 or set(searching) - {"beams"}:
            raise usage_error("greedy search has one hypothesis, no penalty and no stopping rule", "ask for more beams")
        return Search(kind="greedy", **limits)
    length_penalty: LengthPenalty = (PowerLengthPenalty if penalty == "power" else GnmtLengthPenalty)(
        0.6 if alpha is None else alpha
    )
    if saved is not None and saved.kind == "beam" and penalty is None and alpha is None:
        length_penalty = saved.length_penalty
    rules: dict[str, Any] = {}
    if saved is not None and saved.kind == "beam":
        rules = {"early_stopping": saved.early_stopping, "unfinished": saved.unfinished}
    if early_stopping is not None:
        rules["early_stopping"] = STOPPING[early_stopping]
    return Search(kind="beam", beams=count, n_best=n_best, length_penalty=length_penalty, **rules, **limits)
