"""Kernels in the form of Hugging Face's hub: checkouts with sources or builds, functions and layers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tfkit import InputError
from tfkit_conformance.callables.hub_kernel import hub_function

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "hub-kernel"
METADATA = {
    "name": "plain-attention", "id": "plain_attention_cpu_1", "version": 1, "license": "Apache-2.0", "python-depends": [],
    "backend": {"type": "cpu"},
}  # fmt: skip


@pytest.fixture
def build(tmp_path):
    """A checkout with a build for any version of torch on a CPU, which the library `kernels` finds."""
    variant = tmp_path / "checkout" / "build" / "torch-cpu"
    shutil.copytree(EXAMPLE / "torch-ext" / "plain_attention", variant)
    # The library names the module by its id, and every module has its own.
    (variant / "metadata.json").write_text(json.dumps({**METADATA, "id": f"plain_attention_{abs(hash(tmp_path))}"}))
    return variant.parents[1]


@pytest.mark.parametrize("name", ["flash_attn_func", "layers.Attention", "attention.flash_attn_func"])
@pytest.mark.parametrize("built", [False, True], ids=["torch-ext", "build"])
def test_functions_and_layers_are_those_of_the_kernel(name, built, build):
    function = hub_function(f"{build if built else EXAMPLE}:{name}")
    q, k, v = torch.randn(3, 2, 5, 4, 8)
    wanted = scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(function(q, k, v, causal=True), wanted)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("flash_attn_func", "is not DIR:FUNCTION"),
        ("{here}:flash-attn", "is not DIR:FUNCTION"),
        ("{here}/nowhere:flash_attn_func", "there is no directory"),
        ("{here}:flash_attn_func", "has neither `torch-ext` nor `build`"),
        ("{example}:flash_attn_fun", "did you mean `flash_attn_func`?"),
        ("{example}:layers.Attentions", "did you mean `Attention`?"),
        ("{example}:__all__", "is a list, not a function"),
        ("{two}:f", "has 2 packages: one, two"),
        ("{broken}:f", "importing `broken_kernel` raised ZeroDivisionError"),
        ("{empty}:f", "cannot be loaded: .*Cannot find a build variant"),
    ],
)
def test_what_is_no_kernel_is_an_error(target, words, tmp_path):
    for name in ("two/torch-ext/one", "two/torch-ext/two", "broken/torch-ext/broken_kernel"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("1 / 0\n")
    (tmp_path / "empty" / "build").mkdir(parents=True)
    places = {name: tmp_path / name for name in ("two", "broken", "empty")}
    with pytest.raises(InputError, match=words):
        hub_function(target.format(here=tmp_path, example=EXAMPLE, **places))


@pytest.mark.slow
def test_a_wrong_kernel_fails_and_is_replayed(tfkit, build, tmp_path):
    file = build / "build" / "torch-cpu" / "attention.py"
    file.write_text(file.read_text().replace("seen.tril(k.shape[1] - q.shape[1])", "seen.tril()"))
    report, junit = tmp_path / "report.json", tmp_path / "report.xml"
    target = ("--hf-kernel", f"{build}:flash_attn_func")
    done = tfkit("conformance", *target, "--profile", "quick", "--dtype", "float32", "--json", report, "--junit", junit)
    assert done.code == 1
    assert "it aligns the first query to the first key" in " ".join(done.out.split())
    assert int(ElementTree.parse(junit).getroot()[0].get("failures")) > 0
    again = tfkit("conformance", *target, "--replay", report, "--json", "-")
    assert {row["status"] for row in again.json()["replayed"] if row["case"]} == {"failed"}


def test_a_name_that_says_no_form_needs_a_signature(tfkit):
    done = tfkit("conformance", "--hf-kernel", f"{EXAMPLE}:layers.Attention")
    assert (done.code, "--hf-kernel needs --signature" in done.err) == (2, True)
    done = tfkit("conformance", "--hf-kernel", f"{EXAMPLE}:flash_attn_func", "--callable", "a:b", "--signature", "sdpa")
    assert (done.code, "--callable and --hf-kernel exclude each other" in done.err) == (2, True)
    done = tfkit("conformance", "--badge", "badge.svg")
    assert (done.code, "--badge needs --check-certificate" in done.err) == (2, True)
