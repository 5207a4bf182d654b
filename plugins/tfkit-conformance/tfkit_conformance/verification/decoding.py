"""Decoding step by step gives what one pass over the whole target gives.

    R20   any chunking of the target, against the full forward: all 2^(n-1) of a length n of at most 6, random ones of the whole
    R21   a step that fails and is taken again, with other ids and another length, leaves no trace: the same steps give the
          same bits as if it had never been tried
          reordered hypotheses, repeated and dropped, go on as their own rows would

Left and right padded rows take part, in source and target.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tfkit import DecodingState, Model

from .batch import Batch, draw, other_ids
from .comparison import same
from .expected import is_causal, node_of, tokens_of
from .model_under_test import ModelUnderTest
from .recording import node_outputs, run
from .rounding import agree
from .row import NotApplicable

EXHAUSTIVE = 6
RANDOM = 3


class _Stop(Exception):
    """Raised on purpose after the last node of a step, as an interrupt or a lack of memory would."""


def chunkings(subject: ModelUnderTest) -> float:
    """R20."""
    worst = 0.0
    for target in _targets(subject):
        length = subject.batch.ids[target].shape[1]
        short = _shortened(subject, target, min(EXHAUSTIVE, length))
        for batch, plans in ((short, compositions(min(EXHAUSTIVE, length))), (subject.batch, _random(subject, length))):
            want = _following(subject, target, run(subject.model, batch))
            for chunks in plans:
                got = steps(subject.model, target, batch, chunks)
                words = f"`{target}` decoded in chunks of {chunks}"
                worst = max(worst, agree("decoding", got, want, subject.stick, words, subject.shown(batch)))
    return worst


def failed_step(subject: ModelUnderTest) -> None:
    """R21: a step that failed is as if it had not been tried."""
    for target in _targets(subject):
        batch = _shortened(subject, target, min(EXHAUSTIVE, subject.batch.ids[target].shape[1]))
        L = batch.ids[target].shape[1]
        if L < 3:
            raise NotApplicable("the target is too short to go back")
        chunks = [1, 1, L - 2]
        want = steps(subject.model, target, batch, chunks)
        state = start(subject.model, target, batch)
        model, last = (
            subject.model,
            [name for name in subject.model.plan.wires if name in subject.model.plan.followers[target]][-1],
        )
        wrong = other_ids(model.plan.token_rule(target), batch.ids[target], subject.generator())
        visible, at, pieces = batch.visible[target], 0, []
        for count in chunks:
            handle = model.nodes[last].register_forward_hook(_stop)
            tried = slice(at, min(at + 3, L))
            try:
                model.step(state, wrong[:, tried], visible[:, tried], **_segments(batch, target, tried))
            except _Stop:
                pass
            finally:
                handle.remove()
            now = slice(at, at + count)
            with node_outputs(model) as found:
                model.step(state, batch.ids[target][:, now], visible[:, now], **_segments(batch, target, now))
            pieces.append({name: tensors[0] for name, tensors in found.items() if tensors})
            at += count
        got = {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}
        shown = subject.shown(batch)
        for name in want:
            same(
                "decoding",
                got[name],
                want[name],
                "a step that failed must leave the state unchanged",
                f"`{name}`",
                shown.get(name),
            )


def _stop(*_: object) -> None:
    raise _Stop


def reordered(subject: ModelUnderTest) -> float:
    """Rows chosen in mid-decoding, as a beam search does, against the full forward of what they have become."""
    worst = 0.0
    for target in _targets(subject):
        batch = subject.batch
        B, L = batch.ids[target].shape
        if L < 2:
            raise NotApplicable("the target is too short to go on")
        for index in (torch.arange(B).roll(1), torch.tensor([B - 1, B - 1, 0])[: B + 1]):
            half = L // 2
            state = start(subject.model, target, batch)
            _advance(subject.model, state, batch, target, slice(0, half))
            state.reorder(index.to(batch.ids[target].device))
            after = batch.rows(index)
            later = other_ids(subject.model.plan.token_rule(target), after.ids[target], subject.generator())
            ids = torch.cat([after.ids[target][:, :half], later[:, half:]], 1)
            after = after.with_ids(target, ids)
            pieces = [_advance(subject.model, state, after, target, slice(at, at + 1)) for at in range(half, L)]
            got = {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}
            want = {name: tensor[:, half:] for name, tensor in _following(subject, target, run(subject.model, after)).items()}
            shown = {name: tensor[:, half:] for name, tensor in subject.shown(after).items() if name in want}
            words = f"rows {index.tolist()} kept after {half} positions of `{target}`"
            worst = max(worst, agree("decoding", got, want, subject.stick, words, shown))
    return worst


def _targets(subject: ModelUnderTest) -> list[str]:
    plan = subject.model.plan
    found = [name for name in plan.inputs if name not in plan.undecodable and _has_causal_node(subject, name)]
    if not found:
        reasons = [f"`{name}`: {reason}" for name, reason in plan.undecodable.items()]
        raise NotApplicable("; ".join(reasons) or "nothing to decode")
    return found


def _has_causal_node(subject: ModelUnderTest, target: str) -> bool:
    return any(is_causal(subject.graph.nodes[name]) for name in subject.following(target))


def _following(subject: ModelUnderTest, target: str, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    wanted = subject.model.plan.followers[target]
    return {
        name: t for name, t in outputs.items() if node_of(name) in wanted and tokens_of(subject.graph, node_of(name)) == target
    }


def _shortened(subject: ModelUnderTest, target: str, length: int) -> Batch:
    """A batch whose target has so few positions, padded in its own way."""
    lengths = {name: ids.shape[1] for name, ids in subject.batch.ids.items()}
    rows = subject.batch.ids[target].shape[0]
    return draw(subject.model, {**lengths, target: length}, rows, subject.seed + 7, subject.device)


def start(model: Model, target: str, batch: Batch) -> DecodingState:
    rows = None if len(model.plan.inputs) > 1 else batch.size
    return model.start(target, batch=rows, capacity=4, **batch.call(without=target, dtype=model.dtype))


def steps(model: Model, target: str, batch: Batch, chunks: list[int]) -> dict[str, Tensor]:
    """What the nodes that follow the target give, step by step, put together again."""
    state, at, pieces = start(model, target, batch), 0, []
    for count in chunks:
        pieces.append(_advance(model, state, batch, target, slice(at, at + count)))
        at += count
    return {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}


def _advance(model: Model, state: DecodingState, batch: Batch, target: str, now: slice) -> dict[str, Tensor]:
    with node_outputs(model) as found:
        model.step(state, batch.ids[target][:, now], batch.visible[target][:, now], **_segments(batch, target, now))
    return {name: tensors[0] for name, tensors in found.items() if tensors}


def _segments(batch: Batch, target: str, now: slice) -> dict[str, Tensor]:
    return {"segments": batch.segments[target][:, now]} if target in batch.segments else {}


def compositions(n: int) -> Iterator[list[int]]:
    """All 2^(n-1) ways to write n as a sum of positive numbers in order."""
    for bits in range(2 ** (n - 1)):
        chunks = [1]
        for position in range(n - 1):
            if bits >> position & 1:
                chunks.append(1)
            else:
                chunks[-1] += 1
        yield chunks


def _random(subject: ModelUnderTest, length: int) -> Iterator[list[int]]:
    for number in range(RANDOM):
        generator, left, chunks = subject.generator(number), length, []
        while left:
            chunks.append(int(torch.randint(1, min(left, 8) + 1, (1,), generator=generator)))
            left -= chunks[-1]
        yield chunks
