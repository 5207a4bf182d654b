"""A model whose norms are over the batch: padding counts nowhere, and its running statistics are those of the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit.interop.eject import eject
from tfkit.plugin import Diagnostic, Placement, hookimpl
from tfkit.train.distributed.ddp_fsdp import shard
from tfkit.train.lora import check_targets
from tfkit.train.train_state import MovingAverage

SPEC = """
tfkit: 1
name: batches
defaults: {d_model: 8, vocab_size: 11, pad_id: 0, position: sinusoidal, placement: pre,
  norm: {kind: batch_norm, eps: 1.0e-3, momentum: 0.3}, attention: {num_heads: 2}, ffn: {d_ff: 12, activation: relu}}
nodes:
  source: {kind: tokens}
  target: {kind: tokens, share: source}
  encoder: {kind: stack, input: source, num_layers: 2, causal: false}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 1, causal: true}
  logits: {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
SOURCE = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]])
TARGET = torch.tensor([[1, 4, 5], [1, 8, 0], [1, 9, 10]])


PLACEMENTS = ["pre", "post", "sandwich", "residual_post", "deepnorm", "parallel", "{kind: parallel, norms: separate}"]


def built(text: str = SPEC, placement: str = "pre") -> tfkit.Model:
    return tfkit.build(tfkit.parse_spec(text.replace("placement: pre", f"placement: {placement}")), dtype=torch.float64, seed=1)


def trained(model: tfkit.Model, extra: int = 0) -> Tensor:
    """The logits of a pass in training, with `extra` columns of padding."""
    source, target = (torch.nn.functional.pad(ids, (0, extra)) for ids in (SOURCE, TARGET))
    return model.train()(source=source, target=target)["logits"][:, : TARGET.shape[1]]


def statistics(model: tfkit.Model) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_padding_counts_nowhere_in_training(placement: str):
    model, other = built(placement=placement), built(placement=placement)
    real = TARGET != 0
    torch.testing.assert_close(trained(model)[real], trained(other, extra=3)[real], rtol=1e-12, atol=1e-12)
    assert_close(statistics(model), statistics(other))
    for name, buffer in model.named_buffers():  # each norm counts the tokens of its own sequence, and moved
        assert not torch.equal(buffer, torch.full_like(buffer, float(name.endswith("var")))), name


def test_a_saved_model_has_its_statistics_and_decodes_with_a_cache_as_at_once(tmp_path: Path):
    model = built()
    trained(model)
    loaded = tfkit.load(tfkit.save(model, tmp_path / "model"))
    assert_close(statistics(loaded), statistics(model))
    with torch.no_grad():
        at_once = loaded.eval()(source=SOURCE, target=TARGET)["logits"]
        state = loaded.start("target", source=SOURCE)
        steps = torch.cat([loaded.step(state, ids)["logits"] for ids in TARGET.split(1, 1)], 1)
    real = TARGET != 0
    torch.testing.assert_close(steps[real], at_once[real], rtol=1e-12, atol=1e-12)


def test_recomputed_activations_move_the_statistics_once():
    plain, recomputed = built(), built(SPEC.replace("causal: false", "causal: false, checkpoint: true"))
    for model in (plain, recomputed):
        trained(model).sum().backward()
    assert_close(statistics(recomputed), statistics(plain))


def test_the_ejected_file_computes_the_same_in_training():
    model, scope = built(), {"__name__": "ejected"}
    exec(compile(eject(model.spec), "ejected.py", "exec"), scope)
    ejected = scope["Transformer"]().double()
    ejected.load_state_dict(model.state_dict(), strict=False)
    ours, theirs = trained(model), ejected.train()(SOURCE, TARGET)
    real = TARGET != 0
    torch.testing.assert_close(theirs[real], ours[real], rtol=1e-12, atol=1e-12)
    both = statistics(model).values(), (buffer for buffer in ejected.buffers())
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_a_moving_average_averages_the_statistics_and_gives_the_own_ones_back():
    model = built()
    average = MovingAverage(model, 0.9)
    trained(model)
    average.update(model, average.next_share())
    before, name = statistics(model), "nodes.encoder.final_norm.running_var"
    with average.used_by(model):
        mean = model.get_buffer(name)
        torch.testing.assert_close(mean, before[name] * (9 / 11) + 2 / 11, rtol=1e-12, atol=1e-12)
    assert_close(statistics(model), before)


def test_buffers_are_no_parameters():
    model = built()
    graph = tfkit.graph_of(model.spec)
    assert graph.parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert graph.parameters(trainable=False) == 0


def test_a_norm_of_queries_and_keys_is_refused_where_it_is_written():
    text = SPEC.replace("num_heads: 2}", "num_heads: 2, query_key_norm: batch_norm}")
    with pytest.raises(tfkit.SpecError, match=r"TFK040 \S*query_key_norm: batch_norm is over the tokens of a batch"):
        tfkit.graph_of(tfkit.parse_spec(text))


def test_a_placement_that_does_not_pass_the_padding_on_is_refused(catalogue: tfkit.Catalogue):
    class Silent:
        @hookimpl
        def tfkit_placements(self) -> list[Placement]:
            return [replace(catalogue.find("placement", "post"), name="test.silent", passes_padding=False)]

    wide = catalogue.with_plugin(Silent(), "test")
    with pytest.raises(tfkit.SpecError, match=r"norm: batch_norm must not count padding, and the placement test\.silent"):
        tfkit.graph_of(tfkit.parse_spec(SPEC.replace("placement: pre", "placement: test.silent"), wide))


def test_shards_and_adapters_are_refused():
    model, recipe = (
        built(),
        SimpleNamespace(lora=1, pretrained=1, diagnostic=lambda code, key, *words: Diagnostic(code, *words)),
    )
    with pytest.raises(tfkit.BuildError, match=r"TFK118 .*running_mean` is a statistic of the batches"):
        shard(model, None)
    with pytest.raises(tfkit.InputError, match=r"TFK132 adapters are saved without .*running_mean"):
        check_targets(recipe, model)
