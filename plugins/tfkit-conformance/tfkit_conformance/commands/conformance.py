"""`tfkit conformance`: checks in a child process that a part does what it declares."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from tfkit.commands import (
    READ,
    TRACEBACK,
    WRITE,
    Progress,
    check_places,
    device,
    dtypes,
    print_bug_report,
    print_json,
    print_rich,
    seed,
    shown,
    usage_error,
    write_whole,
)

from . import seconds

EPILOG = """\b
Exit codes: 0 conformant; 1 not conformant; 2 the input is wrong; 3
incomplete: something declared was not exercised or not checked, or the device
is missing. With --replay: 1 if a case still fails, 0 if all pass, else 3.

\b
--json FILE writes the report: `slot`, `name`, `verdict`, `exit_code`,
`checks` (`name`, `rule`, `status`, `examples`, `worst`: the largest error
over its bound), `findings` (`check`, `message`, `case`, `snippet`, ...),
`ledger` (examples of every declared cell by dtype), `grades`, `versions`,
`suite`. `--json -` prints the report, and errors, instead of the text.
Numbers that JSON lacks are texts: "nan", "inf", "-inf".

\b
--callable MODULE:NAME checks a plain function that is called as --signature
says: sdpa, flash_attn, flash_attn_varlen, huggingface, xformers,
additive_mask or numpy, or MODULE:NAME of a Signature. Without --supports,
tiny calls find what it supports; an argument that it takes and ignores is a
failure. The module is imported and run, from the working directory too.

\b
--hf-kernel KERNEL:FUNCTION checks a kernel of Hugging Face's hub: a checkout
with `torch-ext` or `build`, or OWNER/NAME, which the library kernels
downloads and runs. FUNCTION may be a layer, such as layers.Attention.
--signature may be missing for flash_attn_func and other usual names.

\b
--flash-implementation NAME activates an implementation of flash attention of
torch's registry for the run, which changes what torch's functions compute
with. MODULE:NAME imports the module that registers it. The report names it.

\b
--cache MODULE:NAME checks a class of caches for decoding: `append` and
`attend`, and where it has them `reorder`, `truncate` and `free`. Programs of
these operations are compared with attention over what each row must hold.

\b
--certificate FILE writes what the run found, with digests of the declaration
and the source, if the part is conformant. --check-certificate FILE compares
one with what is installed: 0 it holds; 1 source, declaration or suite have
changed; 2 it cannot be used; 3 it was made with other versions or on another
machine. A certificate is a statement of its author, not a signature.
--badge FILE draws its state for a README.

\b
The part runs in a process of its own; what it prints goes to standard error.
If it kills its process or never returns, that is a failure like any other.
"""


def mapping(text: str) -> dict[str, Any]:
    from tfkit.commands import parse_json

    try:
        options = parse_json(text)
    except ValueError as reason:
        raise ValueError(f"a JSON object is expected: {reason}") from None
    if not isinstance(options, dict):
        raise ValueError('a JSON object is expected, for instance {"eps": 1e-6}')
    return options


def words(text: str) -> list[str]:
    """Names with commas between them."""
    return [word for word in (part.strip() for part in text.split(",")) if word]


@click.command("conformance", epilog=EPILOG, short_help="whether a backend or another part does what it declares")
@click.argument("name", required=False, metavar="[NAME]", help="An attention backend, or a part of another --slot.")
@click.option("--callable", "target", metavar="MODULE:NAME", help="A plain attention function, without a plugin.")
@click.option("--cache", metavar="MODULE:NAME", help="A class of caches for decoding, without a plugin.")
@click.option("--huggingface", metavar="NAME", help="A function of transformers' AttentionInterface, such as sdpa, or eager.")
@click.option(
    "--hf-kernel", metavar="KERNEL:FUNCTION", help="A function or a layer of a kernel in the form of Hugging Face's hub."
)
@click.option("--signature", metavar="FORM", help="How the function is called, such as sdpa or flash_attn.")
@click.option("--supports", type=words, metavar="FEATURE,...", help="What the function supports, such as causal,gqa.")
@click.option("--slot", metavar="SLOT", default="backend", help="backend, or a slot with laws: norm, score, ...")
@click.option(
    "--flash-implementation", metavar="NAME", help="What torch's functions run, such as FA3 or FA4; restored afterwards."
)
@click.option("--profile", metavar="PROFILE", help="quick, standard or deep.", default="standard")
@click.option(
    "--device",
    "place",
    type=device,
    metavar="DEVICE",
    help="cpu, cuda or cuda:1 (default: cpu, or the report's with --replay).",
)
@click.option(
    "--dtype", "only", type=dtypes, metavar="DTYPE,...", help="Only these dtypes (default: those declared; quick: at most two)."
)
@click.option("--options", "settings", type=mapping, metavar="JSON", help="Options of the part, as a JSON object.")
@click.option("--seed", "number", type=seed, metavar="N", default=0, help="Seed of the examples.")
@click.option("--limit", type=seconds, metavar="SECONDS", default=60.0, help="Time limit of one example.")
@click.option("--json", "json_file", metavar="FILE", type=WRITE, help="Write the report as JSON; - is standard output.")
@click.option("--junit", metavar="FILE", type=WRITE, help="Write the report as JUnit XML.")
@click.option("--certificate", metavar="FILE", type=WRITE, help="Write a certificate if the part is conformant.")
@click.option("--check-certificate", metavar="FILE", type=READ, help="Compare a certificate with the installed part.")
@click.option("--badge", metavar="FILE", type=WRITE, help="With --check-certificate: a picture (SVG) of its state.")
@click.option("--replay", metavar="FILE", type=READ, help="Run the cases of a JSON report again.")
@click.option("--traceback", is_flag=True, help=TRACEBACK)
def command(
    name: str | None, target: str | None, cache: str | None, huggingface: str | None, hf_kernel: str | None,
    signature: str | None, supports: list[str] | None, slot: str, flash_implementation: str | None, profile: str,
    place: str | None, only: list[str] | None, settings: dict[str, Any] | None, number: int, limit: float,
    json_file: str | None, junit: str | None, certificate: str | None, check_certificate: str | None, badge: str | None,
    replay: str | None,
    traceback: bool,
) -> int:  # fmt: skip
    """Check that an attention backend, or another part, does what it declares.

    The suite draws calls that the part declares. It compares attention backends with a float64 reference, within error bounds,
    and checks that undeclared features are refused. It checks other parts by their laws.
    """
    if replay and junit:
        raise usage_error("--replay and --junit exclude each other", "leave one out")
    if check_certificate:
        functions = (name, target, cache, huggingface, hf_kernel, signature, supports, flash_implementation)
        others = (*functions, place, only, settings, junit, certificate, replay)
        if any(other is not None for other in others):
            fix = "the certificate names the part"
            raise usage_error("--check-certificate takes no other option than --json and --badge", fix)
        check_places((json_file, badge), (check_certificate,))
        from .certificate import show_comparison

        return show_comparison(check_certificate, json_file, badge)
    if badge:
        raise usage_error("--badge needs --check-certificate FILE", "the badge shows the state of a certificate")
    if certificate and (replay or huggingface or hf_kernel):
        other = "--replay" if replay else "--huggingface" if huggingface else "--hf-kernel"
        raise usage_error(f"{other} and --certificate exclude each other", "name a part, or use --callable")
    if cache:
        refused = (name, target, huggingface, hf_kernel, signature, supports, settings, certificate, replay)
        if slot != "backend" or any(other is not None for other in refused):
            fix = "only --profile, --device, --dtype, --seed, --limit, --json and --junit go with it"
            raise usage_error("--cache takes no NAME and no option of parts or functions", fix)
        name, slot = cache, "cache"
    functions_named = {"target": target, "huggingface": huggingface, "hf_kernel": hf_kernel}
    function = None if cache else _function(name, functions_named, signature, supports, slot, settings)
    check_places((json_file, junit, certificate), (replay,))
    from ..process.parent import ChildBug

    try:
        if replay:
            data = _replay(replay, _name(function) or name, place, limit, function, flash_implementation)
        else:
            task = {"slot": slot, "device": place or "cpu", "dtypes": only, "options": settings, "seed": number, "limit": limit}
            task |= {"cache": True} if cache else {}
            task |= {"flash_implementation": flash_implementation} if flash_implementation else {}
            named = _name(function) or name
            source = _source_before(slot, named) if certificate and named else None
            data = _evaluate(named, profile, {**task, **({"function": function} if function else {})})
    except ChildBug as bug:
        from tfkit.commands import innermost_plugin

        if traceback:
            print(bug.where, file=sys.stderr)
        print_bug_report(bug.message, innermost_plugin(bug.frames), json_file == "-")
        return 1
    _write(data, json_file, junit, replayed=bool(replay))
    if certificate:
        from .certificate import write_certificate

        write_certificate(certificate, data, source or {})
    return int(data["exit_code"])


def _source_before(slot: str, name: str) -> dict[str, str] | None:
    from .certificate import source_before

    return source_before(slot, name)


def _evaluate(name: str | None, profile: str, task: dict[str, Any]) -> dict[str, Any]:
    from ..process.parent import evaluated
    from ..profile import profile_of

    if name is None:
        raise usage_error("a name is missing", "`tfkit plugins` lists what is installed")
    task = {"name": name, "profile": profile_of(profile).name, **task}
    with Progress("conformance") as progress:
        return evaluated(task, progress=lambda check, examples: progress.show(shown(check)))


OPTIONS = {"target": "--callable", "huggingface": "--huggingface", "hf_kernel": "--hf-kernel"}
FORMS = "sdpa, flash_attn, flash_attn_varlen, huggingface, xformers, additive_mask, numpy"


def _function(
    name: str | None, functions: dict[str, str | None], signature: str | None, supports: list[str] | None, slot: str,
    settings: dict[str, Any] | None,
) -> dict[str, Any] | None:  # fmt: skip
    """The plain function that the options name; None for a part of a plugin."""
    chosen = [key for key, value in functions.items() if value is not None]
    if not chosen:
        if signature or supports:
            raise usage_error("--signature and --supports describe a plain function", "name it with --callable MODULE:NAME")
        return None
    if len(chosen) > 1:
        raise usage_error(f"{OPTIONS[chosen[0]]} and {OPTIONS[chosen[1]]} exclude each other", "leave one out")
    if name is not None or slot != "backend" or settings is not None:
        raise usage_error("a plain function has no NAME, --slot or --options", "leave them out")
    option = OPTIONS[chosen[0]]
    if option == "--huggingface":
        if signature not in (None, "huggingface"):
            raise usage_error(
                f"--huggingface functions have the signature huggingface, not {signature}", "leave --signature out"
            )
        signature = "huggingface"
    elif option == "--hf-kernel" and signature is None:
        from ..callables.hub_kernel import SIGNATURES, divided

        signature = SIGNATURES.get(divided(functions["hf_kernel"] or "")[1])
    if signature is None:
        raise usage_error(f"{option} needs --signature", f"signatures: {FORMS}")
    return {**functions, "signature": signature, "supports": supports}


def _name(function: dict[str, Any] | None) -> str | None:
    if function is None:
        return None
    return function["target"] or function["hf_kernel"] or f"transformers:{function['huggingface']}"


def _replay(
    file: str, name: str | None, place: str | None, limit: float, function: dict[str, Any] | None, implementation: str | None
) -> dict[str, Any]:
    from ..process.parent import replayed
    from ..process.stored import read_stored, replay_data

    stored = read_stored(file, name, place)
    cases = [finding for finding in stored if finding.case]
    return replay_data(stored, replayed(cases, limit, function=function, flash_implementation=implementation))


def _write(data: dict[str, Any], json_file: str | None, junit_file: str | None, *, replayed: bool) -> None:
    """Write the report to the files and to standard output."""
    if json_file == "-":
        print_json(data)
    elif json_file is not None:
        write_whole(json_file, json.dumps(data, indent=2, allow_nan=False) + "\n")
    if junit_file is not None:
        from ..process.messages import junit

        write_whole(junit_file, junit(data))
    if json_file != "-":
        from ..view.conformance_text import conformance_text, replay_text

        print_rich(*(replay_text(data) if replayed else conformance_text(data, json_file)))
