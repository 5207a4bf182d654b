"""A11: a backend that is asked for is used or refused, with every reason; only `auto` and lists fall back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import BackendRefused, Model, SpecError
from tfkit.plugin import AttentionBackend, Capabilities, Device, Range, hookimpl


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    return {"source": ids_of(2, 9, 1), "target": ids_of(2, 8, 2)}


@pytest.fixture
def used(model_of: Callable[..., Model]) -> Callable[..., dict[str, str]]:
    """Which backend every site really called: by the functions that are bound, not by what the model says of itself."""

    def run(model: Model, **inputs: Any) -> dict[str, str]:
        called: dict[str, str] = {}
        for attention, index, site in model.attention_sites():
            choice = attention.choices[index]

            def spying(bound: Any, site: str = site) -> Any:
                def attend(call: Any, options: Any) -> Any:
                    called[site] = bound.kind
                    return bound.attend(call, options)

                return type(bound)(bound.entry, bound.options, attend, bound.prepare, bound.name)

            choice.candidates = tuple(spying(bound) for bound in choice.candidates)
        model(**inputs)
        return called

    return run


def test_a11_one_site_a_pattern_or_all(
    model_of: Callable[..., Model], pair: dict[str, Tensor], used: Callable[..., dict[str, str]]
) -> None:
    model = model_of(backend="eager")
    model.set_backend("sdpa", "decoder.*")
    model.set_backend({"kind": "sdpa", "kernel": "math"}, ["encoder.1.self_attention"])
    called = used(model, **pair)
    assert called == {site: "sdpa" if "decoder" in site or "encoder.1" in site else "eager" for site in model.sites}
    assert model.sites == called
    assert model.requested_backends["encoder.1.self_attention"] == [{"kind": "sdpa", "kernel": "math"}]
    model.set_backend("eager")
    assert set(used(model, **pair).values()) == {"eager"}


@pytest.mark.slow
def test_a11_a_list_falls_back_in_its_order(
    model_of: Callable[..., Model], pair: dict[str, Tensor], used: Callable[..., dict[str, str]]
) -> None:
    model = model_of("encoder-decoder", "defaults.attention.softcap=5.0", backend=["sdpa", "flex", "eager"])
    with torch.no_grad():
        assert set(used(model, **pair).values()) == {"flex"}
    assert set(used(model.train(), **pair).values()) == {"eager"}  # flex has no backward on the CPU
    assert set(model.sites.values()) == {"sdpa, flex, eager"}


def test_a11_auto_takes_the_measured_best_by_class_of_lengths(
    catalogue: tfkit.Catalogue,
    model_of: Callable[..., Model],
    ids_of: Callable[..., Tensor],
    used: Callable[..., dict[str, str]],
) -> None:
    from tfkit.attention.selection import ranked
    from tfkit.plugin import AttentionRequest

    model = model_of("decoder", "body.num_layers=1")
    for gradients in (False, True):
        for length in (3, 40, 100, 300):
            request = AttentionRequest(
                device="cpu", dtype="float32", head_dim=4, value_dim=4, queries=length, keys=length,
                mask_terms=frozenset({"causal"}), gradients=gradients,
            )  # fmt: skip
            candidates = [(entry, entry.options()) for entry in catalogue.entries("backend") if entry.auto]
            best = next(candidates[index][0].name for index, verdict in ranked(candidates, request, True) if verdict.accepted)
            with torch.set_grad_enabled(gradients):
                assert used(model, tokens=ids_of(1, length)) == {"body.0.self_attention": best}


def test_a11_a_refusal_names_every_reason_and_who_would_work(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of("encoder-decoder", "defaults.attention.softcap=5.0")
    with pytest.raises(BackendRefused) as refused:
        model.set_backend([{"kind": "sdpa", "kernel": "cudnn"}], "decoder.0.*")
    text = str(refused.value)
    assert "TFK060" in text
    assert [diagnostic.path for diagnostic in refused.value.diagnostics] == [
        "decoder.0.self_attention",
        "decoder.0.cross_attention",
    ]
    assert "softcap is not declared" in text
    assert "eager" in text
    assert set(model.sites.values()) == {"auto"}


@pytest.mark.slow
def test_a11_call_dependent_limits_are_refused_at_the_call(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of(backend="flex").train()
    with pytest.raises(BackendRefused, match=r"TFK060.*encoder\.0\.self_attention.*no backward.*eager"):
        model(**pair)
    with torch.no_grad():
        model(**pair)


@pytest.mark.parametrize(
    "requested", ["spda", {"kind": "sdpa", "kernal": "math"}, {"kind": "sdpa", "kernel": "fast"}, [], 3, None, {}]
)
def test_an_invalid_backend_request_is_an_error_and_changes_nothing(requested: Any, model_of: Callable[..., Model]) -> None:
    model = model_of(backend="eager")
    with pytest.raises(SpecError) as error:
        model.set_backend(requested)
    assert error.value.diagnostics[0].code.startswith("TFK0")
    if requested == "spda":
        assert "did you mean `sdpa`" in str(error.value)
    assert set(model.sites.values()) == {"eager"}


def test_an_unknown_site_is_an_error(model_of: Callable[..., Model]) -> None:
    with pytest.raises(tfkit.InputError, match="TFK076"):
        model_of().set_backend("eager", "decoder.7.*")


def test_weights_stay_and_training_goes_on_after_a_swap(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    model = model_of().train()
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    model.set_backend("sdpa")
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])


class Narrow:
    """A backend with a limit on each axis, so that refusals depend on lengths."""

    @hookimpl
    def tfkit_attention_backends(self) -> list[AttentionBackend]:
        can = Capabilities(
            devices=(Device(kind="cpu"),), dtypes={"float32"}, head_dim=Range(multiple=4), query_length=Range(maximum=8),
            key_length=Range(multiple=2), mask_terms={"causal", "key_visible"}, backward=True,
        )  # fmt: skip
        return [
            AttentionBackend(name="test.narrow", summary="", attend="tfkit.builtin.attention.eager:attend", capabilities=can)
        ]


def test_a11_length_limits_are_checked_for_each_call(
    catalogue: tfkit.Catalogue, spec_of: Callable[..., tfkit.ModelSpec], ids_of: Callable[..., Tensor]
) -> None:
    wide = catalogue.with_plugin(Narrow(), "test")
    model = tfkit.build(spec_of("decoder", "body.num_layers=1"), wide, backend="test.narrow")
    model(tokens=ids_of(1, 8))
    model(tokens=ids_of(1, 4))
    with pytest.raises(BackendRefused, match="key length 7 is outside 1 up, multiples of 2"):
        model(tokens=ids_of(1, 7))
    with pytest.raises(BackendRefused, match="query length 10 is outside 1 to 8"):
        model(tokens=ids_of(1, 10))
    model.set_backend(["test.narrow", "eager"])
    model(tokens=ids_of(1, 7))
    with pytest.raises(BackendRefused, match="head_dim 6 is outside"):
        tfkit.build(spec_of("decoder", "defaults.attention.num_heads=4"), wide, backend="test.narrow")


def test_a11_a_table_that_speaks_of_decoding_decides_for_single_queries(
    spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue, ids_of: Callable[..., Tensor], tmp_path: Path
) -> None:
    """The same model, the same lengths: one query goes to one backend, many to another."""
    rows = [{"dtypes": ["float32"], "decoding": True, "relative_time": 9.0}, {"dtypes": ["float32"], "relative_time": 0.1}]
    table = {"tfkit_auto": 1, "device": "cpu", "rows": {"sdpa": rows}}
    path = tmp_path / "auto.json"
    path.write_text(json.dumps(table))
    model = tfkit.build(spec_of("decoder"), catalogue.with_auto_table(path)).eval()

    def decided() -> set[str]:
        found = set()
        for attention, index, _ in model.attention_sites():
            choice = attention.choices[index]
            found |= {choice.candidates[number].kind for number in choice.decided.values()}
            choice.decided.clear()
        return found

    with torch.no_grad():
        state, ids = model.start(batch=2), ids_of(2, 5)
        model(tokens=ids)
        assert decided() == {"sdpa"}
        model.step(state, ids[:, :1])
        assert decided() == {"eager"}
