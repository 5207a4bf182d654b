"""A certificate: its content, made from a report of the suite, written and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from ..catalogue import Catalogue
from ..errors import Diagnostic, InputError
from ..files import DType, FileModel, Line, parse_json, read_bytes, refusals
from .part_identity import declaration_of, digest, environment, modules_of, source_digests

FORMAT: Literal[1] = 1
"""The version of the file."""
SUFFIX = ".certificate.json"
"""How the files that a distribution ships beside the module of its entry point end."""
LIMIT = 1 << 20
"""The largest size of a certificate, in bytes."""

Text = Annotated[Line, Field(min_length=1)]
Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class PassedCheck(FileModel):
    """One check of the suite that passed or does not apply.

    Args:
        rule: the rule of the contract.
        status: "passed" or "not applicable".
        examples: number of cases.
        worst: the largest error over its bound; None if the check is exact.
    """

    name: Text
    rule: Line
    status: Literal["passed", "not applicable"]
    examples: Count
    worst: Annotated[float, Field(ge=0)] | None


class Exercised(FileModel):
    """The examples of one cell of the declaration by dtype, or why the declaration refuses it."""

    group: Text
    cell: Text
    examples: dict[Text, Annotated[int, Field(ge=1, lt=1 << 53)]]
    refused: str = ""


class PlainFunction(FileModel):
    """How a plain function is called, and what it supports."""

    signature: Annotated[str, Field(pattern=r"\A\w+(\.\w+)*(:\w+)?\z")]
    supports: Annotated[list[Text], Field(max_length=100)]


class Certificate(FileModel):
    """What its author states that the conformance suite said about a part. Not a signature: any user can write the file.

    Args:
        certificate: the version of the format.
        slot: of the part.
        name: of the part; `module:function` of a plain function.
        distribution: that registers the part; empty for a plain function.
        function: of a plain function, its form.
        options: of the part.
        verdict: only a part that conforms gets a certificate.
        suite: the version of the suite.
        profile: how much was tried.
        seed: of the cases.
        device: "cpu", "cuda" or "cuda:1".
        dtypes: that were evaluated.
        environment: versions, machine and instruction set.
        declaration_hash: the SHA-256 of `declaration`.
        source_hash: the SHA-256 of `source`.
        declaration: the declared fields.
        source: the SHA-256 of the code of each module.
        ledger: the examples of each declared cell.
    """

    certificate: Literal[1]
    slot: Text
    name: Text
    distribution: Line
    distribution_version: Line
    function: PlainFunction | None
    options: dict[str, JsonValue]
    verdict: Literal["CONFORMANT"]
    suite: Count
    profile: Literal["quick", "standard", "deep"]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    device: Annotated[str, Field(pattern=r"\A(cpu|cuda(:[0-9]{1,3})?)\z")]
    dtypes: Annotated[list[DType], Field(min_length=1)]
    environment: Annotated[dict[Text, Line], Field(max_length=100)]
    declaration_hash: Digest
    source_hash: Digest
    declaration: dict[str, JsonValue]
    source: Annotated[dict[Text, Digest], Field(min_length=1)]
    checks: list[PassedCheck]
    ledger: list[Exercised]

    @model_validator(mode="after")
    def _agrees(self) -> Certificate:
        if len(set(self.dtypes)) < len(self.dtypes):
            raise ValueError("`dtypes` has a dtype twice")
        if self.function is not None and self.function.model_dump() != self.declaration:
            raise ValueError("`function` is not what `declaration` says: one of them was altered")
        for name in ("declaration", "source"):
            if digest(getattr(self, name)) != getattr(self, f"{name}_hash"):
                raise ValueError(f"`{name}_hash` is not the digest of `{name}`: one of them was altered")
        if not any(check.status == "passed" for check in self.checks):
            raise ValueError("no check passed, so nothing was evaluated")
        for row in self.ledger:
            if not row.refused and not row.examples:
                raise ValueError(f"{row.group}, {row.cell}: was not exercised, which contradicts the verdict")
        return self


def read_certificate(path: str | Path, *, links: bool = True) -> Certificate:
    """Read a certificate.

    Args:
        links: the file may be a symbolic link.

    Returns:
        The certificate, whose digests agree with its content. Whether they agree with the part is `compare_certificate`.

    Raises:
        InputError: TFK098, the file cannot be read or is no certificate.
    """
    try:
        return Certificate.model_validate(parse_json(read_bytes(path, LIMIT, links=links, descriptors=True)))
    except OSError as reason:
        raise _unusable(f"{path} cannot be read: {reason.strerror}") from None
    except ValidationError as error:
        raise InputError([_fault(f"{path}: {reason}") for reason in refusals(error)[:3]]) from None
    except ValueError as reason:
        raise _unusable(f"{path} is not valid JSON: {reason}") from None


def part_source(slot: str, name: str, catalogue: Catalogue) -> dict[str, str]:
    """The digests of the source of a part.

    Args:
        name: of the part, or `module:function` of a plain function, which the working directory may hold.
        catalogue: in which the part is found.

    Returns:
        The SHA-256 of the code of each module.

    Raises:
        InputError: TFK098, the part is not installed, or its source is not found.
    """
    source: dict[str, str] = subject_of(slot, name, catalogue)["source"]
    return source


def subject_of(slot: str, name: str, catalogue: Catalogue) -> dict[str, Any]:
    """What a certificate says of a part beside what the suite found: distribution, declaration and source. Raises as
    `part_source` does."""
    if slot == "backend" and ":" in name:
        module = name.partition(":")[0]
        if not all(part.isidentifier() for part in name.replace(":", ".", 1).split(".")):
            raise _unusable(f"`{name}` is not `module:function`")
        facts: dict[str, Any] = {"distribution": "", "distribution_version": "", "declaration": {}}
        source = source_digests([module], Path.cwd())
    elif name not in catalogue.registered.get(slot, ()):
        fix = catalogue.why_missing(slot, name) if slot in catalogue.registered else ""
        raise InputError(Diagnostic("TFK098", f"{slot} `{name}` is not installed", fix))
    else:
        registration = catalogue.registered[slot][name]
        versions = {distribution: version for _, distribution, version in catalogue.plugins}
        distribution = registration.distribution
        facts = {"distribution": distribution, "distribution_version": versions.get(distribution, "")}
        facts["declaration"] = declaration_of(registration.entry)
        source = source_digests(modules_of(registration.entry))
    missing = [module for module, sha256 in source.items() if not sha256]
    if missing or not source:
        raise _unusable(f"the source of {name} is not found: {', '.join(missing) or 'it names no module'}")
    return {
        **facts, "declaration_hash": digest(facts["declaration"]), "source": source, "source_hash": digest(source),
    }  # fmt: skip


def certificate_of(report: Mapping[str, Any], catalogue: Catalogue, source: Mapping[str, str] | None = None) -> Certificate:
    """The certificate of a part from a report of the suite.

    Args:
        report: the data of a `ConformanceReport` whose verdict is CONFORMANT.
        catalogue: in which the part is found.
        source: the `part_source` before the run.

    Raises:
        InputError: TFK098, the verdict is another one, the source is not found, or it has changed during the run.
    """
    if report["verdict"] != "CONFORMANT":
        raise _unusable(f"the verdict of {report['name']} is {report['verdict']}; only a conformant part gets a certificate")
    function = report.get("function")
    subject = subject_of(report["slot"], report["name"], catalogue)
    if source is not None and source != subject["source"]:
        raise _unusable(f"the source of {report['name']} has changed during the run, so the suite ran another one")
    if function:
        subject["declaration"] = {"signature": function["signature"], "supports": function["supports"]}
        subject["declaration_hash"] = digest(subject["declaration"])
    return Certificate.model_validate(
        {
            "certificate": FORMAT,
            **{name: report[name] for name in ("slot", "name", "options", "verdict", "suite", "profile", "seed", "device")},
            "dtypes": list(report["dtypes"]),
            "function": subject["declaration"] if function else None,
            "environment": environment(report["device"], subject["distribution"], report["versions"].get("device", "")),
            **subject,
            "checks": [{name: check[name] for name in PassedCheck.model_fields} for check in report["checks"]],
            "ledger": [
                {
                    "group": row["group"], "cell": row["cell"], "refused": row["refused"],
                    "examples": {dtype: count for dtype, count in row["counts"].items() if count},
                }
                for row in report["ledger"]
            ],
        }
    )  # fmt: skip


def certificate_text(certificate: Certificate) -> str:
    """The file of a certificate: JSON with a line for each check and each cell."""
    parts = []
    for name, value in certificate.model_dump(mode="json").items():
        if name in ("checks", "ledger"):
            rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in value)
            parts.append(
                f" {json.dumps(name, allow_nan=False)}: [\n{rows}\n ]" if rows else f" {json.dumps(name, allow_nan=False)}: []"
            )
        else:
            parts.append(
                f" {json.dumps(name, allow_nan=False)}: " + json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n ")
            )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _fault(message: str) -> Diagnostic:
    return Diagnostic("TFK098", message, "make one: `tfkit conformance NAME --certificate FILE`")


def _unusable(message: str) -> InputError:
    return InputError(_fault(message))
