"""Labels that would forge a line, or be confused with another one, are refused where they are read."""

import json

import pytest

from kinds_task import recipe_for
from saved_model import rewrite
from tfkit import InputError, StoreError, build, load_catalogue, load_recipe, load_spec, save
from tfkit.data import prepare, read_facts, read_labels
from tfkit.data.labels import check_labels, label_fault

BAD = {
    "good\nforged": "holds the control character U\\+000A", "a\tb": "U\\+0009", "a\rb": "U\\+000D", "\x1b[31m": "U\\+001B",
    "a\u2028b": "U\\+2028", "a\u202eb": "U\\+202E", "a\u200bb": "U\\+200B",
    "long" * 251: "the label `long.*` has 1,004 characters, and at most 1,000 are read",
    "\u2800": "a label is empty", "\u200d": "a label is empty", "a\x85b": "U\\+0085",
    "": "a label is empty", "  ": "a label is empty", "\ufe0f": "a label is empty",
}  # fmt: skip


@pytest.mark.parametrize("label", BAD)
def test_a_label_that_forges_output_is_refused(label):
    with pytest.raises(ValueError, match=BAD[label]):
        check_labels(["fine", label])


def test_labels_of_any_script_and_with_spaces_are_labels():
    check_labels(
        [
            "very good",
            "sehr schön",
            "아주 좋음",
            "\U0001f468\u200d\U0001f469",
            "B-PER",
            "0",
            "1",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ]
    )


def test_two_classes_with_one_label_are_refused():
    with pytest.raises(ValueError, match="classes 0 and 2 have the same label `crane`"):
        check_labels(["crane", "dog", "crane"])


@pytest.mark.parametrize(
    ("label", "other"),
    [
        ("\u00e9", "e\u0301"),
        ("\u00e9", "\u00e9 "),
        ("\u00e9", "\u00e9\ufe0f"),
        ("a b", "a\u00a0b"),
        ("a b", "a  b"),
        ("fi", "\ufb01"),
        ("bad", "bad\u200d"),
        ("bad", "b\u200cad"),
        ("bad", "bad\u2800"),
        ("a b", "a\u2800b"),
        ("bad", "bad\U0001d159"),
    ],
    ids=[
        "form",
        "space",
        "selector",
        "space without a break",
        "two spaces",
        "ligature",
        "joiner",
        "divider",
        "sign of Braille",
        "sign of Braille for a space",
        "empty note",
    ],
)
def test_two_classes_whose_labels_look_the_same_are_refused(label, other):
    with pytest.raises(ValueError, match="classes 0 and 1 have the same label"):
        check_labels([label, other])


def test_labels_of_a_table_that_look_the_same_are_refused(tmp_path):
    recipe = load_recipe(recipe_for(tmp_path, "classification"))
    path = tmp_path / "text.tsv"
    path.write_text(path.read_text() + "the dog\t\u00e9\nthe cat\te\u0301\n")
    with pytest.raises(InputError, match="TFK115 data: classes 1 and 3 have the same label"):
        prepare(recipe, tmp_path / "data", 80)


def test_a_tag_has_no_space():
    assert label_fault("two words") == ""
    assert label_fault("two\u2800words", word=True) == "the tag `two\u2800words` holds white space"
    assert label_fault("two words", word=True) == "the tag `two words` holds white space"


@pytest.fixture
def classifier(tmp_path):
    recipe_for(tmp_path, "classification")
    catalogue = load_catalogue()
    model = build(load_spec(tmp_path / "model.yaml", catalogue), catalogue)
    return save(model, tmp_path / "model", catalogue=catalogue, texts={"labels.json": '["animal", "thing"]'})


@pytest.mark.parametrize("labels", [[each, "thing"] for each in BAD] + [["thing", "thing"]])
def test_labels_of_a_model_are_checked(classifier, labels):
    assert read_labels(classifier) == ("animal", "thing")
    rewrite(classifier, "labels.json", json.dumps(labels).encode())
    with pytest.raises(StoreError, match=r"TFK082 .*labels\.json: the content: (the label|a label|classes 0 and 1)"):
        read_labels(classifier)


def test_tags_of_a_model_are_words(classifier):
    rewrite(classifier, "labels.json", b'["O", "B LOC"]')
    assert read_labels(classifier) == ("O", "B LOC")
    with pytest.raises(StoreError, match="the tag `B LOC` holds white space"):
        read_labels(classifier, words=True)


@pytest.mark.parametrize("label", ["an\x1b[31mimal", "a\u2028b", "a\x0bb"])
def test_labels_of_a_table_are_checked(tmp_path, label):
    recipe = load_recipe(recipe_for(tmp_path, "classification"))
    path = tmp_path / "text.tsv"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:4], f"the dog\t{label}", *lines[4:]]))
    with pytest.raises(InputError, match=rf"{path}:5:1: TFK115 the label `.*` holds the control character"):
        prepare(recipe, tmp_path / "data", 80)


def test_labels_beside_a_corpus_are_checked(tmp_path):
    facts = {"labels": ["a", "a"], "corpora": {"train": {}}}
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    with pytest.raises(StoreError, match="classes 0 and 1 have the same label `a`"):
        read_facts(tmp_path)


def test_tags_of_a_table_are_checked(tmp_path):
    import encoder_tasks

    recipe = load_recipe(encoder_tasks.recipe_for(tmp_path, "tagged"))
    (tmp_path / "train.conll").write_text("the O\ndog B-\x1b[31m\n\nold O\n")
    with pytest.raises(InputError, match=rf"{tmp_path / 'train.conll'}:2:1: TFK126 the label `.*` holds the control character"):
        prepare(recipe, tmp_path / "data", 80)


def test_names_of_folders_of_images_are_checked(tmp_path):
    from tfkit.data.image_files import _folder

    (tmp_path / "good\nforged").mkdir()
    with pytest.raises(InputError, match=r"(?s)TFK122 .*holds the control character U\+000A; rename the folder"):
        _folder(str(tmp_path), None)
