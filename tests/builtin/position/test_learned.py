from __future__ import annotations

import pytest
import torch
from transformers import RobertaConfig
from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from tfkit.builtin.position.embedding_positions import learned as build
from tfkit.builtin.position.entries import LearnedOptions, learned_parameters, learned_unsupported
from tfkit.plugin import InputError
from tfkit.plugin.model_parts import PositionSite


def module_of(site: PositionSite | None = None, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    module = build(LearnedOptions(**options), site or PositionSite(4))
    torch.nn.init.normal_(module.table)
    return module


@pytest.mark.parametrize("offset", [0, 3])
def test_offset_two_is_barts_table(offset, span_of):
    module, peer = module_of(max_len=9, offset=2), BartLearnedPositionalEmbedding(9, 4)
    assert peer.weight.shape == module.table.shape
    with torch.no_grad():
        peer.weight.copy_(module.table)
    x = torch.zeros(2, 5, 4)
    expected = peer(torch.zeros(2, 5, dtype=torch.int64), past_key_values_length=offset)
    assert torch.equal(module.embed(x, span_of(5, offset=offset)), expected)


def test_count_visible_is_robertas(span_of):
    ids = torch.tensor([[5, 6, 7, 1, 1], [1, 1, 8, 9, 7], [5, 1, 6, 1, 7]])
    padding_row = 1
    module = module_of(max_len=7, offset=2, count="visible")
    config = RobertaConfig(hidden_size=4, max_position_embeddings=9, pad_token_id=padding_row, vocab_size=20)
    rows = RobertaEmbeddings(config).create_position_ids_from_input_ids(ids, padding_row)
    y = module.embed(torch.zeros(3, 5, 4), span_of(5, visible=ids != padding_row))
    assert torch.equal(y, module.table[rows])


def test_count_visible_while_decoding(span_of):
    module = module_of(max_len=7, offset=1, count="visible")
    visible = torch.tensor([[False, False, True, True, True]])
    whole = module.embed(torch.zeros(1, 5, 4), span_of(5, visible=visible))
    step = module.embed(torch.zeros(1, 1, 4), span_of(1, offset=4, visible=visible))
    assert torch.equal(step, whole[:, 4:])
    assert torch.equal(step[0, 0], module.table[1 + 2])


def test_without_an_offset_padding_reads_row_zero(span_of):
    module = module_of(max_len=3, count="visible")
    y = module.embed(torch.zeros(1, 3, 4), span_of(3, visible=torch.tensor([[False, True, True]])))
    assert torch.equal(y[0], module.table[[0, 0, 1]])


def test_without_padding_both_counts_agree(span_of):
    one, other = module_of(max_len=5), module_of(max_len=5, count="visible")
    x = torch.randn(2, 5, 4)
    assert torch.equal(one.embed(x, span_of(5)), other.embed(x, span_of(5)))
    shown = torch.ones(2, 5, dtype=torch.bool)
    assert torch.equal(one.embed(x, span_of(5)), other.embed(x, span_of(5, visible=shown)))


@pytest.mark.parametrize(("queries", "offset"), [(6, 0), (1, 5), (3, 3)])
@pytest.mark.parametrize("count", ["all", "visible"])
def test_a_position_beyond_the_table_is_an_error_with_both_numbers(queries, offset, count, span_of):
    module = module_of(max_len=5, offset=7, count=count)
    visible = torch.ones(1, offset + queries, dtype=torch.bool)
    with pytest.raises(InputError, match=rf"position {offset + queries}.*`max_len` 5"):
        module.embed(torch.zeros(1, queries, 4), span_of(queries, offset=offset, visible=visible))


def test_rows_of_the_input_stand_in_for_max_len(span_of):
    site = PositionSite(4, rows=6)
    assert not learned_unsupported(LearnedOptions(), site)
    assert learned_parameters(LearnedOptions(offset=1), site)[0].shape == (7, 4)
    assert module_of(site).embed(torch.zeros(1, 6, 4), span_of(6)).shape == (1, 6, 4)


def test_reasons_name_the_numbers():
    assert "max_len" in learned_unsupported(LearnedOptions(), PositionSite(4))[0]
    (reason,) = learned_unsupported(LearnedOptions(max_len=5), PositionSite(4, rows=6))
    assert "5" in reason
    assert "6" in reason
    assert not learned_unsupported(LearnedOptions(max_len=6), PositionSite(4, rows=6))
