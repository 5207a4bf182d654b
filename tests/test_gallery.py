"""The pictures of the gallery are those that its commands draw: the same elements and texts, not the same pixels."""

import pytest

from command_line import no_lines_of_progress, tfkit, usual_width
from gallery import PAGE, drawings, structure

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
