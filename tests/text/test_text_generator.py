"""Prompts are continued; a model with a table of positions reads only their end."""

import pytest
import torch

from kinds_task import recipe_for
from tfkit import InputError, Search, TextGenerator, load_recipe
from tfkit.train import train

pytestmark = pytest.mark.xdist_group("text_generator")  # its module fixture is built once

POSITIONS = 12


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    changes = [
        f"model.defaults.position={{kind: learned, max_len: {POSITIONS}}}", f"batching.max_length={POSITIONS}",
        "stopping.max_steps=30",
    ]  # fmt: skip
    train(load_recipe(recipe_for(folder, "language", tokeniser="characters"), changes), folder / "run")
    return TextGenerator.load(folder / "run")


def test_a_model_without_positions_reads_a_limited_prompt(tmp_path):
    changes = ["model.defaults.position=rotary_half", "stopping.max_steps=2"]
    train(load_recipe(recipe_for(tmp_path, "language", tokeniser="characters"), changes), tmp_path / "run")
    search = Search(kind="greedy", length_factor=0.0, extra_length=3)
    ((short,),) = TextGenerator.load(tmp_path / "run", max_prompt=5).continue_all(["the dog runs"], search)
    assert (short.read, short.cut) == (5, 7)
    ((whole,),) = TextGenerator.load(tmp_path / "run").continue_all(["the dog runs"], search)
    assert (whole.read, whole.cut) == (12, 0)
    ((end,),) = TextGenerator.load(tmp_path / "run").continue_all([" runs"], search)
    assert short.text == end.text
    with pytest.raises(InputError, match="max_prompt"):
        TextGenerator.load(tmp_path / "run", max_prompt=0)


def by_full_passes(model, ids, count):
    """The likeliest next token of a whole pass, over and over."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model.eval()(words=torch.tensor([ids]))["out"][0, -1].argmax()))
    return ids[-count:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "tokens", "read", "new"),
    [
        (3, 4, 3, 4),
        (12, 1, 12, 1),
        (12, 5, 12, 1),  # it fits, so it is read, and the last new token needs no position
        (9, 100, 9, 4),
        (13, 1, 12, 1),
        (13, 5, 8, 5),
        (40, 7, 6, 7),
        (40, 8, 6, 7),  # half of the positions
        (40, 100, 6, 7),
    ],
)
def test_of_a_prompt_that_is_too_long_the_end_is_read(generator, length, tokens, read, new):
    text = ("the old dog sees " * 3)[:length]
    ids = generator.tokeniser.encode([text])[0]
    assert len(ids) == length
    search = Search(kind="greedy", length_factor=0.0, extra_length=tokens)
    ((short,), (made,)) = generator.continue_all(["a", text], search)
    assert (made.prompt, made.read, made.cut) == (text, read, length - read)
    assert (short.read, short.cut) == (1, 0)
    wanted = by_full_passes(generator.model, ids[-read:], new)
    found = made.hypothesis.ids.tolist()
    assert found == wanted[: len(found)]
    assert len(found) == new or made.hypothesis.finished
    assert made.text == generator.tokeniser.decode(found)


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_every_search_reads_the_end(generator, kind):
    more = {"beam": {"beams": 3}, "sample": {"seed": 1}, "greedy": {}}[kind]
    search = Search(kind=kind, length_factor=0.0, extra_length=5, **more)
    text = "the old dog sees"
    first, second = (generator.continue_all([each], search)[0][0] for each in (text, text[-8:]))
    assert first.hypothesis.ids.tolist() == second.hypothesis.ids.tolist()
    assert first.text == second.text


def test_a_prompt_without_a_token_has_no_continuation(generator):
    found = generator.continue_all(["", "the dog", ""], Search(kind="greedy"))
    assert [len(each) for each in found] == [0, 1, 0]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [("The", "a list of texts is expected, and this is one str of 3"), ([3], "a text must be a str, and one is of type int")],
)
def test_prompts_are_a_list_of_texts(generator, prompts, message):
    with pytest.raises(InputError, match=message):
        generator.continue_all(prompts)
