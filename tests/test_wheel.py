"""The wheels: what the documentation says installs them, without an index, and then the quickstart runs far from a clone."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import documented
from command_line import ROOT
from test_distribution import OURS, lines, names

pytestmark = [pytest.mark.exhaustive, pytest.mark.xdist_group("wheels")]
BUILT = (
    "tfkit",
    "specs",
    "bench/results/claims",
    "plugins",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "constraints.txt",
    "tfkit_command.py",
)
LINKED = {"specs": "tfkit/published", "bench/results/claims": "tfkit/claims/results"}
"""Folders, and the links in the package that are they."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "*.so")
NO_INDEX = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1"}
SAME_OUTPUT = """
import tfkit, torch
models = [tfkit.build("transformer-tiny", seed=0, backend=name).eval() for name in ("simd", "eager")]
with torch.no_grad():
    kernels, eager = (model(source=torch.tensor([[5, 9, 2]]), target=torch.tensor([[1, 7, 8]]))["logits"] for model in models)
torch.testing.assert_close(kernels, eager)
"""


def run(command, cwd, environment):
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def new_environment(place):
    """A virtual environment that has of this one all but tfkit; returns its Python."""
    venv.create(place, with_pip=False)
    [site] = (place / "lib").glob("python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "tfkit" not in entry.name and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    return place / "bin" / "python"


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Under `tfkit` a copy of the repository, under `wheels` its wheels, and a new environment."""
    place = tmp_path_factory.mktemp("wheels")
    for name in BUILT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        more = {"symlinks": True, "ignore": LEFT_OUT} if copy is shutil.copytree else {}
        (place / "tfkit" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, place / "tfkit" / name, **more)
    python = new_environment(place / "env")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))} | NO_INDEX
    environment |= {"PIP_FIND_LINKS": str(place / "wheels"), "PIP_NO_BUILD_ISOLATION": "0"}  # 0: without isolation
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    sources = [".", *(f"./{path.parent.relative_to(ROOT)}" for path in sorted(ROOT.glob("plugins/*/pyproject.toml")))]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(place / "wheels"), *sources], place / "tfkit", environment)
    return place, pip, environment


def test_the_wheel_has_every_spec_and_recipe_and_no_test(place):
    [wheel] = (place[0] / "wheels").glob("tfkit_core-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", *LINKED, "tfkit"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {re.sub(f"^({'|'.join(LINKED)})/", lambda begin: f"{LINKED[begin[1]]}/", name) for name in tracked.split()}
    wanted -= {*LINKED.values()}
    assert wanted - held == set()
    assert "tfkit_command.py" in held
    assert {name.partition("/")[0] for name in held if ".dist-info" not in name} == {"tfkit", "tfkit_command.py"}


def test_every_documented_line_installs_without_an_index(place):
    folder, pip, environment = place
    installed = set()
    for _, line in lines():
        words = shlex.split(re.sub(r"(?<=\S)\.$", "", line.split("  ")[0].strip()), comments=True)
        paths = [word for word in words if re.match(r"\./plugins/|\.(\[|$)", word)]
        ours = [word for word in words if names(word) and names(word) <= OURS]
        if not (paths or ours) or "-e" in words or tuple(paths + ours) in installed or any("docs/" in word for word in words):
            continue
        installed.add(tuple(paths + ours))
        constraints = ["-c", "constraints.txt"] if "-c" in words else []
        run([*pip, "install", "--quiet", *constraints, *paths, *ours], folder / "tfkit", environment)
    assert {"tfkit-core[train,conformance]", "tfkit-core[serve,train]", "./plugins/tfkit-simd"} <= {*sum(installed, ())}
    listed = run([*pip, "list", "--format", "freeze"], folder, environment).stdout
    assert {line.partition("==")[0].partition(" @")[0] for line in listed.splitlines()} >= OURS


def test_the_quickstart_runs_far_from_a_clone(place, tmp_path):
    folder, pip, environment = place
    run([*pip, "install", "--quiet", "tfkit-core[train]", "tfkit-conformance"], folder, environment)
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    (tmp_path / "tests" / "cli").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "cli" / "slips.yaml", tmp_path / "tests" / "cli")
    environment = {**environment, "PATH": f"{folder / 'env' / 'bin'}:{os.environ['PATH']}", "COLUMNS": str(documented.WIDTH)}
    commands = re.findall(r"^\$ (.*tfkit .*)$", "\n".join(block for block in documented.blocks(page)), re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == (2 if "slips" in command else 0), f"{command}\n{done.stdout}\n{done.stderr}"
    [code] = [block for block in documented.blocks(page) if block.startswith("```python") and "build" in block][:1]
    python = folder / "env" / "bin" / "python"
    run([python, "-c", code.removeprefix("```python\n").removesuffix("```")], tmp_path, environment)
    where = run([python, "-c", "import tfkit; print(tfkit.__file__, tfkit.__version__)"], tmp_path, environment).stdout
    assert where.startswith(str(folder / "env"))


def test_a_script_beside_an_editable_clone_imports_the_package_and_not_the_clone(place):
    """The folder of the clone has the name of the package, and the script's folder comes first on Python's path."""
    folder, _, environment = place
    python = new_environment(folder / "editable")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    run([*pip, "install", "--quiet", "--no-deps", "-e", "./tfkit"], folder, environment)
    (folder / "script.py").write_text(
        "import tfkit\nprint(tfkit.build('transformer-tiny', device='meta').plan.name, tfkit.__file__)\n"
    )
    name, file = run([python, "script.py"], folder, environment).stdout.split()
    assert (name, file) == ("transformer-tiny", str(folder / "tfkit" / "tfkit" / "__init__.py"))
    assert "OK" in run([python, "-m", "tfkit", "check", "tiny-glu"], folder, environment).stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are for x86")
def test_a_repaired_wheel_of_the_kernels_needs_no_compiler(place, tmp_path):
    """`auditwheel` is the judge of the symbols: any Linux with glibc 2.17 has them. The kernels take torch's OpenMP."""
    folder, _, environment = place
    [built] = (folder / "wheels").glob("tfkit_simd-*.whl")
    audit = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1"]
    tools = {**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    run([*audit, "-w", str(tmp_path / "repaired"), str(built)], tmp_path, tools)
    [wheel] = (tmp_path / "repaired").glob("*.whl")
    assert "manylinux_2_17_x86_64" in wheel.name
    assert "-cp310-abi3-" in wheel.name
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "libgomp" in name]
    python = new_environment(tmp_path / "env")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    without_compiler = {**environment, "PATH": str(tmp_path / "env" / "bin"), "CC": "false"}
    core = sorted((folder / "wheels").glob("tfkit_core-*.whl"))
    run([*pip, "install", "--quiet", "--no-deps", str(wheel), *map(str, core)], tmp_path, without_compiler)
    facts = run([python, "-m", "tfkit", "doctor"], tmp_path, without_compiler).stdout
    assert "simd: tfkit-simd" in facts
    if "avx2" in facts:
        assert "by tfkit-simd with AVX" in facts
        run([python, "-c", SAME_OUTPUT], tmp_path, without_compiler)
