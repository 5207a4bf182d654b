"""Decoding step by step gives what one pass over the whole target gives.

    R20   any chunking of the target, against the full forward: all 2^(n-1) of a length n of at most 6
          more than 64 positions, where the model has so many: in random chunks with padding given by masks, and one by one with
          that of the other inputs given by lengths; many rows in random chunks; both against the plain evaluation in float64,
          where there is one
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
from .expected import is_causal, node_of, tokens_of
from .model_under_test import ModelUnderTest
from .recording import as_recorded, node_outputs, run
from .rounding import agree
from .row import NotApplicable, same

EXHAUSTIVE = 6


class _Stop(Exception):
    """Raised on purpose after the last node of a step, as an interrupt or a lack of memory would."""


def chunkings(subject: ModelUnderTest) -> float:
    """R20."""
    worst = 0.0
    for target in _targets(subject):
        length = min(EXHAUSTIVE, subject.batch.ids[target].shape[1])
        short = _shortened(subject, target, length)
        want = _following(subject, target, run(subject.model, short))
        for chunks in compositions(length):
            got = steps(subject.model, target, short, chunks)
            words = f"`{target}` decoded in chunks of {chunks}"
            worst = max(worst, agree("decoding", got, want, subject.yardstick, words, subject.shown(short)))
        worst = max(worst, _long(subject, target), _many(subject, target))
    return worst


def _long(subject: ModelUnderTest, target: str) -> float:
    """The long batch, in chunks and one by one."""
    truth = subject.measured.long
    length, masks = truth.batch.ids[target].shape[1], subject.shown(truth.batch)
    want = _following(subject, target, run(subject.model, truth.batch) | truth.outputs)
    worst = 0.0
    for by_lengths, chunks in ((False, _random(subject, length)), (True, [1] * length)):
        got = steps(subject.model, target, truth.batch, chunks, by_lengths)
        how = "one by one" if by_lengths else f"in chunks of {chunks}"
        words = f"{length} positions of `{target}` decoded {how}"
        worst = max(worst, agree("decoding", got, want, truth.yardstick, words, masks))
    return worst


def _many(subject: ModelUnderTest, target: str) -> float:
    """The batch of many rows, in chunks."""
    truth = subject.measured.many
    rows, length = truth.batch.ids[target].shape
    chunks = _random(subject, length)
    want = _following(subject, target, run(subject.model, truth.batch) | truth.outputs)
    got = steps(subject.model, target, truth.batch, chunks)
    words = f"{rows} rows of `{target}` decoded in chunks of {chunks}"
    return agree("decoding", got, want, truth.yardstick, words, subject.shown(truth.batch))


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
            pieces.append(_advance(model, state, batch, target, slice(at, at + count)))
            at += count
        got = {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}
        masks = subject.shown(batch)
        for name in want:
            same(
                "decoding",
                got[name],
                want[name],
                "a step that failed must leave the state unchanged",
                f"`{name}`",
                masks.get(name),
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
            masks = {name: tensor[:, half:] for name, tensor in subject.shown(after).items() if name in want}
            words = f"rows {index.tolist()} kept after {half} positions of `{target}`"
            worst = max(worst, agree("decoding", got, want, subject.yardstick, words, masks))
    return worst


def _targets(subject: ModelUnderTest) -> list[str]:
    plan = subject.model.plan
    targets = [name for name in plan.inputs if name not in plan.undecodable and _has_causal_node(subject, name)]
    if not targets:
        reasons = [f"`{name}`: {reason}" for name, reason in plan.undecodable.items()]
        raise NotApplicable("; ".join(reasons) or "nothing to decode")
    return targets


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


def start(model: Model, target: str, batch: Batch, by_lengths: bool = False) -> DecodingState:
    rows = None if len(model.plan.inputs) > 1 else batch.size
    inputs = batch.call(without=target, dtype=model.dtype, by_lengths=by_lengths)
    return model.start(target, batch=rows, capacity=4, **inputs)


def steps(model: Model, target: str, batch: Batch, chunks: list[int], by_lengths: bool = False) -> dict[str, Tensor]:
    """What the nodes that follow the target give, step by step, put together again."""
    state, at, pieces = start(model, target, batch, by_lengths), 0, []
    for count in chunks:
        pieces.append(_advance(model, state, batch, target, slice(at, at + count)))
        at += count
    return {name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}


def _advance(model: Model, state: DecodingState, batch: Batch, target: str, now: slice) -> dict[str, Tensor]:
    with node_outputs(model) as outputs:
        returned = model.step(state, batch.ids[target][:, now], batch.visible[target][:, now], **_segments(batch, target, now))
    return {name: tensors[0] for name, tensors in outputs.items() if tensors} | as_recorded(returned)


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


def _random(subject: ModelUnderTest, length: int) -> list[int]:
    generator, chunks = subject.generator(), list[int]()
    while sum(chunks) < length:
        chunks.append(int(torch.randint(1, min(length - sum(chunks), 8) + 1, (1,), generator=generator)))
    return chunks
