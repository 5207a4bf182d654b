"""Under which name pip knows tfkit: every line that installs names only this project's distributions and packages that it uses,
and the project that has the name `tfkit` on the public index is reported where it is met."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from command_line import tfkit, usual_width
from tfkit import distribution

__all__ = ["tfkit", "usual_width"]

ROOT = Path(__file__).parents[1]
TINY = str(ROOT / "specs" / "transformer-tiny.yaml")
OURS = {"tfkit-core", *(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))}
USED = {
    "pip", "setuptools",  # of the Makefile
    "flash-attn", "flash-attn-3", "flash-attn-4", "nvidia-cuda-nvcc",  # by their authors' names, for GPUs
}  # fmt: skip
TEXTS = (
    "*.md", "Makefile", "constraints.txt", ".ci/*", ".github/**/*.y*ml", "docs/**/*.md", "docs/**/*.txt", "plugins/**/*.md",
    "tfkit/**/*.py", "tfkit/**/*.y*ml", "tfkit/**/*.md", "plugins/*/tfkit_*/**/*.py", "bench/**/*.py", "bench/*.sh",
)  # fmt: skip
LINE = re.compile(r"(?:pip|BIN\)/pip|uv pip) install ((?:[^`\n\\\"')(,;|&]|'[^'\n]*'|\"[^\"\n]*\")+)")
OPTIONS_WITH_VALUE = {"-c", "--constraint", "-r", "--group", "--find-links", "--index-url", "--target", "-e"}


def constrained():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines if line and not line.startswith("#")}


def names(line):
    """The distributions that a line names. Paths and the values of options are not distributions."""
    words, found = iter(re.split(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", line.split("  ")[0].split(" #")[0].strip())), set()
    for word in words:
        if word in OPTIONS_WITH_VALUE:
            next(words, None)
        elif match := re.match(r"['\"]?([A-Za-z][\w-]*)(?:\[[\w,-]+\])?(?:[<>=!~][^'\"]*)?['\"]?\.?$", word):
            found.add(match[1].lower().replace("_", "-"))
    return found


def lines():
    """Every install line of product and documentation, with its file. What Python inserts is left out, and what TFK057 shows
    as wrong."""
    for pattern in TEXTS:
        for path in ROOT.glob(pattern):
            if path.name == "CHANGELOG.md" or not path.is_file():
                continue
            text = re.sub(r"\{[^{}\n]*\}|[Ww]rong:\s+pip install tfkit\n", "{}", path.read_text(encoding="utf-8"))
            for line in LINE.findall(text):
                yield path.relative_to(ROOT), line


def test_every_line_that_installs_names_packages_of_this_project_or_packages_that_it_uses():
    known, seen, wrong = OURS | constrained() | USED, set(), []
    for path, line in lines():
        seen |= names(line)
        wrong += [f"{path}: {name}: pip install {line}" for name in names(line) - known]
    assert wrong == []
    assert {"tfkit-core", "torch", "triton"} <= seen


def test_no_distribution_depends_on_the_name_of_the_other_project():
    files = [
        ROOT / "pyproject.toml",
        *(path for part in ("plugins", "docs", "tfkit") for path in (ROOT / part).rglob("*.toml")),
    ]
    assert len(files) > len(OURS)
    for path in files:
        required = re.findall(r"[\"']tfkit(?:\[[^]]*\])?[<>=!~ ]*[\"']", path.read_text(encoding="utf-8").split("[tool.")[0])
        assert not required, path


def test_the_names_of_a_line_are_read():
    assert names("-c constraints.txt '.[train]' ./plugins/tfkit-conformance   # also verify") == set()
    assert names("-e . 'tfkit[conformance]' torch==2.13.0 --index-url X 'a>=1,<2'") == {"tfkit", "torch", "a"}


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Writes the metadata of a distribution called `tfkit`, as pip does."""

    def write(points="[console_scripts]\ntfkit-train = tfkit.train:main\n"):
        info = tmp_path / "tfkit-0.8.20.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tfkit\nVersion: 0.8.20\n")
        (info / "entry_points.txt").write_text(points)
        return tmp_path

    return write


def command(place, *words, code="import sys, tfkit_command; sys.exit(tfkit_command.main())"):
    environment = {"PYTHONPATH": f"{place}:{ROOT}:{ROOT / 'plugins' / 'tfkit-conformance'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=place, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_other_project_beside_this_one_is_a_warning_with_the_fix(other, tfkit, monkeypatch):
    place = other()
    done = command(place, "check", TINY)
    assert (done.returncode, done.stdout.count("OK")) == (0, 1)
    assert done.stderr == (
        "warning: TFK057 the package `tfkit` 0.8.20 is installed; it is another project, with modules of the same names as "
        "`tfkit-core`; pip uninstall tfkit tfkit-core, then install tfkit-core again\n"
    )
    monkeypatch.syspath_prepend(place)
    [problem] = tfkit("doctor", "--json").json()["problems"]
    assert "the package `tfkit` 0.8.20 is installed" in problem["what"]


def test_modules_of_the_other_project_in_place_of_these_are_an_error_with_the_fix(other):
    place = other()
    (place / "tfkit").mkdir()
    (place / "tfkit" / "__init__.py").write_text("import tfkit.utility\n")
    done = command(place, "check", TINY)
    assert (done.returncode, done.stdout) == (1, "")
    first, fix = done.stderr.splitlines()
    assert first == f"TFK057 the modules of tfkit were replaced by those of another project: {place}/tfkit/__init__.py"
    assert fix == "  fix: pip uninstall tfkit tfkit-core, then install tfkit-core again"


def test_the_former_name_of_this_project_is_no_second_plugin(other, monkeypatch):
    """A clone that is updated has both names until the old one is removed."""
    place = other("[tfkit]\nbuiltin = tfkit.builtin\n")
    done = command(place, "plugins", "--json")
    assert json.loads(done.stdout)["broken"] == json.loads(done.stdout)["disabled"] == []
    assert "it is the former name of tfkit" in done.stderr
    monkeypatch.syspath_prepend(place)
    named = distribution._named
    monkeypatch.setattr(distribution, "_named", lambda name: None if name == distribution.NAME else named(name))
    assert (distribution.installed().version, distribution.other_project()) == ("0.8.20", None)


def test_without_metadata_there_is_no_version(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(distribution, "distribution", missing)
    with pytest.raises(PackageNotFoundError, match="tfkit-core"):
        distribution.installed()


def test_the_suite_is_installed_from_the_clone_that_tfkit_came_from(tmp_path, monkeypatch):
    """An index need not have it. A wheel says nothing of a clone."""
    assert distribution.install_line("train", "serve") == "pip install 'tfkit-core[train,serve]'"
    monkeypatch.setattr(distribution, "_source", lambda name: str(ROOT))
    assert distribution.install_line("conformance") == f"pip install {ROOT / 'plugins' / 'tfkit-conformance'}"
    monkeypatch.setattr(distribution, "_source", lambda name: str(tmp_path / "tfkit_core-0.2.0-py3-none-any.whl"))
    assert distribution.install_line("conformance") == "pip install 'tfkit-core[conformance]'"


def test_a_distribution_is_installed_again_from_where_it_came(tmp_path, monkeypatch):
    for name, record in {"acme-a": '{"url": "file:///home/a%20b/acme"}', "acme-b": '{"url": "https://x.org/b.whl"}'}.items():
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "direct_url.json").write_text(record)
    monkeypatch.syspath_prepend(tmp_path)
    again = "pip install --force-reinstall --no-deps "
    assert distribution.reinstall_line("acme-a") == f"{again}'/home/a b/acme'"
    assert distribution.reinstall_line("acme-b") == f"{again}https://x.org/b.whl"
    assert distribution.reinstall_line("acme-c") == f"{again}acme-c"


PLUGIN = """
from tfkit.plugin import Norm, hookimpl

@hookimpl
def tfkit_norms():
    return [Norm(name=name, summary="s", parameters=lambda options, width: (), build="no:where") for name in {names}]
"""


def test_a_name_of_two_plugins_is_disabled_and_nothing_else(tmp_path):
    for letter, registered in {"a": ("acme.twice", "acme.once", "rms_norm"), "b": ("acme.twice",)}.items():
        info = tmp_path / f"acme_{letter}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{letter}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tfkit]\nacme_{letter} = acme_{letter}\n")
        (tmp_path / f"acme_{letter}.py").write_text(PLUGIN.format(names=registered))
    done = command(tmp_path, "plugins", "--json")
    fix = "uninstall one, or rename its entry with a prefix"
    assert done.stderr.splitlines() == [
        f"warning: TFK052 norm `rms_norm` is registered by tfkit-core and acme-a: the built-in one is used; {fix}",
        f"warning: TFK052 norm `acme.twice` is registered by acme-a and acme-b: neither is used; {fix}",
    ]
    data = json.loads(done.stdout)
    entries = {entry["name"]: entry["distribution"] for entry in data["entries"] if entry["slot"] == "norm"}
    assert (entries["rms_norm"], entries["acme.once"], "acme.twice" in entries) == ("tfkit-core", "acme-a", False)
    assert [clash["distributions"] for clash in data["disabled"]] == [["tfkit-core", "acme-a"], ["acme-a", "acme-b"]]
    used = command(tmp_path, "check", TINY, "--set", "defaults.norm=acme.twice")
    assert used.returncode == 2
    assert "norm `acme.twice` is registered by acme-a and acme-b; uninstall one" in used.stderr.replace("\n", " ")
    doctor = command(tmp_path, "doctor")
    assert doctor.returncode == 1
    assert "acme.twice` is registered by acme-a and acme-b" in doctor.stdout
    assert doctor.stderr == ""
