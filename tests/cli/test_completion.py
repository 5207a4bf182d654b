"""`tfkit completion`: the script loads in its shell, and the shell's questions are answered."""

import shutil
import subprocess

import pytest

from command_line import ROOT
from tfkit.cli import main


def completions(line, monkeypatch, capsys):
    """What may follow a line, as click writes it for bash: kind and text."""
    monkeypatch.setenv("_TFKIT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert main([]) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(("words", "place"), [("tfkit xyz ", "2"), ("tfkit \x1b[2J", "99999999"), ("tfkit ", "x"), ("", "")])
def test_a_line_that_is_wrong_has_no_answer_and_no_error(words, place, monkeypatch, capsys):
    for name, value in (("_TFKIT_COMPLETE", "bash_complete"), ("COMP_WORDS", words), ("COMP_CWORD", place)):
        monkeypatch.setenv(name, value)
    assert main([]) in (0, 1)
    output = capsys.readouterr()
    assert (output.err, "\x1b" in output.out) == ("", False)


@pytest.mark.parametrize(
    ("line", "there", "absent"),
    [
        ("tfkit new spec gp", {"plain,gpt2"}, {"plain,sample", "plain,acme.flash"}),
        ("tfkit new norm ", set(), {"plain,gpt2"}),
        ("tfkit ", {"plain,check", "plain,completion", "plain,import", "plain,verify"}, {"plain,sample"}),
        ("tfkit show transformer-b", {"file,transformer-b", "plain,transformer-base"}, {"plain,gpt2", "plain,sample"}),
        ("tfkit train s", {"plain,sample", "plain,sentence-classifier"}, set()),
        ("tfkit compare ", {"plain,sample"}, {"plain,gpt2"}),
        ("tfkit translate ", {"file,"}, {"plain,sample"}),
        ("tfkit build x --d", {"plain,--device", "plain,--dtype"}, set()),
        ("tfkit build x --dtype b", {"plain,bfloat16"}, {"plain,float32"}),
    ],
)
def test_what_may_follow_a_line(line, there, absent, monkeypatch, capsys):
    printed = set(completions(line, monkeypatch, capsys))
    assert there <= printed
    assert not absent & printed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_its_shell(shell, tfkit):
    done = tfkit("completion", shell)
    assert (done.code, done.err, f"_TFKIT_COMPLETE={shell}_complete" in done.out) == (0, "", True)
    assert tfkit("completion", shell, "--json").json() == {"shell": shell, "script": done.out}
    assert "unknown shell `csh`" in tfkit("completion", "csh").err
    if shutil.which(shell):
        check = {"fish": "complete -C 'tfkit x'"}.get(shell, "true")
        loaded = subprocess.run([shell, "-c", f"{done.out}\n{check}"], cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert "syntax" not in loaded.stderr
