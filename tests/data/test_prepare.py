"""What is refused about training text before anything is learnt from it."""

import os
import time
import unicodedata
from itertools import chain, pairwise

import pytest

import encoder_tasks
from kinds_task import recipe_for
from tfkit import InputError, load_recipe
from tfkit.data import corpora_of, count_rows, describe_counts, prepare, read_facts
from tfkit.data.encode import Normalisation
from tfkit.data.kinds import MAX_WORD
from tfkit.data.text_corpora import held_out_rows
from tfkit.train.run_recipe import fixed_settings
from translation_task import write_task


def refused(recipe, *changes):
    """The error of a recipe; no file is left behind."""
    with pytest.raises(InputError) as caught:
        prepare(load_recipe(recipe, changes), recipe.parent / "data", 90)
    assert not (recipe.parent / "data").exists()
    return str(caught.value)


def test_every_file_is_a_regular_one(tmp_path):
    recipe = write_task(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    message = refused(recipe, f"data.source={tmp_path / 'pipe'}", "data.target=/dev/zero")
    assert "data.source: " in message
    assert "it is a named pipe" in message
    assert "data.target: /dev/zero cannot be read: it is a device" in message
    change = ["data.held_out=null", f"data.validation_source={tmp_path}", f"data.validation_target={tmp_path / 'train.trg'}"]
    assert f"data.validation_source: {tmp_path} cannot be read: it is a directory" in refused(recipe, *change)


def test_a_file_that_is_no_text_is_not_read_whole(tmp_path):
    recipe = write_task(tmp_path)
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    assert "sparse:1:1: TFK101 the line is longer than" in refused(recipe, f"data.source={tmp_path / 'sparse'}")


def test_validation_text_that_is_no_text_is_not_read_whole(tmp_path):
    recipe = write_task(tmp_path)
    for name in ("sparse.src", "sparse.trg"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 40)
    changes = [f"data.validation_source={tmp_path / 'sparse.src'}", f"data.validation_target={tmp_path / 'sparse.trg'}"]
    assert "sparse.src:1:1: TFK101 the line is longer than" in refused(recipe, "data.held_out=null", *changes)


def test_standard_input_is_no_file_that_can_be_read_twice(tmp_path):
    recipe = load_recipe(write_task(tmp_path), ['data.source="-"'])
    with pytest.raises(
        InputError, match="- cannot be read: text is read several times, but standard input can be read only once"
    ):
        corpora_of(recipe)


def test_a_row_of_validation_has_no_more_tokens_than_a_batch(tmp_path):
    recipe = write_task(tmp_path)
    source, target = ((tmp_path / f"train.{side}").read_text().splitlines() for side in ("src", "trg"))
    source[3] = "the old dog " * 2_000
    for side, lines in (("src", source), ("trg", target)):
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"valid.{side}").write_text("".join(f"{line}\n" for line in lines[:20]))
    files = [f"data.validation_{name}={tmp_path / 'valid'}.{side}" for name, side in (("source", "src"), ("target", "trg"))]
    expected = r"valid\.src:4:1: TFK101 a row of 6,001 tokens ends here, and a batch of validation has at most 1,024"
    with pytest.raises(InputError, match=expected):
        prepare(load_recipe(recipe, ["data.held_out=null", *files]), tmp_path / "refused", 90)
    for seed in range(50):  # until the row is held out
        changed = load_recipe(recipe, [f"seed={seed}", "data.held_out=60"])
        if 3 in held_out_rows(changed, 120, False, 60, "data"):
            break
    data = prepare(changed, tmp_path / "data", 90)
    assert [*data.facts["validation"].left_out] == ["longer than 1,024 tokens, which a batch of validation has at most"]


@pytest.mark.parametrize("kind", ["parallel", "language", "masked"])
def test_a_word_that_takes_minutes_to_learn_from_is_refused_with_its_line(tmp_path, kind):
    recipe = write_task(tmp_path) if kind == "parallel" else recipe_for(tmp_path, kind)
    text = (tmp_path / "train.src").read_text().splitlines()
    text[6] = f"a dog {'ab' * (MAX_WORD // 2)}c sings"
    (tmp_path / "train.src").write_text("".join(f"{line}\n" for line in text))
    message = refused(recipe)
    assert f"{tmp_path / 'train.src'}:7:1: TFK101 a word has 10,001 characters, 10,000 is the limit of training text" in message
    if kind == "language":
        assert count_rows(load_recipe(recipe, ["tokeniser={kind: characters}"])) == 400


@pytest.mark.parametrize("between", [" ", ",", "\u3002", "="], ids=["space", "comma", "ideographic", "sign"])
def test_spaces_and_punctuation_end_a_word(tmp_path, between):
    """Text without spaces, such as Chinese, has lines that are much longer."""
    recipe = recipe_for(tmp_path, "masked")
    (tmp_path / "train.src").write_text(between.join(["\u72d7" * MAX_WORD] * 4) + "\nfine\n", encoding="utf-8")
    assert count_rows(load_recipe(recipe)) == 2


@pytest.mark.parametrize("kind", ["parallel", "language", "masked"])
def test_a_file_of_empty_lines_is_no_text(tmp_path, kind):
    recipe = write_task(tmp_path) if kind == "parallel" else recipe_for(tmp_path, kind)
    count = len((tmp_path / "train.src").read_text().splitlines())
    (tmp_path / "train.src").write_text(" \n" * count)
    assert f"TFK103 {tmp_path / 'train.src'}: no line of {count} has text" in refused(recipe)


def table(tmp_path, lines, *changes):
    recipe = recipe_for(tmp_path, "classification")
    (tmp_path / "text.tsv").write_text("".join(f"{line}\n" for line in lines))
    return refused(recipe, *changes)


ROWS = [f"text {number}\t{'ab'[number % 2]}" for number in range(40)]


def test_a_tab_inside_a_text_does_not_make_its_rest_the_label(tmp_path):
    message = table(tmp_path, [*ROWS, "te\txt\ta"])
    assert f"{tmp_path / 'text.tsv'}:41:1: TFK115 the line has 3 columns, line 1 has 2; is there a tab" in message
    message = table(tmp_path, ["text\tlabel\tmore", *ROWS], "data.header=true", "data.label_column=2")
    assert ":2:1: TFK115 the line has 2 columns, line 1 has 3" in message


def test_a_table_that_has_its_header_alone_is_refused(tmp_path):
    assert f"TFK103 {tmp_path / 'text.tsv'}: there is no row; name a file" in table(
        tmp_path, ["text\tlabel"], "data.header=true"
    )


def test_a_table_with_many_columns_needs_the_columns_in_the_recipe(tmp_path):
    rows = [f"{number}\ttext {number}\t{'ab'[number % 2]}" for number in range(40)]
    message = table(tmp_path, rows)
    assert "text.tsv:1:1: TFK115 the table has 3 columns, and nothing says which hold the text and the label" in message
    recipe = load_recipe(tmp_path / "r.yaml", ["data.text_column=2", "data.label_column=3"])
    assert prepare(recipe, tmp_path / "data", 90).labels == ("a", "b")


def test_every_row_has_a_label(tmp_path):
    assert "text.tsv:41:1: TFK115 the label, column 2, is empty; write a label" in table(tmp_path, [*ROWS, "text\t "])


def test_labels_that_are_nearly_as_many_as_rows_are_no_classes(tmp_path):
    rows = [f"{'ab'[number % 2]}\ttext {number}" for number in range(200)]
    message = table(tmp_path, rows)
    assert "there are 200 different labels in 200 rows, more than one per two rows; `label_column`, now 2, says" in message
    recipe = load_recipe(tmp_path / "r.yaml", ["data.text_column=2", "data.label_column=1"])
    assert prepare(recipe, tmp_path / "data", 90).labels == ("a", "b")


def test_a_small_table_may_have_a_label_for_every_row(tmp_path):
    recipe = recipe_for(tmp_path, "classification")
    (tmp_path / "text.tsv").write_text("".join(f"text {number}\t{number}\n" for number in range(20)))
    assert len(prepare(load_recipe(recipe), tmp_path / "data", 90).labels) == 20


@pytest.mark.parametrize("tokeniser", ["bpe, vocab_size: 300", "characters"])
def test_running_text_is_cut_into_rows_of_the_ids_of_the_whole_text(tmp_path, tokeniser):
    """Row n ends with the id that row n + 1 begins with, and nothing is lost, whatever stands at the ends of lines."""
    recipe = recipe_for(tmp_path, "language", tokeniser=tokeniser)
    lines = ["the old dog", "", "  sees  ", "e\u0301", "\u0301 e", "ΟΔΟΣ", "\u2581 x", ".", " "] * 150
    (tmp_path / "train.src").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "other").write_text("the old dog\n")
    found = prepare(
        load_recipe(recipe, ["batching.max_length=7", f"data.validation_text={tmp_path / 'other'}"]), tmp_path / "data", 300
    )
    whole = found.tokenisers["target"].encode(["".join(f"{line}\n" for line in lines)])[0]
    rows = [row.tolist() for row in found.train.rows("target", range(len(found.train)))]
    assert {len(row) for row in rows[:-1]} == {8}
    assert all(one[-1] == other[0] for one, other in pairwise(rows))
    assert [*chain.from_iterable(row[:-1] for row in rows), rows[-1][-1]] == whole


def changes_of(recipe, *changes):
    """The texts that normalisation changed in the training rows, by column."""
    data = prepare(load_recipe(recipe, changes), recipe.parent / "data", 200)
    assert read_facts(recipe.parent / "data").corpora == data.facts
    for change in data.facts["train"].normalised.values():
        assert f"(first: line {change.line}, `{change.before}` U+" in describe_counts(data.facts["train"])
    return {column: tuple(change.model_dump().values()) for column, change in data.facts["train"].normalised.items()}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("{kind: bpe}", {"source": (1, 3, "e\u0301", "é"), "target": (1, 4, "\u00a0", " ")}),
        ("{kind: bpe, normalise: none}", {"target": (1, 4, "\u00a0", " ")}),
        ("{kind: bpe, normalise: nfkc}", {"source": (1, 3, "e\u0301", "é"), "target": (3, 2, "²", "2")}),
        ("{kind: characters, normalise: nfkc}", {"source": (1, 3, "e\u0301", "é"), "target": (3, 2, "²", "2")}),
        ("{kind: characters}", {"source": (1, 3, "e\u0301", "é")}),
        ("{kind: characters, normalise: none, lowercase: true}", {}),
    ],
)
def test_texts_that_normalisation_changes_are_counted(tmp_path, options, found):
    recipe = write_task(tmp_path)
    (tmp_path / "train.src").write_text("a room  of\na\nCafe\u0301\nb\nc\n")
    (tmp_path / "train.trg").write_text("ein Raum  von\n10 m²\né ²\n5\u00a0kg\nÄ\n")
    assert changes_of(recipe, f"tokeniser={options}", "data.held_out=null") == found


def test_many_marks_on_one_letter_take_no_time_that_grows_with_their_square():
    """60,000 pairs of marks took 11 s of processor time."""
    rules, marks = Normalisation("NFC", True), "a" + "\u0316\u0301" * 60_000
    start = time.process_time()
    assert rules.changes(marks)
    before, after = rules.example(marks)
    assert unicodedata.normalize("NFC", before) == after != before
    assert rules.example("x" * 700 + "e\u0301" + "y" * 700) == ("e\u0301", "\u00e9")
    assert time.process_time() - start < 5


def test_numbers_survive_by_default(tmp_path):
    recipe = write_task(tmp_path)
    text = "10² m² ½ x⁻¹ № ① Ⅳ ㎏ …"
    for name in ("train.src", "train.trg"):
        (tmp_path / name).write_text(f"{text}\n" * 3)
    data = prepare(load_recipe(recipe, ["data.held_out=null"]), tmp_path / "data", 200)
    tokeniser = data.tokenisers["target"]
    assert tokeniser.decode(tokeniser.encode([text])[0]) == text


@pytest.mark.parametrize(
    ("kind", "file", "text", "line"),
    [
        ("language", "train.src", "a dog\nb ²\nc\n", 2),
        ("masked", "train.src", "a dog\nb ²\nc\n", 2),
        ("classification", "text.tsv", "a dog\tx\nb ²\tx\nc\ty\n", 2),
    ],
)
def test_rows_of_other_kinds_of_data_are_counted(tmp_path, kind, file, text, line):
    recipe = recipe_for(tmp_path, kind)
    (tmp_path / file).write_text(text)
    assert changes_of(recipe, "tokeniser.normalise=nfkc") == {"target": (1, line, "²", "2")}


@pytest.mark.parametrize(
    ("kind", "file", "text", "line"),
    [
        ("pairs", "train.tsv", "a dog\tno dog\tx\nb\t² dogs\ty\n", 2),
        ("tagged", "train.conll", "a O\ndog O\n\n5² B-x\n", 4),
    ],
)
def test_rows_of_texts_with_labels_are_counted(tmp_path, kind, file, text, line):
    recipe = encoder_tasks.recipe_for(tmp_path, kind)
    (tmp_path / file).write_text(text)
    assert changes_of(recipe, "tokeniser.normalise=nfkc", "data.held_out=null") == {"target": (1, line, "²", "2")}


def test_a_run_keeps_the_digest_of_settings_that_its_recipe_does_not_hold(tmp_path):
    """Runs of releases whose default was `nfkc` are resumed: of images, and of a pretrained model, whose tokeniser they use."""
    recipe = load_recipe(write_task(tmp_path), ["pretrained=other", "tokeniser=null"])
    assert fixed_settings(recipe)["tokeniser"]["normalise"] == "nfkc"
    recipe = load_recipe(write_task(tmp_path), ["pretrained=other", "tokeniser.normalise=nfc"])
    assert fixed_settings(recipe)["tokeniser"]["normalise"] == "nfc"
    assert fixed_settings(load_recipe(write_task(tmp_path)))["tokeniser"]["normalise"] == "nfc"
