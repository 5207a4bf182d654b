"""The version of the language: older specs are migrated loudly, newer ones refused."""

from __future__ import annotations

import pytest

from tfkit import SpecError
from tfkit.spec.located import Diagnostics, Located, plain
from tfkit.spec.reader import read_text
from tfkit.spec.versions import CURRENT, migrate


def renamed(root: Located) -> Located:
    return root.holding({{"title": "name"}.get(key, key): child for key, child in root.mapping.items()})


def test_current_version_is_left_alone() -> None:
    root = read_text(f"tfkit: {CURRENT}\nname: a\n", "a.yaml", Diagnostics())
    assert migrate(root, Diagnostics()) is root


def test_older_version_is_migrated_step_by_step_and_loudly() -> None:
    root = read_text("tfkit: 1\ntitle: a\n", "a.yaml", Diagnostics())
    with pytest.warns(
        FutureWarning, match=r"a.yaml:1:8: the spec is written in version 1 and was read as version 3; write `tfkit: 3`"
    ):
        moved = migrate(root, Diagnostics(), {1: renamed, 2: lambda root: root}, 3)
    assert plain(moved) == {"tfkit": 3, "name": "a"}
    assert moved.mapping["name"].location.line == 2


@pytest.mark.parametrize(
    ("version", "message"), [("9", "knows versions up to 1"), ("0", "no version 0"), ("-3", "no version -3")]
)
def test_unknown_version_is_refused_before_anything_else(version: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        migrate(read_text(f"tfkit: {version}\nnonsense: 1\n", "a.yaml", Diagnostics()), Diagnostics())
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == ["TFK009"]
