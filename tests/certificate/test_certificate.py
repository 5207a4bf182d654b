"""Certificates are made from a report, read back strictly, and compared with what is installed."""

import dataclasses
import json
import os

import pytest
import torch

from reported import incomplete, right, wrong
from tfkit import Catalogue, InputError
from tfkit.certificate import installed_certificates, part_identity as environment_module
from tfkit.certificate.certificate import LIMIT
from tfkit.certificate.part_identity import digest, environment
from tfkit.cpu.instruction_set import instruction_set
from tfkit.inspection import certificate_of, certificate_text, compare_certificate, part_source, read_certificate


@pytest.fixture
def file(tmp_path, catalogue):
    """A certificate of the built-in `eager`."""
    path = tmp_path / "eager.certificate.json"
    path.write_text(
        certificate_text(certificate_of(right(name="eager"), catalogue, part_source("backend", "eager", catalogue)))
    )
    return path


def changed(catalogue, **fields):
    """A catalogue in which `eager` declares something else."""
    backends = dict(catalogue.registered["backend"])
    entry = dataclasses.replace(backends["eager"].entry, **fields)
    backends["eager"] = dataclasses.replace(backends["eager"], entry=entry)
    return Catalogue({**catalogue.registered, "backend": backends}, (), catalogue.plugins)


def test_a_certificate_comes_back_equal_and_is_valid_here(file, catalogue):
    found = read_certificate(file)
    assert (found.slot, found.name, found.distribution, found.verdict) == ("backend", "eager", "tfkit-core", "CONFORMANT")
    assert found.source.keys() == {"tfkit.builtin.attention.eager"}
    assert found.environment["torch"] == torch.__version__.partition("+")[0]
    assert certificate_text(found) == file.read_text()
    assert compare_certificate(found, catalogue, found.suite).state == "valid"


@pytest.mark.parametrize("report", [wrong, incomplete])
def test_only_a_conformant_part_gets_one(report, catalogue):
    with pytest.raises(InputError, match=r"TFK098 .*only a conformant part"):
        certificate_of(report(name="eager"), catalogue)


def test_source_that_changed_during_the_run_gets_none(catalogue):
    with pytest.raises(InputError, match="has changed during the run"):
        certificate_of(right(name="eager"), catalogue, {"tfkit.builtin.attention.eager": "0" * 64})


def test_what_has_changed_is_said(file, catalogue, monkeypatch):
    found = read_certificate(file)
    entry = catalogue.find("backend", "eager")
    fewer = entry.capabilities.model_copy(update={"mask_terms": frozenset({"causal"})})
    other = compare_certificate(found, changed(catalogue, capabilities=fewer), found.suite + 1)
    assert other.state == "outdated"
    assert any(
        each.startswith("declaration: capabilities.mask_terms: causal ") and each.endswith(", installed causal")
        for each in other.changed
    )
    assert other.changed[-1] == f"suite: {found.suite}, installed {found.suite + 1}"
    code = compare_certificate(found, changed(catalogue, attend="tfkit.cpu.few_queries:attend"))
    assert "source: tfkit.cpu.few_queries is new" in code.changed
    unknown = found.model_copy(update={"options": {"block": 64}})
    assert compare_certificate(unknown, catalogue).changed == ("options: there is no `block`",)
    summary = changed(catalogue, summary="in other words", reference="https://example.org")
    assert compare_certificate(found, summary).state == "valid"
    monkeypatch.setattr(environment_module, "version", lambda name: "9.0")
    moved = compare_certificate(found, catalogue)
    assert (moved.state, moved.changed) == ("made elsewhere", ())
    assert f"torch: {found.environment['torch']}, here 9.0" in moved.elsewhere


def test_a_part_that_is_not_installed(file, catalogue):
    data = {**json.loads(file.read_text()), "name": "acme.gone"}
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"TFK098 backend `acme\.gone` is not installed"):
        compare_certificate(read_certificate(file), catalogue)


DAMAGES = {
    "another verdict": {"verdict": "NONCONFORMANT"},
    "another format": {"certificate": 2},
    "an unknown key": {"signature": "trust me"},
    "a digest of three letters": {"source_hash": "abc"},
    "another declaration": {"declaration": {"name": "eager"}},
    "another source": {"source": {"tfkit.builtin.attention.eager": "0" * 64}},
    "no source": {"source": {}, "source_hash": digest({})},
    "no check": {"checks": []},
    "a failed check": {"checks": [{"name": "x", "rule": "", "status": "failed", "examples": 1, "worst": None}]},
    "an empty cell": {"ledger": [{"group": "mask", "cell": "causal", "examples": {}, "refused": ""}]},
    "another device": {"device": "cpu\n"},
    "a text for a number": {"seed": "0"},
    "no dtype": {"dtypes": []},
    "a dtype that does not exist": {"dtypes": ["x"]},
    "a dtype many times": {"dtypes": ["float32"] * 50_000},
    "a seed that no run has": {"seed": 10**30},
    "a long version": {"environment": {"torch": "2" * 501}},
    "a control character": {"environment": {"torch": "\x1b[31m"}},
    "a function that is not the declaration": {"function": {"signature": "sdpa", "supports": []}},
    "many packages": {"environment": {f"package{number}": "1" for number in range(101)}},
    "a negative error": {"checks": [{"name": "x", "rule": "", "status": "passed", "examples": 1, "worst": -1.0}]},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_certificate_is_refused(file, damage):
    file.write_text(json.dumps({**json.loads(file.read_text()), **DAMAGES[damage]}))
    with pytest.raises(InputError, match="TFK098") as raised:
        read_certificate(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"certificate": NaN}', "[" * 1000, '{"a": 1, "a": 2}', " " * (LIMIT + 1)])
def test_what_is_no_certificate_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="TFK098"):
        read_certificate(tmp_path / "x.json")


@pytest.mark.parametrize("signature", ["a:b;id", "a:$(id)", "sdpa;id", "a:b c", "a..b:c", ""])
def test_a_signature_that_is_no_name_is_refused(file, signature):
    function = {"signature": signature, "supports": []}
    digests = {"declaration": function, "declaration_hash": digest(function)}
    file.write_text(json.dumps({**json.loads(file.read_text()), "name": "acme:run", "function": function, **digests}))
    with pytest.raises(InputError, match=r"TFK098 .*signature"):
        read_certificate(file)


def test_a_function_of_a_hostile_certificate_is_neither_imported_nor_looked_for_outside(file, catalogue, monkeypatch, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    function = {"signature": "sdpa", "supports": []}
    base = json.loads(file.read_text())
    for name, fits in (("evil:run", True), ("../evil:run", False), ("/etc/passwd:x", False), ("os..path:x", False),
                       ("evil:run; touch x", False), ("evil:$(id)", False)):  # fmt: skip
        digests = {"declaration": function, "declaration_hash": digest(function)}
        file.write_text(json.dumps({**base, "name": name, "function": function, "distribution": "", **digests}))
        found = read_certificate(file)
        if fits:
            assert "source: evil is new" in compare_certificate(found, catalogue).changed
        else:
            with pytest.raises(InputError, match="TFK098"):
                compare_certificate(found, catalogue)


def test_installed_certificates_are_found_without_importing_their_plugin(file, tmp_path, monkeypatch, catalogue):
    site = tmp_path / "site"
    info = site / "acme_shipped-1.0.dist-info"
    for folder in (info, site / "acme_shipped"):
        folder.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-shipped\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tfkit]\nacme_shipped = acme_shipped\n")
    (site / "acme_shipped" / "__init__.py").write_text("raise ImportError('never import me')\n")
    good, bad, pipe = (site / "acme_shipped" / f"{name}.certificate.json" for name in ("a", "b", "c"))
    good.write_text(file.read_text())
    bad.write_text("{}")
    os.mkfifo(pipe)
    monkeypatch.syspath_prepend(site)
    assert installed_certificates(catalogue) == [], "its plugin is not loaded"
    loaded = Catalogue(catalogue.registered, (), (*catalogue.plugins, ("acme_shipped", "acme-shipped", "1.0")))
    found = {os.path.basename(each.file)[0]: each for each in installed_certificates(loaded)}
    assert found.keys() == set("abc")
    assert found["a"].comparison.state == "outdated", "it is of another distribution"
    assert "distribution: tfkit-core, shipped by acme-shipped" in found["a"].comparison.changed
    assert "certificate: Field required" in found["b"].reason
    assert "named pipe" in found["c"].reason


def test_the_instruction_set_is_the_one_that_torch_chooses(monkeypatch):
    assert instruction_set() == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert instruction_set() == "AVX2"


def test_a_gpu_is_named_by_its_driver(tmp_path, monkeypatch):
    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    monkeypatch.setattr(environment_module, "_GPUS", str(tmp_path))
    assert environment("cuda", "tfkit-core")["gpu"] == "NVIDIA H100 80GB HBM3"
    monkeypatch.setattr(environment_module, "_GPUS", str(tmp_path / "none"))
    assert environment("cuda:1", "tfkit-core")["gpu"] == ""
