"""From a spec to a model: weights that depend on the seed and the parameter's name alone, memory allocated once, and clear
refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.builtin.norm.entries import LayerNormOptions
from tfkit.plugin import Norm, hookimpl

SPECS = Path(__file__).parents[1] / "specs"
SPEC = """
tfkit: 1
name: small
defaults:
  d_model: 64
  vocab_size: 400
  position: {position}
  placement: {placement}
  norm: layer_norm
  attention: {{num_heads: 4}}
  ffn: {{d_ff: 96, activation: {activation}}}
  init: {init}
nodes:
  source:  {{kind: tokens}}
  target:  {{kind: tokens, share: source, start_id: 1, end_id: 2}}
  encoder: {{kind: stack, input: source, num_layers: 2}}
  decoder: {{kind: stack, input: target, memory: encoder, num_layers: {layers}, causal: true}}
  logits:  {{kind: token_logits, input: decoder, share: source}}
outputs: [logits]
"""
USUAL = {"position": "sinusoidal", "placement": "post", "activation": "relu", "layers": "2", "init": "xavier"}


def spec_of(catalogue: tfkit.Catalogue, **changes: str) -> tfkit.ModelSpec:
    return tfkit.parse_spec(SPEC.format(**{**USUAL, **changes}), catalogue)


def test_the_same_seed_gives_the_same_weights_whatever_else_was_drawn(catalogue: tfkit.Catalogue) -> None:
    first = tfkit.build(spec_of(catalogue), catalogue, seed=1).state_dict()
    torch.rand(7)
    before = torch.get_rng_state()
    second = tfkit.build(spec_of(catalogue), catalogue, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    other = tfkit.build(spec_of(catalogue), catalogue, seed=2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    drawn = [name for name, tensor in first.items() if len(tensor.unique()) > 1]
    assert len(drawn) > 20
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


@pytest.mark.parametrize(
    "change",
    [{"position": "rotary_half"}, {"activation": "swiglu"}, {"placement": "pre"}, {"layers": "5"}, {"position": "relative_t5"}],
    ids=str,
)
def test_changing_one_part_leaves_the_other_weights_as_they_were(change: dict[str, str], catalogue: tfkit.Catalogue) -> None:
    before = tfkit.build(spec_of(catalogue), catalogue, seed=1).state_dict()
    after = tfkit.build(spec_of(catalogue, **change), catalogue, seed=1).state_dict()
    both = set(before) & set(after)
    assert len(both) >= len(before) - 8
    assert set(before) != set(after) or change in ({"position": "rotary_half"},)
    assert [name for name in both if not torch.equal(before[name], after[name])] == []


def test_no_two_tensors_are_drawn_alike(catalogue: tfkit.Catalogue) -> None:
    state = tfkit.build(spec_of(catalogue), catalogue).state_dict()
    firsts = [tensor.flatten()[:8] / tensor.std() for tensor in state.values() if len(tensor.unique()) > 1]
    for index, one in enumerate(firsts):
        assert not any(torch.allclose(one, other, rtol=1e-3) for other in firsts[index + 1 :])


@pytest.mark.parametrize("init", ["xavier", "{kind: normal, std: 0.02}", "t5"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_hold_the_same_numbers_rounded(dtype: torch.dtype, init: str, catalogue: tfkit.Catalogue) -> None:
    single = tfkit.build(spec_of(catalogue, init=init), catalogue).state_dict()
    other = tfkit.build(spec_of(catalogue, init=init), catalogue, dtype=dtype).state_dict()
    assert {tensor.dtype for tensor in other.values()} == {dtype}
    assert all(torch.equal(single[name].to(dtype), tensor) for name, tensor in other.items())


def test_deepnorm_gains_come_from_both_depths(catalogue: tfkit.Catalogue) -> None:
    plain = tfkit.build(spec_of(catalogue), catalogue).state_dict()
    deep = tfkit.build(spec_of(catalogue, placement="deepnorm"), catalogue).state_dict()
    for stack, gain in (("encoder", 0.87 * (2**4 * 2) ** (-1 / 16)), ("decoder", (12 * 2) ** -0.25)):
        for layer in range(2):
            for part, factor in (("query", 1.0), ("key", 1.0), ("value", gain), ("output", gain)):
                name = f"nodes.{stack}.layers.{layer}.branches.self_attention.{part}.weight"
                torch.testing.assert_close(deep[name], plain[name] * factor)
            for part in ("input", "output"):
                name = f"nodes.{stack}.layers.{layer}.branches.ffn.{part}.weight"
                torch.testing.assert_close(deep[name], plain[name] * gain)


def test_a_path_is_enough(catalogue: tfkit.Catalogue) -> None:
    model = tfkit.build(str(SPECS / "transformer-tiny.yaml"), device="meta")
    assert model.parameter_count() == 2_605_056
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_one_backend_for_all_sites(catalogue: tfkit.Catalogue) -> None:
    model = tfkit.build(spec_of(catalogue), catalogue, backend=[{"kind": "sdpa", "kernel": "math"}, "eager"])
    assert set(model.sites.values()) == {"sdpa, eager"}
    with pytest.raises(tfkit.SpecError, match=r"TFK012.*did you mean `eager`"):
        tfkit.build(spec_of(catalogue), catalogue, backend="eagre")
    with pytest.raises(tfkit.BackendRefused) as refused:
        tfkit.build(spec_of(catalogue, position="alibi"), catalogue, backend="cudnn")
    assert len(refused.value.diagnostics) == 4  # cuDNN has no bias on any device


def test_a_device_that_is_not_there(catalogue: tfkit.Catalogue, gpu: Callable[[bool], None]) -> None:
    gpu(False)
    with pytest.raises(tfkit.TfkitError, match="TFK046"):
        tfkit.build(spec_of(catalogue), catalogue, device="cuda")


def test_a_model_larger_than_the_memory_is_refused_with_both_numbers(catalogue: tfkit.Catalogue) -> None:
    text = SPEC.format(**USUAL).replace("vocab_size: 400", "vocab_size: 90000000000")
    spec = tfkit.parse_spec(text, catalogue)
    with pytest.raises(
        tfkit.TfkitError, match=r"TFK045.*parameters need 23,04\d,\d{3},\d{3},\d{3} bytes in torch.float32.*has [\d,]+"
    ):
        tfkit.build(spec, catalogue)


class Liar:
    """A plugin whose norm has a weight that its entry does not list."""

    @hookimpl
    def tfkit_norms(self) -> list[Norm]:
        return [
            Norm(
                name="test.liar",
                summary="",
                options=LayerNormOptions,
                parameters=lambda options, width: (),
                build="tfkit.builtin.norm.norms:layer_norm",
            ),
            Norm(name="test.broken", summary="", parameters=lambda options, width: (), build="tfkit_test.nowhere:build"),
        ]


class Buffered(torch.nn.Module):
    """A norm that keeps a number which is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))


def buffered(options: object, width: int) -> torch.nn.Module:
    return Buffered()


def test_a_module_with_a_buffer_is_refused(catalogue: tfkit.Catalogue) -> None:
    class TrainingLoop:
        @hookimpl
        def tfkit_norms(self) -> list[Norm]:
            return [Norm(name="test.keeper", summary="", parameters=lambda options, width: (), build="tfkit_keeper:buffered")]

    sys.modules["tfkit_keeper"] = sys.modules[__name__]
    wide = catalogue.with_plugin(TrainingLoop(), "test")
    spec = tfkit.parse_spec(SPEC.format(**USUAL).replace("layer_norm", "test.keeper"), wide)
    with pytest.raises(tfkit.BuildError, match=r"TFK054.*count` is a buffer"):
        tfkit.build(spec, wide)


def test_a_module_that_differs_from_its_entry_is_refused(catalogue: tfkit.Catalogue) -> None:
    wide = catalogue.with_plugin(Liar(), "test")
    spec = tfkit.parse_spec(SPEC.format(**USUAL).replace("layer_norm", "test.liar"), wide)
    with pytest.raises(
        tfkit.TfkitError, match=r"TFK054.*norms\.cross_attention\.bias` is \(64,\) in the module, missing in its entry"
    ):
        tfkit.build(spec, wide)
    broken = tfkit.parse_spec(SPEC.format(**USUAL).replace("layer_norm", "test.broken"), wide)
    with pytest.raises(tfkit.PluginError, match=r"TFK053.*tfkit_test"):
        tfkit.build(broken, wide)


PEAK = """
import os, resource, sys, tfkit
def peak():
    if not os.path.exists("/proc/self/status"):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/status") as status:  # unlike ru_maxrss it does not start at what the parent used
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
catalogue = tfkit.load_catalogue()
def build(vocab_size):
    spec = tfkit.parse_spec(sys.argv[1].replace("vocab_size: 400", f"vocab_size: {vocab_size}"), catalogue)
    return tfkit.build(spec, catalogue)
build(10)
before = peak()
model = build(500_000)
size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
print((peak() - before) / size)
"""


@pytest.mark.slow
def test_memory_is_allocated_once() -> None:
    """128 MB of parameters, nearly all in one table: the peak above a first small build is their own size."""
    run = subprocess.run([sys.executable, "-c", PEAK, SPEC.format(**USUAL)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert 0.9 < float(run.stdout) < 1.3
