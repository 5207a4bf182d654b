"""`tfkit eject`: the written file computes what the model computes, in a process that cannot import tfkit."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import tfkit
from tfkit.interop.eject import eject
from tfkit.plugin.model_parts import FeatureRule, ImageRule, InputRule
from verification.shrunk import OVERRIDES

SPECS = Path(__file__).parents[2] / "specs"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "acme-conv"
CHILD = Path(__file__).with_name("ejected_models.py")
LENGTHS = ((7, 4, 6), (5, 5, 3), (6, 2, 4))
"""Of the rows of each input. Longer than the windows of the shrunk specs."""
QUICK = ("transformer-base", "gemma2-9b")
RUFF = "--isolated --select E,F,I,B,UP,C4,SIM,RUF,PIE,RET --ignore RUF001,RUF002,RUF003,RUF012 --line-length 128"


@pytest.fixture(scope="module")
def with_example(catalogue) -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLE))
    yield catalogue.with_plugin(importlib.import_module("acme_conv"), "acme_conv")
    sys.path.remove(str(EXAMPLE))


def random_ids(rule: InputRule, lengths: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Ids (B, L) with padding on the right, where the model has padding."""
    special = {rule.pad_id, rule.start_id, rule.end_id}
    known = [id for id in range(rule.vocab_size) if id not in special]
    ids = torch.tensor(known)[torch.randint(0, len(known), (len(lengths), max(lengths)), generator=generator)]
    if rule.start_id is not None:
        ids[:, 0] = rule.start_id
    for row, length in enumerate(lengths):
        if rule.end_id is not None:
            ids[row, length - 1] = rule.end_id
        if rule.pad_id is not None:
            ids[row, length:] = rule.pad_id
    return ids


def inputs_of(model: tfkit.Model, generator: torch.Generator) -> dict[str, Tensor]:
    found = {}
    for (name, rule), lengths in zip(model.plan.inputs.items(), LENGTHS, strict=False):
        if isinstance(rule, ImageRule):
            shape: tuple[int, ...] = (3, rule.channels, rule.size, rule.size)
        elif isinstance(rule, FeatureRule):
            shape = (3, 9, rule.size)
        else:
            found[name] = random_ids(rule, lengths, generator)
            continue
        found[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return found


def segments_of(model: tfkit.Model, inputs: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    rules = {name: rule for name, rule in model.plan.inputs.items() if isinstance(rule, InputRule) and rule.segments}
    return {name: torch.randint(0, rule.segments, inputs[name].shape, generator=generator) for name, rule in rules.items()}


def write_case(directory: Path, name: str, spec: tfkit.ModelSpec, catalogue: Any) -> None:
    """The ejected file, the weights, and what tfkit computes with them."""
    generator = torch.Generator().manual_seed(5)
    model = tfkit.build(spec, catalogue, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    inputs = inputs_of(model, generator)
    segments = segments_of(model, inputs, generator)
    outputs = dict(model(**inputs, segments=segments))
    graph = tfkit.graph_of(spec)
    weights = {}
    for output, tensor in outputs.items():
        weights[output] = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        signal = graph.nodes[output.partition(".")[0]].signal
        rule = model.plan.inputs.get(signal.tokens) if signal.length is not None else None
        if isinstance(rule, InputRule) and rule.pad_id is not None:
            real = inputs[signal.tokens] != rule.pad_id
            if rule.start_id == rule.pad_id:
                real[:, 0] = True
            weights[output] *= real[:, :, None]
    torch.stack([(outputs[key] * weights[key]).sum() for key in outputs]).sum().backward()
    facts: dict[str, Any] = {
        "inputs": inputs | ({"segments": next(iter(segments.values()))} if segments else {}),
        "outputs": {key: tensor.detach() for key, tensor in outputs.items()},
        "weights": weights,
        "gradients": {key: parameter.grad for key, parameter in model.named_parameters()},
    }
    facts |= decoded(model, inputs, spec, generator)
    text = eject(spec)
    (directory / f"{name}.py").write_text(text, encoding="utf-8")
    save_file(model.state_dict(), directory / f"{name}.safetensors")
    torch.save(facts, directory / f"{name}.pt")


def decoded(model: tfkit.Model, inputs: dict[str, Tensor], spec: tfkit.ModelSpec, generator: torch.Generator) -> dict[str, Any]:
    """What greedy decoding gives, if the model decodes."""
    logits = [name for name in model.plan.outputs if name in spec.nodes and spec.nodes[name].kind == "token_logits"]
    targets = [name for name in inputs if name not in model.plan.undecodable]
    if not logits or not targets:
        return {}
    target = targets[-1]
    rule = model.plan.inputs[target]
    prompt = torch.full((3, 1), rule.start_id) if rule.start_id is not None else torch.tensor([[3], [17], [29]])
    others = {name: value for name, value in inputs.items() if name != target}
    found = tfkit.greedy(model, prompt=prompt, max_new_tokens=6, target=target, **others)
    decoding = {name: prompt if name == target else value for name, value in inputs.items()}
    return {"decoding": decoding, "prompt": 1, "decoded": found.ids, "lengths": found.lengths.tolist()}


def check(directory: Path) -> dict[str, Any]:
    """Run the child; every file of the directory must agree and be clean."""
    done = subprocess.run([sys.executable, str(CHILD), str(directory)], capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)
    clean = subprocess.run([sys.executable, "-m", "ruff", "check", *RUFF.split(), directory], capture_output=True, text=True)
    assert clean.returncode == 0, clean.stdout
    laid_out = [sys.executable, "-m", "ruff", "format", "--isolated", "--check", "--line-length", "120", directory]
    formatted = subprocess.run(laid_out, capture_output=True, text=True)
    assert formatted.returncode == 0, formatted.stdout
    assert set(results) == {path.stem for path in directory.glob("*.py")}
    broken = {name: result for name, result in results.items()
              if result.get("worst", 1.0) > 1e-12 or result.get("left") or not result.get("greedy", True)}  # fmt: skip
    assert broken == {}
    return results


def eject_all(names: list[str], directory: Path, catalogue: Any) -> dict[str, Any]:
    for name in names:
        spec = tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, ["expect=null", *OVERRIDES[name]])
        write_case(directory, name, spec, catalogue)
        full = eject(tfkit.load_spec(SPECS / f"{name}.yaml", catalogue))
        assert len(full.splitlines()) <= 350
        (directory / "full").mkdir(exist_ok=True)
        (directory / "full" / f"{name}.py").write_text(full, encoding="utf-8")
    return check(directory)


@pytest.mark.slow
def test_ejected_files_compute_what_the_model_computes(tmp_path, catalogue):
    results = eject_all(list(QUICK), tmp_path, catalogue)
    assert all("greedy" in result for result in results.values())


@pytest.mark.slow
def test_every_shipped_spec_can_be_ejected(tmp_path, catalogue):
    results = eject_all([name for name in OVERRIDES if name not in QUICK], tmp_path, catalogue)
    assert sum("greedy" in result for result in results.values()) >= 35


APPENDED = """\
tfkit: 1
name: appended
nodes:
  tokens: {kind: tokens, d_model: 8, vocab_size: 40, embedding_norm: layer_norm, position: {%s, combine: append}}
  logits: {kind: token_logits, input: tokens, vocab_size: 40}
outputs: [logits]
"""


@pytest.mark.slow
def test_variants_that_no_shipped_spec_has_are_written(tmp_path, catalogue):
    """Local attention of a recurrent decoder, a cell with ReLU, learned positions beside the embedding, pairs counted from 1,
    positions added in every layer, a distillation token, a norm after positions that widen the stream."""
    variants = {
        "transformer-tiny": ["defaults.position={kind: learned, max_len: 9, combine: concat, d_position: 5}"],
        "transformer-prenorm": ["defaults.position={kind: sinusoidal, first_pair: 1}"],
        "gpt2": ["defaults.placement={kind: pre, residual: false}"],
        "transformer-base": [
            "encoder.attention.shared_projection=key_value",
            "decoder.attention.shared_projection=query_key_value",
            "encoder.position={kind: sinusoidal, offset: 2}",
            "decoder.position={kind: learned, max_len: 9}",
        ],
        "tiny-alibi": ["defaults.attention.output_projection=false", "defaults.attention.output_gate=headwise"],
        "rnn-language-model": ["body.cell=rnn_relu"],
        "vit-tiny": ["image.class_token=true", "image.distillation_token=true", "image.registers=2"],
    }
    for name, changes in variants.items():
        spec = tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, ["expect=null", *OVERRIDES[name], *changes])
        write_case(tmp_path, name, spec, catalogue)
    ends = ["expect=null", *OVERRIDES["gpt2"], "tokens.pad_id=3", "tokens.end_id=3"]  # ends stand in the middle too
    write_case(tmp_path, "pad_is_end", tfkit.load_spec(SPECS / "gpt2.yaml", catalogue, ends), catalogue)
    for number, position in enumerate(("kind: learned, max_len: 9", "kind: sinusoidal, d_position: 4")):
        file = tmp_path / f"appended{number}.yaml"
        file.write_text(APPENDED % position, encoding="utf-8")
        write_case(tmp_path, file.stem, tfkit.load_spec(file, catalogue), catalogue)
    for name in ("luong", "rnnsearch"):
        changes = ["expect=null", *OVERRIDES[name], "decoder.cross_attention.local={half_width: 2}"]
        changes += ["outputs=[logits, encoder.layers, decoder.layers]"]
        write_case(tmp_path, name, tfkit.load_spec(SPECS / f"{name}.yaml", catalogue, changes), catalogue)
    assert sum("greedy" in result for result in check(tmp_path).values()) == 11


POSITIONS = (
    "{kind: relative_shaw, max_distance: 2, tables: stack}", "{kind: relative_shaw, max_distance: 2, tables: layer}",
    "{kind: relative_t5, buckets: 6, max_distance: 5, tables: layer}", "{kind: relative_t5, buckets: 4, max_distance: 9}",
    "{kind: relative_t5, buckets: 8, max_distance: 5}", "alibi", "rotary_half",
)  # fmt: skip


@pytest.mark.slow
def test_every_position_scheme_is_written_for_every_place_of_its_tables(tmp_path, catalogue):
    for number, position in enumerate(POSITIONS):
        changes = [f"encoder.position={position}", f"decoder.position={position}"]
        for scale in ("1.0", "0.3", "head_dim"):
            words = [f"decoder.attention.scale={scale}", f"encoder.attention.scale={scale}"] if scale != "head_dim" else []
            words = ["expect=null", *OVERRIDES["transformer-tiny"], *changes, *words]
            spec = tfkit.load_spec(SPECS / "transformer-tiny.yaml", catalogue, words)
            write_case(tmp_path, f"case_{number}_{scale.replace('.', '_')}", spec, catalogue)
    assert len(check(tmp_path)) == 3 * len(POSITIONS)


@pytest.mark.slow
def test_the_part_of_a_plugin_writes_its_own_text(tmp_path, with_example):
    spec = tfkit.load_spec(EXAMPLE / "macaron.yaml", with_example, ["tokens.vocab_size=61", "defaults.d_model=24"])
    write_case(tmp_path, "macaron", spec, with_example)
    check(tmp_path)
    assert "class Convolution(nn.Module):" in (tmp_path / "macaron.py").read_text()


def test_parts_without_a_template_are_refused_by_name(with_example, monkeypatch):
    spec = tfkit.load_spec(EXAMPLE / "macaron.yaml", with_example)
    for slot, name in (("sublayer", "acme.conv"), ("activation", "silu")):
        entry = with_example.find(slot, name)
        monkeypatch.setitem(entry.__dict__, "source", "")
    with pytest.raises(tfkit.SpecError) as refused:
        eject(spec)
    found = [(error.code, error.location.line, error.message) for error in refused.value.diagnostics]
    assert sorted(found) == [
        ("TFK150", 9, "the activation `silu` has no source code to write"),
        ("TFK150", 17, "the sublayer `acme.conv` has no source code to write"),
    ]


def test_an_option_without_source_code_is_refused(catalogue):
    spec = tfkit.load_spec(SPECS / "transformer-tiny.yaml", catalogue, ["encoder.attention.value_residual=mean"])
    with pytest.raises(tfkit.SpecError, match=r"nodes\.encoder: no source code is written for `value_residual`"):
        eject(spec)


@pytest.mark.slow
def test_the_command_writes_a_file_that_decodes(command):
    sizes = ["encoder.num_layers=1", "decoder.num_layers=1", "defaults.vocab_size=61", "expect=null"]
    model = tfkit.build(tfkit.load_spec(SPECS / "transformer-tiny.yaml", overrides=sizes), seed=3)
    tfkit.save(model, "saved")
    assert command("eject", "saved", "-o", "model.py").code == 0
    text = Path("model.py").read_text(encoding="utf-8")
    assert command("eject", "saved").out == command("eject", "saved", "-o", "-").out == text
    assert command("eject", "saved", "--json").json() == {"name": "transformer-tiny", "lines": text.count("\n"), "source": text}
    again = command("eject", "saved", "-o", "model.py")
    assert again.code == 2
    assert "TFK080 model.py exists already" in again.err
    assert command("eject", "saved", "-o", "model.py", "--force", "--json").json()["file"] == "model.py"
    words = [sys.executable, "model.py", "saved/model.safetensors", "--source", "5", "9", "7", "--max-new-tokens", "4"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    ours = tfkit.greedy(model.eval(), torch.tensor([[5, 9, 7]]), max_new_tokens=4)
    assert [int(word) for word in printed.split()] == [1, *ours.ids[0, : ours.lengths[0]].tolist()]


def test_text_of_a_spec_stays_inside_the_docstring(catalogue):
    """A model directory of somebody else gives the text; the file that is written runs nothing of it."""
    words = ['x"""\nimport os', "import os", 'a\\"""', '""""', "\\", '"', "\r\nimport os", "\u2028import os"]
    usual = ast.parse(eject(tfkit.load_spec(SPECS / "transformer-tiny.yaml", catalogue)))
    for text in [*words, '\\\\"""\fimport os']:
        data = {"extends": "transformer-tiny.yaml", "tfkit": 1, "name": text, "description": text, "reference": text}
        found = ast.parse(eject(tfkit.parse_spec(json.dumps(data), catalogue, file=str(SPECS / "x.yaml"))))
        assert ast.get_docstring(found) != ast.get_docstring(usual)
        assert [ast.dump(each) for each in found.body[1:]] == [ast.dump(each) for each in usual.body[1:]], text


NAMED = """
tfkit: 1
name: named
defaults: {{d_model: 8, vocab_size: 9, pad_id: 0, placement: pre, norm: layer_norm, position: {{kind: learned, max_len: 6}},
           attention: {{num_heads: 2}}, ffn: {{d_ff: 8, activation: gelu}}}}
nodes:
  {0}: {{kind: tokens, segments: 2}}
  {1}: {{kind: stack, input: {0}, num_layers: 1}}
  {2}: {{kind: tokens, start_id: 1, end_id: 2}}
  {3}:
    {{kind: stack, input: {2}, causal: true,
     layers: [{{sublayers: [self_attention, {{kind: cross_attention, memory: {1}}}, ffn]}}]}}
  {4}: {{kind: token_logits, input: {3}, bias: true}}
outputs: [{4}]
"""
ROLES = ["source", "encoder", "target", "decoder", "out"]


def program(names, catalogue):
    """The ejected program and the model, with these names of nodes."""
    spec = tfkit.parse_spec(NAMED.format(*names), catalogue)
    namespace = {"__name__": "program"}
    exec(compile(eject(spec), "program.py", "exec"), namespace)  # our own text
    model = tfkit.build(spec, catalogue, seed=1).eval()
    ejected = namespace["Transformer" if "Transformer" in namespace else "Model"]().eval()
    ejected.load_state_dict(model.state_dict())
    return namespace, ejected, model


def is_allowed(names, catalogue):
    """Whether the language has such names."""
    try:
        tfkit.graph_of(tfkit.parse_spec(NAMED.format(*names), catalogue))
    except tfkit.SpecError:
        return False
    return True


@pytest.mark.parametrize(
    "names",
    [
        ["range", "range__", "range_", "range___", "print"],
        ["x_", "y_", "x", "y", "layer"],
        ["a_visible", "memory_", "a_visible_", "memory", "out"],
        ["class_", "mask_", "class", "mask", "mask__"],
    ],
)
def test_names_that_differ_by_underscores_at_their_end(names, catalogue):
    _, ejected, model = program(names, catalogue)
    inputs = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[1, 4], [1, 5]])
    assert torch.allclose(ejected(*inputs), model(**{names[0]: inputs[0], names[2]: inputs[1]})[names[4]], atol=1e-5)


@pytest.mark.slow
def test_a_node_may_be_called_like_any_word_of_the_program(catalogue):
    """Words that are free of each other are tried together, every one of them once in every role."""
    words = {
        each.id
        for each in ast.walk(ast.parse(eject(tfkit.parse_spec(NAMED.format(*ROLES), catalogue))))
        if isinstance(each, ast.Name)
    }
    words |= {
        "visible",
        "segments",
        "class",
        "help",
        "source_visible",
        "encoder_mask",
        "gelu",
        "D_MODEL",
        "Transformer",
        "args",
        "x",
    }
    words -= set(ROLES)
    far, rows, refused = [], [], []
    for word in sorted(words):
        alone = [[*ROLES[:number], word, *ROLES[number + 1 :]] for number in range(len(ROLES))]
        allowed = [names for names in alone if is_allowed(names, catalogue)]
        if len(allowed) < len(alone):
            refused.append(word)
        if len(allowed) < len(alone) or any(role in word for role in ROLES):  # it may meet the other names
            rows += allowed
        else:
            far.append(word)
    rows += [[far[(first + 7 * number) % len(far)] for number in range(len(ROLES))] for first in range(len(far))]
    inputs = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[1, 4], [1, 5]])
    for names in rows:
        namespace, ejected, model = program(names, catalogue)
        assert torch.allclose(ejected(*inputs), model(**{names[0]: inputs[0], names[2]: inputs[1]})[names[4]], atol=1e-5), names
        assert namespace["greedy"](ejected, *inputs, max_new_tokens=3).shape[1] <= 5, names
    assert len(refused) < len(words) / 4
