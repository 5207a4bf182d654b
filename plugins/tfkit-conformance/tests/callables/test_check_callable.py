"""Plain functions of each form: the correct ones pass, the wrong ones fail and are described in their author's terms."""

from dataclasses import replace
from functools import partial

import functions
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from suite_reports import share_relations
from tfkit import InputError
from tfkit_conformance import (
    Case,
    FunctionCall,
    FunctionUnderTest,
    Inconclusive,
    Violation,
    check_callable,
    function_under_test,
    replay,
)
from tfkit_conformance.callables.check import signature_named
from tfkit_conformance.callables.dense import DENSE
from tfkit_conformance.callables.flash import FLASH
from tfkit_conformance.callables.locate import function_named, transformers_function
from tfkit_conformance.callables.probe import PLAIN, probe
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.suite.again import run_check

RIGHT = {
    "sdpa": (scaled_dot_product_attention, "sdpa"),
    "only causal": (functions.only_causal, "sdpa"),
    "flash": (functions.flash, "flash_attn"),
    "varlen": (functions.varlen, "flash_attn_varlen"),
    "additive": (functions.added, "additive_mask"),
    "xformers": (functions.efficient, "xformers"),
    "numpy": (functions.arrays, "numpy"),
}
REFUSED = {
    "only causal": {"padding", "mask", "bias", "bias_backward", "gqa", "dropout"},
    "varlen": {"window", "bias", "softcap", "dropout", "lse"},
    "additive": {"gqa"},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "number"), [("sdpa", 0), ("flash", 1), ("varlen", 2)])
def test_correct_functions_are_conformant(name, number, monkeypatch):
    share_relations(monkeypatch, number)
    report = check_callable(*RIGHT[name], dtypes=["float32"])
    report.raise_for_failures()
    assert (report.verdict, report.function["wrong"]) == ("CONFORMANT", {}), report.missing


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "number"), [("eager", 0), ("sdpa", 1)])
def test_functions_of_transformers_are_conformant(name, number, monkeypatch):
    share_relations(monkeypatch, number, 2)
    report = check_callable(transformers_function(name), "huggingface", dtypes=["float32"])
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"
    assert {"causal", "padding", "mask", "gqa", "dropout", "backward"} <= set(report.function["supports"])


def square(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if query.shape[2] != key.shape[2]:
        raise ValueError("as many queries as keys")
    return scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale)


@pytest.mark.slow
def test_a_function_that_needs_as_many_queries_as_keys_is_conformant():
    report = check_callable(square, "sdpa", dtypes=["float32"])
    report.raise_for_failures()
    assert {"causal", "mask", "padding", "backward"} <= {*report.function["supports"]}


def reentrant(query, key, value, attn_mask=None, is_causal=False, scale=None):
    def attend(query, key, value):
        return scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale)

    return checkpoint(attend, query, key, value, use_reentrant=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_function_that_checkpoints_reentrantly_has_its_gradients():
    found = probe(function_under_test(reentrant, "sdpa"), None, ["float32"])
    assert found.wrong == {}
    assert "backward" in found.function.supports


@pytest.mark.parametrize("form", [form.name for form in (*DENSE, *FLASH)])
def test_no_call_is_written_with_far_more_numbers_than_it_has(form):
    function = FunctionUnderTest("acme", functions.flash, signature_named(form), frozenset(signature_named(form).features))
    case = Case(B=1, H=2, G=2, Q=4, K=6, causal=True)
    for offset in (0, 2, 2**15, 2**24 + 1, -3, -(2**15), -(2**24)):
        inputs = replace(case, offset=offset).inputs()
        try:
            rendering = function.render(inputs)
        except Inconclusive:
            assert offset < -4096  # causality hides every key there
            continue
        values = [value for call in rendering.calls for value in (*call.arguments, *call.keywords.values())]
        assert sum(value.numel() for value in values if isinstance(value, torch.Tensor)) < 1 << 20


@pytest.mark.slow
def test_a_function_of_jax_is_conformant():
    jax = pytest.importorskip("jax", reason="jax is not among the test dependencies: the test is for machines that have it")
    found = probe(function_under_test(jax.nn.dot_product_attention, "numpy"), None, ["float32"])
    assert found.wrong == {}
    assert {"causal", "padding", "mask", "bias", "gqa"} <= found.function.supports


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_tiny_calls_find_what_a_function_supports(name):
    function, signature = RIGHT[name]
    found = probe(function_under_test(function, signature), None, ["float32"])
    assert found.wrong == {}
    assert found.function.supports | found.refused.keys() == {*signature_named(signature).features, "strides"}
    assert found.refused.keys() == REFUSED.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("errors", "features", "wrong", "message"),
    [
        ({"right": 1}, ["window"], {"window": "sees key 3; it must not"}, "sees key"),
        (
            {"interleaved": True},
            ["gqa"],
            {"gqa": "query head 1 of batch row 0 does not read key/value head 0"},
            "does not read",
        ),
        ({"top_left": True}, ["causal"], {"causal": "the form aligns the last query to the last key"}, "key"),
        ({"forgets_scale": True}, ["gqa"], {PLAIN: "leaves the softmax scale out"}, "the reference"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else "",
)
def test_wrong_functions_are_described(errors, features, wrong, message):
    attention = partial(functions.flash, **errors)
    report = check_callable(attention, "flash_attn", supports=features, dtypes=["float32"], name="mine:attention",
                            stop_at_first=True)  # fmt: skip
    assert report.verdict == "NONCONFORMANT"
    assert report.function["wrong"].keys() == wrong.keys()
    assert all(words in report.function["wrong"][name] for name, words in wrong.items())
    (found,) = report.findings
    assert message in found.message
    assert "layout (B, S, H, D): output[" in found.call
    assert "attention(q=float32 (" in found.call
    assert "from mine import attention" in found.snippet


@pytest.mark.slow
def test_ignored_borders_of_sequences_fail():
    attention = partial(functions.varlen, ignores_borders=True)
    report = check_callable(attention, "flash_attn_varlen", supports=["padding"], dtypes=["float32"], stop_at_first=True)
    assert report.verdict == "NONCONFORMANT"
    assert "cu_seqlens_k=[0, " in report.findings[0].call


@pytest.mark.slow
def test_an_ignored_mask_is_a_failure_although_nothing_was_declared():
    report = check_callable(functions.without_padding, "sdpa", dtypes=["float32"], stop_at_first=True)
    assert report.verdict == "NONCONFORMANT"
    assert {"padding": "it has no effect", "mask": "it has no effect"}.items() <= report.function["wrong"].items()
    said = {found.message: found for found in report.findings if found.check == "arguments"}
    padding = said["takes padding and ignores it: the output is the same without it"]
    assert "attn_mask=bool (2, 1, 4, 6)" in padding.call
    assert "padding" not in report.function["declaration"]


def test_a_gradient_that_is_lost_counts_as_refused():
    def detached(query, key, value):
        return scaled_dot_product_attention(query, key, value).detach()

    found = probe(function_under_test(detached, "sdpa"), None, ["float32"])
    assert found.refused["backward"] == "its output carries no gradient"
    assert found.refused["padding"] == "it has no parameter attn_mask"
    assert found.refused["gqa"].startswith("RuntimeError")


def test_dropout_that_is_not_scaled_fails():
    function = function_under_test(partial(functions.flash, scaled_dropout=False), "flash_attn", supports=["dropout"])
    case = Case(B=1, H=2, G=2, Q=2, K=4, D=8, V=8, dropout=0.5)
    with pytest.raises(Violation, match="neither 0 nor its weight times 2 under dropout"):
        run_check(function.subject, case, "A7 kept_weights_are_scaled")


def test_a_default_scale_may_be_rounded_at_another_place_than_a_given_one():
    """ONNX's attributes are float32, and its default scale is not."""

    def attention(query, key, value, attn_mask=None, scale=None):
        kept = (query.shape[-1] ** -0.5) ** 0.5 if scale is None else torch.tensor(scale, dtype=torch.float32).item() ** 0.5
        return scaled_dot_product_attention(query * kept, key * kept, value, attn_mask, scale=1.0)

    function = function_under_test(attention, "sdpa", supports=["mask"])
    (relation,) = (each for each in RELATIONS if each.label == "R7 query_against_scale")
    case = relation.adapt(Case(B=1, H=2, G=2, Q=3, K=4, D=80, V=80), function.subject)
    run_check(function.subject, case, relation.label)


def test_another_form_of_an_author():
    """Keys and values in one tensor, heads last."""

    def render(inputs, takes):
        rendering = signature_named("additive_mask").render(inputs, takes)
        (query, key, value, mask), pair = rendering.calls[0].arguments, {}
        return replace(rendering, calls=(FunctionCall((query, torch.stack([key, value]), mask), pair),))

    form = replace(signature_named("additive_mask"), name="stacked", definition="attention(q, kv, mask)", render=render)
    right = function_under_test(lambda q, kv, mask: functions.added(q, *kv, mask), form, supports=["causal"])
    wrong = function_under_test(lambda q, kv, mask: functions.added(q, *kv.flip(0), mask), form, supports=["causal"])
    case = Case(B=2, H=3, G=3, Q=4, K=6, D=8, V=8, causal=True, offset=2)
    assert replay(right.subject, case) == "passed"
    assert replay(wrong.subject, case).startswith("support: query row")


@pytest.mark.parametrize(
    ("function", "signature", "supports", "words"),
    [
        (functions.flash, "flash_atn", (), "there is no signature `flash_atn`. did you mean `flash_attn`?"),
        (functions.flash, "flash_attn", ["casual"], "has no feature `casual`. did you mean `causal`?"),
        (
            functions.fixed_shape,
            "sdpa",
            (),
            "cannot be called as sdpa: too many positional arguments. Its parameters: image, text",
        ),
    ],
)
def test_bad_input_is_named(function, signature, supports, words):
    with pytest.raises(InputError) as caught:
        function_under_test(function, signature, supports=supports)
    (said,) = caught.value.diagnostics
    assert words in f"{said.message}. {said.fix}"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("no_such_module_here:attention", "there is no module `no_such_module_here`"),
        ("functions:flsh", "`functions` has no `flsh`. did you mean `flash`?"),
        ("functions:NOT_A_FUNCTION", "is a int, not a function"),
        ("functions", "is not MODULE:NAME"),
        ("../functions:flash", "is not MODULE:NAME"),
    ],
)
def test_bad_names_are_named(target, words):
    with pytest.raises(InputError) as caught:
        function_named(target)
    (said,) = caught.value.diagnostics
    assert words in f"{said.message}. {said.fix}"


def recurses(query, key, value, **others):
    return recurses(query, key, value, **others)


def raises(query, key, value, **others):
    raise ValueError("no kernel")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises, "ValueError: no kernel"), (recurses, "RecursionError: maximum recursion depth"),
        (lambda query, key, value, **others: None, "NoneType"), (lambda query, key, value, **others: "x", "str"),
    ],
    ids=["raises", "recurses", "none", "text"],
)  # fmt: skip
def test_a_function_that_gives_no_answer_is_described(function, words):
    report = check_callable(function, "sdpa", supports=["causal"], dtypes=["float32"], stop_at_first=True)
    assert report.verdict == "NONCONFORMANT"
    assert words in report.findings[0].message
