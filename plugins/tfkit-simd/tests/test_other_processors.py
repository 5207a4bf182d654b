"""A build for another processor has no kernels, and the plugin says so. The setup of another processor is imitated here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parent.parent
SETUP = """
import platform, runpy, sys
platform.machine = lambda: "aarch64"
sys.argv = ["setup.py", "build_ext", "--inplace"]
runpy.run_path("setup.py")
"""
USE = "from tfkit_simd import SIMD, SimdOptions; print(SIMD.unsupported(None, SimdOptions()))"


def test_a_build_for_another_processor_has_no_kernels_and_says_so(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "plugin", ignore=shutil.ignore_patterns("*.so", "build", "tests", "__pycache__"))
    plugin = tmp_path / "plugin"
    done = subprocess.run([sys.executable, "-c", SETUP], cwd=plugin, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert [file.name.partition(".")[0] for file in (plugin / "tfkit_simd").glob("*.so")] == ["_processor"]
    environment = {**os.environ, "PYTHONPATH": f"{plugin}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout == "('this processor has no AVX2',)\n", done.stderr
