"""Thousands of damaged specs: each is accepted or refused with located, known codes, and none ends in another exception."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfkit import Catalogue, Diagnostic, SpecError, parse_spec
from tfkit.errors.codes import CODES
from tfkit.spec import to_yaml
from tfkit.spec.extends import read_extended
from tfkit.spec.grammar import Grammar
from tfkit.spec.located import Diagnostics, plain

pytestmark = pytest.mark.slow

DRAFTS = Path(__file__).parent / "drafts"
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**40, 2**63 - 1, 1e-9, -0.5, 1.0, 1e300, "", "none", "auto", "yes", "source", "a.b",
    "encoder.layers", "layer_norm", "sinusoidal", "learned", "ffn", "self_attention", "stack", "\u0000", "😀", "x" * 5000,
    [], {}, [1], ["ffn"], [[]], [None], {"kind": "none"}, {"kind": None}, {"kind": []}, {"kind": "stack"}, {"kind": {}},
    {"layers": []}, {"repeat": 2}, [{"repeat": 2}], {"": 1}, {"null": None}, [{"layers": [{"layers": [{"layers": []}]}]}],
    {"a": {"b": {"c": [1, {"d": 2}]}}},
]  # fmt: skip
TEXTS = [
    "&a ", "*a ", "!!x ", "? ", "- ", ": ", "\t", "{", "}", "[", "]", ",", "'", '"', "|\n", ">\n", "#", "%", "\x00",
    "\u2028", "\ufeff", "---\n", "...\n", "<<: ", "\\", "\r", "9" * 5000, ".nan", "0x", "~", "é", "\ud800", "null", "@",
    "`", "%YAML 1.1\n", "null: ",
]  # fmt: skip
ROUNDS = 1300


@pytest.fixture(scope="module")
def trees(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Every draft as plain data, with what it extends laid under it; the first also in its resolved form."""
    slots = Grammar(catalogue).slots
    found = [plain(read_extended(str(path), slots, Diagnostics())) for path in sorted(DRAFTS.glob("*.yaml"))]
    small = [tree for tree in found if len(str(tree)) < 1200]
    return [*small, yaml.safe_load(to_yaml(parse_spec(dump(small[0]), catalogue)))]


def dump(tree: Any) -> str:
    return str(yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True))


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    for key, child in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(child, (dict, list)):
            yield from places(child)


def changed_value(tree: Any, rng: random.Random) -> None:
    container, key = rng.choice(list(places(tree)))
    container[key] = copy.deepcopy(rng.choice(VALUES))


def moved_value(tree: Any, rng: random.Random) -> None:
    """A value of one place in another: edges, names, mappings where they do not belong."""
    spots = list(places(tree))
    (container, key), (other, name) = rng.choice(spots), rng.choice(spots)
    container[key] = copy.deepcopy(other[name])


def changed_key(tree: Any, rng: random.Random) -> None:
    container, key = rng.choice([spot for spot in places(tree) if isinstance(spot[0], dict)])
    names = [str(name) for _, name in places(tree)]
    new = rng.choice(
        [key[:-1], key + "s", key.swapcase(), rng.choice(names), "layers", "num_layers", "sublayers", "share", "kind", "1"]
    )
    container[new] = container.pop(key)


def removed(tree: Any, rng: random.Random) -> None:
    container, key = rng.choice(list(places(tree)))
    del container[key]


def added(tree: Any, rng: random.Random) -> None:
    container, key = rng.choice(list(places(tree)))
    names = [str(name) for _, name in places(tree)]
    if isinstance(container, dict):
        container[rng.choice([*names, "layers", "memory", "share", "final_norm", "window"])] = copy.deepcopy(rng.choice(VALUES))
    else:
        container.insert(key, copy.deepcopy(rng.choice(VALUES)))


def tree_mutants(trees: list[dict[str, Any]], rng: random.Random) -> Iterator[str]:
    changes: list[Callable[[Any, random.Random], None]] = [changed_value, moved_value, changed_key, removed, added]
    for _ in range(ROUNDS):
        tree = copy.deepcopy(rng.choice(trees))
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            if tree:
                rng.choice(changes)(tree, rng)
        yield dump(tree)


def text_mutants(trees: list[dict[str, Any]], rng: random.Random) -> Iterator[str]:
    texts = [dump(tree) for tree in trees] + [path.read_text() for path in sorted(DRAFTS.glob("*.yaml"))]
    for _ in range(ROUNDS):
        text = rng.choice(texts)
        at, other = sorted((rng.randrange(len(text)), rng.randrange(len(text))))
        match rng.randrange(5):
            case 0:
                yield text[:at] + rng.choice(TEXTS) + text[at:]
            case 1:
                yield text[:at] + text[at + rng.randrange(1, 8) :]
            case 2:
                yield text[:at] + chr(rng.choice([rng.randrange(128), rng.randrange(0x3000)])) + text[at + 1 :]
            case 3:
                lines = text.splitlines(keepends=True)
                rng.shuffle(lines)
                yield "".join(lines)
            case _:
                yield text[:at] + text[other : other + 40] + text[at:]


def byte_mutants(trees: list[dict[str, Any]], rng: random.Random) -> Iterator[bytes]:
    texts = [dump(tree).encode() for tree in trees]
    for _ in range(ROUNDS):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])


def errors_of(text: str | bytes, catalogue: Catalogue, overrides: tuple[str, ...] = ()) -> tuple[Diagnostic, ...]:
    """The errors of a mutant. Any exception but a SpecError fails the test."""
    try:
        parse_spec(text, catalogue, overrides, "a.yaml")
    except SpecError as error:
        return error.diagnostics
    return ()


@pytest.mark.parametrize("mutants", [tree_mutants, text_mutants, byte_mutants])
def test_no_mutant_ends_in_a_traceback(mutants: Any, trees: list[dict[str, Any]], catalogue: Catalogue) -> None:
    refused = 0
    for number, mutant in enumerate(mutants(trees, random.Random(20170612))):
        diagnostics = errors_of(mutant, catalogue)
        refused += bool(diagnostics)
        for diagnostic in diagnostics:
            assert diagnostic.code in CODES
            assert diagnostic.location is not None
            assert diagnostic.location.file == "a.yaml"
            assert diagnostic.message
            assert len(str(diagnostic)) < 2000
        if not diagnostics and number % 10 == 0:
            spec = parse_spec(mutant, catalogue)
            assert parse_spec(to_yaml(spec), catalogue) == spec
    assert ROUNDS / 4 < refused < ROUNDS


def test_no_override_ends_in_a_traceback(trees: list[dict[str, Any]], catalogue: Catalogue) -> None:
    rng = random.Random(3)
    text = dump(trees[-2])
    paths = [
        "defaults",
        "nodes",
        "outputs",
        "encoder",
        "layers",
        "0",
        "norm",
        "kind",
        "sublayers",
        "attention",
        "eps",
        "name",
        "x",
    ]
    refused = 0
    for _ in range(400):
        path = ".".join(rng.choices(paths, k=rng.randrange(1, 5)))
        value = yaml.safe_dump(rng.choice(VALUES), default_flow_style=True).strip()
        diagnostics = errors_of(text, catalogue, (f"{path}={value}",))
        refused += bool(diagnostics)
        assert all(diagnostic.location is not None and diagnostic.code in CODES for diagnostic in diagnostics)
    assert 100 < refused <= 400
