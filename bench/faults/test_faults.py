"""Each fault shows in its calls, where the correct kernel is right. The runner says what the suite finds."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fault import KERNELS, load_fault, load_kernel, read_faults, witness

FAULTS = read_faults()
SLOW = frozenset({"a_seed_in_16_bits", "export_groups_crossed", "generator_of_all_threads", "a_generator_shared",
                  "workspace_of_all_threads", "t_one_table", "ragged_memory_of_all_threads"})  # fmt: skip
"""Their calls take a second and more, or need threads that meet."""


@pytest.mark.parametrize(("group", "kernel"), [(group, kernel) for group, kernels in KERNELS.items() for kernel in kernels])
def test_every_fault_shows_and_the_correct_kernel_is_right(group, kernel):
    correct = load_kernel(group, kernel)
    mine = [fault for fault in FAULTS if (fault.set, fault.kernel) == (group, kernel) and fault.name not in SLOW]
    assert len(mine) >= 15
    assert [fault.name for fault in mine if witness(fault, correct)] == []
    assert [fault.name for fault in mine if not witness(fault, load_fault(fault))] == []


def test_names_are_unique_and_every_text_changes():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 361
    for fault in FAULTS:
        assert fault.text() != fault.text().replace(fault.changes[0][1], fault.changes[0][0], 1)


def run(*words):
    """The runner in a process of its own: it makes copies of itself, which a process with threads of torch cannot."""
    command = [sys.executable, str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_runner_writes_what_the_suite_finds_and_goes_on(tmp_path):
    found = run("default_dtype_left", "--json", str(tmp_path / "faults.json"))
    assert found.returncode == 0, found.stderr
    assert "blind: 1 of 1 found by quick" in found.stdout
    assert "there is no fault nonsense" in run("nonsense").stderr
    assert "a scale of 0 is taken for none" in run("--list", "scale_of_zero").stdout
