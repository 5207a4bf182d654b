"""The certificates of `tfkit conformance`: written after a run, and compared with what is installed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape as escaped_text

from rich.text import Text

from tfkit import load_catalogue
from tfkit.commands import print_json, print_rich, shown, write_whole
from tfkit.inspection import (
    Certificate,
    Comparison,
    certificate_of,
    certificate_text,
    compare_certificate,
    part_source,
    read_certificate,
)

from ..report import SUITE


def escape(text: str) -> str:
    """Text of an attribute or an element of XML."""
    return escaped_text(text, {'"': "&quot;"})


EXIT_CODES = {"valid": 0, "outdated": 1, "made elsewhere": 3}


def source_before(slot: str, name: str) -> dict[str, str] | None:
    """The digests of the source before a run; None for a name that does not exist, which the run reports."""
    catalogue = load_catalogue()
    if ":" not in name and name not in catalogue.registered.get(slot, ()):
        return None
    return part_source(slot, name, catalogue)


def write_certificate(file: str, report: Mapping[str, Any], source: Mapping[str, str]) -> None:
    """Write the certificate of a conformant part. For another verdict, say that none is written."""
    if report["verdict"] != "CONFORMANT":
        print(f"no certificate is written: the verdict is {report['verdict']}", file=sys.stderr)
        return
    write_whole(file, certificate_text(certificate_of(report, load_catalogue(), source)))


def show_comparison(file: str, json_file: str | None, badge_file: str | None = None) -> int:
    """Compare a certificate with what is installed; the exit code of the command."""
    certificate = read_certificate(file)
    comparison = compare_certificate(certificate, load_catalogue(), SUITE)
    code = EXIT_CODES[comparison.state]
    if badge_file is not None:
        write_whole(badge_file, badge(certificate, comparison))
    if json_file is not None:
        data = {
            "certificate": file, "slot": certificate.slot, "name": certificate.name, "state": comparison.state,
            "changed": list(comparison.changed), "elsewhere": list(comparison.elsewhere), "exit_code": code,
        }  # fmt: skip
        if json_file == "-":
            print_json(data)
            return code
        import json

        write_whole(json_file, json.dumps(data, indent=2, allow_nan=False) + "\n")
    print_rich(*_lines(certificate, comparison, file))
    return code


COLOURS = {"valid": "#2e7d32", "outdated": "#c62828", "made elsewhere": "#8d6e00"}
LETTER = 6.6
"""The width of a letter of a badge, which has 11 pixels of height, at most."""


def badge(certificate: Certificate, comparison: Comparison) -> str:
    """A picture (SVG) with the state of a certificate, for a README."""
    state = f"{certificate.verdict.lower()}, {certificate.profile}" if comparison.state == "valid" else comparison.state
    texts = (shown(certificate.name), f"{state} ({certificate.device})")
    widths = [round(LETTER * len(text)) + 12 for text in texts]
    title = escape(": ".join(texts))
    parts = [
        f'<rect x="{start}" width="{width}" height="20" fill="{colour}"/>'
        f'<text x="{start + width / 2:g}" y="14" text-anchor="middle" textLength="{width - 12}">{escape(text)}</text>'
        for start, width, colour, text in zip(
            (0, widths[0]), widths, ("#424242", COLOURS[comparison.state]), texts, strict=True
        )
    ]
    size = f'width="{sum(widths)}" height="20"'
    style = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#fff"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{title}"><title>{title}</title>'
        f"<g {style}>{''.join(parts)}</g></svg>\n"
    )


def _lines(certificate: Certificate, comparison: Comparison, file: str) -> list[Text]:
    environment = certificate.environment
    versions = ", ".join(f"{name} {environment[name]}" for name in sorted(environment))
    source = f" of {certificate.distribution} {certificate.distribution_version}".rstrip() if certificate.distribution else ""
    lines = [
        Text(shown(certificate.name), "bold").append(shown(source), "not bold"),
        Text(
            shown(f"states {certificate.verdict} on {certificate.device} for {', '.join(certificate.dtypes)}, profile ")
            + f"{certificate.profile}, seed {certificate.seed}, suite {certificate.suite}"
        ),
        Text(shown(versions), "dim"),
        *(Text("changed: ", "bold red").append(shown(change), "not bold default") for change in comparison.changed),
        *(
            Text("made elsewhere: ", "bold yellow").append(shown(difference), "not bold default")
            for difference in comparison.elsewhere
        ),
    ]
    style = {"valid": "bold green", "outdated": "bold red"}.get(comparison.state, "bold yellow")
    return [
        *lines,
        Text(comparison.state.upper(), style).append(f" {_meaning(certificate, comparison, file)}", "not bold default"),
    ]


def _meaning(certificate: Certificate, comparison: Comparison, file: str) -> str:
    if comparison.state == "valid":
        return "source, declaration, versions and machine are those of the certificate. It is a statement, not a signature."
    slot = "" if certificate.slot == "backend" else f"--slot {certificate.slot} "
    name = shlex.quote(certificate.name)
    named = f"{slot}{name}"
    if certificate.function is not None:
        supports = shlex.quote(",".join(certificate.function.supports))
        signature = shlex.quote(certificate.function.signature)
        named = f"--callable {name} --signature {signature} --supports {supports}"
    device = "" if certificate.device == "cpu" else f" --device {certificate.device}"
    seed = f" --seed {certificate.seed}" if certificate.seed else ""
    command = f"tfkit conformance {named} --profile {certificate.profile}{device}{seed} --certificate {shlex.quote(file)}"
    return shown(f"renew it: {command}")
