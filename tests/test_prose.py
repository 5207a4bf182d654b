"""The linter of prose finds a word in a comment, a docstring and a message, and leaves code alone."""

from prose import ROOT, findings, rules


def test_words_are_found_in_prose_and_not_in_code(tmp_path):
    python, page = tmp_path / "a.py", tmp_path / "a.md"
    python.write_text('"""A kernel is judged here."""\njudged = 1  # is told twice\nraise E("the wish of `judged`")\n')
    page.write_text("The zoo of kernels.\n```\nzoo\n```\n`zoo` is code.\n")
    found = [line.removeprefix(str(tmp_path)) for path in (python, page) for line in findings(path, rules())]
    assert [line.split(": ")[:2] for line in found] == [
        ["/a.py:1:16", "`judged`"], ["/a.py:2:15", "`is told`"], ["/a.py:3:14", "`wish`"], ["/a.md:1:5", "`zoo`"],
    ]  # fmt: skip


def test_names_that_say_nothing_are_found(tmp_path):
    python = tmp_path / "a.py"
    python.write_text("found = [each for each in rows]\nprint(found, key)\nf = lambda own: own.given\n")
    lines = [line.removeprefix(str(python)) for line in findings(python, rules())]
    assert sorted(lines) == [
        ":1:19: `each`: name what it holds", ":1:1: `found`: name what it holds", ":3:12: `own`: name what it holds",
    ]  # fmt: skip


def test_every_word_has_a_replacement():
    assert all(better for _, better in rules())
    assert (ROOT / "pyproject.toml").exists()
