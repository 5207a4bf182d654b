"""The suite survives what a part does to its process, and says what it was; every child here is a real one."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import stranger
from tfkit import InputError, PluginError
from tfkit_conformance.process.child import plain
from tfkit_conformance.process.parent import ChildBug, ChildRun, _report, _take, checks_of, evaluated, replayed, run
from tfkit_conformance.process.stored import Stored

CASE = {"B": 1, "H": 1, "G": 1, "Q": 2, "K": 3, "D": 8, "V": 8}


def task(name, slot="backend", **more):
    usual = {"profile": "quick", "device": "cpu", "dtypes": None, "options": None, "seed": 0, "limit": 60.0}
    return {"slot": slot, "name": name, **usual, **more}


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """A third-party plugin on the path of this process, which is that of its children."""

    def installed(**texts):
        monkeypatch.syspath_prepend(str(stranger.install(tmp_path / "site", **texts)))

    return installed


@pytest.mark.exhaustive
def test_a_part_that_kills_the_process_is_nonconformant_and_its_case_is_made_small(acme, capfd):
    acme()
    seen = []
    data = evaluated(task("acme.long"), progress=lambda check, examples: seen.append((check, examples)))
    [found] = data["findings"]
    assert found["message"] == "the backend killed the process (SIGABRT) in check layers"
    assert "case = Case(" in found["snippet"]
    case = found["case"]
    assert set(case) <= {*"BHGQKDV", "seed"}
    assert (case["B"], case["H"], case["Q"], case["K"], case["D"], case["V"]) == (1, 1, 1, 9, 1, 1)
    assert (data["verdict"], data["exit_code"]) == ("NONCONFORMANT", 1)
    assert (data["distribution"], data["dtypes"]) == ("acme-parts", ["float32"])
    assert data["versions"]["torch"]
    assert seen[-1] == ("layers", len(seen))
    out, err = capfd.readouterr()
    assert out == ""
    assert "noise of a part" in err
    assert '{"answer"' in err
    assert replayed([Stored("backend", "acme.long", "layers", case)], 30.0) == ["killed the process (SIGABRT)"]


@pytest.mark.slow
def test_a_part_that_never_returns_from_c_is_killed(acme):
    acme()
    data = evaluated(task("acme.stuck", limit=3.0), grace=3.0)
    assert data["findings"][0]["message"] == "the backend did not finish within 3 seconds in check layers"
    assert data["verdict"] == "NONCONFORMANT"


@pytest.mark.slow
def test_a_part_that_always_hangs_ends_the_run_at_its_first_example(acme):
    acme()
    data = evaluated(task("acme.sleeps", limit=3.0), grace=300.0)
    assert [found["message"] for found in data["findings"]] == ["did not finish within 3 seconds"]
    assert [check["examples"] for check in data["checks"] if check["status"] == "failed"] == [1]


@pytest.mark.slow
def test_the_next_case_is_replayed_after_one_that_killed_the_process(acme):
    acme()
    stored = [Stored("backend", f"acme.{name}", "layers", CASE) for name in ("aborts", "right", "leaves")]
    assert replayed(stored, 30.0) == ["killed the process (SIGABRT)", "passed", "ended the process by raising SystemExit: 3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import os; os.abort()", "the backend killed the process (SIGABRT) while it was imported"),
        ("import os; os._exit(0)", "the backend ended the process with exit code 0 while it was imported"),
        ("raise KeyboardInterrupt", "the backend ended the process by raising KeyboardInterrupt while it was imported"),
    ],
)
def test_a_plugin_that_ends_the_process_when_it_is_imported(acme, line, words):
    acme(parts=line)
    data = evaluated(task("acme.flash"))
    assert data["findings"][0]["message"] == words
    assert data["exit_code"] == 1
    with pytest.raises(PluginError, match="TFK096"):
        checks_of([("backend", "acme.flash")])


def test_processes_of_a_plugin_are_killed(acme, tmp_path):
    note = tmp_path / "pid"
    start = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    acme(parts=f"{start}open({str(note)!r}, 'w').write(str(child.pid))\n")
    with pytest.raises(InputError):
        evaluated(task("acme.flash"))
    assert gone(int(note.read_text()))


def gone(pid, within=120.0):
    """Whether a process has ended, or ends soon."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_ends_its_child(acme, tmp_path, number, code):
    note = tmp_path / "pid"
    acme(parts=f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background jobs ignore it
    words = f"{handler}; import sys; sys.path[:0] = [sys.argv.pop(1)]; from tfkit.cli import main; sys.exit(main())"
    site = str(tmp_path / "site")
    command = subprocess.Popen(
        [sys.executable, "-c", words, site, "conformance", "acme.flash"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 300
    while not (note.exists() and note.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    for _ in range(20 if number == signal.SIGINT else 1):  # a second Ctrl-C does not interrupt what the first one ends
        os.kill(command.pid, number)
        time.sleep(0.001)
    out, err = command.communicate(timeout=300)
    assert (command.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert err.count("interrupted") == (number == signal.SIGINT)
    assert gone(int(note.read_text()))


def test_started_examples_are_counted_by_check():
    child_run = ChildRun(
        {"dtypes": ["float32", "bfloat16"]}, "grade bfloat16", {}, {"layers": 20, "grade float32": 1, "grade bfloat16": 1}
    )
    child_run.ended = "killed the process (SIGSEGV)"
    report = _report(task("acme.flash"), child_run)
    rows = [(check.name, check.status, check.examples, check.note) for check in report.checks]
    assert rows == [("grade", "failed", 2, ""), ("layers", "inconclusive", 20, "the run ended in grade")]
    [found] = report.findings
    assert (found.message, found.failed, found.examples) == ("the backend killed the process (SIGSEGV) in check grade", 1, 2)


@pytest.mark.slow
def test_errors_of_the_child_keep_their_type():
    with pytest.raises(InputError, match=r"TFK094.*there is no attention backend `egaer`.*did you mean `eager`"):
        evaluated(task("egaer"))
    with pytest.raises(InputError, match=r"TFK094.*there is no slot `nrom`.*did you mean `norm`"):
        checks_of([("nrom", "x")])


def test_a_bug_of_the_child_has_its_traceback():
    with pytest.raises(ChildBug, match="KeyError") as caught:
        run({"do": "nothing that there is"}, 60.0, 5.0)
    assert caught.value.frames[-1][0] == "tfkit_conformance.process.child"
    assert "Traceback" in caught.value.where


def test_foreign_lines_on_the_pipe_are_ignored(capsys):
    child_run = ChildRun()
    for line in ("noise\n", "[1]\n", '{"a": 1, "b": 2}\n', "3\n"):
        assert not _take(child_run, line, lambda check, examples: None)
    assert child_run == ChildRun()
    assert capsys.readouterr().err.startswith("noise")
    assert _take(child_run, '{"left": "SystemExit: 3"}', lambda check, examples: None)
    assert child_run.ended == "ended the process by raising SystemExit: 3"


def test_nan_and_infinity_become_text():
    assert json.dumps(plain({"a": [float("nan"), (float("inf"), -float("inf"), 1.5)], 2: frozenset({3})}), allow_nan=False) == (
        '{"a": ["nan", ["inf", "-inf", 1.5]], "2": [3]}'
    )


def test_the_parent_imports_no_torch():
    modules = ", ".join(f"tfkit_conformance.process.{name}" for name in ("parent", "stored", "child"))
    words = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("__import__('time').sleep(600)", "did not finish within 1 seconds"),
        ("__import__('os')._exit(7)", "the function ended the process with exit code 7 in check arguments"),
        ("raise SystemExit(3)", "the function ended the process by raising SystemExit: 3 in check arguments"),
    ],
)
def test_a_function_that_ends_its_process_or_never_returns_is_named_with_its_call(tmp_path, monkeypatch, line, message):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "acme_call.py").write_text(f"def attention(query, key, value, **others):\n    {line}\n")
    function = {"target": "acme_call:attention", "signature": "sdpa", "supports": ["causal"]}
    data = evaluated(task("acme_call:attention", dtypes=["float32"], limit=1.0, function=function), grace=300.0)
    [found] = data["findings"]
    assert message in found["message"]
    assert "attention" in found["snippet"]
    assert data["verdict"] == "NONCONFORMANT"
