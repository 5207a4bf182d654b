"""README.md and the pages under docs/ say what the code does today, and their commands and Python blocks run."""

from __future__ import annotations

import re
from functools import cache

import pytest

import documented
from tfkit import graph_of, load_catalogue, parse_spec

PAGES = {str(page.relative_to(documented.ROOT)): page for page in documented.pages()}
STALE = "<!-- generated: hooks -->\n```python\n```\n<!-- end -->"


def tier(name):
    """`exhaustive` for a page that trains several models or proves a backend, `slow` for the others.

    What an earlier page does is not counted."""
    text = PAGES[name].read_text(encoding="utf-8")
    new = "\n".join(set(documented.blocks(text)) - documented.shown_before(PAGES[name]))
    does = re.findall(r"^\$ (?:.* && )?tfkit (train|conformance|compare)", new, re.MULTILINE)
    return pytest.mark.exhaustive if does.count("train") > 1 or {"conformance", "compare"} & set(does) else pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(name, marks=tier(name)) for name in PAGES])
def test_a_page_equals_the_generated_one(name):
    text = PAGES[name].read_text(encoding="utf-8")
    made = documented.written(text, documented.shown_before(PAGES[name]), name)
    assert made == text, f"run `python tests/documented.py {name}`"


def test_a_stale_table_a_wrong_output_and_a_wrong_block_are_seen():
    assert documented.written(STALE) != STALE
    assert documented.written("```console\n$ echo 1\n2\n```") == "```console\n$ echo 1\n1\n```"
    with pytest.raises(NameError):
        documented.written("```python\nmissing\n```")


def test_a_block_of_an_earlier_page_is_not_run_again():
    block = "```console\n$ echo 1\n2\n```"
    assert documented.written(block, skipped={block}) == block


COUNTS, MEASURES, SAYS = "tfkit show m", "cd a && tfkit train r.yaml", "echo 'a | b' | tfkit translate m"


@pytest.mark.parametrize(
    ("command", "shown", "printed", "same"),
    [
        (COUNTS, "1 s", "2 s", False),
        (COUNTS, "a\n...\nd 1", "a\nb\nc\nd 1", True),
        (COUNTS, "a\n...\nd 1", "a\nb\nc\nd 2", False),
        (f"{COUNTS} | head -n 2", "1 s", "2 s", False),
        (MEASURES, "1 s", "2.5 s", True),
        (MEASURES, "1 s", "2 m", False),
        (MEASURES, "a\n...\nd", "a\nb\nc\nd", True),
        (MEASURES, "a\n...\nd", "a\nb\nc\ne", False),
        (MEASURES, "a 1  x\n───", "a -10 x\n────", True),
        (MEASURES, "", "more", False),
        (MEASURES, "ppl 2 (1 s)\nppl 1, the best so far (1 s)", "ppl 3, the best so far (1 s)\nppl 4 (2 s)", True),
        (SAYS, "1\t0.9939\tNew York", "1\t0.9942\tOld York", True),
        (SAYS, "1\t0.9939\tNew York", "1\t0.9939", False),
        (SAYS, "1\t0.9\tA\n2\t0.9", "1\t0.9\n2\t0.8\tB", True),
        (SAYS, "New York\n", "New York", False),
        (SAYS, "New York\n", "\nRome", True),
        (SAYS, "New York", "", False),
        (SAYS, '{"line": 1, "p": {"bad": 0.2}}', '{"line": 1, "p": {"bad": 2e-9}}', True),
        (SAYS, '{"line": 1, "p": {"bad": 0.2}}', '{"line": 1, "p": {"good": 0.2}}', False),
    ],
)
def test_an_output_is_compared_as_far_as_its_command_allows(command, shown, printed, same):
    assert documented.matches(command, shown, printed) is same


@pytest.mark.parametrize(
    "command",
    [
        "tfkit answer runs/qa", "printf 'a\\n' | tfkit classify DIR", "tfkit generate m", "tfkit look m", "tfkit score a b",
        "tfkit train r.yaml && tfkit show m", "tfkit verify m", "tfkit bench attention", "tfkit bench cpu", "tfkit doctor",
        "python model.py", "cat out.de", "head -n 3 out.de", "grep loss runs/log.jsonl | head -n 3", "tfkit a-new-command",
    ],
)  # fmt: skip
def test_no_page_can_hold_a_number_of_a_trained_model_to_the_letter(command):
    page = f"$ {command}\n1\t0.9939"
    assert documented.console(page, lambda _: "1\t0.9942")[0] == page
    assert documented.console(page, lambda _: "1")[0] != page


@pytest.mark.parametrize(
    ("bounds", "broken"),
    [
        ("ppl < 2", False), ("ppl < 1.06", True), ("BLEU > 90, ppl < 2", False), ("BLEU > 98", True), ("chrF2 > 0", True),
        ("accuracy > 0", True), ("difference < 0", False),
    ],
)  # fmt: skip
def test_a_bound_is_that_of_the_last_number_behind_its_name(bounds, broken):
    printed = "ppl 3.5, BLEU 99.00, accuracy 50\nppl 1.06, BLEU 97.90, accuracy nan (mean difference -0.27)"
    assert bool([*documented.beyond(bounds, printed)]) is broken


def test_a_page_whose_bounds_do_not_hold_is_refused():
    page = "<!-- bounds: ppl < {} -->\n```console\n$ echo ppl 1.5\nppl 1.5\n```"
    assert documented.written(page.format(2)) == page.format(2)
    with pytest.raises(AssertionError, match=r"ppl is 1.5, the page says ppl < 1"):
        documented.written(page.format(1))


def test_what_training_reaches_has_a_bound_on_every_page():
    for name, page in PAGES.items():
        for block in documented.blocks(page.read_text(encoding="utf-8")):
            if re.search(r"^(?:step \d+, .*validation|BLEU |\w+ is better than)", block, re.MULTILINE):
                assert block.startswith("<!-- bounds: "), f"{name}: {block}"


def test_a_shortened_output_stays_short_when_its_words_change():
    old = "a 1\n...\ntotal 5 old\nb\n..."
    new = "a 2\nx\ny\ntotal 6 new\nb\nc"
    assert documented.shortened(old, new) == "a 2\n...\ntotal 6 new\nb\n..."


KOREAN = sorted((documented.ROOT / "docs" / "ko").glob("*.md"))
NUMBER = re.compile(r"(?<![\d,.])(?:\d{1,3}(?:,\d{3})+|\d{3,}|\d+\.\d+)(?![\d만억])")
"""Numbers of three digits or more, and decimals; `6,500만` is how Korean writes 65 million."""
FENCED = re.compile(r"^```\w+\n.*?^```$", re.DOTALL | re.MULTILINE)
REMARK = re.compile(r" +# .*")


@pytest.mark.parametrize("korean", KOREAN, ids=lambda page: page.stem)
def test_a_page_in_korean_has_the_blocks_and_the_figures_of_the_english_one(korean):
    """In their order, with files and generated parts. So its commands and outputs are those that run for the English page."""
    docs = documented.ROOT / "docs"
    name = korean.name
    places = [documented.ROOT / "README.md"] if name == "index.md" else [docs / name, docs / "tutorials" / name]
    [english] = [place for place in places if place.exists()]
    texts = [page.read_text(encoding="utf-8") for page in (english, korean)]
    expected, shown = ([match[0] for match in documented.PART.finditer(text)] for text in texts)
    assert shown == expected
    expected, shown = ([REMARK.sub("", block) for block in FENCED.findall(text)] for text in texts)
    assert shown == expected  # the other blocks too, whose remarks are in Korean
    figures, copied = (set(NUMBER.findall(documented.PART.sub("", text))) for text in texts)
    assert copied - figures == set()


def test_every_item_of_the_sources_is_on_the_page_and_its_specs_are_right(capsys):
    from shlex import split

    from tfkit.cli import main

    page = documented.ROOT / "docs" / "explanations" / "sources.md"
    text = page.read_text(encoding="utf-8")
    items = re.findall(r"^\| (\d+) \|[^|]+\|([^|]+)\|$", text, flags=re.M)
    assert sorted(int(number) for number, _ in items) == list(range(1, 50))
    for number, says in items:
        assert re.search(r"`[^`]+`|\]\([^)]+\.md|^ none: ", says), number
    for line in sorted(set(re.findall(r"`tfkit (check [^`]+)`", text))):
        assert main(split(line)) == 0, (line, capsys.readouterr())


def test_the_first_commands_are_the_two_that_matter():
    for name in ("README.md", "docs/quickstart.md"):
        assert re.findall(r"^(make \w+)", PAGES[name].read_text(encoding="utf-8"), flags=re.M)[:2] == ["make demo", "make test"]


def test_the_readme_is_short():
    assert len(PAGES["README.md"].read_text(encoding="utf-8").splitlines()) <= 250


def test_every_block_is_run_or_is_no_program():
    """`py` blocks are those that tests/frameworks runs; `sh` blocks are compared with the commands' help below."""
    known = {"console", "python", "sh", "text", "toml", "yaml", "json", "jinja", "py", "{eval-rst}", "{toctree}", "{include}"}
    for name, page in PAGES.items():
        languages = set(re.findall(r"^ *```(\S+)", page.read_text(encoding="utf-8"), flags=re.M))
        assert languages <= known, name
        assert "py" not in languages or name == "docs/guides/other-tools.md", name


@cache
def help_of(command: str) -> str:
    with documented.scratch() as place:
        return place.run(f"{command} --help")


@pytest.mark.parametrize("name", PAGES)
def test_commands_that_are_not_run_exist_with_their_options(name):
    text = PAGES[name].read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.S) for line in block.splitlines()]
    lines += re.findall(r"`((?:\w+=\w+ )?(?:tfkit|python (?:bench|plugins)/|make) ?[^`]+)`", text)
    for line in lines:
        words = line.partition("  #")[0]
        for target in re.findall(r"^make (\S+)", words):
            assert f"\n{target}:" in (documented.ROOT / "Makefile").read_text(encoding="utf-8"), line
        for script in re.findall(r"python ((?:bench|plugins)/\S+)", words):
            path, options = documented.ROOT / script, re.findall(r" (--[\w-]+)", words)
            assert path.exists(), line
            if options:
                source = (path / "__main__.py" if path.is_dir() else path).read_text(encoding="utf-8")
                helpers = [path.parent / f"{name}.py" for name in re.findall(r"^from (\w+) import", source, flags=re.M)]
                source += "".join(helper.read_text(encoding="utf-8") for helper in helpers if helper.exists())
                assert all(f'"{option}"' in source for option in options), line
        for command, rest in re.findall(r"\btfkit ([a-z]+)\b([^|<>]*)", words):
            options = [option for option in re.findall(r" (--?[a-z][\w-]*)", rest) if option != "--help"]
            assert all(re.search(rf"(?<![\w-]){option}\b", help_of(f"tfkit {command}")) for option in options), line


def test_every_hook_is_documented_with_its_signature():
    text = PAGES["docs/reference/hooks.md"].read_text(encoding="utf-8")
    from tfkit.hooks import SLOTS

    for hook, kind in SLOTS.values():
        assert f"def {hook}() -> list[{kind.__name__}]:" in text


def test_the_spec_that_shows_the_language_is_right():
    text = PAGES["docs/guides/spec-language.md"].read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(# yaml-language-server[^\n]*\ntfkit: 1\nextends:.*?)```", text, flags=re.S)
    spec = parse_spec(block, load_catalogue(), file=str(documented.ROOT / "specs" / "a-variant.yaml"))
    assert graph_of(spec).parameters() > 0
    names = [part.options.name for part in spec.nodes["decoder"].options.layers[0].sublayers]
    assert names == ["ffn", "self_attention", "to_source", "ffn_2"]
