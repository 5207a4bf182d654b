"""The report on a part: what is asked, what is reported, what is replayed."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from tfkit import InputError, SpecError
from tfkit.plugin import Activation, DistanceBias, NoOptions, Norm, Parameter, PositionScheme
from tfkit_conformance.finding import Violation
from tfkit_conformance.laws import check_part, replay_part
from tfkit_conformance.report import SUITE


class Rope(torch.nn.Module):
    """Rotary positions as many write them: float32 angles, waves in the model's dtype."""

    def __init__(self, dims: int, base: float = 10000.0) -> None:
        super().__init__()
        self.dims, self.base = dims, base

    def prepare(self, span):
        return self.waves(span.query_positions(), span.dtype), self.waves(span.key_positions(), span.dtype)

    def waves(self, positions, dtype):
        angle = positions.float()[:, None] * self.base ** (-torch.arange(0, self.dims, 2).float() / self.dims)
        angle = torch.cat((angle, angle), -1)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def rotate(self, query, key, tables):
        return tuple(self.turn(x, *waves) for x, waves in zip((query, key), tables, strict=True))

    def turn(self, x, cosine, sine):
        a, b = x.chunk(2, -1)
        return x * cosine + torch.cat((-b, a), -1) * sine


class LateRope(Rope):
    def prepare(self, span):
        later = dataclasses.replace(span, offset=0)
        return super().prepare(later)


def rope(options, site):
    return Rope(site.head_dim)


def late_rope(options, site):
    return LateRope(site.head_dim)


def odd(options, site):
    return (f"head_dim {site.head_dim} is odd",) if site.head_dim % 2 else ()


def scheme(name: str, build: str, **more: object) -> PositionScheme:
    return PositionScheme(
        name=name, summary="rotary", acts=frozenset({"queries_keys"}), unsupported=odd, build=f"{__name__}:{build}", **more
    )


class LogDistance(torch.nn.Module):
    """-r1 log(1 + r2 |d|) per head, as KERPLE has it (Chi et al. 2022, https://arxiv.org/abs/2205.09921)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.r1, self.r2 = (torch.nn.Parameter(torch.full((heads, 1), value)) for value in (0.7, 0.4))

    def prepare(self, span):
        return torch.arange(-99, 100, device=span.device).abs()

    def bias(self, query, tables, scale):
        return DistanceBias(-self.r1.abs() * torch.log1p(self.r2.abs() * tables), low=-99)


def log_distance(options, site):
    return LogDistance(site.heads)


class ScaleNorm(torch.nn.Module):
    """g x / |x|, Nguyen and Salazar 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (self.gain * wide / (wide.square().sum(-1, keepdim=True) + 1e-5).sqrt()).to(x.dtype)


def scale_norm(options, width):
    return ScaleNorm()


SCALE_NORM = Norm(
    name="acme.scale_norm",
    summary="g x / |x|",
    parameters=lambda options, width: (Parameter("gain", "norm_scale", (1,)),),
    build=f"{__name__}:scale_norm",
)


def hard_swish(x, options):
    return x * torch.nn.functional.relu6(x + 3) / 6


@pytest.mark.slow
@pytest.mark.parametrize("same_as", ["", "rotary_half"])
def test_a_third_party_rope_is_evaluated_by_the_same_command(same_as, offering):
    entry = scheme("acme.rope", "rope", same_as=same_as)
    wide = offering("position", entry)
    report = check_part("position", "acme.rope", catalogue=wide, profile="quick")
    # Its options are not those of rotary_half, whose equation it has: saying so is what is wrong.
    assert {finding.check for finding in report.findings} <= {"formula", "formula_exact"}
    assert report.distribution == "acme"
    assert {"relative", "rotation", "chunks"} <= {check.name for check in report.checks}
    assert ("formula" in {check.name for check in report.checks}) is bool(same_as)
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"


def test_a_rope_without_its_offset_is_reported_in_words_and_shrunk(offering):
    wide = offering("position", scheme("acme.late", "late_rope"))
    report = check_part("position", "acme.late", catalogue=wide, profile="quick")
    assert report.verdict == "NONCONFORMANT"
    assert report.exit_code == 1
    chunks = next(finding for finding in report.findings if finding.check == "chunks")
    assert chunks.message.startswith("query of positions ")
    assert chunks.failed <= chunks.examples
    assert (chunks.case["at"]["batch"], chunks.case["at"]["length"]) == (1, 2)
    assert (chunks.got, chunks.want, chunks.bound) != (None, None, None)


def test_weights_that_only_distances_reach_need_a_gradient_only_where_there_is_a_distance(offering):
    entry = PositionScheme(
        name="acme.log", summary="log", acts=frozenset({"scores"}), bias_kinds=frozenset({"distance"}),
        build=f"{__name__}:log_distance",
    )  # fmt: skip
    wide = offering("position", entry)
    for seed in range(4):
        report = check_part("position", "acme.log", catalogue=wide, profile="quick", seed=seed, dtypes=["float32"])
        assert not [finding.message for finding in report.findings if finding.check == "gradients"]


def test_a_finding_is_data_that_is_evaluated_again(offering):
    wide = offering("position", scheme("acme.late", "late_rope"))
    report = check_part("position", "acme.late", catalogue=wide, profile="quick")
    for finding in report.findings:
        case = json.loads(json.dumps(finding.case))
        with pytest.raises(Violation, match=finding.check) as again:
            replay_part(case, wide)
        assert again.value.message == finding.message
        assert repr(finding.case) in finding.snippet
    repaired = offering("position", scheme("acme.late", "rope"))
    assert replay_part(report.findings[0].case, repaired) is not None


def test_the_same_seed_gives_the_same_report(offering):
    wide = offering("position", scheme("acme.late", "late_rope"))
    one, other = (check_part("position", "acme.late", catalogue=wide, profile="quick", seed=4) for _ in range(2))
    assert one.findings == other.findings
    assert one.ledger == other.ledger


def test_options_that_are_not_those_of_same_as_are_reported(offering, catalogue):
    mine = dataclasses.replace(catalogue.find("norm", "rms_norm"), name="acme.rms", same_as="layer_norm")
    report = check_part("norm", mine, catalogue=offering("norm", mine), profile="quick")
    told = next(finding for finding in report.findings if finding.check == "formula")
    assert "its options are not those of `layer_norm`" in told.message


@pytest.mark.slow
def test_an_unknown_norm_is_checked_by_its_claims(offering):
    wide = offering("norm", SCALE_NORM)
    check_part("norm", "acme.scale_norm", catalogue=wide).raise_for_failures()
    proud = dataclasses.replace(SCALE_NORM, claims=lambda options: frozenset({"scale_invariant", "unit_rms"}))
    found = check_part("norm", proud, catalogue=wide, profile="quick").findings
    assert [finding.check for finding in found] == ["unit_rms"]
    vain = dataclasses.replace(SCALE_NORM, claims=lambda options: frozenset({"beautiful"}))
    assert "['beautiful']" in check_part("norm", vain, catalogue=wide, profile="quick").findings[0].message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claims", "words"),
    [
        (
            frozenset({"scale_invarient"}),
            "it claims ['scale_invarient'], which no law is about; did you mean `scale_invariant`?",
        ),
        (frozenset({"beautiful"}), "it claims ['beautiful'], which no law is about; known: ['identity', "),
        (["scale_invariant"], "`claims` must give a frozenset of names; it gave ['scale_invariant']"),
        (None, "`claims` must give a frozenset of names; it gave None"),
    ],
)
def test_unknown_claims_are_reported_with_the_nearest_name(claims, words, offering):
    entry = dataclasses.replace(SCALE_NORM, claims=lambda options: claims)
    report = check_part("norm", entry, catalogue=offering("norm", entry), profile="quick")
    assert [finding.check for finding in report.findings] == ["declaration"]
    assert words in report.findings[0].message


def test_claims_that_raise_are_reported_with_their_line(offering):
    def claims(options):
        raise LookupError("no table")

    entry = dataclasses.replace(SCALE_NORM, claims=claims)
    report = check_part("norm", entry, catalogue=offering("norm", entry), profile="quick")
    assert [finding.check for finding in report.findings] == ["declaration"]
    assert report.findings[0].message.startswith("`claims` raised LookupError: no table (laws/test_check_part.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slot", "entry", "words"),
    [
        ("norm", SCALE_NORM, "is no norm of the catalogue; did you mean `rms_norm`?"),
        ("position", scheme("acme.rope", "rope"), "is no position of the catalogue; known: acme.rope, alibi, "),
        ("activation", Activation(name="acme.a", summary="x", function=f"{__name__}:hard_swish"), "is no activation of the"),
        ("placement", "pre", "is no placement of the catalogue; known: "),
    ],
)
def test_same_as_must_name_an_existing_part(slot, entry, words, offering, catalogue):
    entry = dataclasses.replace(catalogue.find(slot, entry), name="acme.pre") if isinstance(entry, str) else entry
    lost = dataclasses.replace(entry, same_as="rms_nrm")
    report = check_part(slot, lost, catalogue=offering(slot, lost), profile="quick")
    told = next(finding for finding in report.findings if finding.check == "declaration")
    assert f"`same_as` names `rms_nrm`, which {words}" in told.message
    assert report.exit_code == 1


@pytest.mark.slow
def test_an_unknown_activation_is_checked_by_its_claims(offering):
    entry = Activation(name="acme.hard_swish", summary="x relu6(x + 3) / 6", function=f"{__name__}:hard_swish")
    check_part("activation", entry, catalogue=offering("activation", entry)).raise_for_failures()
    closing = dataclasses.replace(entry, claims=lambda options: frozenset({"closes"}))
    check_part("activation", closing, catalogue=offering("activation", closing)).raise_for_failures()
    rising = dataclasses.replace(entry, claims=lambda options: frozenset({"monotone"}))
    found = check_part("activation", rising, catalogue=offering("activation", rising), profile="quick").findings
    assert [finding.check for finding in found] == ["monotone"]


def test_a_scheme_that_refuses_everything_is_incomplete(offering):
    entry = dataclasses.replace(scheme("acme.shy", "rope"), unsupported=lambda options, site: ("not today",))
    report = check_part("position", entry, catalogue=offering("position", entry), profile="quick")
    assert report.verdict == "INCOMPLETE"
    assert "refuses every site" in next(check.note for check in report.checks if check.status == "inconclusive")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("colour", "red"), InputError, "no laws for the slot `colour`"),
        (("norm", "rms_nrom"), SpecError, "did you mean `rms_norm`"),
        (("norm", "rms_norm", {"options": {"eps": -1.0}}), SpecError, "eps"),
        (("norm", "rms_norm", {"profile": "slow"}), InputError, "no profile `slow`"),
        (("norm", "rms_norm", {"dtypes": ["int8"]}), InputError, "`int8` is no dtype"),
    ],
)
def test_invalid_arguments_are_errors(arguments, error, said, catalogue):
    slot, name, *rest = arguments
    with pytest.raises(error, match=said):
        check_part(slot, name, catalogue=catalogue, **(rest[0] if rest else {}))


@pytest.mark.parametrize(
    "change", [{"suite": 99}, {"law": "gravity"}, {"dtype": "int8"}, {"extra": 1}, {"at": 3}, {"seed": "x"}]
)
def test_an_invalid_case_is_an_error(change, catalogue):
    case = {
        "suite": SUITE, "slot": "norm", "name": "none", "law": "identity", "options": {}, "device": "cpu", "dtype": "float32",
        "at": {"width": 4, "tokens": 1, "power": 1, "shift": 1}, "seed": 0,
    }  # fmt: skip
    assert replay_part(case, catalogue) is None
    with pytest.raises(InputError, match="no stored case"):
        replay_part({**case, **change}, catalogue)


def test_options_that_are_not_a_model_are_an_error(catalogue):
    assert check_part("norm", "none", catalogue=catalogue, profile="quick", options=NoOptions()).verdict == "CONFORMANT"
