"""Hypotheses that share their beginnings equal those that have copies of their own; modules that cannot share get copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import DecodingState, Model
from tfkit.inspection import BackendChoice
from tfkit.nn.runtime import beam_tree as tree
from tfkit.plugin import AttentionInputs
from tiers import EVERY_CASE

SCHEMES = [
    "none", "sinusoidal", "rotary_half", "rotary_interleaved", "alibi", "relative_t5", "{kind: relative_t5, tables: layer}",
    "relative_shaw", "{kind: learned, max_len: 60, count: visible}",
]  # fmt: skip
PROMPT = torch.tensor([[0, 1, 5], [4, 7, 8], [0, 0, 9]])
SOURCE = torch.randint(3, 11, (3, 5), generator=torch.Generator().manual_seed(3))
SOURCE[1, 3:] = 0
STEPS, K = 24, 3


def walk(model: Model, state: DecodingState, share: bool, seed: int, **first: Any) -> tuple[list[Tensor], int]:
    """Logits of hypotheses that are chosen at random, sentences that leave at random included; and the most keys kept."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    state.shares = None if share else False
    progress = [model.step(state, **first)["logits"][:, -1]]
    sentences, width, most = state.batch, 1, 0
    for step in range(STEPS):
        kept = None
        if step in (0, 5, 12) and sentences > 1:
            kept = torch.arange(sentences)[torch.arange(sentences) != drawn(sentences, 1)]
            sentences = len(kept)
        parents = drawn(min(width, 2 if step % 3 else width), sentences, K)
        rows = parents + width * (torch.arange(sentences) if kept is None else kept)[:, None]
        model.branch(state, rows.flatten(), K, kept)
        width = K
        progress.append(model.step(state, drawn(11, sentences * K, 1), True)["logits"][:, -1])
        most = max(most, *(cache.length for cache in state.caches.values()))
    return progress, most


@pytest.mark.exhaustive
@pytest.mark.parametrize("position", SCHEMES)
def test_it_is_all_the_same(position: str, decoder_of: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the shared keys are pruned, which is another way with each seed."""
    pruning = (1, 6, 1000)
    window = "defaults.attention.window=7"
    for kind, overrides in (
        ("writer", ()),
        ("writer", (window,)),
        ("translator", ()),
        ("writer", ("defaults.attention.num_kv_heads=1",)),
    ):
        model = decoder_of(kind, *overrides, position=position)
        inputs: dict[str, Any] = {"source": SOURCE} if kind == "translator" else {"batch": 3}
        ids = PROMPT[:, 1:] if "count" not in position and position == "sinusoidal" else PROMPT
        first = {"ids": ids.clamp(min=3) if position == "sinusoidal" else ids}
        for seed in range(3):
            copied, _ = walk(model, model.start(capacity=4, **inputs), False, seed, **first)
            for crowded in pruning if EVERY_CASE else pruning[seed : seed + 1]:
                monkeypatch.setattr(tree, "PRUNE_AFTER", crowded)
                shared, kept = walk(model, model.start(capacity=4, **inputs), True, seed, **first)
                for one, other in zip(shared, copied, strict=True):
                    torch.testing.assert_close(one, other)
                assert kept < 3 * STEPS if crowded < 1000 else kept == ids.shape[1] + K * STEPS


def test_hypotheses_do_share_and_their_memory_stays(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("translator")
    state = model.start(source=SOURCE)
    model.step(state, torch.ones(3, 1, dtype=torch.int64), True)
    before = {site: keys for site, (keys, _) in state.crossed.items()}
    model.branch(state, torch.tensor([0, 0, 1, 1, 2, 2]), 2)
    model.step(state, torch.full((6, 1), 4), True)
    model.branch(state, torch.tensor([1, 1, 3, 2, 4, 4]), 2)
    assert state.shares
    assert state.batch == 6
    for site, (keys, _) in state.crossed.items():
        assert keys is before[site]
    assert {cache.key.shape[0] for cache in state.caches.values()} == {3}


@pytest.mark.slow
@pytest.mark.parametrize("requested", ["eager", "sdpa", ["sdpa", "eager"], "flex"])
def test_every_backend_finds_the_same(requested: Any, decoder_of: Callable[..., Model]) -> None:
    for position in ("rotary_half", "alibi"):
        model = decoder_of("translator", position=position)
        wanted = tfkit.beam_search(model, source=SOURCE, beams=3, max_new_tokens=9)
        model.set_backend(requested)
        found = tfkit.beam_search(model, source=SOURCE, beams=3, max_new_tokens=9)
        assert [one.ids.tolist() for (one,) in found] == [one.ids.tolist() for (one,) in wanted]


def test_a_backend_without_such_masks_gets_copies(decoder_of: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder_of("translator")
    wanted = tfkit.beam_search(model, source=SOURCE, beams=3, n_best=3, max_new_tokens=9)
    site = "decoder.0.self_attention"
    select = BackendChoice.select

    def poor(self: BackendChoice, inputs: AttentionInputs, *rest: Any) -> Any:
        if self.site == site and inputs.mask.visible is not None:
            raise tfkit.BackendRefused(tfkit.Diagnostic("TFK060", "no such masks"))
        return select(self, inputs, *rest)

    monkeypatch.setattr(BackendChoice, "select", poor)
    seen = []
    branch = Model.branch

    def watched(self: Model, state: DecodingState, *rest: Any) -> None:
        branch(self, state, *rest)
        seen.append(state.shares)

    monkeypatch.setattr(Model, "branch", watched)
    found = tfkit.beam_search(model, source=SOURCE, beams=3, n_best=3, max_new_tokens=9)
    assert set(seen) == {False}
    for mine, theirs in zip(found, wanted, strict=True):
        assert [one.ids.tolist() for one in mine] == [one.ids.tolist() for one in theirs]


def test_a_state_that_shares_is_not_reordered_and_grows_by_one_token(decoder_of: Callable[..., Model]) -> None:
    model = decoder_of("writer")
    state = model.start(batch=2)
    model.step(state, torch.full((2, 1), 4), True)
    model.branch(state, torch.tensor([0, 0, 1, 1]), 2)
    with pytest.raises(tfkit.InputError, match=r"TFK073.*share their beginnings.*branch"):
        state.reorder(torch.tensor([0]))
    with pytest.raises(tfkit.InputError, match=r"TFK070.*\(4, 2\).*one token"):
        model.step(state, torch.full((4, 2), 4), True)
