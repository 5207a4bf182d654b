"""The pictures of the gallery are those that its commands draw: the same elements and texts, not the same pixels."""

import re

import pytest

from command_line import no_lines_of_progress, tfkit, usual_width
from gallery import PAGE, ROOT, drawings, structure, trainings

__all__ = ["no_lines_of_progress", "tfkit", "usual_width"]


def test_every_picture_follows_its_command():
    shown = [each.picture for each in drawings()]
    assert len(shown) == PAGE.read_text(encoding="utf-8").count("![") == len(set(shown)) > 6
    stored = sorted((PAGE.parent / "_static" / "gallery").iterdir())
    assert stored == sorted(each for each in shown if each.parent.name == "gallery")


@pytest.mark.slow
def test_pictures_that_need_no_model_are_what_the_commands_draw(tfkit, tmp_path):
    for each in drawings():
        if each.model:
            continue
        made = tmp_path / each.picture.name
        assert tfkit(*[made if word == each.picture.name else word for word in each.command]).code == 0
        assert structure(made) == structure(each.picture), each.picture.name


@pytest.mark.slow
def test_pictures_of_models_have_the_same_parts_before_the_models_have_learned(tfkit, tmp_path, monkeypatch):
    """Weights and translations differ from those of the trained models: panels, heads, sides and words of the source do not."""

    def placed(command):
        return [re.sub(r"\bspecs/", f"{ROOT}/specs/", word) for word in command]

    monkeypatch.chdir(tmp_path)
    for command in trainings():
        assert tfkit(*placed(command), "--set", "stopping.max_steps=2").code == 0
    pictures = [each for each in drawings() if each.model and each.command[-1].endswith(".svg")]
    assert {each.picture.name for each in pictures} >= {"words.svg", "attention.svg", "alignment.svg"}
    for each in pictures:
        assert tfkit(*each.command).code == 0
        (elements, texts), (stored, stored_texts) = structure(tmp_path / each.command[-1]), structure(each.picture)
        text = each.command[each.command.index("--text") + 1]
        words = {*(f"▁{word}" for word in re.findall(r"\w+", text)), "queries", "keys"}
        assert elements.keys() == stored.keys(), each.picture.name
        assert [t for t in texts if "head" in t] == [t for t in stored_texts if "head" in t], each.picture.name
        assert {t for t in stored_texts if t in words} <= set(texts), each.picture.name
        assert len({t for t in stored_texts if t in words}) > 5, each.picture.name
