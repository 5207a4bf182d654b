"""`tfkit doctor`."""

import importlib.metadata
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import stranger
from command_line import ROOT
from tfkit import load_catalogue
from tfkit.doctor import installation, torch_facts
from tfkit.doctor.installation import Findings
from tfkit.doctor.ptxas import ptxas_here

HOOK = "from tfkit.plugin import Norm, hookimpl\n\n@hookimpl\ndef tfkit_norms():\n    return [{}]\n"
NORM = "Norm(name='acme.n', summary='s', parameters=lambda options, width: (), build='{}')"


@pytest.fixture(autouse=True)
def only_what_is_tested(monkeypatch):
    """The plugins that happen to be installed change no test, and each test imports its own `acme_parts`."""
    installed = importlib.metadata.entry_points

    def shown(**kwargs):
        return [point for point in installed(**kwargs) if point.name in ("builtin", "acme")]

    for module in ("tfkit.catalogue", "tfkit.doctor.installation"):
        monkeypatch.setattr(f"{module}.entry_points", shown)
    yield
    for name in ("acme_parts", "acme_kernels"):
        sys.modules.pop(name, None)


def test_a_report_names_everything_and_no_home_directory(tfkit, monkeypatch):
    monkeypatch.setenv("HOME", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5f1c9e1a-0000")
    done = tfkit("doctor", "--json")
    data = done.json()
    assert (done.code, data["ok"], data["problems"]) == (0, True, [])
    assert data["tfkit"]["path"] == "~/tfkit"
    assert data["torch"]["version"] == sys.modules["torch"].__version__
    assert data["torch"]["capability"] == sys.modules["torch"].backends.cpu.get_cpu_capability()
    assert data["torch"]["int8"] == torch_facts.low_precision("int8", load_catalogue().entries("int8_kernel"))
    assert data["devices"][0]["name"] == "cpu"
    assert {"conformance", "images", "train"} <= {extra["name"] for extra in data["extras"]}
    assert data["variables"]["CUDA_VISIBLE_DEVICES"] == "GPU-..."
    text = tfkit("doctor").out
    assert text.splitlines()[-1] == "nothing is broken"
    assert str(ROOT) not in text + done.out
    assert all(name in text for name in ("Python", "processor", "cuDNN", "flash", "Triton", "extra train", "plugin "))


def test_a_model_adds_what_would_run(tfkit):
    data = tfkit("doctor", "specs/transformer-tiny.yaml", "--json").json()
    rows = [row for row in data["model"]["sites"] if row["device"] == "cpu"]
    assert {row["name"] for row in rows} == {
        "encoder.0-3.self_attention", "decoder.0-3.self_attention", "decoder.0-3.cross_attention",
    }  # fmt: skip
    assert {row["training"] for row in rows} == {"sdpa"}
    done = tfkit("doctor", "specs/llama3-8b.yaml") if data["machine"]["memory_bytes"] < 32e9 else None
    assert done is None or (done.code, "the weights need 32,121,044,992 bytes" in done.out) == (1, True)
    assert tfkit("doctor", "nowhere.yaml").code == 2


def test_a_site_that_nothing_here_serves_is_a_problem(tfkit, small):
    spec = small.read_text().replace("num_heads: 2}", "num_heads: 2, backend: cudnn}")
    small.write_text(spec)
    done = tfkit("doctor", small, "--json")
    if len(done.json()["devices"]) == 1:
        assert done.code == 1
        assert any("no device here can serve encoder.0-1.self_attention" in each["what"] for each in done.json()["problems"])


@pytest.mark.parametrize(
    ("parts", "what", "fix"),
    [
        (
            "import pretzel",
            "the plugin acme of acme-parts is broken: ModuleNotFoundError",
            "the package that provides `pretzel`",
        ),
        ("raise SystemExit(3)", "is broken: SystemExit: 3", "pip uninstall acme-parts"),
        (HOOK.replace("norms", "norm").format(""), "`tfkit_norm`, which is not a hook", "did you mean `tfkit_norms`?"),
        (
            HOOK.format(NORM.format("x:y").replace("acme.n", "rms_norm")),
            "by tfkit-core and acme-parts",
            "rename its entry",
        ),
        (HOOK.format(NORM.format("x:y").replace("summary", "contract=9, summary")), "for contract 9", "for this contract"),
        (HOOK.format(NORM.format("acme_kernels:gone")), "`acme.n` of acme-parts cannot run", "reinstall acme-parts"),
    ],
)
def test_a_broken_plugin_comes_with_the_fix(tfkit, parts, what, fix, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(stranger.install(tmp_path, parts=parts))
    done = tfkit("doctor", "--json")
    [problem] = done.json()["problems"]
    assert (done.code, what in problem["what"], fix in problem["fix"]) == (1, True, True), problem
    assert tfkit("doctor").out.splitlines()[-1] == "1 problem"


def test_a_part_that_lacks_a_package_is_a_note(tfkit, tmp_path, monkeypatch):
    parts = HOOK.format(NORM.format("acme_kernels:build"))
    monkeypatch.syspath_prepend(stranger.install(tmp_path, parts=parts, kernels="import pretzel"))
    done = tfkit("doctor", "--json")
    assert done.code == 0
    assert {
        "what": "`acme.n` of acme-parts cannot run: pretzel is not installed",
        "fix": "install the package that provides `pretzel`",
    } in (done.json()["notes"])


def test_missing_old_and_broken_packages(monkeypatch, tmp_path):
    (tmp_path / "pretzel.py").write_text("raise OSError('libbroken.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    versions = {"numpy": "2.0", "pretzel": "1.0", "rich": "12.6"}

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    written = [
        "numpy",
        "rich>=13",
        "gone",
        'pretzel>=1; extra == "train"',
        'absent; extra == "images"',
        'tfkit-core[train]; extra == "all"',
    ]
    monkeypatch.setattr(installation, "version", version)
    monkeypatch.setattr(installation, "installed", lambda: SimpleNamespace(requires=written))
    findings = Findings()
    extras = installation.extras(findings)
    assert [(extra["name"], extra["installed"], extra["install"]) for extra in extras] == [
        ("images", False, "pip install 'tfkit-core[images]'"), ("train", True, "pip install 'tfkit-core[train]'"),
    ]  # fmt: skip
    assert [problem["what"] for problem in findings.problems] == [
        "rich 12.6 is installed, and tfkit needs >=13",
        "gone is not installed, and tfkit needs it",
        "pretzel 1.0 is installed and cannot be imported: OSError: libbroken.so: cannot open shared object file",
    ]


def test_what_a_library_writes_below_python_while_it_is_imported_is_discarded(monkeypatch, tmp_path, capfd):
    (tmp_path / "pretzel_noise.py").write_text("import os\nos.write(2, b'\\33[31mfailed to persist\\n')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(installation, "version", lambda name: "1.0")
    monkeypatch.setattr(installation, "installed", lambda: SimpleNamespace(requires=["pretzel-noise"]))
    installation.extras(Findings())
    assert "pretzel_noise" in sys.modules
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("have", "needed", "fits"),
    [
        ("2.13.0+cpu", ">=2.11", True), ("2.9", ">=2.11", False), ("9.1.2", ">=8,<9.2", True), ("9.2", ">=8,<9.2", False),
        ("1.0", "==1.0.0", True), ("3.0rc1", "", True), ("1.2", "!=1.2", False),
    ],
)  # fmt: skip
def test_versions(have, needed, fits):
    assert installation.satisfies(have, needed) is fits


def test_a_torch_that_cannot_be_imported(tfkit, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = tfkit("doctor", "--json")
    assert done.code == 1
    assert (done.json()["torch"], len(done.json()["devices"])) == (None, 1)
    assert "torch cannot be imported: " in done.json()["problems"][0]["what"]
    assert "cannot be imported" in tfkit("doctor").out


def test_what_torch_says(monkeypatch):
    import torch

    assert torch_facts.loaded("libtorch_cpu").startswith(str(torch.__path__[0]))
    assert torch_facts.loaded("libnothing-of-this-name") is None
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    findings = Findings()
    found = torch_facts.torch_here(findings, processors=0, catalogue=load_catalogue())
    assert found["cudnn"]["version"] == 91002
    assert findings.notes[0]["what"].endswith("this process may use 0 processors")
    for current, active in ((lambda: None, "default"), (lambda: "FA4", "FA4")):
        monkeypatch.setattr("torch.nn.attention.current_flash_attention_impl", current, raising=False)
        assert torch_facts.flash()["active"] == active
    monkeypatch.delattr("torch.nn.attention.current_flash_attention_impl")
    assert torch_facts.flash() is None


def test_a_driver_that_torch_cannot_use(monkeypatch, tmp_path, gpu):
    import torch

    (tmp_path / "version").write_text("NVRM version")
    monkeypatch.setattr(torch_facts, "DRIVER", tmp_path / "version")
    gpu(False)
    for build, kind in ((None, "notes"), ("12.8", "problems")):
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.cuda, "init", lambda: None)
        findings = Findings()
        torch_facts._check_cuda(findings)
        assert [len(getattr(findings, each)) for each in ("notes", "problems")] == [kind == "notes", kind == "problems"]


def test_instructions_are_those_of_the_processor():
    found = installation.machine_here()
    assert found["processors"] >= 1
    assert set(found["instructions"]) <= set(installation.INSTRUCTIONS)


@pytest.mark.slow
def test_an_environment_in_which_torch_cannot_be_imported():
    environment = {**os.environ, "TORCH_LOGS": "nonsense"}
    command = [sys.executable, "-c", "import sys; from tfkit.cli import main; sys.exit(main(sys.argv[1:]))"]
    small = "specs/tiny-alibi.yaml"
    for words, code in ((["doctor"], 1), (["build", small], 2), (["conformance", "rms_norm", "--slot", "norm"], 2)):
        done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == code, words
        assert done.stdout.count("torch cannot be imported: ") + done.stderr.count("TFK097 torch cannot be imported: ") == 1
        assert "TFK099" not in done.stderr
        if words == ["doctor"]:
            assert "correct or unset TORCH_LOGS" in done.stdout
            assert done.stdout.endswith("1 problem\n")


def assembler(place, version):
    """A program that answers like ptxas."""
    file = place / "ptxas"
    file.write_text(
        f"#!/bin/sh\necho 'ptxas: NVIDIA (R) Ptx optimizing assembler'\necho 'Cuda compilation tools, V{version}'\n"
    )
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(("version", "notes"), [("12.8.93", 1), ("12.9.86", 1), ("13.0.88", 1), ("13.1.80", 0), ("13.5.37", 0)])
def test_an_assembler_that_makes_wrong_code_is_a_note_with_the_way_out(version, notes, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler(tmp_path, version))
    findings = Findings()
    assert ptxas_here(findings) == {"version": version, "path": str(tmp_path / "ptxas")}
    assert (len(findings.notes), findings.problems) == (notes, [])
    for note in findings.notes:
        assert f"ptxas {version}" in note["what"]
        assert "TRITON_PTXAS_PATH" in note["fix"]
        assert "nvidia-cuda-nvcc" in note["fix"]


def test_an_assembler_that_cannot_be_run_is_a_problem_where_the_variable_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "none"))
    findings = Findings()
    assert ptxas_here(findings)["version"] is None
    assert str(tmp_path / "none") in findings.problems[0]["what"]
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    monkeypatch.setattr("tfkit.doctor.ptxas.distribution", lambda name: importlib.metadata.distribution("no-such-package"))
    assert ptxas_here(findings) is None
