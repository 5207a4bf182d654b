"""A directory that is damaged, or holds no model, is an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from saved_model import FILES, rewrite
from tfkit import Model


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file_is_named(name: str, model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*{name}"):
        tfkit.load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spec.yaml", "model.safetensors", "plan.json"])
@pytest.mark.parametrize("how", ["cut off", "one byte", "emptied"])
def test_an_altered_file_is_named_with_both_sizes(how: str, name: str, model: Model, tmp_path: Path) -> None:
    path = tfkit.save(model, tmp_path / "out") / name
    content = bytearray(path.read_bytes())
    if how == "one byte":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut off": content[:-7], "one byte": content, "emptied": b""}[how])
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*{name} has [\d,]+ bytes.*SHA-256.*altered or cut off"):
        tfkit.load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"format": 1}', b'{"format": 99}', b'{"format": 1, "files": []}',
        b'{"format": 1, "files": {}, "dtype": "float32"}',
    ],
)  # fmt: skip
def test_broken_versions_are_an_error_that_names_them(content: bytes, model: Model, tmp_path: Path) -> None:
    (tfkit.save(model, tmp_path / "out") / "versions.json").write_bytes(content)
    with pytest.raises(tfkit.StoreError, match=r"TFK08[23]"):
        tfkit.load(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "load"), ("dtype", 3), ("dtype", "int8"), ("files", {"spec.yaml": {}}), ("files", "all"), ("dtype", None),
        ("contract", 0), ("contract", -1), ("torch", "2" * 501), ("python", "\x1b[31m"), ("plugins", {"a": "1\n2"}),
        ("plugins", {"a" * 501: "1"}),
    ],
)  # fmt: skip
def test_an_altered_entry_of_versions_is_an_error(key: str, value: Any, model: Model, tmp_path: Path) -> None:
    path = tfkit.save(model, tmp_path / "out") / "versions.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*versions\.json"):
        tfkit.load(tmp_path / "out")


@pytest.mark.parametrize(
    "content", [b"{}", b'{"sites": []}', b'{"sites": {"encoder.9.self_attention": ["eager"]}}', b'{"sites": {}}']
)
def test_a_plan_of_another_model_is_an_error(content: bytes, model: Model, tmp_path: Path) -> None:
    tfkit.save(model, tmp_path / "out")
    rewrite(tmp_path / "out", "plan.json", content)
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*plan\.json"):
        tfkit.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("number", "words"), [(2, "2"), (10**23, "a number of 24 digits"), (10**24 - 1, "a number of 24 digits")]
)
def test_a_later_contract_is_refused_as_a_later_format_is(number: int, words: str, model: Model, tmp_path: Path) -> None:
    for key in ("format", "contract"):
        path = tfkit.save(model, tmp_path / key) / "versions.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: number}))
        with pytest.raises(tfkit.StoreError, match=rf"TFK083.* has {key} {words}.*; load it with the tfkit that wrote it"):
            tfkit.load(tmp_path / key)


@pytest.mark.parametrize(
    ("where", "change"),
    [
        *(("lengths", {"lengths": ends}) for ends in ([-5, None], [0, None], [9, 8], [None, 8], [1], [1, 2, 3], [1, 1 << 63])),
        ("chosen", {"chosen": "<script>"}), ("chosen", {"chosen": ""}), ("chosen", {"chosen": "a" * 501}),
        ("sites", {"site": "encoder.9.self_attention"}),
    ],
)  # fmt: skip
def test_a_row_of_a_plan_that_tfkit_does_not_write_is_an_error(
    where: str, change: dict[str, Any], model: Model, tmp_path: Path
) -> None:
    plan = json.loads((tfkit.save(model, tmp_path / "out") / "plan.json").read_text())
    plan["table"][0].update(change)
    rewrite(tmp_path / "out", "plan.json", json.dumps(plan).encode())
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*plan\.json.*{where}"):
        tfkit.load(tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "value"), [("device", "\x1b[31m"), ("device", ""), ("dtype", "int8"), ("flash_implementation", "F" * 501)]
)
def test_a_fact_of_a_plan_that_tfkit_does_not_write_is_an_error(key: str, value: str, model: Model, tmp_path: Path) -> None:
    plan = json.loads((tfkit.save(model, tmp_path / "out") / "plan.json").read_text())
    rewrite(tmp_path / "out", "plan.json", json.dumps({**plan, key: value}).encode())
    with pytest.raises(tfkit.StoreError, match=rf"TFK082.*plan\.json: {key}"):
        tfkit.load(tmp_path / "out")


def test_weights_of_another_model_are_an_error(model: Model, tmp_path: Path) -> None:
    from safetensors.torch import save

    tfkit.save(model, tmp_path / "out")
    state = model.state_dict()
    name = "nodes.source.embedding.weight"
    for wrong in (
        {**state, name: state[name][:9].contiguous()},
        {key: tensor for key, tensor in state.items() if key != name},
        {**state, "more": torch.zeros(1)},
        {**state, name: state[name].double()},
    ):
        rewrite(tmp_path / "out", "model.safetensors", save(wrong))
        with pytest.raises(tfkit.StoreError, match=r"TFK082.*model\.safetensors.*(embedding|more)"):
            tfkit.load(tmp_path / "out")
    rewrite(tmp_path / "out", "model.safetensors", b"not tensors")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*model\.safetensors"):
        tfkit.load(tmp_path / "out")


@pytest.mark.parametrize("what", ["nowhere", "a file"])
def test_a_place_without_a_model_is_an_error(what: str, tmp_path: Path) -> None:
    place = tmp_path / "x"
    if what == "a file":
        place.write_text("")
    with pytest.raises(tfkit.StoreError, match=r"TFK082.*versions\.json"):
        tfkit.load(place)
