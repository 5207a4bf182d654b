"""Kernels that are compiled on a CPU for a GPU are found by Triton where their files are carried to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import tfkit_fused

pytest.importorskip("triton", reason="not run: Triton, of which kernels are made, is not installed")
if tfkit_fused.INTERPRETED:
    pytest.skip("interpreted kernels are not compiled", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))
import compiled_ahead
import kernel_cache

from tfkit.inspection import check_request
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.suite.declaration import plain_case

H100 = (9, 0)
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


ONE_CALL = ("dense-d64-512/forward",)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with the kernels of one call, as `fill` leaves it."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_cache, "PROBES", ONE_CALL)
        for name, value in {**kernel_cache.SMALL, "TRITON_CACHE_DIR": str(folder)}.items():
            patch.setenv(name, value)
        kernel_cache.fill_share("probes", H100, 0, 1)
        kernel_cache.describe(folder, H100)
    return folder


@pytest.fixture
def filled(compiled, tmp_path, monkeypatch):
    """A copy of the folder at another place, which Triton uses."""
    monkeypatch.setattr(kernel_cache, "PROBES", ONE_CALL)
    for name, value in {**kernel_cache.SMALL, "TRITON_CACHE_DIR": str(tmp_path / "there")}.items():
        monkeypatch.setenv(name, value)
    return Path(shutil.copytree(compiled, tmp_path / "there"))


@pytest.mark.slow
def test_no_kernel_is_compiled_again_where_the_files_were_carried_to(filled, tmp_path, monkeypatch, capsys):
    assert kernel_cache.check(filled, pretended=True) == 0
    here = tmp_path / "here"
    filled.rename(here)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(here))
    before = {path.name for path in here.iterdir()}
    assert kernel_cache.check(here, pretended=True) == 0
    assert "1 kernels for sm_90; a few calls took 1 kernels from the cache, 0 compiled" in capsys.readouterr().out
    assert {path.name for path in here.iterdir()} == before
    (group,) = here.glob("*/__grp__*.json")
    assert all(Path(path).parent == group.parent for path in json.loads(group.read_text())["child_paths"].values())


@pytest.mark.slow
def test_a_kernel_that_is_gone_is_compiled_and_counted(filled, capsys):
    (cubin,) = filled.glob("*/*.cubin")
    shutil.rmtree(cubin.parent)
    assert kernel_cache.check(filled, pretended=True) == 1
    assert "0 kernels from the cache, 1 compiled" in capsys.readouterr().out


@pytest.mark.slow
def test_a_kernel_that_lacks_a_file_is_named(filled, capsys):
    (cubin,) = filled.glob("*/*.cubin")
    cubin.unlink()
    assert kernel_cache.check(filled, pretended=True) == 1
    assert f"{cubin.parent.name}/{cubin.name} is missing" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("part", ["ptxas", "kernels", "environment"])
def test_what_differs_in_tritons_keys_is_named(part, filled, capsys):
    manifest = json.loads((filled / "filled.json").read_text())
    manifest["parts"][part] = "another"
    (filled / "filled.json").write_text(json.dumps(manifest, allow_nan=False))
    assert kernel_cache.check(filled, pretended=True) == 1
    assert f"{part}: another there, " in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "{", "[]", '{"capability": [], "parts": {}}', '{"capability": [9, 0], "parts": 3}'])
def test_a_folder_that_was_not_filled_is_refused_in_a_sentence(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "filled.json").write_text(content)
    assert kernel_cache.check(tmp_path, pretended=True) == 1
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["fill", "x", "--capability", "90"], ["fill", "x", "--capability", "9.0", "--stages", "all"]]
)
def test_wrong_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        kernel_cache.main(words)
    assert ended.value.code == 2
    assert "is no" in capsys.readouterr().err


def test_the_suite_calls_the_backend_on_a_cpu_as_on_the_device():
    """On a CPU, `fused` declares nothing in bfloat16, and the suite would make no call."""
    entry = kernel_cache.load_catalogue().find("backend", "fused")
    asked = plain_case(backend_under_test(entry), "bfloat16").request("cpu")
    assert not check_request(entry, asked, entry.options()).accepted
    with kernel_cache.as_on(H100):
        entry = kernel_cache.load_catalogue().find("backend", "fused")
        assert check_request(entry, asked, entry.options()).accepted
        assert not check_request(entry, replace(asked, value_dim=257), entry.options()).accepted


def test_a_share_of_the_suite_compiles(monkeypatch):
    """The call of one case, with its gradient, and without a compilation: what would be launched is counted."""
    launched = []

    def evaluated(subject, **options):
        case = replace(plain_case(subject, "bfloat16"), gradients=True)
        inputs = case.inputs("cpu")
        output = subject.attend(inputs, subject.options).output
        compiled_ahead.torch.autograd.grad(output, inputs.query, case.grad_output("cpu"))
        return type("Report", (), {"seconds": 0.0, "findings": ()})

    monkeypatch.setattr(compiled_ahead, "check_backend", evaluated)
    monkeypatch.setattr(kernel_cache.Repeated, "__call__", lambda self, *_: launched.append(self.kernel.fn.__name__))
    with kernel_cache.as_on(H100):
        assert compiled_ahead.work("fused", "cpu", ["bfloat16"], 0, 1)["calls"] == 1
    assert launched == ["decode_chunks", "row_sums", "queries", "keys_and_values"]


def on_cuda(*words, **variables):
    script = Path(__file__).with_name("on_cuda.sh")
    return subprocess.run(["bash", script, *words], cwd=script.parents[1], capture_output=True, text=True,
                          env=os.environ | variables, timeout=60)  # fmt: skip


def test_the_script_fills_packs_unpacks_and_uses_the_files(tmp_path):
    """With a stand-in for Python that says which folder Triton would use."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\necho "cache $TRITON_CACHE_DIR, $TRITON_DISABLE_LINE_INFO"\n')
    python.chmod(0o755)
    out = tmp_path / "out"
    (out / "triton").mkdir(parents=True)
    (out / "triton" / "filled.json").touch()
    done = on_cuda("fill", str(out), "9.0", PYTHON=str(python), WORKERS="3")
    assert done.returncode == 0, done.stdout
    assert (out / "fill.txt").read_text().startswith(f"bench/kernel_cache.py fill {out}/triton --capability 9.0 --workers 3")
    with tarfile.open(out / "triton.tar.xz") as packed:
        assert set(packed.getnames()) == {"triton", "triton/filled.json"}
    there = tmp_path / "there"
    there.mkdir()
    (out / "triton.tar.xz").rename(there / "triton.tar.xz")
    done = on_cuda("all", str(there), PYTHON=str(python))
    assert done.stdout.splitlines()[0] == f"carried: exit code 0; cache {there}/triton, 1; 0 kernels compiled"
    assert f"cache {there}/triton, 1" in (there / "conformance_fused.txt").read_text()
    assert (there / "carried.done").exists()


def test_the_script_wants_a_capability(tmp_path):
    done = on_cuda("fill", str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
