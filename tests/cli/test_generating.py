"""generate from the command line."""

import json
import re
from dataclasses import replace

import pytest

from kinds_task import recipe_for
from tfkit import TextGenerator
from tfkit.cli import main

pytestmark = pytest.mark.xdist_group("generating")  # its module fixture is built once


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model with 12 positions that reads characters."""
    folder = tmp_path_factory.mktemp("generate")
    recipe = recipe_for(folder, "language", tokeniser="characters")
    changes = ["model.defaults.position={kind: learned, max_len: 12}", "batching.max_length=12", "stopping.max_steps=2"]
    assert main(["train", str(recipe), "-o", str(folder / "run"), *(word for each in changes for word in ("--set", each))]) == 0
    return folder / "run"


@pytest.fixture
def command_output(typed, capsys):
    """What a command prints on both, for some text."""

    def give(words, text=""):
        typed(text)
        capsys.readouterr()
        code = main(list(map(str, words)))
        return code, *capsys.readouterr()

    return give


@pytest.mark.slow
def test_a_long_prompt_is_named_and_the_other_lines_are_kept(run, command_output):
    lines = ["the dog", "", "the old dog sees the cat", "cat"]
    code, out, err = command_output(["generate", run, "--tokens", "1"], "\n".join(lines))
    made = out.splitlines()
    assert (code, len(made), made[1]) == (0, 4, "")
    assert all(text.startswith(line) for line, text in zip(lines, made, strict=True))
    assert err == "<stdin>:3: 24 tokens, the last 12 were read; the model has 12 positions\n"
    code, out, err = command_output(["generate", run, "--json", "--tokens", "1"], "\n".join(lines))
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == lines
    assert rows[1]["continuations"] == []
    assert [row["prompt"] + "".join(each["text"] for each in row["continuations"]) for row in rows] == made
    assert err.startswith("<stdin>:3: 24 tokens, ")


def test_prompts_of_standard_input_have_a_limit(run, command_output, monkeypatch):
    monkeypatch.setattr("tfkit.cli.generate.MAX_PROMPTS", 10)
    code, out, err = command_output(["generate", run, "--tokens", "1"], "the dog\nthe cat\n")
    assert (code, len(out.splitlines())) == (2, 1)
    assert "<stdin>:2:1: TFK101 the prompts of standard input have more than 10 characters; divide it" in err


def test_positions_that_limit_the_new_tokens_are_reported(run, command_output):
    words = ["generate", run, "--prompt", "the dog", "--prompt", "cat", "--sample", "--seed", "4", "--n-best", "2", "--json"]
    code, out, err = command_output([*words, "--tokens", "8"])
    assert (code, len(out.splitlines())) == (0, 2)
    assert err == "prompt 1: 6 of 8 tokens were generated: with 7 of the prompt the model has no more positions\n"
    assert command_output(words)[2] == ""
    assert command_output([*words, "--tokens", "6"])[2] == ""


def test_a_seed_that_is_not_given_is_drawn_and_named(run, command_output):
    """The same command with the named seed prints the same."""
    words = ["generate", run, "--prompt", "the dog", "--sample", "--tokens", "5", "--temperature", "9"]
    code, out, err = command_output(words)
    assert code == 0
    found = re.fullmatch(r"--seed (\d+) was drawn and repeats this output\n", err)
    assert found, err
    assert command_output([*words, "--seed", found[1]]) == (0, out, "")
    assert command_output(words)[2] != err
    refused = command_output([*words, "--top-p", "7"])
    assert refused[0] == 2
    assert "was drawn" not in refused[2]


def test_an_empty_prompt_is_reported(run, command_output):
    code, out, err = command_output(["generate", run, "--prompt", "cat", "--prompt", ""])
    assert (code, out[:3]) == (2, "cat")
    assert err == "TFK077 prompt 2 is empty; a prompt has at least one token\n"


@pytest.fixture
def wrapping(monkeypatch):
    """Continuations that have line breaks, whatever the model writes."""
    made = TextGenerator.continue_all

    def wrapped(self, *given, **named):
        return [[replace(each, text="\n\\\tx\r" + each.text) for each in row] for row in made(self, *given, **named)]

    monkeypatch.setattr(TextGenerator, "continue_all", wrapped)


@pytest.mark.usefixtures("wrapping")
def test_a_line_of_standard_input_is_a_line_of_output(run, command_output):
    words = ["generate", run, "--tokens", "2", "--sample", "--seed", "1"]
    code, out, _ = command_output(words, "cat\n\nthe\n")
    assert (code, out.count("\n")) == (0, 3)
    first, empty, third = out.splitlines()
    assert first.startswith("cat\\n\\\\\\tx\\r")
    assert third.startswith("the\\n\\\\\\tx\\r")
    assert empty == ""
    code, out, _ = command_output([*words, "--n-best", "2"], "cat\n\nthe\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert all(len(row) == 3 for row in rows)
    assert rows[2] == ["2", "", ""]
    assert rows[0][2].startswith("cat\\n")
    assert float(rows[0][1]) < 0


@pytest.mark.usefixtures("wrapping")
def test_a_text_of_a_prompt_is_printed_as_it_is(run, command_output):
    code, out, _ = command_output(["generate", run, "--tokens", "1", "--prompt", "cat"])
    assert code == 0
    assert out.startswith("cat\n\\\tx\r")


def test_all_lines_before_a_bad_one_are_continued(run, command_output):
    code, out, err = command_output(["generate", run, "--tokens", "1"], b"cat\ndog\ncaf\xe9\nthe\n")
    assert (code, len(out.splitlines())) == (2, 2)
    assert err.startswith("<stdin>:3:4: TFK101 byte 0xe9 is no UTF-8")


def test_cuda_graphs_need_a_cuda_device(run, command_output):
    code, out, err = command_output(["generate", run, "--prompt", "cat", "--cuda-graphs"])
    assert (code, out) == (2, "")
    assert err.startswith("TFK063 CUDA graphs need a CUDA device, and the model is on cpu")


def test_a_step_is_recorded_for_all_prompts_of_a_length(run, command_output, recordings_on_cpu):
    """With a stand-in for the device: the continuations are those without a recording."""
    plain = command_output(["generate", run, "--prompt", "the dog", "--tokens", "4"])
    recordings_on_cpu()
    assert command_output(["generate", run, "--prompt", "the dog", "--tokens", "4", "--cuda-graphs"]) == plain


def test_unknown_pieces_are_counted(run, command_output):
    code, _, err = command_output(["generate", run, "--tokens", "1", "--prompt", "the ΩΣ", "--prompt", "dog"])
    assert (code, err) == (0, "prompt 1: 2 unknown tokens; the vocabulary has no such piece\n")
    code, _, err = command_output(["generate", run, "--tokens", "1"], "dog\nΩ\n")
    assert (code, err) == (0, "<stdin>:2: 1 unknown token; the vocabulary has no such piece\n")


def test_the_number_of_tokens_is_refused_by_the_name_of_its_option(run, command_output):
    code, out, err = command_output(["generate", run, "--prompt", "cat", "--tokens", str(10**12)])
    assert (code, out) == (2, "")
    assert "--tokens is 1000000000000" in err
    assert "extra_length" not in err
