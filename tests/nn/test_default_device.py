"""torch's default device (`torch.set_default_device`, `with torch.device(...)`) changes nothing in a model elsewhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.cpu import bfloat16, float32, int8, products
from tfkit.plugin import Mask, Shapes
from tfkit.plugin.flash_calls import flash_calls

ROOT = Path(__file__).parents[2]
SOURCE, TARGET = torch.tensor([[3, 4, 5, 6], [4, 5, 0, 0]]), torch.tensor([[1, 4, 5], [1, 4, 0]])
FACTORIES = {
    "arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "randint",
    "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip
ON_META = ("tfkit/builtin/node/node_builders.py", "tfkit/builtin/sublayer/sublayer_builders.py")
"""Modules are made within `torch.device("meta")`, as are those of a constructor."""


@contextmanager
def set_globally() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


DEFAULTS = {"set_default_device": set_globally, "with torch.device": lambda: torch.device("meta")}


def everything(model: Model) -> list[Tensor]:
    """A training step, and the tokens of all searches."""
    torch.manual_seed(1)
    loss = model.train()(source=SOURCE, target=TARGET, labels=TARGET).loss
    loss.backward()
    model.eval()
    greedy = tfkit.greedy(model, source=SOURCE, max_new_tokens=4)
    [[beam, *_], _] = tfkit.beam_search(model, source=SOURCE, max_new_tokens=4, beams=3)
    [[sample], _] = tfkit.sample(model, source=SOURCE, max_new_tokens=4, seed=1)
    [[batched, *_], _] = tfkit.generate_batched(model, [[3, 4], [5, 6, 7]])
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [loss.detach(), *gradients, model(source=SOURCE, target=TARGET).logits.detach(), greedy.ids, beam.ids, sample.ids,
            batched.ids]  # fmt: skip


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("backend", ["eager", "sdpa", "auto"])
def test_training_and_searches_are_those_without_it(
    backend: str, default: str, spec_of: Callable[..., tfkit.ModelSpec]
) -> None:
    spec = spec_of("encoder-decoder", "defaults.dropout=0.3")
    wanted = everything(tfkit.build(spec, backend=backend))
    with DEFAULTS[default]():
        found = everything(tfkit.build(spec, backend=backend, device="cpu"))
    assert [tensor.device.type for tensor in found] == ["cpu"] * len(found)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_model_is_built_there(spec_of: Callable[..., tfkit.ModelSpec]) -> None:
    with torch.device("meta"):
        assert tfkit.build(spec_of()).device.type == "meta"
        assert tfkit.build(spec_of(), device="cpu").device.type == "cpu"
    assert tfkit.build(spec_of()).device.type == "cpu"


def test_packed_calls_with_hidden_keys_are_those_without_it() -> None:
    shapes = Shapes(2, 2, 3, 5, torch.float32, torch.device("cpu"))
    visible = torch.tensor([[True, False, True, True, False], [False, True, True, True, True]])
    mask = Mask(causal=True, offset=2, key_visible=visible, key_lengths=torch.tensor([4, 5]))
    wanted = flash_calls(mask, shapes)
    with torch.device("meta"):
        found = flash_calls(mask, shapes)
    assert len(found.calls) == len(wanted.calls) > 0
    for one, other in zip(found.calls, wanted.calls, strict=True):
        assert one.sequences == other.sequences
        assert one.key_index is not None
        assert other.key_index is not None
        assert one.key_index.tolist() == other.key_index.tolist()


def test_kernels_are_probed_on_the_processor(catalogue: tfkit.Catalogue) -> None:
    def probes() -> list[object]:
        return [
            products.probe() is None,
            products.probe_packing() is None,
            bfloat16.is_right(),
            *(float32.is_supported.__wrapped__(kernel) for kernel in catalogue.entries("float32_kernel")),
            *(int8.is_supported.__wrapped__(kernel) for kernel in catalogue.entries("int8_kernel")),
        ]

    wanted = probes()
    with torch.device("meta"):
        assert probes() == wanted


@pytest.mark.slow
def test_importing_under_it_changes_nothing() -> None:
    program = (
        "import torch; torch.set_default_device('meta'); from tfkit.cpu import products; "
        "torch.set_default_device(None); print(products.are_plain(torch.ones(1)), products.MULTIPLY is not None)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.split() == ["True", str(products.MULTIPLY is not None)]


def without_device(path: Path) -> Iterator[str]:
    """The calls of torch's factories outside of constructors that name no device."""

    def walk(node: ast.AST, function: str) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and isinstance(child.func.value, ast.Name):
                named = any(keyword.arg in ("device", "out", None) for keyword in child.keywords)
                if child.func.value.id == "torch" and child.func.attr in FACTORIES and not named and inner != "__init__":
                    yield child
            yield from walk(child, inner)

    for call in walk(ast.parse(path.read_text(encoding="utf-8")), ""):
        yield f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"


def test_every_tensor_names_its_device() -> None:
    roots = [ROOT / "tfkit", *ROOT.glob("plugins/tfkit-[!c]*/tfkit_*")]
    paths = [path for root in roots for path in root.rglob("*.py") if not path.as_posix().endswith(ON_META)]
    assert len(paths) > 100
    assert [call for path in paths if "starters" not in path.parts for call in without_device(path)] == []
