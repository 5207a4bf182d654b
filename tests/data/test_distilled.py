"""Targets from a teacher: the translation that is nearest to the reference, for training rows alone."""

import pytest
from sacrebleu.metrics import CHRF

from command_line import typed
from tfkit import InputError, load_recipe
from tfkit.cli import main
from tfkit.data import prepare
from tfkit.data.distilled import nearest, translations
from tfkit.text import model_in
from tfkit.train import train
from translation_task import sentences, write_task

__all__ = ["typed"]

SMALL = ["model.defaults.d_model=16", "batching.tokens=512", "stopping.max_steps=2", "validation.metric=loss"]


def pairs_in(data, corpus):
    """The texts of the rows of a corpus."""
    columns = (
        [data.tokenisers[column].decode(ids.tolist()) for ids in corpus.rows(column, range(len(corpus)))]
        for column in ("source", "target")
    )
    return list(zip(*columns, strict=True))


def test_training_rows_have_the_nearest_translation_and_rows_held_out_the_reference(tmp_path):
    recipe = write_task(tmp_path)
    pairs = sentences(120)
    with (tmp_path / "teacher").open("w") as file:
        for number, (_, target) in enumerate(pairs, 1):
            words = target.split()
            for text in (target[::-1], " ".join([*words[:-1], "teacher"]), f"quite {target[::-1]}")[: 1 + number % 3]:
                file.write(f"{number}\t-1.25\t{text}\n")
    data = prepare(load_recipe(recipe, [f"data.distilled={tmp_path / 'teacher'}", "data.held_out=20"]), tmp_path / "data", 90)
    wanted, chrf = [], CHRF()
    for number, (source, target) in enumerate(pairs, 1):
        lines = [line.split("\t") for line in (tmp_path / "teacher").read_text().splitlines()]
        texts = [text for at, _, text in lines if int(at) == number]
        wanted.append((source, max(texts, key=lambda text: chrf.sentence_score(text, [target]).score)))
    trained, held = pairs_in(data, data.train), pairs_in(data, data.validation)
    assert (len(trained), len(held)) == (100, 20)
    assert set(trained) <= set(wanted)
    assert any(target.endswith("teacher") for _, target in trained)
    assert set(held) <= set(pairs)


def test_translate_writes_what_a_recipe_reads(tmp_path, capsys, typed):
    recipe = write_task(tmp_path)
    train(load_recipe(recipe, SMALL), tmp_path / "teacher")
    (tmp_path / "train.src").write_text((tmp_path / "train.src").read_text() + "\n")
    (tmp_path / "train.trg").write_text((tmp_path / "train.trg").read_text() + "\n")
    typed((tmp_path / "train.src").read_bytes())
    assert main(["translate", str(tmp_path / "teacher"), "--n-best", "2", "--beams", "2", "--extra-length", "1"]) == 0
    (tmp_path / "best").write_text(capsys.readouterr().out)
    assert [len(texts) for texts in translations(str(tmp_path / "best"))] == [2] * 120 + [1]
    train(load_recipe(recipe, [f"data.distilled={tmp_path / 'best'}", *SMALL]), tmp_path / "student")
    assert model_in(tmp_path / "student").exists()


WRONG = {
    "text": ("ein Hund\n", r"file:1:1: TFK134 not a number, a score and a text"),
    "score": ("1\tgood\tein Hund\n", r"file:1:1: TFK134 not a number"),
    "infinite": ("1\tinf\tein Hund\n", r"file:1:1: TFK134 not a number"),
    "gap": ("1\t-1\ta\n3\t-1\tb\n", r"file:2:1: TFK134 translations of line 3, where those of line 2 are expected"),
    "back": ("1\t-1\ta\n2\t-1\tb\n1\t-2\tc\n", r"file:3:1: TFK134 translations of line 1, where those of line 3"),
    "many": ("1\t-1\ta\n" * 257, r"file:257:1: TFK134 line 1 has more than 256 translations"),
    "large": ("1\t-1\t" + "a " * 5_001, r"file:1:1: TFK134 the translation has 10,002 characters, 10,000 is the limit"),
    "short": ("1\t-1\ta\n1\t-2\tc\n", r"TFK102 .*: .*target has 2, .*file has translations of 1; translate"),
    "long": ("1\t-1\ta\n2\t-1\tb\n3\t-1\tc\n", r"TFK102 .*: .*target has 2, .*file has translations of 3; translate"),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_no_translations_of_the_source(tmp_path, name):
    text, message = WRONG[name]
    (tmp_path / "file").write_text(text)
    (tmp_path / "target").write_text("x\ny\n")
    with pytest.raises(InputError, match=message):
        nearest(str(tmp_path / "file"), str(tmp_path / "target"))


def test_links_of_words_do_not_fit_other_targets(tmp_path):
    recipe = write_task(tmp_path)
    for name in ("links", "best"):
        (tmp_path / name).write_text("\n")
    changes = [f"data.alignment={tmp_path / 'links'}", f"data.distilled={tmp_path / 'best'}"]
    with pytest.raises(InputError, match=r"TFK108 data.distilled: the links of .*, and the targets are distilled; remove one"):
        prepare(load_recipe(recipe, changes), tmp_path / "data", 90)
