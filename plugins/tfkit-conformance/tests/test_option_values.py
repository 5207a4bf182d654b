"""What the fields of an options model may hold is read off the model, also for third-party parts."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from tfkit import load_catalogue
from tfkit.plugin import Component, Norm, OneOf, Options, Positive, Probability, Size, SlotField, component_default
from whole_models.option_values import attempts, domains, tryable


class Inner(Options):
    depth: Size = 1


class Everything(Options):
    size: Size
    maybe: Size | None = None
    near: Annotated[int, Field(gt=2, lt=6)] = 3
    share: Probability = 0.0
    above: Positive = 1.0
    word: Annotated[str, OneOf("one", "two")] = "one"
    word_or_number: Annotated[float | str, OneOf("own", number=True)] = "own"
    word_or_flag: Annotated[bool | str, OneOf("frozen", flag=True)] = False
    literal: Literal["a", "b"] = "a"
    flag: bool = True
    norm: Annotated[Component, SlotField("norm")] = component_default("none")
    inner: Inner | None = None
    free: str = ""


def entry(options):
    return Norm(name="x", summary="", options=options, parameters=lambda o, w: (), build="x:y")


def test_every_kind_of_field_is_understood():
    found = domains(Everything)
    assert set(Everything.model_fields) - set(found) == {"free"}
    assert found["size"].numbers()[:3] == (1, 2, 3)
    assert found["maybe"].optional
    assert found["near"].numbers() == (3, 4, 5)
    assert all(0 < number < 1 for number in found["share"].numbers())
    assert min(found["above"].numbers()) > 0
    assert found["word"].choices == ("one", "two")
    assert found["word_or_number"].choices == ("own",)
    assert found["word_or_number"].numbers()
    assert found["word_or_flag"].choices == ("frozen", True, False)
    assert found["literal"].choices == ("a", "b")
    assert found["flag"].choices == (False, True)
    assert (found["norm"].kind, found["norm"].slot) == ("part", "norm")
    assert found["inner"].model is Inner


def test_every_value_of_a_domain_is_accepted_by_its_field():
    context = {"catalogue": load_catalogue()}
    for name, domain in domains(Everything).items():
        for value in (*domain.choices, *domain.numbers()):
            Everything.model_validate({"size": 1, name: value}, context=context)


def test_attempts_start_with_what_must_be_written():
    context = {"catalogue": load_catalogue()}
    first, *more = attempts(entry(Everything), context)
    assert first.model_fields_set == {"size"}
    assert {"maybe", "word", "flag"} <= {name for options in more for name in options.model_fields_set}


class Unguessable(Options):
    text: str


@pytest.mark.parametrize(("options", "can"), [(Everything, True), (Unguessable, False)])
def test_a_part_with_an_unknown_required_option_is_not_tried(options, can):
    assert tryable(entry(options)) is can
