"""`tfkit new`: what it writes can be installed, is found, and passes its own tests as it is."""

import importlib
import json
import re
import runpy
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from command_line import ROOT
from tfkit import build, graph_of, load_catalogue, load_spec
from tfkit.cli import main
from tfkit.hooks import SLOTS
from tfkit.starters import STARTERS, Name, starter_files
from tfkit_conformance import verify

NAME = "acme.fresh"
VERIFIED = [slot for slot in STARTERS if "model.yaml" in starter_files(slot, Name(NAME))]
EXAMPLES = {
    "backend": ("example.online", "plugins/tfkit-example-backend/tfkit_example_backend"),
    "sublayer": ("acme.conv", "docs/examples/acme-conv/acme_conv"),
}


def installed(directory, monkeypatch):
    """The metadata that an installation writes, and the path."""
    info = directory / "acme_fresh-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-fresh\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[tfkit]\nacme_fresh = acme_fresh\n")
    monkeypatch.syspath_prepend(directory)


@pytest.fixture
def forgotten():
    """Each test imports its own `acme_fresh`."""
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "acme_fresh"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "slot",
    [
        pytest.param(
            slot, marks=[pytest.mark.slow] if slot in VERIFIED else [pytest.mark.exhaustive] if slot == "backend" else []
        )
        for slot in STARTERS
    ],
)
def test_a_starter_is_found_and_passes_its_tests(tfkit, slot, tmp_path, monkeypatch, forgotten):
    directory = tmp_path / "new"
    done = tfkit("new", slot, NAME, "-o", directory, "--json").json()
    assert sorted(done["files"]) == sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    installed(directory, monkeypatch)
    found = tfkit("plugins", "--json").json()
    [entry] = [entry for entry in found["entries"] if entry["name"] == NAME]
    assert (entry["slot"], entry["distribution"], found["broken"]) == (slot, "acme-fresh", [])
    names = runpy.run_path(str(directory / "tests" / "test_acme_fresh.py"))
    tests = [test for name, test in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.mark.slow
def test_the_example_of_a_node_that_owns_attention_is_verified(tfkit, monkeypatch):
    """Its plugin is found by its metadata, and its attention site is checked with every backend."""
    folder = ROOT / "docs" / "examples" / "acme-lookup"
    monkeypatch.syspath_prepend(folder)
    catalogue = load_catalogue().with_plugin(importlib.import_module("acme_lookup"), "acme_lookup")
    monkeypatch.setattr("tfkit.catalogue.load_catalogue", lambda: catalogue)
    spec = load_spec(folder / "model.yaml", catalogue)
    assert "found.0.lookup" in dict(graph_of(spec).sites())
    report = verify(spec, catalogue=catalogue, backends=["eager", "sdpa"])
    assert [row.message for row in report.rows if row.status == "failed"] == []
    assert report.verdict == "VERIFIED"
    assert {row.backend for row in report.rows if row.where == "found.0.lookup"} == {"eager", "sdpa"}
    words = ("--batch", 2, "--lengths", "source=7,target=5", "--json")
    declared = json.loads(tfkit("show", folder / "model.yaml", *words).out)["flops"]
    model = build(spec, catalogue).eval()
    model.set_backend("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(source=torch.ones(2, 7, dtype=torch.long), target=torch.ones(2, 5, dtype=torch.long))
    assert counter.get_total_flops() == declared


@pytest.mark.parametrize("slot", STARTERS)
def test_every_file_names_the_part_and_says_what_it_declares(slot):
    files = starter_files(slot, Name(NAME))
    assert not [path for path, text in files.items() if "part" in path or "acme.part" in text or "acme_part" in text]
    hook = SLOTS[slot][0]
    assert f"calls its hook {hook}" in files["pyproject.toml"]
    assert 'acme_fresh = "acme_fresh"' in files["pyproject.toml"]
    assert "states contract 1" in files["pyproject.toml"]
    assert f"def {hook}()" in files["acme_fresh/__init__.py"]
    assert "contract=1," in files["acme_fresh/__init__.py"]
    assert f"acme_fresh/{STARTERS[slot].module}.py" in files
    assert files["README.md"].count("pip install -e .") == 1
    for path, text in files.items():
        assert not {"HOOK", "SLOT", "CONTRACT", "EQUATION", "MODULE", "WRITTEN", "PROOF"} & set(text.split("`")), path


@pytest.mark.parametrize("slot", EXAMPLES)
def test_the_examples_are_these_files(slot):
    name, folder = EXAMPLES[slot]
    place = ROOT / folder
    made = {
        path.partition("/")[2]: text.replace(Name(name).package, place.name)
        for path, text in starter_files(slot, Name(name)).items()
        if path.startswith(f"{Name(name).package}/")
    }
    assert made == {path.name: path.read_text() for path in place.iterdir() if path.suffix in (".py", ".jinja")}


def test_the_model_of_the_sublayer_is_that_of_the_tutorial():
    made = starter_files("sublayer", Name("acme.conv"))["model.yaml"]
    assert made == (ROOT / "docs/examples/acme-conv/macaron.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tanh", "has no prefix"), ("acme.class", "is a word of Python"), ("None.x", "is a word of Python"),
        ("acme..x", "cannot name a part"), ("Acme.x", "cannot name a part"), ("acme.a-b", "cannot name a part"),
        ("acme.é", "cannot name a part"), ("acme./x", "cannot name a part"), ("../x.y", "cannot name a part"),
        ("tfkit.x", "the prefix `tfkit.` is reserved"), ("torch.nn.x", "the prefix `torch.` is reserved"),
        ("", "cannot name a part"), ("acme.x\n", "cannot name a part"), ("acme." + "x" * 80, "at most 60 are allowed"),
        ("pytest.x", ""), ("example.online", "tfkit-example-backend has a backend `example.online`"),
    ],
)  # fmt: skip
def test_wrong_names(tfkit, name, message, tmp_path, monkeypatch):
    if name == "pytest.x":  # Python finds the package already
        (tmp_path / "pytest_x.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
        message = "Python finds another package pytest_x"
    done = tfkit("new", "backend", name, "-o", tmp_path / "new")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("TFK090 ")
    assert message in done.err
    assert not (tmp_path / "new").exists()


def test_an_existing_directory_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme-fresh").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for words in ([], ["-o", "link"], ["-o", "none/new"]):
        assert main(["new", "norm", NAME, *words]) == 2
        assert capsys.readouterr().err.startswith("TFK080 ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acme-fresh", "link"]
    assert list((tmp_path / "acme-fresh").iterdir()) == []
    assert main(["new", "norms", NAME]) == 2
    assert "unknown slot `norms`; did you mean `norm`?" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_pip_installs_a_starter(tfkit, tmp_path):
    directory, prefix = tmp_path / "new", tmp_path / "prefix"
    tfkit("new", "norm", NAME, "-o", directory)
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([sys.executable, *pip, "--prefix", prefix, "-e", directory], check=True)
    [site] = prefix.rglob("site-packages")
    here = f"import site, sys; site.addsitedir({str(site)!r}); import importlib; importlib.invalidate_caches()\n"
    listed = "from tfkit.cli import main; assert main(['plugins']) == 0\n"
    tested = "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests']))"
    done = subprocess.run([sys.executable, "-c", here + listed + tested], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "acme-fresh 0.1.0" in done.stdout
    assert "1 passed" in done.stdout


def test_the_tests_of_a_starter_run_inside_the_checkout_of_another_project(tfkit, tmp_path, monkeypatch):
    """Its `pytest` step, with a project around it whose settings only fit that project."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--no-such-option"\ntestpaths = ["src"]\n')
    (tmp_path / "conftest.py").write_text("raise RuntimeError('of the other project')\n")
    directory = tmp_path / "plugins" / "new"
    directory.parent.mkdir()
    assert tfkit("new", "activation", NAME, "-o", directory).code == 0
    installed(directory, monkeypatch)
    environment = {"PYTHONPATH": f"{directory}:{ROOT}:{ROOT / 'plugins' / 'tfkit-conformance'}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_plugins_of_the_documentation_can_be_installed_together(tfkit, tmp_path):
    """Whoever follows one tutorial after another gets every plugin of both: those that `tfkit new` writes and the examples."""
    written = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    commands = set(re.findall(r"tfkit new (\w+) (acme[\w.]+)", written))
    assert ("backend", "acme.flash") in commands
    places = sorted(path.parent for path in (ROOT / "docs/examples").glob("*/pyproject.toml"))
    for slot, name in sorted(commands):
        places.append(tmp_path / name)
        assert tfkit("new", slot, name, "-o", places[-1]).code == 0
    site = tmp_path / "site"
    for place in places:
        text = (place / "pyproject.toml").read_text(encoding="utf-8")
        info = site / f"{re.search(r'(?m)^name = .(.*).$', text)[1].replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {info.name[:-14].replace('_', '-')}\nVersion: 1.0\n")
        points = re.search(r"entry-points\.tfkit\]\n((?:\w.*\n)+)", text)[1].replace('"', "")
        (info / "entry_points.txt").write_text(f"[tfkit]\n{points}")
    command = [sys.executable, "-m", "tfkit", "plugins", "--json"]
    environment = {"PYTHONPATH": ":".join(map(str, [ROOT, site, *places])), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    assert (found["broken"], found["disabled"], done.stderr) == ([], [], "")
    assert {name for _, name in commands} <= {entry["name"] for entry in found["entries"]}
