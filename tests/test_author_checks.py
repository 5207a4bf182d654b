"""What plugin authors call from elsewhere: the GitHub Action and the hooks of pre-commit. Their shell lines run as they are."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tfkit.cli.dispatch import commands
from tfkit.starters import Name, starter_files

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / ".github/actions/conformance/action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}


@pytest.fixture
def shell(tmp_path):
    """Runs shell lines with a `tfkit` and a `python` that note their arguments, and end with the given code."""

    def run(words, code=0, **environment):
        for name in ("tfkit", "python"):
            (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >> {tmp_path}/called\nexit {code}\n')
            (tmp_path / name).chmod(0o755)
        (tmp_path / "called").write_text("")
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_OUTPUT": str(tmp_path / "output"), **environment}
        done = subprocess.run(words, cwd=tmp_path, env=path, capture_output=True, text=True)
        return done.returncode, (tmp_path / "called").read_text().splitlines(), done.stdout

    return run


def lines(step):
    """The command by which GitHub runs a step of a composite action with `shell: bash`."""
    return ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]


def test_every_input_is_used_and_none_is_pasted_into_a_shell():
    used = set(re.findall(r"\binputs\.([\w-]+)", str(STEPS)))
    assert used == set(ACTION["inputs"])
    for step in STEPS.values():
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        assert set(re.findall(r"\$([A-Z]+)\b", step["run"])) <= set(step["env"])


def test_the_suite_runs_with_words_that_the_command_has(shell):
    common = {"NAME": "acme.flash $(id)", "SLOT": "norm", "PROFILE": "deep", "DEVICE": "cpu"}
    files = {"REPORT": "r.json", "JUNIT": "r.xml"}
    options = ["--profile", "deep", "--device", "cpu", "--json", "r.json", "--junit", "r.xml"]
    for hub, part in (
        ({"HF_KERNEL": "", "SIGNATURE": ""}, ["acme.flash $(id)", "--slot", "norm"]),
        ({"HF_KERNEL": ".:f $(id)", "SIGNATURE": ""}, ["--hf-kernel", ".:f $(id)"]),
        ({"HF_KERNEL": ".:f", "SIGNATURE": "flash_attn"}, ["--hf-kernel", ".:f", "--signature", "flash_attn"]),
    ):
        code, called, _ = shell(lines("suite"), 3, **common, **files, **hub)
        assert (code, called) == (3, ["tfkit", "conformance", *part, *options])
        commands.get_command(None, "conformance").make_context("conformance", called[2:])


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_only_a_changed_source_fails_the_certificate(shell, code, ends):
    ended, called, said = shell(lines("certificate"), code, CERTIFICATE="a b.json")
    assert (ended, called) == (ends, ["tfkit", "conformance", "--check-certificate", "a b.json"])
    assert ("::notice::a b.json" in said) == (code == 3)
    hook = shlex.split(HOOKS["tfkit-certificate"]["entry"])
    ended, called, _ = shell([*hook, "a b.json", "c.json"], code)
    assert ended == (1 if ends else 0)
    assert called.count("--check-certificate") == (1 if ends else 2)


def test_tfkit_itself_is_installed_from_the_repository_of_the_action(shell):
    folder = ROOT / ".github/actions/conformance"
    code, called, _ = shell(lines("install"), INSTALL="./my plugin", HF_KERNEL="", TFKIT=f"{folder}/../../..")
    assert (code, called[:4], called[-1]) == (0, ["python", "-m", "pip", "install"], "./my plugin")
    assert all((Path(each) / "pyproject.toml").exists() for each in called[4:6])
    assert STEPS["install"]["env"]["TFKIT"] == "${{ github.action_path }}/../../.."


def test_the_workflow_of_a_new_backend_gives_the_action_its_inputs():
    workflow = yaml.safe_load(starter_files("backend", Name("acme.flash"))[".github/workflows/conformance.yaml"])
    steps = workflow["jobs"]["conformance"]["steps"]
    [used] = [step for step in steps if "with" in step and step["uses"].endswith("/conformance")]
    assert used["with"] == {"name": "acme.flash"}
    needed = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert needed <= set(used["with"]) <= set(ACTION["inputs"])
    [checkout] = [step for step in steps if step.get("with", {}).get("path")]
    folder = used["uses"].removeprefix(f"./{checkout['with']['path']}/")
    assert (ROOT / folder / "action.yml").is_file()
